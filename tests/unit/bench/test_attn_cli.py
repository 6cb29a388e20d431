"""kvblend-bench attn: every case is there, and its figures follow from its time and its shape."""
import subprocess
import unittest

from bench_cli import BENCH, report

KEYS = 640


class Attn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        got = report("kernels", "attn", "--keys", str(KEYS), "--reps", "2")
        cls.meta, cls.rows = got["meta"], got["rows"]

    def test_cases(self):
        self.assertEqual([(r["case"], r["rows"], r["sequences"]) for r in self.rows],
                         [("full", KEYS, 1)] +
                         [(f"sparse {p} %", (KEYS - 32) * p // 100 + 32, 1) for p in (5, 10, 15, 30)] +
                         [(f"decode x{n}", n, n) for n in (1, 2, 4, 8, 16)] + [("question", 32, 1), ("mass", 32, 1)])

    def test_only_visible_keys_count(self):
        visible = {r["case"]: r["visible_keys"] for r in self.rows}
        self.assertEqual(visible["full"], KEYS * (KEYS + 1) / 2)
        self.assertEqual(visible["decode x4"], 4 * KEYS)
        self.assertEqual(visible["mass"], sum(KEYS - i for i in range(32)))
        question = visible["mass"]
        for p in (5, 10, 15, 30):
            n = (KEYS - 32) * p // 100  # rows of the context, about half of which each sees
            share = (visible[f"sparse {p} %"] - question) / (n * (KEYS - 32) / 2)
            self.assertTrue(0.9 < share < 1.1, (p, share))

    def test_figures_follow(self):
        m = self.meta
        self.assertEqual((m["shape"], m["H"], m["G"], m["K"]), ("smollm2", 9, 3, 64))
        for r in self.rows:
            self.assertTrue(0 < r["ms_min"] <= r["ms"] <= r["ms_max"])
            flops = (2 if r["case"] == "mass" else 4) * m["H"] * m["K"] * r["visible_keys"]
            self.assertAlmostEqual(r["tflops"] / (flops / r["ms"] * 1e-9), 1, places=5)
            self.assertAlmostEqual(r["gemm_share"] / (r["tflops"] / m["gemm_tflops"]), 1, places=5)
            tensors = 1 if r["case"] == "mass" else 2
            kv = tensors * r["sequences"] * KEYS * m["G"] * m["K"] * m["kv_value_bytes"]
            self.assertAlmostEqual(r["kv_gbps"] / (kv / r["ms"] * 1e-6), 1, places=5)

    def test_bad_input_is_said(self):
        for args, word in ((["--shape", "none"], "mistral-7b"), (["--device", "abacus"], "cuda:N"),
                           (["--keys", "7"], "keys")):
            r = subprocess.run([BENCH, "kernels", "attn", *args], capture_output=True, text=True)
            self.assertNotEqual(r.returncode, 0)
            self.assertIn(word, r.stderr)


if __name__ == "__main__":
    unittest.main()
