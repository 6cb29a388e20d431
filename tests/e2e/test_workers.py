#!/usr/bin/env python3
"""Several workers: routing by what they hold, and their deaths."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (KVBLEND, KVBLENDCTL, STUB, WORKER, Program, free_port, gateway, listening, main,  # noqa: E402
                     need, parse_events, read_until, tiny_model, unix_request, until)

WORDS = "mill river wheel night miller water stone grain field summer winter bread".split()


def doc(i):
    r = random.Random(i)
    return f"Document {i}. " + " ".join(r.choice(WORDS) for _ in range(40))


def prompt(ids, question="what?"):
    parts = [{"type": "text", "text": doc(i)} for i in ids]
    return {"model": "default", "max_tokens": 2, "kvblend": {"explain": True},
            "messages": [{"role": "user", "content": parts + [{"type": "text", "text": question}]}]}


def ask(g, ids, **kw):
    r = g.post("/v1/chat/completions", dict(prompt(ids), **kw))
    assert r.status == 200, (r.status, r.body)
    return [c["source"] for c in r.json()["kvblend"]["chunks"]]


def workers(g):
    return g.admin_get("/admin/status")["workers"]


def ready(g, n):
    until(f"{n} workers are ready", lambda: [w["state"] for w in workers(g)].count("ready") == n)


def worker(*args, env=None):
    w = Program([WORKER, "--model", tiny_model(), "--listen", f"127.0.0.1:{free_port()}",
                 "--ram", "64MiB", "--threads", "1", *args], env)
    try:
        w.port = int(until("the worker listens", lambda: re.search(
            r"listening .*port=(\d+)", w.log())).group(1))
        until("the worker serves", lambda: w.get("/health").status == 200)
    except BaseException:
        w.__exit__(Exception, None)
        raise
    return w


def routed(g, reason):
    return g.metric('kvblend_gateway_routed_total{reason="%s"}' % reason)


def completions(g):
    return [x for x in g.access_log() if x["path"].endswith("completions")]


def built(ports, n):
    """All workers together hold n chunks, and have nothing left to build."""
    def held():
        total = 0
        for p in ports:
            m = p.metrics()
            if re.search(r"^kvblend_builds_pending [^0]", m, re.M):
                return False
            total += int(float(re.search(r"^kvblend_builds_total (\S+)", m, re.M).group(1)))
        return total >= n
    until(f"{n} chunks are built", held)


# ---- routing ----

TOPICS = [list(range(10 * t, 10 * t + 3)) for t in range(1, 17)]


def second_round(g, wait):
    """Every topic once; then, when its chunks are built, in another order: the share of hits."""
    for ids in TOPICS:
        ask(g, ids)
    wait()
    order = random.Random(3)
    hits = []
    for ids in order.sample(TOPICS, len(TOPICS)):
        hits += [s == "ram" for s in ask(g, order.sample(ids, len(ids)))]
    return sum(hits) / len(hits)


def test_documents_go_to_who_holds_them():
    n = 3 * len(TOPICS)
    with gateway("--worker-count", "2", "--ram", "64MiB") as g:
        ready(g, 2)
        share = second_round(g, lambda: until("the directory knows them", lambda: g.metric(
            "kvblend_gateway_directory_texts") >= n))
        assert share == 1, share
        assert routed(g, "resident") == len(TOPICS), g.metrics()
        until("both are used", lambda: len({x["target"] for x in completions(g)}) == 2)
        prompt_tokens = g.metric('kvblend_gateway_routed_tokens_total{kind="prompt"}')
        resident = g.metric('kvblend_gateway_routed_tokens_total{kind="resident"}')
        assert 0 < resident <= prompt_tokens
    with worker() as a, worker() as b:  # the same two, as backends that nobody knows the chunks of
        ups = [f"http://127.0.0.1:{w.port}" for w in (a, b)]
        args = [x for u in ups for x in ("--upstream", f"{u} models=*")]
        g = listening(Program([KVBLEND, "--listen", "127.0.0.1:0", *args, "--balance", "least"]))
        with g:
            least = second_round(g, lambda: built([a, b], n))
    print(f"     hits: resident {share:.2f}, least {least:.2f}")
    assert least < 0.95, least


def test_evicted_chunks_are_forgotten():
    with gateway("--worker-count", "2", "--ram", "64MiB") as g:
        ready(g, 2)
        ask(g, TOPICS[0])
        until("three texts", lambda: g.metric("kvblend_gateway_directory_texts") == 3)
        need(KVBLENDCTL)
        for w in workers(g):
            port = w["address"][5:]
            clear(port)
        until("no text", lambda: g.metric("kvblend_gateway_directory_texts") == 0)
        assert ask(g, TOPICS[0]) == ["computed"] * 3


def test_records_of_all_workers_are_one_list():
    with gateway("--worker-count", "2", "--ram", "64MiB", "--threads", "1") as g:
        ready(g, 2)

        def ask_admin(query, path="", method="GET"):
            return unix_request(g.admin[5:], method, f"/admin/chunks{path}?{query}")

        def page(query, **kw):
            r = ask_admin(query, **kw)
            assert r.status == 200, (query, r.status, r.body)
            return r.json()
        for i, w in enumerate(workers(g)):  # 0 to 4 and 3 to 8: two are at both
            r = unix_request(w["address"][5:], "POST", "/v1/segments",
                             json.dumps({"texts": [doc(n) for n in (range(5) if i == 0 else range(3, 9))]}).encode())
            assert r.status == 200, r.body
        one = [page(f"worker={i}")["data"] for i in (0, 1)]
        of_both = set(x["id"] for x in one[0]) & set(x["id"] for x in one[1])
        all_ = page("")
        assert all_["workers"] == [{"index": 0, "total": 5}, {"index": 1, "total": 6}]
        assert all_["total"] == all_["count"] == len(all_["data"]) == 11 and len(of_both) == 2
        assert all_["tiers"] == [{"tier": "ram", "records": 11, "pinned": 0, "bytes": sum(x["bytes"] for x in all_["data"])}]
        for i in (0, 1):
            assert [x["id"] for x in all_["data"] if x["worker"] == i] == [x["id"] for x in one[i]]
        for sort in ("tokens", "bytes", "hits", "contexts"):
            for order in ("asc", "desc"):
                whole = page(f"sort={sort}&order={order}")["data"]
                values = [x[sort] for x in whole]
                assert values == sorted(values, reverse=order == "desc"), (sort, order, values)
                parts = [x for at in range(0, 12, 3) for x in page(f"sort={sort}&order={order}&offset={at}&limit=3")["data"]]
                assert [(x["id"], x["worker"]) for x in parts] == [(x["id"], x["worker"]) for x in whole], (sort, order)
        both = sorted(of_both)[0]
        assert page(f"prefix={both}")["total"] == 2 and page("limit=0")["data"] == []
        check_orders(g, page, ask_admin, both, one[1][0]["id"])
        for bad, status in (("sort=x", 400), ("limit=5001", 400), ("offset=4000&limit=1001", 400), ("limit=x", 400),
                            ("worker=2", 404), ("worker=", 404), ("worker=-1", 404), ("worker=1e", 404), ("worker=4294967296", 404)):
            assert ask_admin(bad).status == status, (bad, ask_admin(bad).body)
        pid = workers(g)[1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            left = page("")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert left["workers"][1] == {"index": 1, "total": None} and {x["worker"] for x in left["data"]} == {0}


def check_orders(g, page, ask_admin, both, single):
    """Told to one worker, or to all: each has a record of both."""
    def pinned():
        return [page(f"prefix={both}&worker={i}")["data"][0]["pinned"] for i in (0, 1)]
    assert page("worker=1", path=f"/{both}/pin", method="POST")["pinned"] and pinned() == [False, True]
    assert page("", path=f"/{both}/pin", method="POST")["pinned"] and pinned() == [True, True]
    assert page("", path=f"/{both}/unpin", method="POST")["pinned"] is False and pinned() == [False, False]
    assert ask_admin("", path=f"/{single}").status == 200 and ask_admin("worker=0", path=f"/{single}").status in (200, 404)
    assert unix_request(g.admin[5:], "POST", "/admin/targets/worker-1/drain").status == 200
    assert page("worker=1", path=f"/{both}", method="DELETE")["deleted"]
    assert unix_request(g.admin[5:], "POST", "/admin/targets/worker-1/enable").status == 200
    assert [x["worker"] for x in page(f"prefix={both}")["data"]] == [0]
    assert page("", path=f"/{both}", method="DELETE")["deleted"] and ask_admin("", path=f"/{both}").status == 404
    need(KVBLENDCTL)
    out = subprocess.run([KVBLENDCTL, "--admin", g.admin, "ls"], capture_output=True, text=True, timeout=60).stdout
    assert "9 records, " in out and "worker 0" in out and "worker 1" in out, out
    one = subprocess.run([KVBLENDCTL, "--admin", g.admin, "--worker", "1", "ls"], capture_output=True, text=True, timeout=60)
    assert "5 records, " in one.stdout and "worker" not in one.stdout, one.stdout + one.stderr


def held_by_both(g, n):
    """n documents at each of two workers; what each of them lists."""
    for w in workers(g):
        r = unix_request(w["address"][5:], "POST", "/v1/segments", json.dumps({"texts": [doc(i) for i in range(n)]}).encode())
        assert r.status == 200, r.body
    return [unix_request(w["address"][5:], "GET", "/admin/chunks").json()["data"] for w in workers(g)]


def test_orders_reach_every_worker():
    with gateway("--worker-count", "2", "--ram", "64MiB", "--threads", "1") as g:
        ready(g, 2)

        def order(path, body=None, method="POST", status=200):
            r = unix_request(g.admin[5:], method, "/admin" + path, None if body is None else json.dumps(body).encode())
            assert r.status == status, (path, r.status, r.body)
            return r.json()

        def of(field, tier="ram"):
            return [t[field] for t in order("/tiers", method="GET")["data"] if t["tier"] == tier]
        held = held_by_both(g, 4)
        assert [len(x) for x in held] == [4, 4]
        assert [t["worker"] for t in order("/tiers", method="GET")["data"]] == [0, 1] and of("records") == [4, 4]
        assert order("/verify", {}) == {"ok": 8, "bad": 0, "gone": 0, "workers": [
            {"index": i, "ok": 4, "bad": 0, "gone": 0} for i in (0, 1)]}
        assert order("/flush")["flushed"] is True
        caps = of("capacity_bytes")
        order("/tiers/resize?worker=1", {"tier": "ram", "bytes": "48MiB"})
        assert of("capacity_bytes") == [caps[0], 48 << 20]
        order("/tiers/resize", {"tier": "ram", "bytes": "32MiB"})
        assert of("capacity_bytes") == [32 << 20] * 2
        assert order("/tiers/resize", {"tier": "ram", "bytes": "4096GiB"}, status=400)["worker"] in (0, 1)
        assert order("/tiers/resize", {"tier": "nvme", "bytes": "1GiB"}, status=404)["error"]["code"] == "tier_not_found"
        ids = sorted(x["id"] for x in held[0])
        for status in (200, 404):  # a client's own, wherever they are
            r = g.request("DELETE", f"/v1/segments/{ids[0]}")
            assert r.status == status and "workers" not in r.json(), r.body
        assert of("records") == [3, 3]
        order(f"/chunks/{ids[1]}/pin?worker=0")
        refused = order(f"/chunks/{ids[1]}", method="DELETE", status=409)
        assert refused["error"]["code"] == "segment_pinned" and refused["worker"] == 0, refused
        cleared = order("/clear", {})
        assert cleared["cleared"] == 4 and sum(x["cleared"] for x in cleared["workers"]) == 4, cleared
        assert of("records") == [1, 0] and order("/clear", {"pinned": True})["cleared"] == 1
        need(KVBLENDCTL)
        held_by_both(g, 2)

        def ctl(*args):
            r = subprocess.run([KVBLENDCTL, "--admin", g.admin, *args], capture_output=True, text=True, timeout=60)
            assert r.returncode == 0, (args, r)
            return r.stdout
        assert "WORKER" in ctl("tiers") and "WORKER" not in ctl("--worker", "1", "tiers")
        assert ctl("clear", "--yes") == "4 records dropped\n" and of("records") == [0, 0]


def test_what_goes_to_all_is_the_callers_own():
    keys = "a rpm=5 namespace=one", "b namespace=two"
    with gateway("--worker-count", "2", "--ram", "64MiB", "--threads", "1", "--api-key", keys[0], "--api-key", keys[1]) as g:
        ready(g, 2)
        a, b = ({"Authorization": f"Bearer {k}"} for k in "ab")
        r = g.post("/v1/segments", {"texts": [doc(0)]}, headers=a)
        assert r.status == 200, r.body
        path = "/v1/segments/" + r.json()["data"][0]["id"]

        def status(method, key, **more):
            return g.request(method, path, headers=dict(key, **more)).status
        asked = [("GET", b), ("DELETE", b), ("GET", a), ("DELETE", a), ("GET", a)]
        assert [status(*x) for x in asked] == [404, 404, 200, 200, 404]
        assert status("GET", b, **{"X-KVBlend-Namespace": "one"}) == 404  # a key's namespace is not the client's to choose
        assert [status("DELETE", a) for _ in range(2)] == [404, 429]  # each counts once


def test_a_silent_worker_is_named():
    with gateway("--worker-count", "2", "--ram", "64MiB", "--first-byte-timeout", "5s") as g:
        ready(g, 2)
        held = held_by_both(g, 1)
        pid = workers(g)[1]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            cleared = unix_request(g.admin[5:], "POST", "/admin/clear", b"{}")
            deleted = g.request("DELETE", f"/v1/segments/{held[0][0]['id']}")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert cleared.status == 503 and "Worker 1 gives no answer; of 2 workers 1 did it." in cleared.json()["error"]["message"]
        assert deleted.status == 503 and "orker 1" not in deleted.json()["error"]["message"], deleted.body


def clear(path):
    r = unix_request(path, "POST", "/admin/clear", b"{}")
    assert r.status == 200, (r.status, r.body)


def test_a_popular_chunk_drowns_nobody():
    with gateway("--worker-count", "2", "--ram", "64MiB", "--max-inflight", "64") as g:
        ready(g, 2)
        ask(g, TOPICS[0])
        until("three texts", lambda: g.metric("kvblend_gateway_directory_texts") >= 3)
        before = len(until("the first is logged", lambda: completions(g)))

        def client():
            for _ in range(6):
                ask(g, TOPICS[0], max_tokens=60)

        run_all([threading.Thread(target=client) for _ in range(32)])
        until("the log is written", lambda: len(completions(g)) == before + 192)
        by = {}
        for x in completions(g)[before:]:
            by[x["target"]] = by.get(x["target"], 0) + 1
        print("     requests:", by)
        assert min(by.values()) >= 192 // 8 and len(by) == 2, by


def run_all(threads):
    for t in threads:
        t.start()
    for t in threads:
        t.join()


# ---- deaths ----

def streams(g, n, stub):
    body = {"model": "stub-model", "stream": True, "stub": stub,
            "messages": [{"role": "user", "content": "x"}]}
    return [g.open("/v1/chat/completions", body) for _ in range(n)]


def test_kill_under_load():
    """Streams that wait in their middle and such that have no token yet, until the test lets go."""
    with gateway("--worker-count", "2", stub=True) as g:
        ready(g, 2)
        hold = g.write("hold", "")
        begun = streams(g, 16, {"n": 60, "hold": hold, "hold_at": 1})
        heads = [read_until(s, b'"w0') for s in begun]
        assert all(b'"w0' in h for h in heads)
        split = [w["in_flight"] for w in workers(g)]
        # Alike as they are they go to one worker while it has at most eight more than the other (policy/route.c).
        assert sum(split) == 16 and max(split) - min(split) <= 9, split
        waiting = streams(g, 16, {"n": 2, "comment": 1, "hold": hold, "hold_at": 0})
        until("both are busy", lambda: sum(w["in_flight"] for w in workers(g)) == 32)
        victim = workers(g)[0]
        os.kill(victim["pid"], signal.SIGKILL)
        until("its streams without a token are elsewhere, or here again",
              lambda: sum(w["in_flight"] for w in workers(g)) == 32 - split[0])
        os.unlink(hold)
        cut = whole = 0
        for s, head in zip(begun, heads):
            data = head + read_until(s, b"[DONE]", 1 << 24)
            events = parse_events(data.split(b"\r\n\r\n", 1)[1].replace(b"\r\n", b"\n"))
            assert b"[DONE]" in data, data[-300:]
            if b'"error"' in data:
                cut += 1
            else:
                whole += 1
                assert b'"w59' in data
        for s in waiting:  # no byte had come: they are answered by the other one
            data = read_until(s, b"[DONE]", 1 << 20)
            assert b" 200 " in data[:20] and b'"w1' in data and b'"error"' not in data, data
        assert [cut, whole] == split, (cut, whole, split)
        ready(g, 2)
        again = workers(g)[0]
        assert again["pid"] != victim["pid"] and again["restarts"] == 1, again
        out = subprocess.run([KVBLENDCTL, "--admin", g.admin, "status"], capture_output=True,
                             text=True, check=True, env=g.env).stdout
        assert out.count("ready at unix:") == 2 and "1 restarts" in out, out


def test_a_worker_that_keeps_dying_is_restarted_with_patience():
    with gateway("--worker-count", "2", stub=True) as g:
        ready(g, 2)
        body = {"model": "stub-model", "stub": {"die": "before"},
                "messages": [{"role": "user", "content": "x"}]}
        for _ in range(3):
            assert g.post("/v1/chat/completions", body).status == 502
            ready(g, 2)
        starts = re.findall(r"(\S+) notice kvblend worker\.started worker=0", g.log())
        assert 2 <= len(starts) <= 8, starts
        ok = dict(body, stub={})
        assert g.post("/v1/chat/completions", ok).status == 200


def test_workers_that_never_start_end_the_gateway():
    p = Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", tiny_model(), "--worker-count", "3",
                 "--chat-template", "nonsense"])
    with p:
        assert p.proc.wait(60) == 1
        assert "gateway.end" in p.log() and p.log().count("worker.started") >= 3


def test_what_workers_cannot_share():
    d = tempfile.mkdtemp(prefix="kvb-e2e-")
    try:
        with gateway("--worker-count", "2", "--ram", "32MiB", "--nvme", f"{d}/tier:64MiB") as g:
            ready(g, 2)
            assert sorted(os.listdir(d)) == ["tier.0", "tier.1"], os.listdir(d)
            cores = os.cpu_count()
            for w in workers(g):
                assert w["status"]["compute"]["threads"] == max(1, cores // 2), w
    finally:
        shutil.rmtree(d, ignore_errors=True)


if __name__ == "__main__":
    need(KVBLEND, WORKER, STUB)
    main(dict(globals()))
