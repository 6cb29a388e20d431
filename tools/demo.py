#!/usr/bin/env python3
"""A RAG question to a running gateway, cold; the same documents in another order with another question, warm; then the
same prompt in the modes full, prefix and blend.

    tools/demo.py [--url http://127.0.0.1:8010] [--documents etc/demo] [--rounds 1]

It speaks only HTTP, so it shows what an application gets: the time to the first token (TTFT) is taken here, at the first
content of the stream. Token counts come from the answer's own report. The gateway needs --metrics-public, which says
when the chunks are built.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import sys
import time
import urllib.parse

BUILD_WAIT_S = 300


class Demo:
    def __init__(self, url, documents):
        self.address = urllib.parse.urlsplit(url).netloc
        self.documents = [p.read_text().strip() for p in sorted(pathlib.Path(documents).glob("*.txt"))]
        if len(self.documents) < 2:
            raise ValueError(f"{documents}: fewer than two .txt files")

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status} for {path}: {answer.read().decode(errors='replace')[:200]}")
        return answer

    def ask(self, order, question, mode, max_tokens=40):
        """The prompt a plain RAG application would send. Returns TTFT in ms, the text and the report."""
        shown = "".join(f"### Document {i}\n{self.documents[d]}\n\n" for i, d in enumerate(order, 1))
        prompt = f"Answer the question from these documents.\n\n{shown}Question: {question}"
        start, ttft, text, report = time.monotonic(), None, "", {}
        for line in self.request("POST", "/v1/chat/completions", {
                "stream": True, "max_tokens": max_tokens, "temperature": 0,
                "messages": [{"role": "user", "content": prompt}], "kvblend": {"mode": mode, "explain": True}}):
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"].get("message"))
            report = event.get("kvblend", report)
            piece = "".join(c.get("delta", {}).get("content") or "" for c in event.get("choices", []))
            if piece and ttft is None:
                ttft = (time.monotonic() - start) * 1000
            text += piece
        if ttft is None:
            raise RuntimeError("the answer was empty")
        return ttft, " ".join(text.split()), report

    def wait_for_builds(self):
        """Chunks are built in idle time, after the request that missed them."""
        deadline = time.monotonic() + BUILD_WAIT_S
        while time.monotonic() < deadline:
            page = self.request("GET", "/metrics").read().decode()
            pending = [float(l.split()[-1]) for l in page.splitlines() if l.startswith("kvblend_builds_pending")]
            if sum(pending) == 0:
                return
            time.sleep(0.2)
        raise TimeoutError("the chunks were not built in time")


def tokens(report):
    """(reused, computed): selected tokens of reused chunks are computed as well."""
    t = report.get("tokens", {})
    return t.get("prefix", 0) + t.get("reused", 0), t.get("recomputed", 0) + t.get("computed", 0)


def show(demo, title, order, question):
    ttft, text, report = demo.ask(order, question, "auto")
    reused, computed = tokens(report)
    print(f"{title}\n   {question}  {text}\n"
          f"   first token after {ttft:.0f} ms: {reused} tokens reused, {computed} computed", flush=True)


def table(demo, question, rounds):
    """Each round has an order that was not seen before, which is what retrieval does."""
    n, modes = len(demo.documents), ("full", "prefix", "blend")
    ms, report = {m: [] for m in modes}, {}
    for r in range(rounds):
        order = [(2 * n - 1 - i - r) % n for i in range(n)]
        for mode in modes:  # interleaved: a slow moment hits all three
            ttft, _, report[mode] = demo.ask(order, question, mode, max_tokens=4)
            ms[mode].append(ttft)
    median = {m: statistics.median(ms[m]) for m in modes}
    print(f"3. A third order and question, by mode\n"
          f"   {'mode':8} {'TTFT ms':>9} {'speed-up':>9} {'tokens reused':>14} {'tokens computed':>16}")
    for m in modes:
        reused, computed = tokens(report[m])
        print(f"   {m:8} {median[m]:9.0f} {median['full'] / median[m]:8.2f}x {reused:14} {computed:16}")
    print("   A prefix cache can use what stands in front in the same order; behind the first new document it computes all.")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8010")
    p.add_argument("--documents", default=pathlib.Path(__file__).resolve().parent.parent / "etc" / "demo")
    p.add_argument("--rounds", type=int, default=1)
    o = p.parse_args()
    demo = Demo(o.url, o.documents)
    order = list(range(len(demo.documents)))
    half = len(order) // 2
    show(demo, "1. Cold: no document is cached", order, "Who built the lighthouse at Harrow Point?")
    demo.wait_for_builds()
    show(demo, "2. Warm: the same documents, another order, another question", order[half:] + order[:half],
         "Who founded the observatory on Mount Ester?")
    table(demo, "What were the first three engines of the railway called?", o.rounds)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as e:
        sys.exit(f"error: the demonstration failed: {e}")
