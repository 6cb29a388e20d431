#!/usr/bin/env python3
"""Gateway and real worker together on a tiny random model, and kvblendctl against them."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import (KVBLEND, KVBLENDCTL, WORKER, Program, gateway, main, need, parse_metrics,
                     read_until, real_model, tiny_model, unix_request, until)

need(KVBLEND, WORKER, KVBLENDCTL)
CHAT = "/v1/chat/completions"
LONG = 4000  # tokens: more than any step here waits for


def document(i, words=160):
    """Words that differ by document: nothing in common but single tokens."""
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(words // 2))


def rag(order, question="What does the note say?", **kw):
    text = "".join(f"\n\n[Document {n + 1}]\n{document(i)}" for n, i in enumerate(order))
    return dict({"messages": [{"role": "system", "content": "Answer from the documents."},
                              {"role": "user", "content": f"Documents:{text}\n\n{question}"}],
                 "max_tokens": 3, "temperature": 0}, **kw)


def parts(order, question="What does the note say?", **kw):
    """The explicit form: each content part is a chunk."""
    return dict({"messages": [{"role": "user", "content":
                 [{"type": "text", "text": document(i)} for i in order] +
                 [{"type": "text", "text": question}]}], "max_tokens": 3, "temperature": 0}, **kw)


def ask(**kw):
    return dict({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4,
                 "temperature": 0}, **kw)


def ctl(g, *args, ok=0, text=None):
    r = subprocess.run([KVBLENDCTL, "--admin", g.admin, *args], capture_output=True, text=True,
                       input=text, timeout=60)
    assert r.returncode == ok, (args, r.returncode, r.stdout, r.stderr)
    return json.loads(r.stdout) if "--json" in args and ok == 0 else r.stdout


def engine(g):
    return g.admin_get("/admin/status")["workers"][0]["status"]["engine"]


def worker_active(g):
    e = engine(g)
    return e["running"] + e["waiting"] + e["active"]


def test_everything_on_one_server():
    """One start, many small checks: loading a model takes a second or two each time."""
    with gateway() as g:
        for name, fn in list(globals().items()):
            if name.startswith("check_"):
                fn(g)
                print("     ", name, flush=True)


def check_shapes(g):
    r = g.post(CHAT, ask())
    j = r.json()
    assert r.status == 200 and j["object"] == "chat.completion" and j["id"].startswith("chatcmpl-")
    c = j["choices"][0]
    assert c["message"]["role"] == "assistant" and isinstance(c["message"]["content"], str)
    assert c["finish_reason"] in ("stop", "length")
    u = j["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
    j = g.post("/v1/completions", {"prompt": "abc", "max_tokens": 3}).json()
    assert j["object"] == "text_completion" and "text" in j["choices"][0]


def check_stream_order(g):
    for usage in (False, True):
        body = ask(stream=True)
        if usage:
            body["stream_options"] = {"include_usage": True}
        r = g.post(CHAT, body)
        assert r.headers["content-type"].startswith("text/event-stream")
        assert r.headers["cache-control"] == "no-cache" and r.headers["x-accel-buffering"] == "no"
        events = r.events()
        assert events[-1] == b"[DONE]"
        frames = [json.loads(e) for e in events[:-1]]
        assert len({(f["id"], f["object"], f["created"], f["model"]) for f in frames}) == 1
        assert frames[0]["choices"][0]["delta"]["role"] == "assistant"
        if usage:
            assert frames[-1]["choices"] == [] and frames[-1]["usage"]["completion_tokens"] >= 1
            assert all(f["usage"] is None for f in frames[:-1])
            frames = frames[:-1]
        else:
            assert all("usage" not in f for f in frames)
        assert frames[-1]["choices"][0]["finish_reason"] in ("stop", "length")
        assert frames[-1]["choices"][0]["delta"] == {}
        assert all(f["choices"][0]["finish_reason"] is None for f in frames[:-1])


def check_stream_equals_plain(g):
    plain = g.post(CHAT, ask(max_tokens=12)).json()["choices"][0]["message"]["content"]
    frames = [json.loads(e) for e in g.post(CHAT, ask(max_tokens=12, stream=True)).events()[:-1]]
    assert "".join(f["choices"][0]["delta"].get("content") or "" for f in frames) == plain


def check_streamed_prompts(g):
    """Every frame says whose it is: the choices of several prompts, put together by index, are the plain answer's."""
    body = {"prompt": ["The mill", "A river runs", "Bread"], "n": 2, "max_tokens": 5, "temperature": 0}
    plain = {c["index"]: c["text"] for c in g.post("/v1/completions", body).json()["choices"]}
    assert sorted(plain) == list(range(6)) and len(set(plain.values())) == 3, plain
    texts, ended = dict.fromkeys(range(6), ""), []
    for e in g.post("/v1/completions", dict(body, stream=True)).events()[:-1]:
        for c in json.loads(e)["choices"]:
            texts[c["index"]] += c["text"]
            ended += [c["index"]] if c["finish_reason"] else []
    assert texts == plain and sorted(ended) == list(range(6)), (texts, plain, ended)


def check_models_and_tokens(g):
    m = g.get("/v1/models").json()["data"][0]
    assert m["object"] == "model" and m["max_model_len"] > 0
    assert g.get(f"/v1/models/{m['id']}").json()["id"] == m["id"]
    r = g.post("/tokenize", {"content": "hello world", "add_special": False}).json()
    assert r["count"] == len(r["tokens"]) > 0 and r["max_model_len"] == m["max_model_len"]
    back = g.post("/detokenize", {"tokens": r["tokens"]}).json()
    assert "hello world" in json.dumps(back)
    assert g.post("/v1/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()["count"] > 0
    r = g.post(CHAT, ask(model="no-such-model"))
    assert r.status == 404 and r.error()["code"] == "model_not_found"


def check_errors(g):
    too_long = g.post(CHAT, ask(messages=[{"role": "user", "content": "word " * 40000}]))
    assert too_long.status == 400 and too_long.error()["code"] == "context_length_exceeded"
    assert g.post(CHAT, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}').status == 400
    deep = b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert g.post(CHAT, deep).status == 400
    for body in ({}, {"messages": []}, {"messages": "x"}, ask(temperature="hot"), ask(n=0),
                 ask(max_tokens=-1), ask(stream="yes")):
        r = g.post(CHAT, body)
        assert r.status == 400, (body, r.status, r.body)
        assert r.error()["type"] == "invalid_request_error"
    assert g.post(CHAT, ask()).status == 200  # none of that harmed anything


def check_chunks_are_reused(g):
    first = g.post(CHAT, parts([1, 2, 3])).json()["kvblend"]
    assert len(first["chunks"]) == 3, first
    until("the chunks are built", lambda: len(ctl(g, "ls", "--chunks", "--json")["data"]) >= 3)
    until("nothing is being built", lambda: engine(g)["builds"] == 0 and not [
        x for x in ctl(g, "ls", "--chunks", "--json")["data"] if x["building"]])
    second = g.post(CHAT, parts([3, 1, 2], "And now?")).json()
    k = second["kvblend"]
    assert [c["source"] for c in k["chunks"]] == ["ram"] * 3, k
    assert {c["id"] for c in k["chunks"]} == {c["id"] for c in first["chunks"]}
    assert k["tokens"]["reused"] > k["tokens"]["recomputed"] > 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    full = g.post(CHAT, parts([3, 1, 2], "And now?", kvblend={"mode": "full"})).json()["kvblend"]
    assert full["tokens"]["reused"] == 0 and full["strategy"] == "full"
    one = g.post(CHAT, parts([3, 1, 2], "And now?", kvblend={"ratio": 1.0})).json()
    other = g.post(CHAT, parts([3, 1, 2], "And now?", kvblend={"mode": "full"})).json()
    assert one["choices"][0]["message"] == other["choices"][0]["message"]


def check_preset_chunks_are_found(g):
    k = g.post(CHAT, rag([11, 12, 13])).json()["kvblend"]
    assert len(k["chunks"]) == 3, k
    until("it is logged", lambda: [x for x in g.access_log() if x.get("segments") == 3])
    e = json.loads(g.post(CHAT, rag([11, 12, 13], stream=True, kvblend={"explain": True})).events()[-2])
    assert len(e["kvblend"]["chunks"]) == 3


def check_kvblendctl(g):
    assert "ready" in ctl(g, "status") and ctl(g, "status", "--json")["workers"][0]["state"] == "ready"
    with tempfile.TemporaryDirectory() as d:
        jsonl, plain, many, request = (os.path.join(d, n) for n in
                                       ("t.jsonl", "t.txt", "t.json", "r.json"))
        with open(jsonl, "w") as f:
            f.write("".join(json.dumps({"text": document(i)}) + "\n" for i in (21, 22)))
        with open(plain, "w") as f:
            f.write(document(23))
        with open(many, "w") as f:
            json.dump([document(24), {"text": document(21)}], f)
        with open(request, "w") as f:
            json.dump(parts([21, 25]), f)
        ids = [x["id"] for x in ctl(g, "warm", jsonl, "--json")["data"]]
        assert len(set(ids)) == 2
        assert "ready" in ctl(g, "warm", plain)
        again = ctl(g, "warm", many, "--json")["data"]
        assert again[1]["id"] == ids[0] and {x["status"] for x in again} == {"ready"}
        cut = ctl(g, "segment", request, "--json")["segments"]
        assert [(x["id"] == ids[0], x["cached"]) for x in cut] == [(True, True), (False, False)], cut
        text = ctl(g, "segment", request)
        assert ids[0][:12] in text and "to compute" in text and document(25)[:20] in text
    assert ctl(g, "show", ids[0], "--json")["id"] == ids[0]
    assert ids[0] in ctl(g, "show", ids[0][:10])
    assert ids[0][:12] in ctl(g, "ls")
    ctl(g, "pin", ids[0][:10])
    assert ctl(g, "show", ids[0], "--json")["pinned"]
    ctl(g, "evict", ids[0], ok=1)
    ctl(g, "clear", "--yes")
    assert [x["id"] for x in ctl(g, "ls", "--json")["data"]] == [ids[0]]
    ctl(g, "unpin", ids[0])
    ctl(g, "evict", ids[0])
    ctl(g, "show", ids[0], ok=1)
    ctl(g, "show", "f" * 31, ok=1)
    ctl(g, "clear", "--all", "--yes", "--json")
    for args, code in ((("show", "f" * 8), 1), (("show", "xyz"), 2), (("dance",), 2),
                       (("warm", "/nonexistent"), 1), (("segment", "/nonexistent"), 1)):
        assert json.loads(ctl(g, "--json", *args, ok=code))["error"]["message"], args
    ctl(g, "show", ok=2)
    ctl(g, "show", "xyz", ok=2)
    ctl(g, "dance", ok=2)
    r = subprocess.run([KVBLENDCTL, "--admin", "unix:/nonexistent", "ls"], capture_output=True)
    assert r.returncode == 3


def cancel_ms(g, body, until_running):
    s = g.open(CHAT, body)
    until_running()
    if body.get("stream"):
        read_until(s, b"data: ")
    t0 = time.monotonic()
    s.close()
    until("the worker is idle", lambda: worker_active(g) == 0)
    return (time.monotonic() - t0) * 1e3


def check_client_gone_cancels(g):
    """Decoding, streaming and queued; the best of five, because the machine may be busy."""
    def busy():
        until("it runs", lambda: g.metric("kvblend_requests_active") == 1 and worker_active(g) > 0)

    for body in (ask(max_tokens=LONG, ignore_eos=True),
                 ask(max_tokens=LONG, ignore_eos=True, stream=True),
                 dict(rag(range(30, 33)), max_tokens=LONG, ignore_eos=True)):
        took = []
        while len(took) < 5 and (not took or min(took) > 100):
            took.append(cancel_ms(g, body, busy))
        assert min(took) < 100, took
    assert g.metric("kvblend_requests_active") == 0


def check_twenty_streams(g):
    want = g.post(CHAT, ask(max_tokens=16, ignore_eos=True)).json()["choices"][0]["message"]["content"]
    got = []

    def one():
        r = g.post(CHAT, ask(max_tokens=16, ignore_eos=True, stream=True))
        e = r.events()
        got.append(e[-1] == b"[DONE]" and "".join(
            json.loads(x)["choices"][0]["delta"].get("content") or "" for x in e[:-1]))

    threads = [threading.Thread(target=one) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 20, got


def check_head(g):
    for path in ("/health", "/ready", "/v1/models", "/metrics"):
        r = (unix_request(g.admin[5:], "HEAD", path) if path == "/metrics" else g.request("HEAD", path))
        assert (r.status, r.body) == (200, b"") and int(r.headers["content-length"]) > 0, path
    r = g.request("HEAD", CHAT)
    assert r.status == 405 and r.headers["allow"] == "POST"


def read_reply(s, data=b""):
    """One answer with a length: its head, its body, and what came behind it."""
    while b"\r\n\r\n" not in data:
        data += s.recv(65536) or b"\r\n\r\n"
    head, data = data.split(b"\r\n\r\n", 1)
    length = [int(x.split(b":")[1]) for x in head.split(b"\r\n") if b"Content-Length:" in x]
    while length and len(data) < length[0]:
        got = s.recv(65536)
        assert got, "cut short"
        data += got
    n = length[0] if length else 0
    return head, data[:n], data[n:]


def check_wire(g):
    """One request in single bytes, one chunked, one after a 100 Continue, two in one write."""
    body = json.dumps(ask()).encode()
    start = b"POST %s HTTP/1.1\r\nHost: x\r\n" % CHAT.encode()
    sized = start + b"Content-Length: %d\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", g.port), timeout=60) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = sized + b"\r\n" + body
        for i in range(len(whole)):
            s.sendall(whole[i:i + 1])
        assert json.loads(read_reply(s)[1])["object"] == "chat.completion"
        s.sendall(start + b"Transfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(body), 7):
            part = body[i:i + 7]
            s.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        s.sendall(b"0\r\n\r\n")
        assert json.loads(read_reply(s)[1])["object"] == "chat.completion"
        s.sendall(sized + b"Expect: 100-continue\r\n\r\n")
        assert read_reply(s) == (b"HTTP/1.1 100 Continue", b"", b"")
        s.sendall(body)
        assert json.loads(read_reply(s)[1])["object"] == "chat.completion"
        s.sendall(whole + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        _, first, rest = read_reply(s)
        assert json.loads(first)["object"] == "chat.completion"
        assert json.loads(read_reply(s, rest)[1])["object"] == "list"


def check_refusals_are_named(g):
    """Also what the HTTP layer refuses by itself says which request it was and not to retry."""
    for path, method, body, extra, status in (
            (CHAT, "POST", b"{", {}, 400), (CHAT, "GET", None, {}, 405),
            ("/v1/embeddings", "POST", b"{}", {}, 404), ("/nope", "GET", None, {}, 404),
            (CHAT, "POST", b"", {"Content-Length": "99999999"}, 413),
            (CHAT, "POST", b"x", {"Content-Encoding": "gzip"}, 415)):
        r = g.request(method, path, body, dict(extra, **{"X-Request-Id": "mine-1"}))
        assert r.status == status, (path, r.status, r.body)
        assert r.headers["x-request-id"] == "mine-1" and r.headers["x-should-retry"] == "false"
        assert r.error()["type"] == "invalid_request_error"
    r = g.get("/v1/models", headers={"X-Request-Id": "two words"})
    assert r.headers["x-request-id"].startswith("req_")


def check_metrics(g):
    """Last of all on this server: everything has been counted."""
    again = ask(messages=[{"role": "user", "content": document(40, 400)}],
                kvblend={"mode": "prefix"})
    until("a prefix is reused", lambda: g.post(CHAT, again).json()["kvblend"]["tokens"]["prefix"])
    until("nothing runs", lambda: worker_active(g) == 0)
    f = parse_metrics(g.metrics())
    assert f["kvblend_requests_active"] == ["gauge", [("kvblend_requests_active", {}, 0)]]
    for name in ("ttft", "inter_token", "queue", "loop_lag"):
        kind, samples = f[f"kvblend_{name}_seconds"]
        assert kind == "histogram", name
        assert any(n.endswith("_count") and v > 0 for n, _, v in samples), (name, samples)
    tokens = {labels["kind"]: v for _, labels, v in f["kvblend_tokens_total"][1]}
    assert set(tokens) == {"prefix", "reused", "recomputed", "computed"}, tokens
    assert all(v > 0 for v in tokens.values()), tokens
    assert f["kvblend_store_hits_total"][1][0][2] > 0
    misses = {labels["reason"]: v for _, labels, v in f["kvblend_store_misses_total"][1]}
    assert misses["never"] > 0, misses
    for name in ("ram_bytes", "ram_budget_bytes", "store_evictions_total"):
        assert f"kvblend_{name}" in f, name
    # A worker's own page obeys the same rules and names the gauge alike.
    address = g.admin_get("/admin/status")["workers"][0]["address"]
    own = unix_request(address.removeprefix("unix:"), "GET", "/metrics")
    alone = parse_metrics(own.body.decode())
    assert [x[2] for x in alone["kvblend_requests_active"][1]] == [0]


class Busy:
    """Two clients whose long streams follow each other: something is decoded at any time."""

    def __init__(self, g):
        self.g, self.over = g, threading.Event()
        self.threads = [threading.Thread(target=self.run) for _ in range(2)]

    def run(self):
        while not self.over.is_set():
            with self.g.open(CHAT, ask(max_tokens=LONG, ignore_eos=True, stream=True)) as s:
                while not self.over.is_set() and s.recv(65536):
                    pass

    def __enter__(self):
        for t in self.threads:
            t.start()
        until("both are decoded", lambda: engine(self.g)["running"] >= 2)

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()


def test_reuse_starts_while_busy():
    """Documents that were missed once are there for the next request, though the engine never rests."""
    with gateway() as g:
        for nth, (stream, system) in enumerate([(False, False), (True, False), (False, True)]):
            docs = range(40 + 10 * nth, 44 + 10 * nth)
            with Busy(g):
                for k in range(3):
                    body = parts(docs, f"What does note {k} say?", stream=stream, kvblend={"explain": True})
                    if system:
                        body["messages"].insert(0, {"role": "system", "content": document(39 - nth, 90)})
                    r = g.post(CHAT, body)
                    frames = [json.loads(e) for e in r.events()[:-1]] if stream else [r.json()]
                    chunks = [f["kvblend"] for f in frames if "kvblend" in f][0]["chunks"]
                    sources = [c["source"] for c in chunks]
                    assert len(sources) == 4, frames
                    if k == 0:
                        assert sources == ["computed"] * 4, sources
            assert sources == ["ram"] * 4, (stream, system, sources)


def test_worker_killed_and_restarted():
    with gateway() as g:
        for _ in range(2):
            pid = g.admin_get("/admin/status")["workers"][0]["pid"]
            os.kill(pid, signal.SIGKILL)
            until("it is lost", lambda: g.metric("kvblend_gateway_workers_ready") == 0)
            assert g.get("/health").status == 200
            r = g.post(CHAT, ask())
            assert (r.status, r.error()["code"]) == (503, "model_loading") if r.status != 200 else True
            until("it is back", lambda: g.get("/ready").status == 200)
            assert g.post(CHAT, ask()).status == 200


def test_drain_lets_a_stream_finish():
    with gateway() as g:
        s = g.open(CHAT, ask(max_tokens=200, ignore_eos=True, stream=True))
        head = read_until(s, b"data: ")
        g.proc.send_signal(signal.SIGTERM)
        data = head + read_until(s, b"[DONE]", 1 << 22)
        assert b"[DONE]" in data and b'"error"' not in data and b'"length"' in data
        assert g.proc.wait(60) == 0


def test_tiny_ram_budget():
    """Chunks that do not fit are computed; nothing fails, the budget holds."""
    with gateway("--ram", "1MiB") as g:
        for i in range(6):
            r = g.post(CHAT, parts([i, i + 1, i + 2, i + 3]))
            assert r.status == 200, r.body
        s = g.admin_get("/admin/status")["workers"][0]["status"]["store"]
        assert s["ram_bytes"] <= s["ram_budget_bytes"] == 1 << 20, s


def test_cancel_in_the_prefill_of_a_real_model():
    """A tiny model's prefill is over before anybody could leave; seconds of it are needed."""
    model = real_model()
    gauge = 'kvblend_worker_requests_active{worker="0"}'
    with gateway(model=model) as g:
        took, order = [], 100
        while len(took) < 5 and (not took or min(took) > 100):
            order += 10  # documents that nothing holds yet
            s = g.open(CHAT, dict(rag(range(order, order + 6)), stream=len(took) % 2 == 0))
            until("its prefill runs", lambda: engine(g)["running"] == 1)
            t0 = time.monotonic()
            s.close()
            until("it is cancelled", lambda: g.metric(gauge) == 0 and engine(g)["running"] == 0)
            took.append((time.monotonic() - t0) * 1e3)
        assert min(took) < 100, took


def test_a_full_worker_says_when_to_come_again():
    with gateway("--max-running", "1", "--max-queue", "1") as g:
        def refused():
            body = ask(max_tokens=200, min_tokens=200, n=1, temperature=1)
            socks = [g.open(CHAT, body, headers="Connection: close\r\n") for _ in range(12)]
            heads = [read_until(s, b"\r\n\r\n").split(b"\r\n\r\n")[0].decode().lower() for s in socks]
            for s in socks:
                s.close()
            return [h for h in heads if h.startswith("http/1.1 429")]
        for head in until("the worker's queue is full", refused):
            assert int(re.search(r"\nretry-after: (\d+)\r", head + "\r").group(1)) >= 1, head
            assert "x-should-retry: true" in head, head


def test_unreadable_model_is_a_clear_error():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "broken.gguf")
        with open(tiny_model(), "rb") as src, open(path, "wb") as f:
            f.write(src.read()[:20000])
        with Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", path]) as p:
            assert p.proc.wait(60) == 1
            assert "broken.gguf" in p.log(), p.log()


def progress(r):
    """Of a stream: the reports of its prompts, by choice; each before that choice's first token."""
    told, begun = {}, set()
    for frame in [json.loads(e) for e in r.events()[:-1]]:
        for choice in frame["choices"]:
            i = choice["index"]
            if "prompt_progress" not in frame:
                begun.add(i)
            else:
                assert i not in begun, r.body
                told.setdefault(i, []).append(frame["prompt_progress"])
    return told


def test_a_stream_tells_how_far_its_prompt_is():
    with gateway() as g:
        for ask_again in range(2):
            r = g.post(CHAT, parts([1, 2, 3], stream=True, return_progress=True,
                                   stream_options={"include_usage": True}, kvblend={"mode": "blend"}))
            usage = json.loads(r.events()[-2])["usage"]
            told = progress(r)[0]
            assert r.events()[-1] == b"[DONE]", r.body
            for before, p in zip([None] + told, told):
                assert 0 <= p["cache"] <= p["processed"] <= p["total"] == usage["prompt_tokens"], told
                assert not before or (p["processed"] >= before["processed"] and
                                      p["time_ms"] >= before["time_ms"]), told
            assert told[-1]["processed"] == usage["prompt_tokens"], told
            assert told[-1]["cache"] == usage["prompt_tokens_details"]["cached_tokens"], (told, usage)
            assert (told[-1]["cache"] > 0) == bool(ask_again), told
            if not ask_again:  # the chunks' builds
                until("all are built", lambda: engine(g)["builds"] == 0 and
                      len(g.admin_get("/admin/chunks?kind=chunk")["data"]) == 3)
        r = g.post("/v1/completions", {"prompt": [document(1), document(2)], "n": 2, "max_tokens": 2,
                                       "stream": True, "return_progress": True})
        assert {i: p[-1]["processed"] == p[-1]["total"] for i, p in progress(r).items()} == {
            0: True, 2: True}, r.body  # of each prompt its first choice
        for kw in ({"stream": True}, {"return_progress": True}, {"stream": True, "return_progress": None}):
            r = g.post(CHAT, ask(**kw))
            assert r.status == 200 and b"prompt_progress" not in r.body, (kw, r.body)
        assert g.post(CHAT, ask(return_progress=1)).error()["param"] == "return_progress"


if __name__ == "__main__":
    main(globals())
