#!/usr/bin/env python3
"""Workers whose device has memory of its own, on the emulation of a GPU: records that are read where
they lie, one pool for records and running requests, a device that fails.

The emulation runs some hundred tokens a second: prompts are short here.
"""
import os
import re
import signal
import subprocess
import tempfile

from harness import BUILD, KVBLEND, KVBLENDCTL, WORKER, Program, gateway, main, need, read_until, tiny_model, until
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


# ---- a worker on each of several GPUs ----

TWO = dict(ENV, KVBLEND_HOSTCUDA_DEVICES="2")


def own_workers(g):
    return g.admin_get("/admin/status")["workers"]


def all_ready(g, n):
    until(f"{n} workers are ready", lambda: [w["state"] for w in own_workers(g)] == ["ready"] * n)
    return own_workers(g)


def devices_of(workers):
    return [w["status"]["compute"]["device"].split()[0] for w in workers]


def test_each_gpu_has_a_worker():
    with tempfile.TemporaryDirectory() as d, \
            gateway("--device", "hostcuda:0,1", "--ram", "128MiB", "--nvme", f"{d}/tier:64MiB", "--guard", "0",
                    env=TWO) as g:
        workers = all_ready(g, 2)
        assert devices_of(workers) == ["hostcuda:0", "hostcuda:1"], workers
        assert sorted(os.listdir(d)) == ["tier.0", "tier.1"], os.listdir(d)
        assert {os.path.getsize(f"{d}/tier.{i}") for i in (0, 1)} == {32 << 20}, "the space is the machine's"
        page = g.metrics()
        for i in (0, 1):
            assert re.search(rf'kvblend_tier_capacity_bytes{{worker="{i}",model=".*",tier="ram"}} {64 << 20}\n', page), page
        held = [g.open(CHAT, dict(parts([i], max_tokens=400), ignore_eos=True, stream=True)) for i in (1, 2)]
        for s in held:
            assert b" 200 " in read_until(s, b"data: ")
        assert [w["in_flight"] for w in own_workers(g)] == [1, 1]

        os.kill(workers[1]["pid"], signal.SIGKILL)
        until("it is seen", lambda: own_workers(g)[1]["state"] != "ready")
        r = g.post(CHAT, parts([3]))  # meanwhile
        assert r.status == 200, r.body
        ends = [read_until(s, b"[DONE]", 1 << 24) for s in held]
        assert [b'"error"' in e for e in ends] in ([False, True], [True, False]), ends
        again = all_ready(g, 2)
        assert again[1]["restarts"] == 1 and again[0]["pid"] == workers[0]["pid"], again
        assert devices_of(again) == ["hostcuda:0", "hostcuda:1"], again
        assert g.post(CHAT, parts([4])).status == 200
        out = subprocess.run([KVBLENDCTL, "--admin", g.admin, "status"], capture_output=True, text=True, check=True,
                             env=g.env).stdout
        assert out.count("ready at unix:") == 2, out


# ---- several GPUs as one ----

EIGHT = dict(ENV, KVBLEND_HOSTCUDA_DEVICES="8", KVBLEND_NCCL=os.path.join(KERNELS, "libkn_hostcuda.so"))


def test_a_model_in_two_gpus():
    """Its worker answers as one with a GPU does, blends, plays recordings, and keeps its records in RAM."""
    said = []
    for device in ("hostcuda", "hostcuda:2+5"):
        with worker("--device", device, "--ram", "64MiB", "--guard", "0", "--kv-pages", "8MiB", env=EIGHT) as p:
            build(p, [1, 2])
            ask(p, parts([2, 1], mode="full"))
            said.append([ask(p, parts([1, 2], max_tokens=8)),
                         ask(p, parts([2, 1], max_tokens=8, mode="blend", strategy="hkvd", ratio=0.3))])
            tiers = [t["tier"] for t in p.get("/admin/tiers").json()["data"]]
            assert ("gpu" in tiers) == (device == "hostcuda"), tiers
            assert p.metric("kvblend_device_replays_total") > 0
    for one, two in zip(*said):
        assert sources(two) == ["ram"] * 2, two["kvblend"]
        assert one["choices"][0]["message"] == two["choices"][0]["message"], (one, two)


def test_each_pair_has_a_worker():
    with gateway("--device", "hostcuda:0+1,2+3", "--ram", "128MiB", "--guard", "0", env=EIGHT) as g:
        assert devices_of(all_ready(g, 2)) == ["hostcuda:0+1", "hostcuda:2+3"]
        assert g.post(CHAT, parts([1])).status == 200


def test_a_group_without_nccl_says_so():
    one = Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", tiny_model(), "--device", "hostcuda:0+1"],
                  dict(EIGHT, KVBLEND_NCCL="/nowhere/libnccl.so"))
    with one:
        assert one.proc.wait(60) == 1 and "need NCCL" in one.log(), one.log()


def ends(env, *args):
    with Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", tiny_model(), *args], env) as p:
        assert p.proc.wait(60) == 1, p.log()
        assert "worker.started" not in p.log(), p.log()
        return p.log()


def test_a_gpu_that_is_not_there():
    log = ends(TWO, "--device", "hostcuda:0,9")
    assert "not all of hostcuda:0,9 can be used" in log and "there is no CUDA device 9, this machine has 2" in log, log
    log = ends(dict(ENV, KVBLEND_KERNELS_DIR="/nonexistent"), "--device", "cuda:0,1")
    assert "not all of cuda:0,1 can be used" in log and "is not available" in log, log
    one = Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", tiny_model(), "--device", "hostcuda:9"], TWO)
    with one:
        assert one.proc.wait(60) == 1 and "there is no CUDA device 9" in one.log(), one.log()


def test_auto_takes_what_there_is():
    with tempfile.TemporaryDirectory() as d:
        os.symlink(os.path.join(KERNELS, "libkn_hostcuda.so"), d + "/libkn_cuda.so")
        with gateway("--device", "auto", "--ram", "64MiB", env=dict(TWO, KVBLEND_KERNELS_DIR=d)) as g:
            assert devices_of(all_ready(g, 2)) == ["cuda:0", "cuda:1"]
            assert g.log().count("device.found") == 2, g.log()
            assert g.post(CHAT, parts([1])).status == 200
    with gateway("--device", "auto", env={"KVBLEND_KERNELS_DIR": "/nonexistent"}) as g:
        assert devices_of(all_ready(g, 1)) == ["cpu"]
        said = [x for x in g.log().split("\n") if " kvblend device." in x or "kvblend-worker: " in x]
        assert len(said) == 1 and " info kvblend device.none " in said[0], said


def test_devices_are_listed():
    def listed(device, **env):
        r = subprocess.run([WORKER, "--device", device, "--list-devices"], capture_output=True, text=True, check=True,
                           env=dict(os.environ, **env), timeout=60)
        return [x.split()[0] for x in r.stdout.splitlines()], r.stderr
    assert listed("hostcuda", **TWO) == (["hostcuda:0", "hostcuda:1"], "")
    found, why = listed("hostcuda:1,5", **TWO)
    assert found == ["hostcuda:1"] and "there is no CUDA device 5" in why, why
    assert listed("auto", KVBLEND_KERNELS_DIR="/nonexistent") == ([], "")
    found, why = listed("cuda", KVBLEND_KERNELS_DIR="/nonexistent")
    assert not found and "libkn_cuda.so" in why, why
    r = subprocess.run([WORKER, "--model", tiny_model(), "--device", "cuda:0,1"], capture_output=True, text=True,
                       check=False, timeout=60)
    assert r.returncode == 2 and "a worker computes on one device" in r.stderr, r.stderr


if __name__ == "__main__":
    main(globals())
