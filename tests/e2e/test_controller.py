#!/usr/bin/env python3
"""The controller in the worker: calibration, what it decides and why, what people see of it.

The prices of computing are put into the cache of calibrations by hand, so that the decisions depend
on no machine: a token is as dear as a test needs it, whatever the tiny model really takes.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

from harness import (ADMIN, BUILD, KVBLEND, KVBLENDCTL, WORKER, Program, gateway, main, need, tiny_model,
                     until, worker_listening)

SLOW_WORKER = os.path.join(BUILD, "tests", "doubles", "slow_worker")
need(KVBLEND, KVBLENDCTL, WORKER, SLOW_WORKER)
CHAT = "/v1/chat/completions"
ROW_S = 1e-3  # a row through a layer: a thousand times what it is


def document(i, words=96):
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(words // 2))


def question(order=(0, 1, 2), **kv):
    return {"messages": [{"role": "user", "content":
            [{"type": "text", "text": document(i)} for i in order] +
            [{"type": "text", "text": "What does the note say?"}]}],
            "max_tokens": 2, "temperature": 0, "kvblend": kv}


def slow(bytes_per_s):
    """For Place.worker(): with a drive that reads so fast."""
    return {"program": SLOW_WORKER, "SLOW_NVME_BYTES_PER_S": str(bytes_per_s)}


class Place:
    """A cache folder, an NVMe file and a log of decisions, for several workers one after another."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="kvb-control-")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)

    def env(self, **more):
        return dict({"XDG_CACHE_HOME": self.dir, "KVBLEND_WORKER_STRATEGY": "auto", "KVBLEND_GEMM": "own-f32"}, **more)

    def costs(self):
        return glob.glob(self.dir + "/kvblend/cost-*.txt")

    def worker(self, *args, program=WORKER, **env):
        return worker_listening(Program([program, "--model", tiny_model(), "--listen", "127.0.0.1:0", *ADMIN, *args],
                                        self.env(**env)))

    def priced(self):
        """Calibrated once, then as we say."""
        with self.worker():
            pass
        path, = self.costs()
        with open(path) as f:
            key = f.readline()
        names = ("fixed_s", "layer_s", "row_s", "kv_row_s", "pair_s", "place_s", "mass_s", "head_s")
        price = {"row_s": ROW_S, "kv_row_s": ROW_S / 10}
        with open(path, "w") as f:
            f.write(key + "".join(f"{n} {price.get(n, 0):g}\n" for n in names) + "row_step 0\n")
        return self


def source(p):
    return re.search(r"calibration source=(\w+)", p.log()).group(1)


def build(p, numbers=(0, 1, 2)):
    r = p.post("/v1/segments", {"texts": [document(i) for i in numbers]})
    assert r.status == 200, r.body


def ask(p, body, rid="r"):
    r = p.post(CHAT, body, headers={"x-request-id": rid})
    assert r.status == 200, (r.status, r.body)
    return r.json()["kvblend"]


def decision(p, rid):
    one, = p.get("/admin/decisions/" + rid).json()["data"]
    return one


def test_calibration_is_kept_and_a_foreign_one_is_not_believed():
    with Place() as at:
        with at.worker() as p:
            assert source(p) == "measured"
        path, = at.costs()
        with at.worker() as p:
            assert source(p) == "cache"
        with open(path) as f:
            text = f.read()
        for wrong in (text.replace(" isa ", " another "), text.replace("row_s ", "row_s -"),
                      text[:len(text) // 2], "", "nonsense\n" * 9):
            with open(path, "w") as f:
                f.write(wrong)
            with at.worker() as p:
                assert source(p) == "measured", wrong
        with open(path) as f:
            assert f.readline() == text.split("\n")[0] + "\n"
        with at.worker("--strategy=always") as p:
            assert "calibration" not in p.log()
            build(p)
            assert ask(p, question())["strategy"] == "qs"


def test_from_ram_it_blends_and_keeps_to_what_was_asked():
    with Place() as at, at.priced().worker("--access-log", at.dir + "/log") as p:
        assert source(p) == "cache"
        build(p)
        k = ask(p, question(), "first")
        d = decision(p, "first")
        floor = d["in"]["strategies"][k["strategy"]]["floor"]
        assert d["by"] == "controller" and d["out"]["n_reused"] == 3, d
        assert k["mode"] == "blend" and floor - 1e-6 <= k["ratio"] <= floor + 0.1, (k, d)
        assert k["why"] == d["out"]["reason"] and k["predicted_ttft_ms"] > 0, k
        assert d["out"]["predicted"]["ttft_s"] < d["out"]["full"]["ttft_s"], d
        assert d["measured"]["whole"] and 0 < d["measured"]["compute_s"], d
        assert decision(p, d["reply_id"]) == d

        k = ask(p, question((1, 2, 0), min_ratio=0.5), "floor")
        assert k["strategy"] == "full" or k["ratio"] >= 0.5 - 1e-6, k

        full_s, fast_s = d["out"]["full"]["ttft_s"], d["out"]["predicted"]["ttft_s"]
        k = ask(p, question((2, 0, 1), max_ttft_ms=500 * (full_s + fast_s)), "slow")
        d = decision(p, "slow")
        assert k["ratio"] > d["in"]["strategies"][k["strategy"]]["floor"] + 0.02, (k, d["out"])
        assert d["out"]["predicted"]["ttft_s"] <= d["in"]["max_ttft_s"], d

        # What is asked for in so many words is done.
        k = ask(p, question((0, 2, 1), strategy="sink", ratio=0.25), "own")
        assert (k["strategy"], k["ratio"]) == ("sink", 0.25), k
        assert decision(p, "own")["by"] == "rules"
        k = ask(p, question((0, 2, 1), mode="full"), "exact")
        assert k["strategy"] == "full" and k["why"] == "asked for", k
        for bad in (0, -1, "1s", 1e12):
            r = p.post(CHAT, question(max_ttft_ms=bad))
            assert r.status == 400 and "max_ttft_ms" in r.json()["error"]["message"], r.body

        lines = p.get("/admin/decisions").json()["data"]
        assert [x["id"] for x in lines[-5:]] == ["exact", "own", "slow", "floor", "first"], lines
        assert p.get("/admin/decisions/nobody").status == 404
        samples = p.metrics()
        assert 'kvblend_decisions_total{strategy="full",by="rules"} 1' in samples, samples
        for name in ("prediction_error_ratio", "exposed_load_seconds", "decide_seconds"):
            assert f"kvblend_{name}_count" in samples, name
        assert p.metric("kvblend_prediction_error_ratio_count") == 5
        p.stop()
        with open(at.dir + "/log") as f:
            assert [len(json.loads(line)["decisions"]) for line in f] == [1] * 5


def test_each_prefill_corrects_the_price_of_computing():
    """Prices are a thousand times too high: every prefill that is measured takes its step down, and no more."""
    with Place() as at, at.priced().worker() as p:
        price = []
        for i in range(6):
            ask(p, question((i, i + 1), mode="full", store=False), f"r{i}")
            d = decision(p, f"r{i}")
            assert d["measured"]["whole"] and d["measured"]["compute_s"] < d["out"]["predicted"]["compute_s"], d
            price.append(d["in"]["cost"]["row_s"])
        assert abs(price[0] / ROW_S - 1) < 1e-6, price
        assert all(0.98 * a < b < 0.999 * a for a, b in zip(price, price[1:])), price


def test_what_a_slow_tier_holds_is_computed_and_explained():
    with Place() as at:
        nvme = ("--nvme", at.dir + "/tier:64MiB")
        with at.priced().worker(*nvme) as p:
            build(p, range(4))
            until("the drive has all", lambda: p.metric("kvblend_store_dirty_records") == 0)
        # 50 KB a second: seconds for every chunk, and computing it is priced at less.
        with at.worker(*nvme, **slow(50000)) as p:
            assert "slow_nvme read_bytes_per_s=50000" in p.log()
            ask(p, question((3,)), "probe")  # one load tells how slow it is
            until("its load has ended", lambda: p.metric("kvblend_store_loads_inflight") == 0)
            k = ask(p, question(), "slow")
            d = decision(p, "slow")
            assert k["strategy"] == "full" and d["by"] == "controller", (k, d)
            assert [c.get("miss") for c in k["chunks"]] == ["gate"] * 3, k
            assert [c["tier"] for c in d["in"]["chunks"]] == [1] * 3 and "exact" in k["why"], d
            assert d["out"]["predicted"]["ttft_s"] <= d["out"]["full"]["ttft_s"], d
        with at.worker(*nvme) as p:  # as fast as it is
            k = ask(p, question(), "fast")
            assert k["mode"] == "blend", k
            assert [c["source"] for c in k["chunks"]] == ["nvme"] * 3, k


def test_it_knows_which_chunks_left_a_sidecar():
    with Place() as at:
        # It has not arrived when the plan is made.
        with at.priced().worker("--nvme", at.dir + "/tier:64MiB", **slow(2000000)) as p:
            build(p)
            until("the drive has all", lambda: p.metric("kvblend_store_dirty_records") == 0)
            first = ask(p, question(), "first")
            assert all(c["side"] for c in decision(p, "first")["in"]["chunks"])  # in RAM
            assert p.metric("kvblend_store_sidecars") == 3
            for c in first["chunks"]:
                r = p.request("DELETE", f"/admin/chunks/{c['id']}?tier=ram")
                assert r.status == 200, r.body
            ask(p, question(), "second")
            seen = {(c["tier"], c["side"]) for c in decision(p, "second")["in"]["chunks"]}
            assert seen == {(1, True)}, seen


def test_explain_says_it_in_words():
    with Place() as at:
        with at.priced().worker():
            pass
        with gateway(env=at.env()) as g:
            until("the worker is ready", lambda: g.get("/ready").status == 200)
            build(g)
            r = g.post(CHAT, question(), headers={"x-request-id": "told"})
            k = r.json()["kvblend"]
            assert k["mode"] == "blend", k
            ctl = [KVBLENDCTL, "--admin", g.admin, "explain"]
            said = subprocess.run([*ctl, "told"], capture_output=True, text=True, timeout=60)
            assert said.returncode == 0, said
            for part in ("told", f"decided   {k['strategy']}", "3 chunks reused", "the controller",
                         k["why"], "ram", "reused", "predicted", "measured", "full"):
                assert part in said.stdout, (part, said.stdout)
            again = subprocess.run([*ctl, r.json()["id"], "--json"], capture_output=True, text=True,
                                   timeout=60)
            assert json.loads(again.stdout)["data"][0]["id"] == "told", again
            none = subprocess.run([*ctl, "nobody"], capture_output=True, text=True, timeout=60)
            assert none.returncode == 1 and "nobody" in none.stderr, none


main(globals())
