#!/usr/bin/env python3
"""The registry of other hosts' workers: who comes, leaves, dies, and a Redis that is away for a while."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import KVBLEND, WORKER, Program, free_port, listening, main, need, redis_server, tiny_model, until  # noqa: E402


class Redis:
    def __init__(self):
        self.server = redis_server()
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix="kvb-redis-")
        self.url = f"redis://:sesame@127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.proc = subprocess.Popen(
            [self.server, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--requirepass", "sesame", "--dir", self.dir], stdout=subprocess.DEVNULL)

    def stop(self):
        self.proc.kill()
        self.proc.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def registered(redis, *args, group=""):
    port = free_port()
    w = Program([WORKER, "--model", tiny_model(), "--listen", f"127.0.0.1:{port}", "--ram", "64MiB",
                 "--threads", "1", "--advertise", f"http://127.0.0.1:{port}", *args],
                {"KVBLEND_WORKER_REGISTRY": redis.url + group})
    w.port = port
    return w


def states(g):
    return {w["address"]: w["state"] for w in g.admin_get("/admin/status")["workers"]}


def complete(g):
    return g.post("/v1/chat/completions", {
        "model": "default", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]})


def test_registry():
    with Redis() as redis:
        g = listening(Program([KVBLEND, "--listen", "127.0.0.1:0"], {"KVBLEND_REGISTRY": redis.url}),
                      ready=False)
        with g:
            r = complete(g)
            assert r.status == 503 and r.error()["code"] == "model_loading", r.body
            with registered(redis) as a, registered(redis, group="?group=other") as c:
                at = f"127.0.0.1:{a.port}"
                until("the worker is found", lambda: states(g).get(at) == "ready")
                assert complete(g).status == 200
                lost, back = (g.log().count("registry state=" + s)
                              for s in ("unreachable", "connected"))
                redis.stop()
                until("that is noticed",
                      lambda: g.log().count("registry state=unreachable") > lost)
                assert complete(g).status == 200 and states(g)[at] == "ready"
                redis.start()
                until("it is back", lambda: g.log().count("registry state=connected") > back)
                with registered(redis) as b:
                    bt = f"127.0.0.1:{b.port}"
                    until("another one comes", lambda: states(g).get(bt) == "ready")
                    assert states(g)[at] == "ready" and f"127.0.0.1:{c.port}" not in states(g)
                    b.proc.kill()
                    until("who is killed expires", lambda: states(g).get(bt, "retired") == "retired")
                for _ in range(3):
                    assert complete(g).status == 200
                a.stop()
                until("who leaves is gone", lambda: states(g).get(at, "retired") == "retired", 8)
                assert "sesame" not in g.log() + a.log() + c.log()
                with open(f"/proc/{g.proc.pid}/cmdline", "rb") as f:
                    assert b"sesame" not in f.read()


def test_registered_workers_ask_for_a_key():
    with Redis() as redis, registered(redis, "--api-key", "sesame") as a:
        for env, state in (({}, "loading"), ({"KVBLEND_REGISTRY_API_KEY": "sesame"}, "ready")):
            g = listening(Program([KVBLEND, "--listen", "127.0.0.1:0"], {"KVBLEND_REGISTRY": redis.url, **env}),
                          ready=False)
            with g:
                complete(g)  # once that is answered everything is open
                until(f"it is {state}", lambda: states(g).get(f"127.0.0.1:{a.port}") == state)
                assert complete(g).status == (200 if state == "ready" else 503)


def test_a_configured_worker_that_registers_is_one():
    with Redis() as redis, registered(redis) as a:
        url = f"http://127.0.0.1:{a.port}"
        g = listening(Program([KVBLEND, "--listen", "127.0.0.1:0", "--worker", url,
                               "--registry", redis.url]))
        with g:
            until("both are read", lambda: "registry.worker address=" in g.log())
            assert list(states(g)) == [f"127.0.0.1:{a.port}"], states(g)
            a.stop()
            until("it left", lambda: "state=gone" in g.log())
            assert states(g).get(f"127.0.0.1:{a.port}", "retired") != "retired"


if __name__ == "__main__":
    need(KVBLEND, WORKER)
    main(dict(globals()))
