"""kvblend-bench rag --replay: an hour of a real trace, asked of a worker in each mode."""
import json
import os
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("KVBLEND_BUILD", "build")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(BUILD, "tools", "bench", "kvblend-bench")
MODEL = os.path.join(ROOT, "tests", "data", "models", "smollm2")
TRACE = os.path.join(ROOT, "tests", "data", "traces", "ragpulse_90")
HOUR = ["--replay", "--hour", "168", "--scale", "16", "--seconds", "3", "--threads", "1", "--gemm", "own-f32"]


def run(*args, model=MODEL):
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "out.json")
        with_model = ["--model", model] if model else []
        p = subprocess.run([BENCH, "rag", "--trace", TRACE, *with_model, *HOUR, "--json", out, *args], cwd=ROOT,
                           capture_output=True, text=True, timeout=250, check=False,
                           env=dict({k: v for k, v in os.environ.items() if k != "KVBLEND_MODEL"}, TMPDIR=d))
        left = [name for name in os.listdir(d) if name != "out.json"]
        if p.returncode != 0:
            return p, left, None
        with open(out, encoding="utf-8") as f:
            return p, left, json.load(f)


def requests_of_the_hour():
    """Requests in the second week's first hour and the passages that the trace had before."""
    week, last, hour, before = 0, 0, [], set()
    with open(os.path.join(TRACE, "0_trace.jsonl"), encoding="utf-8") as f:
        requests = [json.loads(line) for line in f]
    for q in requests:
        at = int(q["timestamp"])
        week += at < last
        last = at
        if week == 0:
            before.update(q["hash_ids"]["passages_ids"])
        elif at < 3600:
            hour.append(q["hash_ids"])
    return hour, before


class Rag(unittest.TestCase):
    def test_what_a_worker_finds_is_what_the_trace_lets_expect(self):
        p, left, got = run("--rounds", "2")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(left, [])
        hour, before = requests_of_the_hour()
        passages = {i for q in hour for i in q["passages_ids"]}
        self.assertEqual([got["meta"][k] for k in ("replayed", "known")], [len(hour), len(passages & before)])
        self.assertEqual(got["meta"]["texts"], len({(k, i) for q in hour for k, ids in q.items() for i in ids}))
        self.assertEqual([r["mode"] for r in got["rows"]], ["full", "prefix", "blend", "reuse"])
        for r in got["rows"]:
            self.assertEqual([r["n"], r["failed"]], [2 * len(hour), 0])
            self.assertLessEqual(r["ttft_ms_p50"], r["ttft_ms_p95"])
            # Tokens of the template are found, too; not what is short, what a build comes too late for, and of a prefix
            # what its last block is cut short of.
            self.assertLessEqual(r["found"], r["expected"] + 0.02)
            self.assertGreaterEqual(r["found"], 0.5 * r["expected"])
        full, prefix, blend, reuse = (r["found"] for r in got["rows"])
        self.assertEqual(full, 0)
        self.assertLess(0, prefix)
        self.assertLess(prefix, min(blend, reuse))

    def test_refusals(self):
        for why, args, model in (("no request came", ["--hour", "100"], MODEL), ("--model", [], None),
                                 ("cannot", [], os.path.join(ROOT, "none.gguf"))):
            p, left, _ = run(*args, model=model)
            self.assertEqual((p.returncode, left), (1, []))
            self.assertIn(why, p.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
