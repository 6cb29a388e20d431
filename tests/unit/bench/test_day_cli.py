"""kvblend-bench day: the same seed gives the same day, and the controller's day is the best one."""
import pathlib
import subprocess
import tempfile
import unittest

from bench_cli import BENCH, report

TRACE = pathlib.Path(__file__).parents[2] / "data" / "traces" / "mooncake_300.jsonl"


def day(*args):
    return report("day", "--trace", str(TRACE), "--hours", "0.25", *args)


class Day(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.first = day()
        cls.rows = {r["policy"]: r for r in cls.first["rows"]}

    def test_equal_seeds_equal_days(self):
        self.assertEqual(self.first["rows"], day()["rows"])
        self.assertNotEqual(self.first["rows"], day("--order-seed", "2")["rows"])

    def test_percentiles_ascend_and_every_request_counts(self):
        for r in self.rows.values():
            self.assertEqual(r["requests"], self.rows["full"]["requests"])
            self.assertEqual(sum(r["strategies"].values()), r["requests"])
            self.assertTrue(0 < r["ttft_s_p50"] <= r["ttft_s_p90"] <= r["ttft_s_p99"] <= r["ttft_s_max"])
            self.assertAlmostEqual(r["cost"], r["cost_gpu"] + r["cost_storage"], places=4)

    def test_full_computes_all_and_keeps_nothing(self):
        full = self.rows["full"]
        self.assertEqual((full["loaded_gb"], full["cost_storage"]), (0, 0))
        self.assertEqual(full["strategies"], {"full": full["requests"]})

    def test_controller_is_the_best_policy(self):
        mine = self.rows["controller"]
        for name, r in self.rows.items():
            self.assertLessEqual(mine["ttft_s_mean"], r["ttft_s_mean"], name)
            self.assertLessEqual(mine["gpu_hours"], r["gpu_hours"], name)

    def test_bad_input_is_said(self):
        r = subprocess.run([BENCH, "day"], capture_output=True, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("--trace", r.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write('{"hash_ids": [1, 2]}\n')
            f.flush()
            r = subprocess.run([BENCH, "day", "--trace", f.name], capture_output=True, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("input_length", r.stderr)


if __name__ == "__main__":
    unittest.main()
