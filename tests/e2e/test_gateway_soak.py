#!/usr/bin/env python3
"""The gateway under everything at once for a long time: what grows, what leaks, what does not add up.

KVBLEND_SOAK_S: how long the mixed load runs (1200 s). The other tests here take seconds: clients that do not
read, and upstreams that do not answer, must cost bounded memory and must stop nobody else.
"""
import asyncio
import json
import os
import random
import re
import signal
import socket
import statistics
import time

from harness import KVBLEND, main, need, until
from test_streams import Origin, n_fds, rss_bytes, sanitized, start_gateway

SOAK_S = float(os.environ.get("KVBLEND_SOAK_S", "1200"))
MARK_BYTES = 2 << 20      # per slow reader: the gateway's mark and one read, with room for the allocator
GROWTH_BYTES = 4 << 20    # of the last quarter over the second one
PATIENCE_S = 60


def chat(**origin):
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "origin": origin}


def send(port, body):
    data = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
              + data)
    return s


def serves(g):
    r = g.post("/v1/chat/completions", chat(bytes=300), timeout=PATIENCE_S)
    return r.status == 200 and r.json()["received"] > 0


def idle(g):
    until("no request is active", lambda: g.metric("kvblend_requests_active") == 0)


# ---- one thing at a time ----

def slow_readers(kind):
    n = 20
    with Origin() as o, start_gateway(o) as g:
        assert serves(g)
        before = rss_bytes(g.proc.pid)
        socks = [send(g.port, dict(chat(kind=kind, bytes=64 << 20), stream=kind == "flood")) for _ in range(n)]
        until("all are being answered", lambda: g.metric("kvblend_requests_active") == n)
        peak, end = 0, time.monotonic() + 5
        while time.monotonic() < end:
            assert serves(g)
            peak = max(peak, rss_bytes(g.proc.pid))
        per_reader = (peak - before) / n
        print(f"     {n} clients that read nothing: {per_reader / 1024:.0f} KiB each")
        assert sanitized() or per_reader <= MARK_BYTES, per_reader
        got = 0
        while got < 4 << 20:  # one goes on reading: the stream goes on, too
            data = socks[0].recv(1 << 16)
            assert data
            got += len(data)
        for s in socks:
            s.close()
        idle(g)


def test_clients_that_do_not_read_a_stream():
    slow_readers("flood")


def test_clients_that_do_not_read_an_answer():
    slow_readers("answer")


def test_silent_upstream_stops_nobody():
    with Origin() as silent, Origin() as good, start_gateway(silent, good, args=("--retries", "0")) as g:
        socks = [send(g.port, chat(kind="stall")) for _ in range(100)]
        until("all wait", lambda: g.metric("kvblend_requests_active") == 100)
        for _ in range(50):
            assert serves(g)
        for s in socks:
            s.close()
        idle(g)


# ---- all things at once ----

class Load:
    """Clients of all kinds; what they saw is counted by kind and outcome."""

    def __init__(self, port, seed):
        self.port, self.random, self.seen = port, random.Random(seed), {}
        self.sent = self.left = 0
        self.over = False

    def count(self, kind, what):
        self.seen[(kind, what)] = self.seen.get((kind, what), 0) + 1

    async def connect(self, body):
        data = json.dumps(body).encode()
        r, w = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        w.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
                f"Connection: close\r\n\r\n".encode() + data)
        await w.drain()
        self.sent += 1
        return r, w

    async def whole(self, body, slow_s=0):
        """Status and body of an answer that is read to its end."""
        r, w = await self.connect(body)
        try:
            head = await asyncio.wait_for(r.readuntil(b"\r\n\r\n"), PATIENCE_S)
            data = b""
            while got := await asyncio.wait_for(r.read(65536), PATIENCE_S):
                data = data[-(1 << 20):] + got
                if slow_s:
                    await asyncio.sleep(slow_s)
            return int(head.split(b" ")[1]), data
        finally:
            w.close()

    async def plain(self, kind, pad):
        body = dict(chat(bytes=300), pad="x" * pad)
        status, data = await self.whole(body)
        if status == 200:
            assert json.loads(data)["received"] == len(json.dumps(body)), data[:200]
        self.count(kind, status)

    async def small(self):
        await self.plain("small", 0)
        await asyncio.sleep(0.005)

    async def large(self):
        await self.plain("large", self.random.randrange(200_000, 2_000_000))
        await asyncio.sleep(0.02)

    async def stream(self):
        n = self.random.randrange(1, 40)
        status, data = await self.whole(dict(chat(kind="stream", n=n, every_s=0.01), stream=True))
        assert status != 200 or b"data: [DONE]" in data, data[-300:]
        whole = f"t{n - 1}".encode() in data and b'"error"' not in data
        self.count("stream", status if status != 200 else "whole" if whole else "error frame")

    async def abort(self):
        r, w = await self.connect(dict(chat(kind=self.random.choice(["stream", "stall", "flood"]), n=1000,
                                            every_s=0.01, bytes=1 << 30), stream=True))
        try:
            await asyncio.wait_for(r.read(100), self.random.random() * 0.2)
        except asyncio.TimeoutError:
            pass
        w.transport.abort()
        self.left += 1
        self.count("abort", "left")

    async def slow(self):
        status, data = await self.whole(dict(chat(kind="flood", bytes=3 << 20), stream=True), slow_s=0.05)
        self.count("slow", status if b'"error"' not in data else "error frame")

    async def death(self):
        status, data = await self.whole(dict(chat(kind="die", sse=self.random.random() < 0.5)))
        self.count("death", status if status != 200 else "error frame" if b'"error"' in data else "cut")
        await asyncio.sleep(0.1)

    async def client(self, kind):
        while not self.over:
            try:
                await getattr(self, kind)()
            except (ConnectionError, asyncio.IncompleteReadError):
                self.count(kind, "cut")


class Watch:
    """The process while it works: memory and descriptors, once a second."""

    def __init__(self, pid):
        self.pid, self.rss, self.fds = pid, [], []

    async def run(self, load):
        while not load.over:
            self.rss.append(rss_bytes(self.pid))
            self.fds.append(n_fds(self.pid))
            await asyncio.sleep(1)

    def growth(self, values):
        n = len(values)
        return statistics.median(values[-n // 4:]) - statistics.median(values[n // 4:n // 2])


async def faults(load, g, config, second):
    """Kills one of the two origins, and reloads, again and again."""
    while not load.over:
        await asyncio.sleep(min(10, SOAK_S / 12))
        port = second.port
        second.kill()
        await asyncio.sleep(min(2, SOAK_S / 30))
        second.__init__(port)
        weight = load.random.choice((1, 2, 3))
        write_config(config, g.origins, weight)
        g.proc.send_signal(signal.SIGHUP)


def write_config(path, origins, weight):
    with open(path + ".new", "w") as f:
        f.write("upstreams:\n")
        for i, o in enumerate(origins):
            f.write(f"  - url: http://127.0.0.1:{o.port}\n    name: o{i}\n    models: m\n"
                    f"    weight: {weight if i else 1}\n")
    os.rename(path + ".new", path)


async def mixed(g, config, second):
    load, watch = Load(g.port, 7), Watch(g.proc.pid)
    kinds = ["small"] * 8 + ["large"] * 2 + ["stream"] * 20 + ["abort"] * 4 + ["slow"] * 2 + ["death"]
    tasks = [asyncio.ensure_future(load.client(k)) for k in kinds]
    tasks += [asyncio.ensure_future(faults(load, g, config, second)), asyncio.ensure_future(watch.run(load))]
    done, _ = await asyncio.wait(tasks, timeout=SOAK_S, return_when=asyncio.FIRST_EXCEPTION)
    load.over = True
    for t in done:
        t.result()
    await asyncio.gather(*tasks)
    return load, watch


def counted(g):
    """Requests by status, of the gateway's own count."""
    text = g.metrics()
    return {c: float(v) for c, v in re.findall(r'^kvblend_requests_total\{code="(\w+)"\} (\S+)$', text, re.M)}


def test_soak():
    need(KVBLEND)
    config = f"/tmp/kvb-soak-{os.getpid()}.yaml"
    with Origin() as first, Origin() as second:
        write_config(config, (first, second), 1)
        args = ["--config", config, "--max-inflight", "4096", "--health-interval", "1s"]
        with start_gateway(args=args) as g:
            g.origins = (first, second)
            assert serves(g)
            before, fds = counted(g), n_fds(g.proc.pid)
            try:
                load, watch = asyncio.run(mixed(g, config, second))
            except BaseException:
                print("     in hand:", g.admin_get("/admin/requests"))
                raise
            idle(g)
            after = counted(g)
            served = {c: after[c] - before.get(c, 0) for c in after if after[c] != before.get(c, 0)}
            seen = sorted(load.seen.items(), key=str)
            print("     seen:", ", ".join(f"{k} {w}: {n}" for (k, w), n in seen))
            print("     counted:", served)
            for kind, what in load.seen:
                good = {"small": {200, 502, 503}, "large": {200, 502, 503},
                        "stream": {"whole", "error frame", 502, 503}, "abort": {"left"},
                        "slow": {200, "error frame", 502, 503}, "death": {502, "error frame", "cut"}}
                assert what in good[kind] | {"cut"}, (kind, what)
            small = {w: n for (k, w), n in load.seen.items() if k == "small"}
            assert small[200] >= 0.98 * sum(small.values()), small  # the other origin takes over
            total = sum(served.values())
            # A client that left before its request was read whole is counted by nobody.
            assert load.sent - load.left * 0.2 <= total <= load.sent, (total, load.sent)
            until("descriptors are given back", lambda: n_fds(g.proc.pid) <= fds + 80)
            rss = watch.growth(watch.rss)
            print(f"     {load.sent} requests; memory {statistics.median(watch.rss) / 2**20:.1f} MiB, "
                  f"growth {rss / 2**10:.0f} KiB; descriptors {statistics.median(watch.fds):.0f}, "
                  f"growth {watch.growth(watch.fds):.0f}")
            assert sanitized() or SOAK_S < 60 or rss <= GROWTH_BYTES, watch.rss
            assert SOAK_S < 60 or watch.growth(watch.fds) <= 50, watch.fds
    os.unlink(config)


if __name__ == "__main__":
    main(globals())
