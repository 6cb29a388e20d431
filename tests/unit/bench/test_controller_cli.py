"""kvblend-bench controller on a tiny model, emulated: what it reports, and that its choices are possible ones."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import bench_cli
from bench_cli import BENCH

MODEL = pathlib.Path(__file__).parents[2] / "data" / "models" / "smollm2.F32.gguf"
ARGS = ["--model", str(MODEL), "--chunks", "3", "--chunk-tokens", "32", "--query-tokens", "8", "--counts", "3",
        "--floor-loss", "0.61", "--reps", "2", "--threads", "1", "--ram", "64MiB"]


def run(*args):
    return subprocess.run([BENCH, "controller", *ARGS, *args], capture_output=True, text=True, timeout=200)


def report(*args):
    return bench_cli.report("controller", *ARGS, *args)


class Controller(unittest.TestCase):
    def check(self, got, cells):
        meta = got["meta"]
        self.assertEqual(meta["cells"], cells)
        self.assertEqual(len(got["rows"]), cells)
        for name in ("regret_median", "regret_worst", "prediction_error_median", "speedup_vs_full_min", "decision_us"):
            self.assertGreater(meta[name], 0, name)
        self.assertLessEqual(meta["regret_median"], meta["regret_worst"])
        for row in got["rows"]:
            self.assertIn(row["strategy"], [c["strategy"] for c in row["choices"]] + ["full"])
            self.assertEqual(row["choices"][0]["strategy"], "full")
            if row["strategy"] != "full":
                self.assertGreaterEqual(row["ratio"], meta["floors"][row["strategy"]] - 1e-6)
            self.assertLessEqual(row["chunks_reused"], row["chunks"])
            if row["residence"] == "third":  # one of three is nowhere
                self.assertLessEqual(row["chunks_reused"], 2)
        return got["rows"]

    def test_emulated(self):
        rows = self.check(report("--emulate", "--bandwidths", "ram,1"), 4)
        self.assertEqual([r["residence"] for r in rows], ["ram", "tier", "half", "third"])

    def test_regret_is_against_the_best_fixed_choice(self):
        rows = report("--emulate", "--bandwidths", "ram,1", "--reps", "1")["rows"]
        for row in rows:  # of one round, so that a median of ratios is the ratio
            self.assertEqual(row["rounds"], 1)
            self.assertIn(row["best"], row["choices"])
            self.assertLessEqual(row["best"]["ttft_ms"], row["full_ms"])
            self.assertAlmostEqual(row["regret"], row["ttft_ms"] / row["best"]["ttft_ms"], places=6)
            self.assertAlmostEqual(row["speedup_vs_full"], row["full_ms"] / row["ttft_ms"], places=6)
        self.assertTrue(any(row["regret"] != 1 for row in rows), rows)

    def test_a_tier_slower_than_computing_is_left_alone(self):
        (row,) = self.check(report("--emulate", "--bandwidths", "0.0001", "--cells", "1"), 1)
        self.assertEqual((row["strategy"], row["chunks_reused"]), ("full", 0))

    def test_from_a_real_tier(self):
        self.check(report("--bandwidths", "7", "--cells", "1"), 1)

    def test_cut_short_it_tells_what_is_done(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "controller.json"
            p = subprocess.Popen([BENCH, "controller", *ARGS, "--emulate", "--counts", ",".join("3" * 16),
                                  "--json", str(out)], stdout=subprocess.PIPE, text=True)
            self.assertTrue(any("regret" in line for line in iter(p.stdout.readline, "")))
            p.terminate()
            p.communicate(timeout=120)
            self.assertEqual(p.returncode, 0)
            got = json.loads(out.read_text())
        self.assertTrue(got["meta"]["interrupted"])
        self.check(got, got["meta"]["cells"])
        self.assertTrue(0 < got["meta"]["cells"] < 208, got["meta"]["cells"])

    def test_bad_input_is_said(self):
        for args, word in ((["--counts", "9"], "--counts"), (["--bandwidths", "fast"], "--bandwidths"),
                           (["--floor-loss", "0"], "--floor-loss"),
                           (["--bandwidths", ",".join("7" * 16), "--counts", ",".join("3" * 6)], "256")):
            r = run(*args)
            self.assertEqual(r.returncode, 1)
            self.assertIn(word, r.stderr)


if __name__ == "__main__":
    unittest.main()
