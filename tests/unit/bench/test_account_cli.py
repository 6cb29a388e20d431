"""kvblend-bench kernels account: a prefill's kinds add up to its threads' time, and what must be there is."""
import subprocess
import unittest
from collections import Counter

from bench_cli import BENCH, report

ARGS = ["kernels", "account", "--shape", "smollm2:layers=4", "--chunks", "3", "--chunk-tokens", "96",
        "--query-tokens", "16", "--reps", "3", "--ram", "64MiB", "--threads", "2"]
TOKENS = 1 + 3 * 96 + 16  # one starts the text
PRODUCTS = {"kv", "q", "o", "gate_up", "down", "head"}
WORK = PRODUCTS | {"attention", "norms", "rope", "activation", "kv_put"}


class Account(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.got = report(*ARGS)
        cls.kinds = [{k["kind"]: k for k in row["kinds"]} for row in cls.got["rows"]]

    def test_methods(self):
        self.assertEqual([(r["method"], round(r["ratio"], 2)) for r in self.got["rows"]],
                         [("full", 1), ("reuse", 0), ("qs", 0.05)])
        self.assertEqual(self.got["meta"]["tokens"], TOKENS)

    def test_kinds_are_all_of_the_threads_time(self):
        for row in self.got["rows"]:
            all_ms = row["threads"] * row["wall_ms"]
            self.assertAlmostEqual(sum(k["thread_ms"] for k in row["kinds"]) / all_ms, 1, places=6)
            self.assertAlmostEqual(sum(k["share"] for k in row["kinds"]), 1, places=6)
            self.assertAlmostEqual(row["products_share"] + row["attention_share"] + row["else_share"], 1, places=6)
            self.assertTrue(row["ttft_ms"] > 0 and row["ttft_ms_clocked"] > 0)

    def test_what_each_method_does(self):
        full, reuse, qs = self.kinds
        for kinds in self.kinds:
            self.assertLessEqual(WORK | {"alone", "idle"}, kinds.keys())
            self.assertNotIn("product", kinds)  # every weight has a name
            self.assertNotIn("experts", kinds)
        self.assertLessEqual({"wait_equal", "wait_uneven"}, full.keys())
        self.assertNotIn("kv_load", full)
        self.assertIn("kv_load", reuse)
        self.assertNotIn("mass", reuse)
        self.assertIn("mass", qs)

    def test_operations_are_counted_by_shape(self):
        d, hk, gk, f, v, layers = 576, 576, 192, 1536, 49152, 4
        dims = {"kv": (2 * gk, d), "q": (hk, d), "o": (d, hk), "gate_up": (2 * f, d), "down": (d, f), "head": (v, d)}
        row, kinds = self.got["rows"][0], self.kinds[0]
        done, want = Counter(), Counter()
        feed_forward = {"gate_up", "down", "gated"}  # what of it is one operation depends on the CPU
        for name in PRODUCTS | {"gated"} & kinds.keys():  # 0: refused where there are no tiles
            flops = (kinds[name]["gflops"] or 0) * kinds[name]["thread_ms"] * 1e6 / row["threads"]
            done["gated" if name in feed_forward else name] += flops
        for name, (n, k) in dims.items():
            rows = {"kv": TOKENS * layers, "head": 1}.get(name, TOKENS * (layers - 1) + 1)  # the last layer answers
            want["gated" if name in feed_forward else name] += 2 * rows * n * k
        for name, flops in want.items():
            self.assertAlmostEqual(done[name] / flops, 1, places=6, msg=name)
        keys = (layers - 1) * TOKENS * (TOKENS + 1) / 2 + TOKENS
        flops = kinds["attention"]["gflops"] * kinds["attention"]["thread_ms"] * 1e6 / row["threads"]
        self.assertAlmostEqual(flops / (4 * hk * keys), 1, places=6)

    def test_bad_input_is_said(self):
        for args, word in ((["--strategies", "map_reduce"], "quality"), (["--strategies", "none"], "none")):
            r = subprocess.run([BENCH, *ARGS, *args], capture_output=True, text=True, timeout=200)
            self.assertEqual(r.returncode, 1)
            self.assertIn(word, r.stderr)


if __name__ == "__main__":
    unittest.main()
