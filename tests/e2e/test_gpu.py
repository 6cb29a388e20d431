#!/usr/bin/env python3
"""Workers whose device has memory of its own, on the emulation of a GPU: records that are read where
they lie, one pool for records and running requests, a device that fails.

The emulation runs some hundred tokens a second: prompts are short here.
"""
import os

from harness import BUILD, KVBLEND, WORKER, gateway, main, need, read_until, until
from test_tiers import CHAT, ask, document, same, sources, tier_value, worker

KERNELS = os.path.join(BUILD, "tests", "doubles")
need(KVBLEND, WORKER, os.path.join(KERNELS, "libkn_hostcuda.so"))
ENV = {"KVBLEND_KERNELS_DIR": KERNELS}


def short(i):
    return document(i, 12)


def parts(order, max_tokens=2, **kv):
    return {"messages": [{"role": "user", "content":
            [{"type": "text", "text": short(i)} for i in order] + [{"type": "text", "text": "Why?"}]}],
            "max_tokens": max_tokens, "temperature": 0, "logprobs": True, "top_logprobs": 3,
            "kvblend": dict({"mode": "reuse"}, **kv)}


def gpu_worker(*args, env=None):
    return worker("--device", "hostcuda", "--ram", "64MiB", "--guard", "0", *args,
                  env=dict(ENV, **(env or {})))


def build(p, numbers):
    r = p.post("/v1/segments", {"texts": [short(i) for i in numbers]})
    assert {x["status"] for x in r.json()["data"]} == {"ready"}, r.body


def answers(p, order, source, **kv):
    """An answer from there, and nothing is on its way to the device any more."""
    a = ask(p, parts(order, **kv))
    assert sources(a) == [source] * len(order), a["kvblend"]
    until("nothing is to be written", lambda: p.metric("kvblend_store_dirty_records") == 0 and
          tier_value(p, "inflight_ops", "gpu") == 0)
    return a


def clear(p, tier):
    r = p.post("/admin/clear", {"tier": tier})
    assert r.status == 200, r.body


def test_records_are_read_where_they_lie():
    with gpu_worker("--kv-pages", "8MiB") as p:
        build(p, [1, 2])
        first = answers(p, [1, 2], "ram")
        same(first, answers(p, [1, 2], "ram"))
        same(first, answers(p, [1, 2], "gpu"))
        assert tier_value(p, "hit_total", "gpu") == 2
        assert 0 < tier_value(p, "used_bytes", "gpu") <= tier_value(p, "capacity_bytes", "gpu")
        tiers = {t["tier"]: t for t in p.get("/admin/tiers").json()["data"]}
        assert tiers["gpu"]["records"] == 2 and tiers["gpu"]["degraded"] is None, tiers["gpu"]
        there = answers(p, [2, 1], "gpu", mode="blend", strategy="hkvd", ratio=0.3)
        clear(p, "gpu")
        same(there, answers(p, [2, 1], "ram", mode="blend", strategy="hkvd", ratio=0.3))
        same(first, answers(p, [1, 2], "gpu"))  # that was the second use
        clear(p, "ram")
        same(first, answers(p, [1, 2], "gpu"))
        assert p.metric('kvblend_tier_host_pinned_bytes{tier="gpu"}') > 48 << 20
        assert p.metric('kvblend_device_bytes{what="held"}') > 8 << 20
        before = p.metric("kvblend_device_allocations_total")
        same(first, answers(p, [1, 2], "gpu"))
        assert p.metric("kvblend_device_allocations_total") == before > 0
        assert p.metric("kvblend_device_replays_total") > 0


def test_running_requests_come_first():
    """Records in pages that a request needs give way; it does not fail, and they come back."""
    with gpu_worker("--kv-pages", "1MiB", "--ctx", "4096") as p:
        free = p.metric("kvblend_kv_tokens_free")
        assert 600 < free < 4096, free
        build(p, [1, 2])
        first = answers(p, [1, 2], "ram")
        answers(p, [1, 2], "ram")
        same(first, answers(p, [1, 2], "gpu"))
        until("records take nothing from requests", lambda: p.metric("kvblend_kv_tokens_free") == free)
        whole = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": int(free) - 64,
                 "stop": [" ", "e", "t", "a", "i"], "kvblend": {"mode": "full"}}
        ask(p, whole)
        assert tier_value(p, "evict_total", "gpu") >= 1
        same(first, ask(p, parts([1, 2])))
        same(first, answers(p, [1, 2], "gpu"))
        assert tier_value(p, "error_total", "gpu") == 0


def test_the_reserve_is_of_the_records():
    with gpu_worker("--kv-pages", "4MiB") as p:
        whole = p.metric("kvblend_kv_tokens_free")
    with gpu_worker("--kv-pages", "4MiB:2MiB") as p:
        assert p.metric("kvblend_kv_tokens_free") < 0.6 * whole


def test_a_lost_device_is_replaced():
    env = dict(ENV, KVBLEND_WORKER_DEVICE="hostcuda", KVBLEND_HOSTCUDA_LOSE="{dir}/lose")
    with gateway(env=env) as g:
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        s = g.open(CHAT, dict(parts([1], max_tokens=2000), ignore_eos=True, stream=True))
        head = read_until(s, b"data: ")
        assert b" 200 " in head, head
        g.write("lose", "")
        rest = read_until(s, b"[DONE]", 1 << 24)
        s.close()
        assert b"device_lost" in rest and b'"finish_reason":"length"' not in rest, rest[-500:]
        until("another worker runs", lambda: g.admin_get("/admin/status")["workers"][0]["pid"]
              not in (0, None, pid))
        until("it serves", lambda: g.get("/ready").status == 200)
        r = g.post(CHAT, parts([1]))
        assert r.status == 200, r.body
        assert "exit=3" in g.log() and "device_lost" in g.log(), g.log()[-2000:]


def test_a_lost_device_is_said():
    with gpu_worker(env={"KVBLEND_HOSTCUDA_LOSE": "{dir}/lose"}) as p:
        held = p.open(CHAT, dict(parts([1], max_tokens=2000), ignore_eos=True, stream=True))
        read_until(held, b"data: ")
        p.write("lose", "")
        rest = read_until(held, b"[DONE]", 1 << 24)
        assert b"device_lost" in rest, rest[-500:]
        held.close()
        assert p.proc.wait(60) == 3
        assert "device_lost" in p.log()


if __name__ == "__main__":
    main(globals())
