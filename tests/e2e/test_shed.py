#!/usr/bin/env python3
"""Admission by predicted wait, shares and priorities of keys: at the gateway, with a worker that says
of its load what the test wants, and with a real one."""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (KVBLEND, KVBLENDCTL, WORKER, clean_env, gateway, main, need, parse_metrics,  # noqa: E402
                     read_until, until)

need(KVBLEND)
CHAT = "/v1/chat/completions"


def ask(text="hello", **kw):
    return dict({"model": "stub-model", "messages": [{"role": "user", "content": text}]}, **kw)


def key(name, **more):
    return dict({"Authorization": "Bearer " + name}, **more)


class Load:
    """What the stub worker says: waiting ms, waiting, running, slots, hold ms, ms a token, reused."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.n = os.path.join(self.folder.name, "load"), 0
        self.say(0, 0, 0)

    def say(self, waiting_ms, waiting, running, slots=16, hold_ms=1000, token_ms=1, reused_ms=0.25):
        self.n += 1
        with open(self.path + ".new", "w") as f:
            f.write(f"{self.n} {waiting_ms} {waiting} {running} {slots} {hold_ms} {token_ms} {reused_ms}\n")
        os.rename(self.path + ".new", self.path)

    def gateway(self, *args):
        return gateway(*args, stub=True, env={"STUB_LOAD": self.path})


def wait_ms(g):
    """The predicted wait; None: the worker has not reported."""
    return g.admin_get("/admin/targets")["targets"][0].get("predicted_wait_ms")


def shed(g):
    return g.admin_get("/admin/status")["gateway"]["shed"]


def hints(r):
    """Checks the retry headers, returns the milliseconds."""
    ms, s = int(r.headers["retry-after-ms"]), int(r.headers["retry-after"])
    assert ms > 0 and s == -(-ms // 1000) and r.headers["x-should-retry"] == "true", r.headers
    return ms


def test_over_the_objective_and_a_true_retry_after():
    load = Load()
    with load.gateway("--max-ttft", "1s") as g:
        until("it reports", lambda: wait_ms(g) == 0)
        assert g.post(CHAT, ask()).status == 200
        load.say(3000, 1, 1)
        until("it is known", lambda: wait_ms(g) > 0)
        begin = time.monotonic()
        r = g.post(CHAT, ask())
        assert r.status == 503, (r.status, r.body)
        e = r.error()
        assert (e["type"], e["code"]) == ("server_overloaded",) * 2 and "objective is 1.0 s" in e["message"], e
        ms = hints(r)
        assert ms <= 1.1 * 3000, ms
        until("the time it said is over", lambda: time.monotonic() - begin >= ms / 1000)
        r = g.post(CHAT, ask())
        assert r.status == 200, (r.status, r.body)
        assert shed(g) == {"objective": 1, "share": 0, "full": 0, "timeout": 0}, shed(g)
        assert g.metric('kvblend_gateway_shed_total{reason="objective"}') == 1
        until("it is logged", lambda: "shed" in {x["end"] for x in g.access_log()})
        parse_metrics(g.metrics())


def test_whose_objective_counts():
    load = Load()
    with load.gateway("--max-ttft", "1s", "--api-key", "a", "--api-key", "b max_ttft=1h") as g:
        load.say(20000, 0, 1)
        until("it is known", lambda: wait_ms(g))
        assert g.post(CHAT, ask(), headers=key("a")).status == 503  # the configuration's
        assert g.post(CHAT, ask(), headers=key("b")).status == 200  # the key's
        load.say(20000, 0, 1)
        until("it is told again", lambda: wait_ms(g) > 18000)
        mine = ask(kvblend={"max_ttft_ms": 3600000})
        assert g.post(CHAT, mine, headers=key("a")).status == 200  # the request's own
        mine = ask(kvblend={"max_ttft_ms": 5})
        assert g.post(CHAT, mine, headers=key("b")).status == 503


def test_who_is_told_to_wait_longer_than_clients_do_is_told_so():
    load = Load()
    with load.gateway("--max-ttft", "1s") as g:
        load.say(200000, 1, 1)
        until("it is known", lambda: wait_ms(g))
        r = g.post(CHAT, ask())
        assert r.status == 503 and r.headers["x-should-retry"] == "false", r.headers
        assert int(r.headers["retry-after"]) > 60


def test_slots_count():
    load = Load()
    with load.gateway("--max-ttft", "1s") as g:
        load.say(0, 0, 4, slots=4, hold_ms=60000)
        until("it is known", lambda: wait_ms(g) == 15000)
        assert g.post(CHAT, ask()).status == 503
        load.say(0, 0, 3, slots=4, hold_ms=60000)
        until("one is free", lambda: wait_ms(g) == 0)
        assert g.post(CHAT, ask()).status == 200


def test_a_worker_that_says_nothing_is_never_predicted():
    with gateway("--max-ttft", "1ms", "--max-inflight", "1", "--queue-limit", "1", stub=True) as g:
        slow = [g.open(CHAT, ask(stub={"wait_s": 60})) for _ in range(2)]
        until("one runs, one waits", lambda: [
            s for s in [g.admin_get("/admin/status")["gateway"]] if (s["in_flight"], s["waiting"]) == (1, 1)])
        r = g.post(CHAT, ask())
        assert r.status == 429 and r.error()["code"] == "server_overloaded", r.body
        assert shed(g)["full"] == 1
        for s in slow:
            s.close()
        until("all are gone", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 0)
        assert g.post(CHAT, ask()).status == 200


class Crowd:
    """Requests in threads, each by its name."""

    def __init__(self, g):
        self.g, self.threads, self.reply = g, [], {}

    def add(self, name, who, body):
        """Send it, and wait until it waits at the gateway."""
        def run():
            self.reply[name] = self.g.post(CHAT, body, headers=key(who, **{"x-request-id": name}))

        n = self.waiting()
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        until(f"{name} waits, or is answered", lambda: self.waiting() > n or name in self.reply)

    def waiting(self):
        return self.g.admin_get("/admin/status")["gateway"]["waiting"]

    def order(self):
        """When all have their answer: who was served one after the other, as the gateway logged it."""
        for t in self.threads:
            t.join()
        served = {n for n, r in self.reply.items() if r.status == 200}
        return until("all are logged", lambda: [o for o in [
            [x["request_id"] for x in self.g.access_log() if x["request_id"] in served]] if len(o) == len(served)])[0]


def test_a_heavy_key_is_told_so_and_a_light_one_goes_first():
    load = Load()
    with load.gateway("--max-ttft", "30s", "--api-key", "heavy id=heavy", "--api-key", "light id=light weight=2",
                      "--retries", "0") as g:
        load.say(10000, 1, 1, token_ms=100)  # no room: one runs, one waits
        until("it is known", lambda: wait_ms(g))
        c = Crowd(g)
        n = 0
        while not c.reply:  # until its own requests would make it wait too long
            c.add(f"heavy{n}", "heavy", ask())
            n += 1
            assert n < 50
        (name, r), = c.reply.items()
        assert r.status == 429, (r.status, r.body)
        assert r.error()["code"] == "rate_limit_exceeded" and "its share" in r.error()["message"]
        hints(r)
        assert shed(g)["share"] == 1 and n > 2, (n, shed(g))
        c.add("light", "light", ask())
        assert "light" not in c.reply
        assert g.metric('kvblend_gateway_key_waiting{key="heavy"}') == n - 1
        assert g.metric('kvblend_gateway_key_waiting{key="light"}') == 1
        rows = {k["id"]: k for k in g.admin_get("/admin/keys")["keys"]}
        assert rows["light"]["weight"] == 2 and rows["light"]["waiting"] == 1, rows
        if os.path.exists(KVBLENDCTL):
            ctl(g)
        load.say(0, 0, 0, token_ms=100)
        order = c.order()
        assert {r.status for n, r in c.reply.items() if n != name} == {200}
        assert order.index("light") <= 1 and len(order) == n, order
        work = [g.metric('kvblend_gateway_key_work_total{key="%s"}' % k) for k in ("heavy", "light")]
        assert work[0] > work[1] > 0, work


def ctl(g):
    def out(*args):
        return subprocess.run([KVBLENDCTL, "--admin", g.admin, *args], capture_output=True, text=True,
                              env=clean_env(), check=True).stdout
    assert "WAIT" in out("targets") and " ms" in out("targets")
    line = [x for x in out("keys").split("\n") if x.startswith("light")][0].split()
    assert line[1:3] == ["2", "5"], line
    assert "shed      1 share" in out("status")
    assert len(json.loads(out("--json", "keys"))["keys"]) == 2


def test_priorities():
    load = Load()
    with load.gateway("--api-key", "a priority=3", "--api-key", "b") as g:
        for bad in (10, -1, "high", 1.5):
            r = g.post(CHAT, ask(kvblend={"priority": bad}), headers=key("a"))
            assert r.status == 400 and "kvblend.priority" in r.error()["message"], r.body
        load.say(10000, 1, 1, token_ms=100)
        until("it is known", lambda: wait_ms(g))
        c = Crowd(g)
        c.add("batch", "a", ask(kvblend={"priority": 9}))
        c.add("usual", "b", ask())
        c.add("wish", "b", ask(kvblend={"priority": 0}))  # no better than its key's
        c.add("best", "a", ask())
        load.say(0, 0, 0, token_ms=100)
        order = c.order()
        assert {r.status for r in c.reply.values()} == {200}
        assert order == ["best", "usual", "wish", "batch"], order


def test_a_real_worker_is_predicted():
    need(WORKER)
    with gateway("--ram", "64MiB", "--api-key", "a", "--api-key", "b") as g:
        until("it reports", lambda: wait_ms(g) == 0)
        text = " ".join(f"word{i * 7919 % 997}" for i in range(900))
        long = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "kvblend": {"mode": "full"}}
        assert g.post(CHAT, long, headers=key("a")).status == 200  # it knows now what a token takes
        until("it is idle", lambda: wait_ms(g) == 0)
        fillers = [g.open(CHAT, long, headers="Authorization: Bearer a\r\n") for _ in range(16)]
        until("it waits", lambda: wait_ms(g) > 0)
        hasty = dict(ask("hello", max_tokens=1, kvblend={"mode": "full", "max_ttft_ms": 1}), model="default")
        r = until("one is sent away", lambda: [r for r in [g.post(CHAT, hasty, headers=key("b"))]
                                               if r.status != 200])[0]
        assert (r.status, r.error()["code"]) == (503, "server_overloaded"), (r.status, r.body)
        assert 0 < hints(r) < 60000
        for s in fillers:
            assert b" 200 " in read_until(s, b"\r\n\r\n")[:20]
            s.close()
        until("nothing waits", lambda: wait_ms(g) == 0)
        assert g.post(CHAT, hasty, headers=key("b")).status == 200


if __name__ == "__main__":
    main(globals())
