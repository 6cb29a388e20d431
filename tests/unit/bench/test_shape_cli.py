"""kvblend-bench --shape: models of random weights in the shapes of real ones, without a file or a tokenizer's."""
import os
import subprocess
import unittest

import bench_cli
from bench_cli import BENCH

ARGS = ["--gemm", "own-f32", "--chunks", "3", "--chunk-tokens", "48", "--query-tokens", "16", "--reps", "1",
        "--ram", "64MiB"]


def run(sub, *args):
    return subprocess.run([BENCH, sub, *args], capture_output=True, text=True, timeout=200)


def report(sub, *args):
    return bench_cli.report(*sub.split(), *ARGS, *args)


class Shape(unittest.TestCase):
    def test_ttft(self):
        got = report("ttft", "--shape", "smollm2:layers=4", "--strategies", "full,reuse,hkvd,query", "--ratios", "0.15")
        self.assertEqual(got["meta"]["model"], "smollm2:layers=4")
        self.assertEqual(got["meta"]["dims"],
                         {"L": 4, "D": 576, "H": 9, "G": 3, "K": 64, "F": 1536, "V": 49152})
        self.assertEqual([r["strategy"] for r in got["rows"]], ["full", "reuse", "hkvd", "query"])
        tokens = 1 + 3 * 48 + 16  # one starts the text
        for row in got["rows"]:
            self.assertEqual(row["tokens_total"], tokens)
            self.assertGreater(row["ttft_ms_median"], 0)
        self.assertEqual(got["rows"][1]["tokens_recomputed"], 0)
        self.assertAlmostEqual(got["rows"][2]["tokens_recomputed"], 0.15 * 3 * 48, delta=2)

    def test_overlap(self):
        got = report("kernels overlap", "--shape", "smollm2:layers=2", "--strategies", "hkvd", "--throttles", "1,20")
        self.assertEqual([r["throttle_gbps"] for r in got["rows"]], [1, 20])
        for row in got["rows"]:
            self.assertGreater(row["time_per_max"], 0)

    def test_the_environment_may_name_a_model_as_well(self):
        r = subprocess.run([BENCH, "ttft", *ARGS, "--shape", "smollm2:layers=1", "--strategies", "full"],
                           capture_output=True, text=True, timeout=200,
                           env={**os.environ, "KVBLEND_MODEL": "/no/such.gguf"})
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_bad_input_is_said(self):
        for sub in ("ttft", "throughput"):
            for args, word in ((["--shape", "gpt2"], "known: smollm2"), (["--shape", "yi-34b:layers=0"], "layers=N")):
                r = run(sub, *args)
                self.assertEqual(r.returncode, 1)
                self.assertIn(word, r.stderr)
        env = {k: v for k, v in os.environ.items() if k != "KVBLEND_MODEL"}
        r = subprocess.run([BENCH, "ttft"], capture_output=True, text=True, timeout=60, env=env)
        self.assertEqual(r.returncode, 1)
        self.assertIn("--shape", r.stderr)


if __name__ == "__main__":
    unittest.main()
