"""kvblend-bench throughput: the load generator against servers whose behaviour is known, and a real worker."""
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUILD = os.environ.get("KVBLEND_BUILD", "build")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(BUILD, "tools", "bench", "kvblend-bench")
MODEL = os.path.join(ROOT, "tests", "data", "models", "smollm2")
FIELDS = {"strategy", "ratio", "rate", "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99", "itl_ms_p99",
          "goodput", "n"}


class Server(ThreadingHTTPServer):
    """Answers one request at a time, `work_s` each; every `bad`th is refused."""
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, work_s, bad=0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.work_s, self.bad, self.turn, self.bodies = work_s, bad, threading.Lock(), []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, b'{"object":"list","data":[{"id":"one-at-a-time"}]}')

    def do_POST(self):
        s = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with s.turn:
            s.bodies.append(body)
            n = len(s.bodies)
            time.sleep(s.work_s)
        if s.bad and n % s.bad == 0:
            self.reply(503, b"{}")
            return
        frames = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]},
                  {"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"delta": {"content": "b"}}]},
                  {"choices": [], "usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5}}}]
        text = "".join("data: %s\n\n" % json.dumps(f) for f in frames) + "data: [DONE]\n\n"
        self.reply(200, text.encode(), "text/event-stream")


def run(*args):
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "out.json")
        p = subprocess.run([BENCH, "throughput", "--model", MODEL, "--json", out, *args], cwd=ROOT,
                           capture_output=True, text=True, timeout=250)
        if p.returncode != 0:
            raise AssertionError(p.stderr + p.stdout)
        with open(out) as f:
            return json.load(f)


class Throughput(unittest.TestCase):
    def test_an_overloaded_server_misses_the_objective(self):
        s = Server(0.05)
        got = run("--server", "127.0.0.1:%d" % s.server_port, "--chunks", "2", "--chunk-tokens", "40",
                       "--pool", "5", "--requests", "60", "--rates", "6,60", "--slo-ms", "400")
        calm, busy = got["rows"]
        self.assertLessEqual(FIELDS, set(calm))
        self.assertEqual([calm["n"], busy["n"]], [60, 60])
        self.assertEqual([calm["failed"], busy["failed"]], [0, 0])
        self.assertEqual(calm["cached_share"], 0.5)
        # Sixty requests in about a second, each of 50 ms in turn: the last waits for two seconds, and
        # a client that counted from when it got to send would not see it.
        self.assertGreater(busy["ttft_ms_p99"], 1000)
        self.assertLess(calm["ttft_ms_p50"], busy["ttft_ms_p50"])
        at = got["meta"]["throughput_at_slo"]["server"]
        self.assertGreaterEqual(at, 6)
        self.assertLess(at, 60)

    def test_prompts_are_all_different_and_made_of_the_same_documents(self):
        s = Server(0.0)
        run("--server", "127.0.0.1:%d" % s.server_port, "--chunks", "3", "--chunk-tokens", "40", "--pool", "5",
            "--requests", "30", "--rates", "100,200")
        texts = [b["messages"][0]["content"] for b in s.bodies]
        self.assertEqual(len(set(texts)), len(texts))
        documents = {part for t in texts for part in t.split("\n\n")[1:4]}
        self.assertEqual(len(documents), 5)
        for t in texts:
            self.assertEqual(len(set(t.split("\n\n")[1:4])), 3)
        self.assertTrue(all("kvblend" not in b for b in s.bodies))

    def test_answers_that_fail_are_not_within_the_objective(self):
        s = Server(0.0, bad=10)
        got = run("--server", "127.0.0.1:%d" % s.server_port, "--chunks", "1", "--chunk-tokens", "40", "--pool",
                     "3", "--requests", "30", "--rates", "50", "--slo-ms", "60000")
        self.assertEqual(got["rows"][0]["failed"], 3)
        self.assertIsNone(got["rows"][0]["ttft_ms_p95"])
        self.assertEqual(got["rows"][0]["busy_ms"], {"prefill": None, "decode": None})  # it does not say
        self.assertEqual([q["engine_ms"] for q in got["rows"][0]["requests"]], [None] * 30)
        self.assertIsNone(got["meta"]["throughput_at_slo"]["server"])

    def test_the_baselines_that_ask_about_each_document(self):
        s = Server(0.0)
        got = run("--server", "127.0.0.1:%d" % s.server_port, "--chunks", "3", "--chunk-tokens", "40", "--pool", "5",
                  "--requests", "4", "--rates", "100", "--strategies", "map_reduce,map_rerank", "--answer-tokens", "8",
                  "--map-tokens", "30", "--slo-ms", "60000")
        rows = {r["strategy"]: r for r in got["rows"]}
        self.assertEqual(list(rows), ["server", "map_reduce", "map_rerank"])
        self.assertTrue(all(r["failed"] == 0 and r["n"] == 4 for r in rows.values()))
        texts = [(b["messages"][0]["content"], b) for b in s.bodies]
        maps = [b for t, b in texts if "Summarise what the text says" in t]
        reduces = [t for t, b in texts if t.count("Summary of a text:\nab") == 3]
        scored = [(t, b) for t, b in texts if "Score: N" in t]
        # Per method: six requests alone, and four at a rate.
        self.assertEqual([len(maps), len(reduces), len(scored), len(texts)], [30, 10, 30, 80])
        self.assertTrue(all(b["max_tokens"] == 30 and "min_tokens" not in b for b in maps))
        self.assertTrue(all(b["max_tokens"] == b["min_tokens"] == 24 for t, b in scored))
        self.assertTrue(all("Question: what do they say of" in t for t in reduces + [t for t, b in scored]))
        self.assertTrue(all(t.count("\n\n") == 3 for t, b in scored))  # one document

    def test_a_worker_of_its_own(self):
        got = run("--chunks", "3", "--chunk-tokens", "64", "--pool", "6", "--requests", "10", "--load", "0.2",
                     "--strategies", "full,prefix,reuse,blend", "--threads", "1", "--gemm", "own-f32")
        self.assertEqual([r["strategy"] for r in got["rows"]], ["full", "prefix", "reuse", "blend"])
        self.assertTrue(all(r["failed"] == 0 and r["n"] == 10 for r in got["rows"]))
        cached = {r["strategy"]: r["cached_share"] for r in got["rows"]}
        self.assertEqual(cached["full"], 0)
        self.assertGreater(cached["blend"], cached["prefix"])
        self.assertGreater(cached["reuse"], cached["blend"])
        self.assertEqual(set(got["meta"]["throughput_at_slo"]), {"full", "prefix", "reuse", "blend"})
        self.assertEqual(set(got["meta"]["outside_ms_unloaded"]), set(cached))
        for r in got["rows"]:  # what the engine did for a request
            self.assertTrue(0 < r["busy_ms"]["prefill"] and 0 < r["busy_ms"]["decode"])
            each = r["requests"]
            self.assertEqual([len(each), sorted(q["at_s"] for q in each)], [10, [q["at_s"] for q in each]])
            for q in each:
                self.assertLessEqual(q["queue_ms"] + q["prefill_ms"], q["ttft_ms"])
                self.assertLess(q["ttft_ms"], q["end_ms"])
                self.assertLess(0, q["engine_ms"])
            # The rest of a prefill's last step, behind the first token, is the engine's alone.
            self.assertLess(sum(q["engine_ms"] for q in each) / 10, r["busy_ms"]["prefill"])

    def test_streams_run_through_every_point(self):
        got = run("--chunks", "3", "--chunk-tokens", "64", "--pool", "6", "--requests", "10", "--rates", "5",
                  "--strategies", "full,prefix,reuse,blend", "--threads", "1", "--gemm", "own-f32", "--slo-ms", "60000",
                  "--streams", "2", "--stream-tokens", "100", "--alone-s", "0.5")
        self.assertEqual([r["strategy"] for r in got["rows"]], ["full", "prefix", "reuse", "blend"])
        for r in got["rows"]:
            self.assertEqual([r["failed"], r["n"]], [0, 10])
            # The answers' own gaps are three a request: what is counted are the streams'.
            self.assertGreater(r["itl_n"], 60)
            self.assertGreater(r["itl_alone_n"], 60)
            self.assertLessEqual(r["itl_ms_p50"], r["itl_ms_p99"])
            self.assertLessEqual(r["itl_ms_p99"], r["itl_ms_max"])
            self.assertAlmostEqual(r["itl_ratio"] / (r["itl_ms_p99"] / r["itl_alone_ms_p99"]), 1, 5)
            self.assertGreater(r["streams_share"], 0)
        self.assertEqual(got["meta"]["streams"], 2)
        alone = [r["itl_alone_ms_p99"] for r in got["rows"]]
        self.assertLessEqual(min(alone), got["meta"]["itl_unloaded_ms_p99"])
        self.assertLessEqual(got["meta"]["itl_unloaded_ms_p99"], max(alone))

    def test_an_objective_in_ms_needs_no_full_prefill(self):
        got = run("--chunks", "2", "--chunk-tokens", "40", "--pool", "4", "--requests", "4", "--rates", "20", "--threads",
                  "1", "--gemm", "own-f32", "--slo-ms", "60000", "--strategies", "reuse")
        self.assertEqual([r["strategy"] for r in got["rows"]], ["reuse"])
        self.assertEqual(got["meta"]["throughput_at_slo"], {"reuse": 20})

    def test_cut_short_it_tells_what_is_done_and_leaves_nothing_behind(self):
        with tempfile.TemporaryDirectory() as d:
            out = os.path.join(d, "out.json")
            # The second point would take a quarter of an hour.
            p = subprocess.Popen(
                [BENCH, "throughput", "--model", MODEL, "--json", out, "--chunks", "3", "--chunk-tokens", "64",
                 "--pool", "6", "--requests", "10", "--rates", "20,0.01", "--slo-ms", "60000", "--strategies",
                 "full,reuse", "--threads", "1", "--gemm", "own-f32"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                env=dict(os.environ, TMPDIR=d))
            self.assertTrue(any(line.startswith("full ") for line in iter(p.stdout.readline, "")))
            p.send_signal(signal.SIGINT)
            rest = p.communicate(timeout=120)[0]
            self.assertEqual(p.returncode, 0, rest)
            self.assertEqual(os.listdir(d), ["out.json"])
            with open(out) as f:
                got = json.load(f)
        self.assertTrue(got["meta"]["interrupted"])
        self.assertEqual([(r["strategy"], r["rate"]) for r in got["rows"]], [("full", 20)])
        self.assertEqual(got["meta"]["throughput_at_slo"], {"full": None, "reuse": None})


if __name__ == "__main__":
    unittest.main(verbosity=2)
