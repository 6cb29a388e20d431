"""kvblend-bench rerank: what a second question costs and scores, and a run that is cut short."""
import json
import os
import pathlib
import pty
import signal
import subprocess
import tempfile
import unittest

from bench_cli import BENCH, report

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODELS = ROOT / "tests" / "data" / "models"
ARGS = ["rerank", "--documents", str(ROOT / "etc" / "demo"), "--pool", "5", "--chunk-tokens", "60", "--query-tokens",
        "4", "--threads", "1", "--gemm", "own-f32", "--kv-dtype", "f32"]
RERANKER = ["--model", str(MODELS / "qwen3-reranker")]


class Rerank(unittest.TestCase):
    def test_figures(self):
        rows = report(*ARGS, *RERANKER, "--reps", "2")["rows"]
        self.assertEqual([(r["order"], r["asked"], r["n"]) for r in rows],
                         [(o, a, 2) for o in ("document_first", "query_first") for a in ("cold", "second", "full")])
        for cold, second, full in (rows[:3], rows[3:]):
            self.assertTrue(second["computed"] <= cold["computed"] < full["computed"])
            self.assertEqual(full["computed"], full["prompt_tokens"])
            self.assertEqual(second["prompt_tokens"], full["prompt_tokens"])
            self.assertEqual((full["share_p50"], full["share_max"]), (1, 1))
            self.assertTrue(0 < second["cpu_ms_p50"] and 0 < second["share_p50"])
            self.assertLessEqual(second["difference"], 1e-5)
            self.assertNotIn("difference", cold)
        self.assertTrue(rows[1]["computed"] < rows[0]["computed"])  # the documents are known by then

    def test_one_order(self):
        rows = report(*ARGS, *RERANKER, "--reps", "1", "--order", "query_first")["rows"]
        self.assertEqual([r["order"] for r in rows], ["query_first"] * 3)

    def test_cut_short_by_the_same_wish_again_and_again(self):
        """As timeout has it, which signals the process and then its group."""
        with tempfile.TemporaryDirectory() as d:
            out, (ours, theirs) = pathlib.Path(d) / "out.json", pty.openpty()
            p = subprocess.Popen([BENCH, *ARGS, *RERANKER, "--reps", "1000", "--json", str(out)], stderr=theirs,
                                 stdout=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=d))
            os.close(theirs)
            told = b""
            while b"round 2 of" not in told:
                told += os.read(ours, 4096)
            for _ in range(100):
                p.send_signal(signal.SIGINT)
            self.assertEqual(p.wait(120), 0)
            os.close(ours)
            self.assertEqual(os.listdir(d), ["out.json"])
            got = json.loads(out.read_text())
        self.assertTrue(got["meta"]["interrupted"])
        self.assertEqual(len(got["rows"]), 6)

    def test_a_model_that_cannot_says_why(self):
        r = subprocess.run([BENCH, *ARGS, "--model", str(MODELS / "smollm2")], capture_output=True, text=True)
        self.assertEqual(r.returncode, 1)
        self.assertIn("cannot rerank", r.stderr)


if __name__ == "__main__":
    unittest.main()
