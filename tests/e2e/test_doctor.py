#!/usr/bin/env python3
"""kvblendctl doctor: diagnoses that can be provoked for real, each with its command, and silence where all is well."""
import http.server
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from harness import (KVBLEND, KVBLENDCTL, STUB, WORKER, Missing, Program, TieredSite, document, free_port, gateway, listening,
                     main, need, proxy, tiny_model, until)

need(KVBLEND, KVBLENDCTL, WORKER)
LIMITED = "secret-of-a id=a rpm=60"


def doctor(g, *args):
    """Exit status, and findings by id, which come by their worth."""
    r = subprocess.run([KVBLENDCTL, "--admin", g.admin, "doctor", "--json", *args], capture_output=True, text=True, timeout=60)
    assert r.stderr == "" and r.returncode in (0, 1), r
    found = json.loads(r.stdout)["findings"]
    assert [f["worth"] for f in found] == sorted((f["worth"] for f in found), reverse=True), found
    assert (r.returncode == 1) == bool(found), (r.returncode, found)
    text = subprocess.run([KVBLENDCTL, "--admin", g.admin, "doctor", *args], capture_output=True, text=True, timeout=60)
    assert text.returncode == r.returncode and all(f["what"] in text.stdout and f["fix"] in text.stdout for f in found), text
    return {f["id"]: f for f in found}


def ask(g, order, system=None, **kv):
    parts = [{"type": "text", "text": document(i)} for i in order] + [{"type": "text", "text": "Which note is it?"}]
    messages = [{"role": "system", "content": system}] if system else []
    r = g.post("/v1/chat/completions", {"messages": messages + [{"role": "user", "content": parts}], "max_tokens": 1, "kvblend": kv})
    assert r.status == 200, r.body


def test_keys_and_addresses():
    with gateway("--api-key", LIMITED, "--api-key", "secret-of-b id=b tpm=1000", stub=True) as g:
        assert doctor(g) == {}
        text = subprocess.run([KVBLENDCTL, "--admin", g.admin, "doctor"], capture_output=True, text=True, timeout=60)
        assert text.returncode == 0 and text.stdout == "nothing to change\n", text
    with gateway("--api-key", LIMITED, "--api-key", "secret-of-b id=b", stub=True) as g:
        found = doctor(g)
        assert set(found) == {"keys_unlimited"} and "(b for one)" in found["keys_unlimited"]["what"], found
        assert "secret-of" not in json.dumps(found)
    with proxy(["http://127.0.0.1:1"], "--listen", "0.0.0.0:0", ready=False) as g:
        found = doctor(g)
        assert set(found) == {"keys_open"} and "0.0.0.0:0" in found["keys_open"]["what"], found
        assert found["keys_open"]["fix"].startswith("keys:"), found
    with proxy(["http://127.0.0.1:1"], "--listen", "0.0.0.0:0", "--api-key", LIMITED, ready=False) as g:
        assert doctor(g) == {}


def test_open_files():
    few = ["sh", "-c", 'ulimit -n 300; exec "$0" "$@"', KVBLEND, "--listen", "127.0.0.1:0", "--model", STUB, "--worker-bin", STUB]
    with listening(Program(few)) as g:
        found = doctor(g)
        assert set(found) == {"file_limit"} and "LimitNOFILE" in found["file_limit"]["fix"], found


class Late(http.server.BaseHTTPRequestHandler):
    """A worker whose clock is an hour behind."""

    def do_GET(self):
        pages = {"/health": {"status": "ok"}, "/v1/models": {"object": "list", "data": [{"id": "late", "object": "model"}]}}
        body = json.dumps(pages.get(self.path, {"now": time.time() - 3600, "findings": []})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_clocks_and_workers_that_are_silent():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [KVBLEND, "--listen", "127.0.0.1:0", "--worker", f"http://127.0.0.1:{server.server_port}"]
        with listening(Program(command)) as g:
            found = doctor(g)
            assert set(found) == {"clock_skew"} and "3600 s behind" in found["clock_skew"]["what"], found
        server.shutdown()
    with listening(Program([KVBLEND, "--listen", "127.0.0.1:0", "--worker", "http://127.0.0.1:1"]), ready=False) as g:
        assert set(doctor(g)) == {"worker_silent"}


def profile(folder):
    return folder.write("profile.json", json.dumps({"measured": "by hand", "ratios": [0.1, 0.4], "losses": {"qs": [0.4, 0.25]}}))


def test_ram_heads_and_profile():
    with Program(["true"]) as folder, gateway("--ram", "2MiB") as g:
        until("it is ready", lambda: g.get("/ready").status == 200)
        # Huge pages are the machine's affair; 2 MiB of RAM do not ask for them.
        assert set(doctor(g)) == {"profile_missing"}
        for i in range(240):  # sixty documents in turns, behind words that never come again
            ask(g, [i % 60], " ".join(f"at{i * 977 + k} o'clock{k * i}" for k in range(24)))
        found = doctor(g)
        assert set(found) == {"profile_missing", "ram_small", "head_volatile"}, found
        assert "kvblendctl resize ram" in found["ram_small"]["fix"] or "--ram" in found["ram_small"]["fix"], found
        assert "kvblendctl mrc" in found["ram_small"]["what"] and "RAM of 2MiB" in found["ram_small"]["what"], found
        with gateway("--ram", "64MiB", "--profile", profile(folder)) as well:
            for i in range(240):
                ask(well, [i % 60], "You answer from notes, in a word or two, and say so where they do not tell. " * 4)
            assert doctor(well) == {}


def test_a_redis_that_is_away():
    with gateway("--ram", "16MiB", "--redis", "redis://127.0.0.1:1") as g:
        r = g.post("/v1/segments", {"texts": [document(k) for k in range(8)]})
        assert r.status == 200, r.body
        until("Redis is given up", lambda: "tier_refuses" in doctor(g))
        found = doctor(g)
        assert set(found) == {"profile_missing", "tier_refuses"} and "redis" in found["tier_refuses"]["what"], found


def test_loads_slower_than_computing():
    """Of a tiny model, whose tokens take microseconds, each load does."""
    with TieredSite(env={"KVBLEND_TIER_WAIT": "4s"}) as s:
        def order(*args):
            r = subprocess.run([KVBLENDCTL, "--admin", s.g.admin, *args], capture_output=True, text=True, timeout=60)
            assert r.returncode == 0, r

        r = s.g.post("/v1/segments", {"texts": [document(k) for k in range(30)]})
        assert r.status == 200, r.body
        order("flush")
        for _ in range(60):  # where others hold the cores up, computing takes longer, too
            for _ in range(9):
                order("clear", "--tier", "ram", "--yes")
                for i in range(0, 30, 3):
                    ask(s.g, range(i, i + 3), mode="reuse")
            found = doctor(s.g)
            if "tier_slow" in found:
                break
        assert "nvme takes" in found["tier_slow"]["what"] and "--codec q8" in found["tier_slow"]["fix"], found


class Redis:
    """A server, and a way to it on which each answer takes its time."""

    def __init__(self, *args, delay_s=0.0):
        if not shutil.which("redis-server"):
            raise Missing("redis-server is not installed")
        self.port, self.delay_s, self.over = free_port(), delay_s, threading.Event()
        self.proc = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *args],
                                     stdout=subprocess.DEVNULL)
        self.door = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.door.getsockname()[1]}"
        until("Redis listens", self.listens)
        threading.Thread(target=self.accept, daemon=True).start()

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True

    def accept(self):
        while True:
            try:
                near = self.door.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            for a, b, delay_s in ((near, far, 0), (far, near, self.delay_s)):
                threading.Thread(target=self.pass_on, args=(a, b, delay_s), daemon=True).start()

    def pass_on(self, source, to, delay_s):
        try:
            while data := source.recv(1 << 20):
                self.over.wait(delay_s)
                to.sendall(data)
        except OSError:
            pass
        for s in (source, to):
            s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.door.close()
        self.proc.kill()
        self.proc.wait()


def order(g, *args, codes=(0,)):
    r = subprocess.run([KVBLENDCTL, "--admin", g.admin, *args], capture_output=True, text=True, timeout=60)
    assert r.returncode in codes, r


def flush(g):
    """A slow machine's Redis may be given up for a moment, and a write be lost with it."""
    order(g, "flush", codes=(0, 1))


def warm(g, numbers):
    r = g.post("/v1/segments", {"texts": [document(i) for i in numbers]})
    assert r.status == 200, r.body


def test_a_redis_that_is_full():
    with Redis("--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru") as r, gateway("--ram", "64MiB", "--redis", r.url) as g:
        warm(g, range(10))
        flush(g)
        assert "redis_full" not in doctor(g)
        more = itertools.count(10, 20)

        def full():  # a busy machine's writes may be lost, so that more come until it has to put some out
            warm(g, range(first := next(more), first + 20))
            return "redis_full" in (found := doctor(g)) and found
        found = until("it evicts", full)
        assert "were put out" in found["redis_full"]["what"] and "maxmemory 41943040" in found["redis_full"]["fix"], found


def test_a_redis_that_is_far():
    with Redis(delay_s=0.03) as r, gateway("--ram", "64MiB", "--redis", r.url, env={"KVBLEND_TIER_WAIT": "4s"}) as g:
        warm(g, range(30))
        flush(g)
        for _ in range(7):
            order(g, "clear", "--tier", "ram", "--yes")
            for i in range(0, 30, 6):
                ask(g, range(i, i + 6), mode="reuse")
        found = doctor(g)
        assert "redis takes" in found["tier_slow"]["what"] and "a Redis that is nearer by" in found["tier_slow"]["fix"], found


def test_texts_that_are_cut_anew():
    with gateway("--ram", "64MiB") as g:
        def send(parts):
            r = g.post("/v1/chat/completions", {"max_tokens": 1, "messages": [
                {"role": "user", "content": [{"type": "text", "text": t} for t in [*parts, "Which note is it?"]]}]})
            assert r.status == 200, r.body
        for i in range(60):
            send([document(i)])
        assert "cuts_flip" not in doctor(g)
        for i in range(60):  # the same words, in two parts
            text = document(i)
            at = text.index(" ", len(text) // 2)
            send([text[:at], text[at + 1:]])
        found = doctor(g)
        assert "cut elsewhere" in found["cuts_flip"]["what"] and "documents" in found["cuts_flip"]["fix"], found


def test_ratios_that_are_too_low_and_too_high():
    """By the guard, whose shadows run when nothing else does."""
    for guard, ratio, id_, fix in (("1:0.0000001", "0.01", "ratio_low", "a larger --ratio than 0.01"),
                                   ("1:50", "0.5", "ratio_high", "--ratio 0.25 instead of 0.5")):
        with gateway("--ram", "64MiB", "--guard", guard, "--ratio", ratio) as g:
            warm(g, range(8))

            def shadows():
                return g.admin_get("/admin/quality")["workers"][0]["quality"]["shadows"]
            for i in range(80):
                ask(g, [i % 8, (i + 3) % 8], mode="blend")
                until("its shadow is done", lambda: sum(shadows()[x] for x in ("done", "dropped", "failed")) > i)
            found = doctor(g)
            assert fix in found[id_]["fix"] and len({"ratio_low", "ratio_high"} & set(found)) == 1, (guard, found, shadows())


# Refuses io_uring_setup (425 on every architecture) as a container's profile does, and then is the program.
REFUSES_URING = """
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
insns = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
prog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(insns)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, prog, 0, 0):
    sys.exit("no seccomp here")
os.execv(sys.argv[1], sys.argv[1:])
"""


def started(command, *args):
    """A gateway behind another program, on an NVMe file of its folder; Missing where that cannot be."""
    p = Program([*command, KVBLEND, "--listen", "127.0.0.1:0", "--model", tiny_model(), *args])
    try:
        return listening(p)
    except AssertionError:
        log = p.log()
        if "no seccomp here" in log or "unshare:" in log or "mount:" in log:
            raise Missing(log.strip().splitlines()[-1]) from None
        raise


def test_io_uring_that_is_refused():
    with started([sys.executable, "-c", REFUSES_URING], "--nvme", "{dir}/tier:64MiB", "--ram", "16MiB") as g:
        found = doctor(g)
        assert "no io_uring (EPERM)" in found["tier_degraded"]["what"], found
        assert "io_uring_disabled=0" in found["tier_degraded"]["fix"], found


def test_a_system_without_huge_pages():
    """In a mount namespace of its own, where the kernel's file says so."""
    with Program(["true"]) as folder:
        off = folder.write("enabled", "always madvise [never]\n")
        here = ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /sys/kernel/mm/transparent_hugepage/enabled && exec "$@"', off]
        if not os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled") or not shutil.which("unshare"):
            raise Missing("no huge pages, or no unshare, on this machine")
        with started(here, "--ram", "1GiB") as g:
            assert "transparent_hugepage" in doctor(g)["huge_pages_off"]["fix"]
        with started(here, "--ram", "16MiB") as g:  # too little to matter
            assert "huge_pages_off" not in doctor(g)


def test_nobody_there():
    with tempfile.TemporaryDirectory() as d:
        r = subprocess.run([KVBLENDCTL, "--admin", f"unix:{d}/x", "doctor"], capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and len(r.stderr.splitlines()) == 1 and not os.listdir(d), r


if __name__ == "__main__":
    main(globals())
