#!/usr/bin/env python3
"""Thousands of streams that say nothing: what each costs, that all live, and that nothing stays behind.

KVBLEND_STREAMS says how many (500; the long suite takes 10 000). Each needs two descriptors in the gateway;
where the hard limit has no room for them, there are as many as fit, and the output says so.
"""
import os
import re
import resource
import select
import socket
import subprocess
import sys

from harness import HERE, KVBLEND, Program, main, need, until

WANTED = int(os.environ.get("KVBLEND_STREAMS", "500"))
PER_STREAM_BYTES = 16 << 10
SPARE_FDS = 600  # the gateway keeps some for itself
BATCH = 200  # connections that are being opened at once


def raise_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    n = min(WANTED, (hard - SPARE_FDS) // 2)
    if n < WANTED:
        print(f"     {n} streams, not {WANTED}: the hard limit of descriptors is {hard}")
    return n


def sanitized():
    with open(KVBLEND, "rb") as f:
        data = f.read()
    return b"__asan_init" in data or b"__tsan_init" in data


class Origin:
    """origin.py as a child; what it can be told is in its own text."""

    def __init__(self, port=0):
        self.proc = subprocess.Popen([sys.executable, os.path.join(HERE, "origin.py"), str(port)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.proc.stdout.readline().split()[1])

    def ask(self, command):
        self.proc.stdin.write(command + "\n")
        self.proc.stdin.flush()
        return int(self.proc.stdout.readline())

    def kill(self):
        self.proc.kill()
        self.proc.wait()
        self.proc.stdin.close()
        self.proc.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def start_gateway(*origins, args=()):
    """A gateway in front of these; ready when all are."""
    cmd = [KVBLEND, "--listen", "127.0.0.1:0", "--max-inflight", "65536", "--access-log", "off",
           "--connections-per-address", "1000000", *args]
    for i, o in enumerate(origins):
        cmd += ["--upstream", f"http://127.0.0.1:{o.port} name=o{i} models=m max_connections=65536"]
    g = Program(cmd)
    try:
        port = until("the gateway listens", lambda: g.proc.poll() is not None or re.search(
            r"gateway\.listening .*port=(\d+)", g.log()))
        assert g.proc.poll() is None, g.log()
        g.port = int(port.group(1))
        until("it is ready", lambda: g.get("/ready").status == 200)
    except BaseException:
        g.__exit__(Exception, None)
        raise
    return g


def rss_bytes(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1)) << 10


def n_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Streams:
    """Many client connections, each with one held stream."""

    def __init__(self, port):
        self.port, self.socks, self.seen = port, {}, {}
        self.poll = select.epoll()

    def open(self, n):
        body = b'{"model":"m","stream":true,"origin":{"kind":"hold"},"messages":[]}'
        request = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n").encode() + body
        while n > 0:
            for _ in range(min(n, BATCH)):
                s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
                s.sendall(request)
                s.setblocking(False)
                self.socks[s.fileno()], self.seen[s.fileno()] = s, b""
                self.poll.register(s, select.EPOLLIN)
                n -= 1
            self.read_until(b"first")

    def read_until(self, marker):
        """Until every stream has shown the marker; none may end before."""
        missing = {fd for fd, x in self.seen.items() if marker not in x}

        def some_missing():
            for fd, _ in self.poll.poll(0.05, 1024):
                data = self.socks[fd].recv(65536)
                assert data, f"a stream ended: {self.seen[fd][-300:]!r}"
                self.seen[fd] = (self.seen[fd] + data)[-4096:]
                if marker in self.seen[fd]:
                    missing.discard(fd)
            return bool(missing)
        until(f"{marker} on all streams", lambda: not some_missing(), 300)

    def close(self):
        for s in self.socks.values():
            s.close()
        self.socks.clear()
        self.poll.close()


def test_idle_streams_are_cheap_and_leave_nothing_behind():
    need(KVBLEND)
    n = raise_limit()
    with Origin() as o, start_gateway(o) as g:
        warm = Streams(g.port)  # code, pools and tables are in memory after these
        warm.open(20)
        warm.close()
        until("the warm-up is over", lambda: g.metric("kvblend_requests_active") == 0)
        until("its connections are closed", lambda: o.ask("count") < 10)
        fds, rss = n_fds(g.proc.pid), rss_bytes(g.proc.pid)
        streams = Streams(g.port)
        streams.open(n)
        per_stream = (rss_bytes(g.proc.pid) - rss) / n
        print(f"     {n} streams, {per_stream / 1024:.2f} KiB each, {n_fds(g.proc.pid)} descriptors")
        assert sanitized() or per_stream <= PER_STREAM_BYTES, per_stream
        assert g.metric("kvblend_requests_active") == n
        assert o.ask("event") == n
        streams.read_until(b"second")
        assert not any(b'"error"' in x for x in streams.seen.values())
        streams.close()
        until("no request is active", lambda: g.metric("kvblend_requests_active") == 0)
        until("the origin is left", lambda: o.ask("count") < 10)
        until("descriptors are given back", lambda: n_fds(g.proc.pid) <= fds + 4)
        aborts = g.metric("kvblend_gateway_client_aborts_total")
        assert aborts == n + 20, aborts
        print(f"     afterwards {rss_bytes(g.proc.pid) / 2**20:.1f} MiB, before {rss / 2**20:.1f} MiB")
        assert g.post("/v1/chat/completions", {"model": "m", "messages": []}).status == 200


if __name__ == "__main__":
    main(globals())
