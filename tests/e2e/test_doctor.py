#!/usr/bin/env python3
"""kvblendctl doctor: diagnoses that can be provoked for real, each with its command, and silence where all is well."""
import http.server
import json
import os
import subprocess
import tempfile
import threading
import time

from harness import (KVBLEND, KVBLENDCTL, STUB, WORKER, Program, TieredSite, document, gateway, listening, main, need,
                     proxy, until)

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
        for _ in range(9):
            order("clear", "--tier", "ram", "--yes")
            for i in range(0, 30, 3):
                ask(s.g, range(i, i + 3), mode="reuse")
        found = doctor(s.g)
        assert "nvme takes" in found["tier_slow"]["what"] and "--codec q8" in found["tier_slow"]["fix"], found


def test_nobody_there():
    with tempfile.TemporaryDirectory() as d:
        r = subprocess.run([KVBLENDCTL, "--admin", f"unix:{d}/x", "doctor"], capture_output=True, text=True, timeout=60)
        assert r.returncode == 2 and len(r.stderr.splitlines()) == 1 and not os.listdir(d), r


if __name__ == "__main__":
    main(globals())
