#!/usr/bin/env python3
"""The worker on all its tiers: NVMe files, real Redis servers, restarts, faults, tenants.

A tiny random model computes a token in microseconds, so that no tier is ever worth asking: the
workers here are told by KVBLEND_TIER_WAIT to wait.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading

from harness import (ADMIN, KVBLEND, WORKER, Program, gateway, main, need, parse_metrics, re, redis_server,
                     tiny_model, until)

need(KVBLEND, WORKER)
CHAT = "/v1/chat/completions"


def document(i, words=64):
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(words // 2))


def parts(order, question="What does the note say?", **kv):
    """Each content part is a chunk; log-probabilities show the last bit of a difference."""
    return {"messages": [{"role": "user", "content":
            [{"type": "text", "text": document(i)} for i in order] +
            [{"type": "text", "text": question}]}], "max_tokens": 4, "temperature": 0,
            "logprobs": True, "top_logprobs": 3, "kvblend": dict({"mode": "reuse"}, **kv)}


def worker(*args, env=None, ready=True):
    """Without contexts: answers are compared to the bit, and a worker that idles makes records' next versions."""
    p = Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", *ADMIN,
                 "--namespace", "*=contexts:off", *args],
                dict({"KVBLEND_TIER_WAIT": "4s"}, **env or {}))
    try:
        port = until("the worker listens", lambda: p.proc.poll() is not None or re.search(
            r"listening .*port=(\d+)", p.log()))
        if ready:
            assert p.proc.poll() is None, p.log()
            p.port = int(port.group(1))
            until("the model is loaded", lambda: p.proc.poll() is not None or
                  p.get("/ready").status == 200)
            assert p.proc.poll() is None, p.log()
    except BaseException:
        p.__exit__(Exception, None)
        raise
    return p


def build(p, numbers, **headers):
    r = p.post("/v1/segments", {"texts": [document(i) for i in numbers]}, headers=headers)
    assert r.status == 200, r.body
    data = r.json()["data"]
    assert {x["status"] for x in data} == {"ready"}, data
    return [x["id"] for x in data]


def written_behind(p):
    until("every tier has what it wants", lambda: p.metric("kvblend_store_dirty_records") == 0)


def tier_value(p, name, tier):
    samples = parse_metrics(p.metrics())["kvblend_tier_" + name][1]
    return sum(v for _, labels, v in samples if labels["tier"] == tier)


def ask(p, body, **headers):
    r = p.post(CHAT, body, headers=headers)
    assert r.status == 200, (r.status, r.body)
    return r.json()


def sources(answer):
    return [c["source"] for c in answer["kvblend"]["chunks"]]


def same(a, b):
    assert a["choices"] == b["choices"], (a, b)


def store(p):
    return p.get("/admin/status").json()["store"]


class Folder:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="kvb-tiers-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def nvme(self, size="64MiB", name="tier"):
        return f"{self.path}/{name}:{size}"


class Redis:
    """A server of our own on a unix socket."""

    def __init__(self, *args):
        self.server = redis_server()
        self.dir = tempfile.mkdtemp(prefix="kvb-redis-")
        self.path = self.dir + "/sock"
        self.url = f"unix://{self.path}"
        self.args = args
        self.start()

    def start(self):
        self.proc = subprocess.Popen(
            [self.server, "--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no",
             "--dir", self.dir, *self.args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("redis answers", self.answers)

    def answers(self):
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(5)
                s.connect(self.path)
                s.sendall(b"PING\r\n")
                return s.recv(64) != b""
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.send_signal(signal.SIGCONT)
        self.proc.kill()
        self.proc.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def reference(orders, **kv):
    """The answers of a worker that has everything in RAM."""
    with worker("--ram", "64MiB") as p:
        build(p, sorted({i for o in orders for i in o}))
        out = [ask(p, parts(o, **kv)) for o in orders]
        for a in out:
            assert set(sources(a)) == {"ram"}, a["kvblend"]
        return out


ORDERS = [[0, 1, 2], [7, 3, 5], [9, 4, 0], [11, 10, 8], [6, 2, 11]]


def small_ram():
    """A budget that holds eight documents (twice what one request may hold), and what one takes."""
    with worker("--ram", "64MiB") as p:
        before = store(p)["ram_bytes"]
        build(p, [0])
        one = store(p)["ram_bytes"] - before
        return str(max(8 * one + before, 1 << 20)), one


def test_documents_beyond_ram_come_from_nvme():
    want = reference(ORDERS)
    ram, one = small_ram()
    n = int(ram) // one + 12  # more than RAM can hold
    with Folder() as d, worker("--ram", ram, "--nvme", d.nvme()) as p:
        for i in range(0, n, 3):
            build(p, range(i, i + 3))
            written_behind(p)  # else a document may leave RAM before it is on NVMe
        seen = []
        for order, w in zip(ORDERS, want):
            a = ask(p, parts(order))
            assert set(sources(a)) <= {"ram", "nvme"}, a["kvblend"]
            same(a, w)
            seen += sources(a)
            hits = a["kvblend"]["tiers"]
            assert sum(t["hits"] for t in hits.values()) == 3, a["kvblend"]
            assert a["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert set(seen) <= {"ram", "nvme"} and "nvme" in seen, seen
        s = store(p)
        assert s["ram_bytes"] <= s["ram_budget_bytes"], s
        f = parse_metrics(p.metrics())
        tier = {name: {x[1]["tier"]: x[2] for x in samples} for name, (_, samples) in f.items()
                if name.startswith("kvblend_tier_") and "reason" not in samples[0][1]}
        assert tier["kvblend_tier_hit_total"]["nvme"] == seen.count("nvme"), (tier, seen)
        assert tier["kvblend_tier_capacity_bytes"]["nvme"] <= 64 << 20
        assert 0 < tier["kvblend_tier_used_bytes"]["nvme"] <= 64 << 20
        for name in ("read_bytes_total", "write_bytes_total", "records", "hit_bytes_total"):
            assert tier["kvblend_tier_" + name]["nvme"] > 0, name
        for name in ("pinned_bytes", "evict_total", "expired_total", "corrupt_total",
                     "inflight_bytes", "breaker_state", "breaker_opened_total", "degraded",
                     "write_budget_ratio", "tail_age_seconds", "first_group_seconds",
                     "read_bandwidth_bytes_per_second"):
            assert "nvme" in tier["kvblend_tier_" + name], name
        for name in ("miss", "reject"):
            assert all(set(x[1]) == {"tier", "reason"} for x in f[f"kvblend_tier_{name}_total"][1])
        assert os.path.getsize(f"{d.path}/tier") <= 64 << 20
        assert ";nvme=" in p.post(CHAT, parts(ORDERS[0])).headers["x-kvblend-kv"] + ";nvme="


def test_many_at_once_get_the_same_bits_from_any_tier():
    """RAM for eight documents, requests that hold three each, clearing in between."""
    want = reference(ORDERS)
    ram, _ = small_ram()
    with Folder() as d, Redis() as r:
        with worker("--ram", ram, "--nvme", d.nvme(), "--redis", r.url) as p:
            for i in range(0, 12, 3):
                build(p, range(i, i + 3))
                written_behind(p)
            bad, seen = [], []

            def client(k):
                for i in range(6):
                    which = (k + i * 3) % len(ORDERS)
                    a = ask(p, parts(ORDERS[which]))
                    if k == 0:
                        p.post("/admin/clear", {"tier": ("ram", "nvme")[i % 2]})
                    seen.extend(sources(a))
                    if "computed" not in sources(a) and a["choices"] != want[which]["choices"]:
                        bad.append((ORDERS[which], a))

            threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert not bad, bad
            assert len(seen) == 6 * 6 * 3 and seen.count("computed") < len(seen) / 2, seen
            s = store(p)
            assert s["ram_bytes"] <= s["ram_budget_bytes"], s
            until("nothing is held", lambda: p.metric("kvblend_store_held_bytes") == 0)


def test_a_restart_keeps_what_was_built():
    want = reference(ORDERS[:2])
    with Folder() as d:
        with worker("--ram", "16MiB", "--nvme", d.nvme()) as p:
            build(p, range(12))  # and at once:
            assert p.stop() == 0
        with worker("--ram", "16MiB", "--nvme", d.nvme()) as p:
            for order, w in zip(ORDERS, want):
                a = ask(p, parts(order))
                same(a, w)
                assert sources(a) == ["nvme"] * 3, a["kvblend"]
                assert sources(ask(p, parts(order))) == ["ram"] * 3
            # Warm-up knows what is there: nothing is built again.
            build(p, range(12))
            assert p.metric("kvblend_builds_total") == 0
            # The file has one owner.
            with worker("--nvme", d.nvme(), ready=False) as q:
                assert q.proc.wait(60) == 1
                assert f"{d.path}/tier" in q.log(), q.log()


def test_what_a_slow_tier_is_not_asked_for_is_built_again():
    with Folder() as d, worker("--nvme", d.nvme(), env={"KVBLEND_TIER_WAIT": "0"}) as p:
        build(p, range(3))
        written_behind(p)
        reasons = set()

        def from_ram():
            chunks = ask(p, parts(range(3), mode="auto"))["kvblend"]["chunks"]
            reasons.update(c.get("miss") for c in chunks)
            return {c["source"] for c in chunks} == {"ram"}

        for _ in range(4):
            p.post("/admin/clear", {"tier": "ram"})
            until("the chunks are in RAM", from_ram, 20)
        assert reasons <= {None, "gate", "building", "deadline"}, reasons


def test_a_small_or_full_file_fails_nobody():
    want = reference(ORDERS)
    with Folder() as d:
        with worker("--ram", small_ram()[0], "--nvme", d.nvme("8MiB")) as p:
            for i in range(0, 60, 4):
                build(p, range(i, i + 4))
                written_behind(p)  # RAM drops what the file is too slow for
            assert tier_value(p, "evict_total", "nvme") > 0
            for order, w in zip(ORDERS, want):
                a = ask(p, parts(order))
                if all(s in ("ram", "nvme") for s in sources(a)):
                    same(a, w)
            assert os.path.getsize(f"{d.path}/tier") <= 8 << 20
    if os.path.exists("/dev/full"):
        with worker("--nvme", "/dev/full:16MiB", ready=False) as q:
            assert q.proc.wait(60) == 1 and "/dev/full" in q.log(), q.log()


def test_bad_options_are_named():
    for args, said in ((["--nvme", "/x"], "--nvme"), (["--redis", "gopher://x"], "--redis"),
                       (["--namespace", "x"], "--namespace"), (["--namespace", "x=ttl:y"], "--namespace"),
                       (["--policy", "mru"], "--policy"),
                       (["--access-log", "/nonexistent/x"], "--access-log"),
                       (["--nvme", "/nonexistent/x:64MiB"], "/nonexistent/x")):
        with worker(*args, ready=False) as q:
            assert q.proc.wait(60) in (1, 2) and said in q.log(), (args, q.log())


def test_two_workers_share_redis():
    want = reference(ORDERS)
    with Redis() as r, worker("--redis", r.url) as a, \
            worker(env={"KVBLEND_WORKER_REDIS": r.url}) as b:
        build(a, range(12))
        written_behind(a)
        for order, w in zip(ORDERS, want):
            x = ask(b, parts(order))
            same(x, w)
            assert set(sources(x)) <= {"redis", "ram"}, x["kvblend"]
            same(ask(a, parts(order)), w)
        assert b.metric("kvblend_builds_total") == 0
        assert b.metric('kvblend_tier_hit_total{tier="redis"}') == 12
        assert build(b, range(12)) == build(a, range(12))
        assert b.metric("kvblend_builds_total") == 0
        # Another secret is another world; so is another namespace.
        with worker("--redis", r.url, env={"KVBLEND_WORKER_SECRET": "other"}) as c:
            x = ask(c, parts(ORDERS[0]))
            assert sources(x) == ["computed"] * 3, x["kvblend"]
            assert {y["miss"] for y in x["kvblend"]["chunks"]} == {"never"}, x["kvblend"]
            ids = {y["id"] for y in x["kvblend"]["chunks"]}
            assert not ids & {y["id"] for y in ask(a, parts(ORDERS[0]))["kvblend"]["chunks"]}
            assert "other" not in c.log()
        x = ask(b, parts(ORDERS[0]), **{"X-KVBlend-Namespace": "elsewhere"})
        assert sources(x) == ["computed"] * 3, x["kvblend"]


def test_redis_that_stops_fails_no_request():
    with worker("--ram", "64MiB") as p:
        want = [ask(p, parts(o, mode="full")) for o in ORDERS]
    with Redis() as r, worker("--redis", r.url) as a, \
            worker("--redis", r.url, env={"KVBLEND_TIER_WAIT": "200ms"}) as p:
        build(a, range(12))
        written_behind(a)

        def round_of(orders, then=lambda: None):
            answers, threads = {}, []
            p.post("/admin/clear", {"tier": "ram"})

            def one(i, order):
                # Everything recomputed: the same bits, wherever the chunks come from.
                answers[i] = ask(p, parts(order, mode="blend", ratio=1.0))

            for i, order in enumerate(orders):
                threads.append(threading.Thread(target=one, args=(i, order)))
                threads[-1].start()
            then()
            for t in threads:
                t.join()
            for i in range(len(orders)):
                same(answers[i], want[i])
            return [s for x in answers.values() for s in sources(x)]

        assert "redis" in round_of(ORDERS)
        round_of(ORDERS, lambda: r.proc.send_signal(signal.SIGSTOP))  # in the middle of it
        assert "redis" not in round_of(ORDERS)

        def opened():
            round_of(ORDERS)
            return p.metric('kvblend_tier_breaker_opened_total{tier="redis"}')

        until("the breaker opened", opened)
        r.proc.send_signal(signal.SIGCONT)

        until("redis is used again", lambda: "redis" in round_of(ORDERS))
        round_of(ORDERS, r.proc.kill)
        r.proc.wait()
        round_of(ORDERS)


def test_namespaces_do_not_see_each_other():
    with Folder() as d, worker("--nvme", d.nvme()) as p:
        a, b = {"X-KVBlend-Namespace": "a"}, {"X-KVBlend-Namespace": "b"}
        ids = build(p, [1], **a)
        assert build(p, [1], **b) != ids
        never = p.get("/v1/segments/" + "0" * 32, headers=b)
        for method in ("GET", "DELETE"):
            r = p.request(method, "/v1/segments/" + ids[0], headers=b)
            assert r.status == never.status == 404
            assert r.body.replace(ids[0].encode(), b"0" * 32) == never.body
        assert p.get("/v1/segments/" + ids[0], headers=a).status == 200
        assert p.request("DELETE", "/v1/segments/" + ids[0], headers=a).status == 200
        assert p.get("/v1/segments/" + ids[0], headers=a).status == 404


def test_quotas_are_hard():
    ram, one = small_ram()
    quota = 3 * one + 4096
    with worker("--ram", "64MiB", "--namespace", f"a=ram:{quota}") as p:
        ids = {}
        for ns in ("a", "b"):
            ids[ns] = [build(p, [i], **{"X-KVBlend-Namespace": ns})[0] for i in range(8)]
        held = {x["id"]: x["bytes"] for x in p.get("/admin/chunks").json()["data"]}
        assert sum(held.get(i, 0) for i in ids["a"]) <= quota, (quota, held)
        assert any(i in held for i in ids["a"])
        assert all(i in held for i in ids["b"])


def shown(pid, what="cmdline"):
    with open(f"/proc/{pid}/{what}", "rb") as f:
        return f.read().decode(errors="replace")


def test_secrets_are_on_no_command_line():
    secrets = ("open-sesame", "mellon")
    with worker("--secret", secrets[0], "--redis=redis://u:mellon@127.0.0.1:1") as p:
        text = shown(p.proc.pid) + p.log() + p.get("/admin/status").body.decode()
        assert not any(x in text for x in secrets), text
        assert ask(p, parts([1]))["kvblend"]["chunks"][0]["source"] == "computed"
    with worker("--redis=redis://u:mellon@127.0.0.1:1", "--redis", "redis://u:mellon@127.0.0.1:2") as p:
        assert "mellon" not in shown(p.proc.pid) + p.log(), shown(p.proc.pid)
    with Folder() as d, gateway(
            "--nvme", d.nvme(), "--redis", "redis://u:mellon@127.0.0.1:1,[::1]:1",
            env={"KVBLEND_SECRET": secrets[0], "KVBLEND_TIER_WAIT": "4s"}) as g:
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        text = shown(pid) + g.log() + g.metrics()
        assert not any(x in text + shown(g.proc.pid) for x in secrets), text
        assert "KVBLEND_WORKER_SECRET=open-sesame" in shown(pid, "environ")
        # The gateway's worker keeps its file when it is killed and started again.
        r = g.post("/v1/segments", {"texts": [document(i) for i in (1, 2, 3)]})
        ids = [x["id"] for x in r.json()["data"]]
        until("they are on NVMe", lambda: tier_value(g, "records", "nvme") >= 3)
        os.kill(pid, signal.SIGKILL)
        until("it is lost", lambda: g.metric("kvblend_gateway_workers_ready") == 0)
        until("it is back", lambda: g.get("/ready").status == 200)
        chunks = g.post(CHAT, parts([3, 1, 2])).json()["kvblend"]["chunks"]
        assert [x["id"] for x in chunks] == [ids[2], ids[0], ids[1]]
        assert {x["source"] for x in chunks} == {"nvme"}, chunks


def test_the_access_log_can_be_replayed():
    with Folder() as d:
        log = d.path + "/log"
        with worker("--nvme", d.nvme(), "--access-log", log) as p:
            build(p, [1, 2])
            first = ask(p, parts([1, 2, 3]))
            ask(p, dict(parts([1, 2], mode="prefix"), messages=[
                {"role": "user", "content": document(40, 400)}]),
                **{"X-KVBlend-Namespace": "tenant"})
            p.stop()
        text = open(log).read()
        lines = [json.loads(x) for x in text.splitlines()]
        assert len(lines) == 2 and text.endswith("\n")
        assert document(1)[:9] not in text
        chunks = [x for x in lines[0]["records"] if x["kind"] == "chunk"]
        assert [x["id"] for x in chunks] == [c["id"] for c in first["kvblend"]["chunks"]]
        assert [x["tier"] for x in chunks] == ["ram", "ram", "none"], chunks
        assert all(x["tokens"] > 0 and x["bytes"] > 0 for x in chunks)
        assert lines[0]["ns"] == "" and lines[1]["ns"] == "tenant"
        assert lines[1]["t"] >= lines[0]["t"] > 1.6e9
        assert {x["kind"] for x in lines[1]["records"]} == {"prefix"}
        assert [d["out"]["strategy"] for x in lines for d in x["decisions"]] == ["reuse", "full"], lines


if __name__ == "__main__":
    main(globals())
