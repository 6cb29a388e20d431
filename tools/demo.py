#!/usr/bin/env python3
"""A RAG question to a running gateway, cold; the same documents in another order with another question, warm; then the
same prompt in the modes full, prefix and blend, and in blend once more when idle time has encoded the documents behind
each other: tools/demo.py [http://127.0.0.1:8010]

It speaks only HTTP, so it shows what an application gets: the time to the first token (TTFT) is taken here, at the first
content of the stream. Token counts come from the answer's own report. The gateway needs --metrics-public, which says
when the chunks are built and merged.
"""
import http.client
import json
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request

BUILD_WAIT_S, MERGE_WAIT_S = 300, 60
DOCUMENTS = [p.read_text().strip() for p in sorted((pathlib.Path(__file__).resolve().parents[1] / "etc/demo").glob("*.txt"))]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # straight there: a proxy would be timed, too


def ask(url, order, question, mode="auto", max_tokens=40):
    """The prompt a plain RAG application would send. Returns TTFT in ms, the text and the report's tokens: (reused,
    computed), where selected tokens of reused chunks are computed as well."""
    shown = "".join(f"### Document {i}\n{DOCUMENTS[d]}\n\n" for i, d in enumerate(order, 1))
    prompt = f"Answer the question from these documents.\n\n{shown}Question: {question}"
    body = {"stream": True, "max_tokens": max_tokens, "temperature": 0,
            "messages": [{"role": "user", "content": prompt}], "kvblend": {"mode": mode, "explain": True}}
    start, ttft, text, tokens = time.monotonic(), None, "", {}
    for line in OPENER.open(urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(),
                                                   {"Content-Type": "application/json"}), timeout=600):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"].get("message"))
        tokens = event.get("kvblend", {}).get("tokens", tokens)
        piece = "".join(c.get("delta", {}).get("content") or "" for c in event.get("choices", []))
        if piece and ttft is None:
            ttft = (time.monotonic() - start) * 1000
        text += piece
    if ttft is None:
        raise RuntimeError("the answer was empty")
    reused, computed = (sum(tokens.get(k, 0) for k in keys) for keys in (("prefix", "reused"), ("recomputed", "computed")))
    return ttft, " ".join(text.split()), reused, computed


def metric(url, name):
    page = OPENER.open(f"{url}/metrics", timeout=600).read().decode()
    return sum(float(l.split()[-1]) for l in page.splitlines() if re.match(rf"kvblend_{name}[ {{]", l))


def wait_for_builds(url):
    """Chunks are built in idle time, after the request that missed them."""
    for _ in range(BUILD_WAIT_S * 5):
        if not metric(url, "builds_pending"):
            return
        time.sleep(0.2)
    raise TimeoutError("the chunks were not built in time")


def merged(url, at_least):
    """Whether idle time has encoded so many records behind others in a minute: a configuration can forbid it."""
    for _ in range(MERGE_WAIT_S * 5):
        if metric(url, "contexts_total") >= at_least:
            return True
        time.sleep(0.2)
    return False


def show(url, title, order, question):
    ttft, text, reused, computed = ask(url, order, question)
    print(f"{title}\n   {question}  {text}\n"
          f"   first token after {ttft:.0f} ms: {reused} tokens reused, {computed} computed", flush=True)
    return reused


def main():
    url = (sys.argv[1:] or ["http://127.0.0.1:8010"])[0].rstrip("/")
    order = list(range(len(DOCUMENTS)))
    half, merges = len(order) // 2, metric(url, "contexts_total")
    known = show(url, "1. Cold: no document is cached", order, "Who built the lighthouse at Harrow Point?")
    wait_for_builds(url)
    show(url, "2. Warm: the same documents, another order, another question", order[half:] + order[:half],
         "Who founded the observatory on Mount Ester?")
    print(f"3. A third order and question, by mode\n"
          f"   {'mode':11} {'TTFT ms':>8} {'speed-up':>9} {'tokens reused':>14} {'tokens computed':>16}")
    full, question = None, "What were the first three engines of the railway called?"
    for name in ("full", "prefix", "blend", "blend again"):
        if name == "blend again" and (known or not merged(url, merges + len(order))):
            break
        ttft, _, reused, computed = ask(url, order[::-1], question, name.split()[0], 4)
        full = full or ttft
        print(f"   {name:11} {ttft:8.0f} {full / ttft:8.2f}x {reused:14} {computed:16}", flush=True)
        if name == "blend again":
            print("   In between, idle time encoded the documents behind each other: fewer tokens for as small a loss.")
    print("   A prefix cache can use what stands in front in the same order; behind the first new document it computes all.")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.HTTPError as e:
        sys.exit(f"error: the demonstration failed: HTTP {e.code} for {e.url}: {e.read().decode(errors='replace')[:200]}")
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as e:
        sys.exit(f"error: the demonstration failed: {e}")
