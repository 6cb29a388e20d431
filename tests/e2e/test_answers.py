#!/usr/bin/env python3
"""What a worker says of an answer, to the digit: tokens, counts, probabilities, places, refusals.

On a tiny random model whose tokens are bytes, in exact arithmetic, without a gateway between.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import tempfile

from harness import ADMIN, MODELS, WORKER, Program, main, need, read_until, until, worker_listening

SOURCE = os.path.join(MODELS, "smollm2")
need(WORKER, os.path.join(SOURCE, "tokenizer.json"))
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Say hello to the river."}]
BLOCK = 64  # tokens of a prefix record
FULL = {"mode": "full"}
w = None  # the worker that most tests share


class Model:
    """The tiny model in a folder of its own, with another tokenizer_config: one that puts a BOS before texts."""

    def __init__(self, **changes):
        changes.update(tokenizer_class="LlamaTokenizerFast", add_bos_token=True)
        self.path = tempfile.mkdtemp(prefix="kvb-answers-")
        for name in os.listdir(SOURCE):
            shutil.copy(os.path.join(SOURCE, name), self.path)
        path = os.path.join(self.path, "tokenizer_config.json")
        with open(path) as f:
            config = dict(json.load(f), **changes)
        with open(path, "w") as f:
            json.dump(config, f)

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path)


def worker(model, *args):
    return worker_listening(Program([WORKER, "--model", model, "--listen", "127.0.0.1:0", *ADMIN, "--dtype", "f32",
                                     "--kv-dtype", "f32", "--threads", "2", *args], {"KVBLEND_GEMM": "own-f32"}))


def ask(path, status=200, server=None, **body):
    body.setdefault("temperature", 0)
    body.setdefault("max_tokens", 8)
    body.setdefault("ignore_eos", True)
    if path == CHAT:
        body.setdefault("messages", HELLO)
    r = (server or w).post(path, body)
    assert r.status == status, (r.status, r.body)
    return r if status != 200 or body.get("stream") else r.json()


def text(prompt, **body):
    return ask(TEXT, prompt=prompt, **body)


def stream(path, **body):
    """Frames of a stream with usage: (frames, usage)."""
    events = ask(path, stream=True, stream_options={"include_usage": True}, **body).events()
    assert events[-1] == b"[DONE]"
    frames = [json.loads(e) for e in events[:-1]]
    assert frames[-1]["choices"] == [] and all(f["usage"] is None for f in frames[:-1])
    return frames[:-1], frames[-1]["usage"]


def tokens(s, **kw):
    return w.post("/tokenize", dict({"content": s}, **kw)).json()["tokens"]


def usage(prompt, completion, prefix=0, reused=0, recomputed=0, written=0):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": prefix + reused, "prefix_tokens": prefix, "reused_tokens": reused,
                                      "recomputed_tokens": recomputed, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": 0}}


def same(a, b):
    assert a == b, f"\n{a}\n{b}"


def ids(n, first=20, step=7):
    return [20 + (first + i * step) % 200 for i in range(n)]


def generated():
    return w.metric("kvblend_generated_tokens_total")


# ---- counts ----


def test_usage_is_exact():
    n = len(w.post("/tokenize", {"messages": HELLO}).json()["tokens"])
    before = generated()
    same(ask(CHAT, max_tokens=7, kvblend=FULL)["usage"], usage(n, 7))
    same(ask(CHAT, max_tokens=7, n=3, kvblend=FULL)["usage"], usage(n, 21))
    same(text([ids(5), ids(9)], max_tokens=4, n=2, kvblend=FULL)["usage"], usage(14, 16))
    same(text(ids(5), max_tokens=0, kvblend=FULL)["usage"], usage(5, 0))
    _, u = stream(CHAT, max_tokens=5, n=2, kvblend=FULL)
    same(u, usage(n, 10))
    same(generated() - before, 7 + 21 + 16 + 10)


def test_an_end_token_counts():
    """As it was generated: the text does not have it, the count does."""
    x = tokens("x")[0]
    forced = dict(logit_bias={str(x): 100}, stop_token_ids=[x], max_tokens=9, kvblend=FULL)
    r = text(ids(5), **forced)
    same((r["choices"][0]["text"], r["choices"][0]["finish_reason"]), ("", "stop"))
    same(r["usage"], usage(5, 1))
    r = text(ids(5), logprobs=0, **forced)
    same(r["choices"][0]["logprobs"]["tokens"], [])


def test_prefix_usage_is_exact():
    for n in (BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 10):
        prompt, held = ids(n, first=n), (n - 1) // BLOCK * BLOCK
        first = text(prompt, kvblend={"mode": "prefix"})
        same(first["usage"], usage(n, 8, written=held))
        again = text(prompt, kvblend={"mode": "prefix"})
        same(again["usage"], usage(n, 8, prefix=held))
        same(again["choices"], first["choices"])
        _, u = stream(TEXT, prompt=prompt, kvblend={"mode": "prefix"})
        same(u, again["usage"])
        same(again["kvblend"]["tokens"], {"prefix": held, "reused": 0, "recomputed": 0, "computed": n - held})
    prompt = ids(3 * BLOCK, first=3 * BLOCK)  # held: twice in a request counts twice
    same(text([prompt, prompt], kvblend={"mode": "prefix"})["usage"], usage(6 * BLOCK, 16, prefix=4 * BLOCK))
    same(text(ids(130, first=9), kvblend={"mode": "prefix", "store": False})["usage"], usage(130, 8))


def document(i, words=60):
    return " ".join(f"item{i * 7919 % 997 + k}" for k in range(words))


def build(s):
    r = w.post("/v1/segments", {"texts": [s]}).json()["data"][0]
    assert r["status"] == "ready", r
    return r["tokens"]


def test_reuse_usage_is_exact():
    n_doc = [build(document(i)) for i in range(2)]
    body = dict(documents=[document(0), document(1)], prompt="What is it?")
    n = text(kvblend=FULL, **body)["usage"]["prompt_tokens"]
    reused = text(kvblend={"mode": "reuse", "store": False}, **body)
    same(reused["usage"], usage(n, 8, reused=sum(n_doc)))
    for ratio in (0.25, 1):
        blend = text(kvblend={"mode": "blend", "strategy": "sink", "ratio": ratio, "store": False}, **body)
        t, u = blend["kvblend"]["tokens"], blend["usage"]
        same(u, usage(n, 8, reused=t["reused"], recomputed=t["recomputed"]))
        same(t["reused"] + t["recomputed"], sum(n_doc))
        same(t["computed"], n - sum(n_doc))
        _, u = stream(TEXT, kvblend={"mode": "blend", "strategy": "sink", "ratio": ratio, "store": False}, **body)
        same(u, blend["usage"])
    same(t["reused"], 0)


def test_a_streams_usage_is_the_plain_one():
    x = tokens("x")[0]
    for path, body in ((CHAT, {}), (CHAT, {"n": 3, "temperature": 1.2, "seed": 5}), (TEXT, {"prompt": ids(70)}),
                       (TEXT, {"prompt": ["one", "three", "five"], "n": 2}), (TEXT, {"prompt": "abc", "echo": True}),
                       (TEXT, {"prompt": "abc", "echo": True, "max_tokens": 0}),
                       (CHAT, {"max_tokens": 60, "temperature": 1.5, "seed": 1, "stop": ["a", "e", "\n"]}),
                       (TEXT, {"prompt": "abc", "max_tokens": 20, "logit_bias": {str(x): 100}, "min_tokens": 3,
                               "stop": "xx"})):
        plain = ask(path, kvblend=FULL, **body)
        frames, u = stream(path, kvblend=FULL, **body)
        same(u, plain["usage"])
        for c in plain["choices"]:
            mine = [f["choices"][0] for f in frames if f["choices"][0]["index"] == c["index"]]
            got = "".join(m["text"] if path == TEXT else m["delta"].get("content") or "" for m in mine)
            same(got, c["text"] if path == TEXT else c["message"]["content"])
            same([m["finish_reason"] for m in mine if m["finish_reason"]], [c["finish_reason"]])
            if path == CHAT:  # each begins with its own role
                same([m["delta"].get("role") for m in mine], ["assistant"] + [None] * (len(mine) - 1))


def test_min_tokens():
    """The end may be token number min_tokens + 1, and not the one before: ids are kept away until then, stop strings
    are looked for from then on."""
    x = tokens("x")[0]
    for least in (0, 1, 2, 5):
        body = dict(prompt="abc", max_tokens=12, min_tokens=least, logit_bias={str(x): 100}, kvblend=FULL)
        for end in ({"stop_token_ids": [x]}, {"stop": "x"}):
            plain = text(logprobs=0, **body, **end)
            same(plain["usage"]["completion_tokens"], least + 1)
            same(plain["choices"][0]["finish_reason"], "stop")
            same(len(plain["choices"][0]["logprobs"]["tokens"]), least)  # the end is no part of the answer
            frames, u = stream(TEXT, **body, **end)
            same("".join(f["choices"][0]["text"] for f in frames), plain["choices"][0]["text"])
            same(u, plain["usage"])
        same(plain["choices"][0]["text"], "x" * least)
        if least:  # one that begins within the first tokens, and ends behind them
            plain = text(**body, stop="xx")
            same(plain["usage"]["completion_tokens"], max(least + 1, 2))
            same(plain["choices"][0]["text"], "x" * (least - 1))
    body = dict(prompt="abc", max_tokens=4, min_tokens=9, logit_bias={str(x): 100}, stop="x", kvblend=FULL)
    same(text(**body)["usage"]["completion_tokens"], 4)


# ---- what is computed ----


def close(a, b):
    for x, y in zip(a["choices"], b["choices"]):
        same(x["text"], y["text"])
        for p, q in zip(x["logprobs"]["token_logprobs"], y["logprobs"]["token_logprobs"]):
            assert abs(p - q) < 1e-3, (a, b)


def test_pages_in_8_bits():
    """They change what is answered by little, and nothing of which tokens are reused; r = 1 is a full prefill."""
    def asked(p, **kvblend):
        r = ask(TEXT, server=p, documents=[document(0), document(1)], prompt="What is it?", max_tokens=1, logprobs=5,
                kvblend=dict(kvblend, store=False))
        return r["usage"], r["choices"][0]["logprobs"]["top_logprobs"][0]

    with Model() as folder, worker(folder, "--ram", "64MiB", "--kv-pages-dtype", "q8") as p:
        same([x.get("/admin/status").json()["model"]["kv_pages_dtype"] for x in (p, w)], ["q8", "f32"])
        for x in (p, w):
            assert x.post("/v1/segments", {"texts": [document(0), document(1)]}).json()["data"][1]["status"] == "ready"
        for how in ({"mode": "full"}, {"mode": "reuse"}, {"mode": "blend", "strategy": "sink", "ratio": 0.25}):
            (n, exact), (n_of_8, of_8) = asked(w, **how), asked(p, **how)
            same(n_of_8, n)
            both = exact.keys() & of_8.keys()
            assert of_8 != exact and both and all(abs(of_8[t] - exact[t]) < 1 for t in both), (how, of_8, exact)
        same(asked(p, mode="blend", strategy="sink", ratio=1)[1], asked(p, mode="full")[1])


def test_prefix_blocks_are_chained():
    """A block that stood behind another one is no part of this prompt's past."""
    a, b, x, y, tail = (ids(BLOCK, first=i, step=s) for i, s in ((1, 3), (2, 7), (3, 9), (4, 11), (5, 13)))
    kw = dict(max_tokens=4, logprobs=3)
    for known in (a + x + tail, b + y + tail):
        text(known, kvblend={"mode": "prefix"}, **kw)
    mixed = text(b + x + tail, kvblend={"mode": "prefix"}, **kw)
    exact = text(b + x + tail, kvblend=FULL, **kw)
    same(mixed["usage"], usage(3 * BLOCK, 4, prefix=BLOCK, written=BLOCK))
    same(mixed["choices"], exact["choices"])


def test_chunks_are_built_behind_the_sink():
    """Behind the token that it was built behind a chunk is exact, and with nothing before it, it would not be."""
    n = build(document(5))
    body = dict(prompt=" What is it?", documents=[document(5)], max_tokens=6, logprobs=3)
    exact = text(kvblend=FULL, **body)
    reused = text(kvblend={"mode": "reuse", "store": False}, **body)
    same(reused["usage"]["prompt_tokens_details"]["reused_tokens"], n)
    close(exact, reused)
    far = text(kvblend={"mode": "reuse", "store": False}, **dict(body, documents=["other", document(5)]))
    assert far["usage"]["prompt_tokens_details"]["reused_tokens"] == n


def test_a_chat_template_is_the_whole_truth():
    """The tokenizer adds a BOS that the template does not write: texts have it, chats and token ids have not."""
    with Model(bos_token="<|endoftext|>") as model, worker(model, "--ram", "16MiB") as p:
        def count(path, **body):
            return ask(path, server=p, **body)["usage"]["prompt_tokens"]

        plain = p.post("/tokenize", {"messages": HELLO}).json()["tokens"]
        same(plain[0], 1)  # <|im_start|>
        same(count(CHAT), len(plain))
        same(p.post("/tokenize", {"messages": HELLO, "add_special": True}).json()["tokens"], [0] + plain)
        same(count(TEXT, prompt="abc"), 4)
        same(p.post("/tokenize", {"prompt": "abc"}).json()["tokens"][0], 0)
        same(count(TEXT, prompt=[5, 6, 7]), 3)
        same(p.get("/admin/status").json()["model"]["sink_token"], 1)


def test_messages_as_the_models_template_takes_them():
    """Tools' answers are rendered, unknown roles refused; a prompt may end within the last message."""
    said = HELLO + [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]
    said += [{"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    plain = w.post("/tokenize", {"messages": said, "add_generation_prompt": False}).json()["tokens"]
    same(ask(CHAT, messages=said, add_generation_prompt=False,
             chat_template_kwargs={"enable_thinking": False})["usage"]["prompt_tokens"], len(plain))
    open_end = w.post("/tokenize", {"messages": said, "continue_final_message": True}).json()["tokens"]
    same(open_end, plain[:len(open_end)])
    assert len(plain) - 3 <= len(open_end) < len(plain), (open_end, plain)  # <|im_end|> and a line break are cut off
    same(ask(CHAT, messages=said, continue_final_message=True)["usage"]["prompt_tokens"], len(open_end))
    error = ask(CHAT, 400, messages=HELLO + [{"role": "robot", "content": "x"}]).json()["error"]
    same((error["param"], error["message"]), ("messages", "messages[1]: unknown role 'robot'."))
    same(ask(CHAT, 400, chat_template_kwargs=7).json()["error"]["param"], "chat_template_kwargs")


def test_control_tokens_of_prompts_are_text():
    name = "<|im_start|>"
    same(len(tokens(name, parse_special=True)), 1)
    as_text = len(tokens(name))
    assert as_text > 1
    same(text(name)["usage"]["prompt_tokens"], 1 + as_text)  # a BOS before texts
    same(text("", documents=[name])["usage"]["prompt_tokens"], 1 + len(tokens(name + "\n\n")))
    chat = ask(CHAT, messages=[{"role": "user", "content": name}])["usage"]["prompt_tokens"]
    same(chat - ask(CHAT, messages=[{"role": "user", "content": ""}])["usage"]["prompt_tokens"], as_text)


# ---- probabilities and places ----


def test_logprobs_are_of_the_drawn_token():
    other = 0
    for seed in range(4):
        r = ask(CHAT, temperature=1.6, seed=seed, max_tokens=20, logprobs=True, top_logprobs=20)
        for t in r["choices"][0]["logprobs"]["content"]:
            best, mine = t["top_logprobs"][0], [x for x in t["top_logprobs"] if x["bytes"] == t["bytes"]]
            if t["bytes"] != best["bytes"]:
                other += 1
                assert t["logprob"] < best["logprob"], t
            if len(mine) == 1:
                same(mine[0]["logprob"], t["logprob"])
            elif not mine:
                assert t["logprob"] <= t["top_logprobs"][-1]["logprob"]
    assert other > 20, other


def pieces(choice):
    """Strings of the tokens, and where they say that they begin."""
    lp = choice["logprobs"]
    if lp is None:
        return []
    if "content" in lp:
        return [(t["token"], None) for t in lp["content"]]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"])
    return list(zip(lp["tokens"], lp["text_offset"]))


def check_spans(path, **body):
    kw = {"logprobs": 1} if path == TEXT else {"logprobs": True}
    plain = ask(path, kvblend=FULL, **kw, **body)
    frames, _ = stream(path, kvblend=FULL, **kw, **body)
    for c in plain["choices"]:
        whole = c["text"] if path == TEXT else c["message"]["content"]
        streamed = [f["choices"][0] for f in frames if f["choices"][0]["index"] == c["index"]]
        parts = [p for f in streamed for p in pieces(f)]
        same(parts, pieces(c))
        same("".join(t for t, _ in parts), whole)
        for f in streamed:  # each frame's tokens are its text
            got = f["text"] if path == TEXT else f["delta"].get("content") or ""
            if f["logprobs"]:
                same("".join(t for t, _ in pieces(f)), got)
            else:
                same(got, "")
        for t, at in parts if path == TEXT else []:
            same(whole[at:at + len(t)], t)
    return plain["choices"]


def test_logprobs_join_to_the_text():
    for path, body in ((TEXT, {"prompt": "abc"}), (CHAT, {})):
        for seed in range(6):
            drawn = check_spans(path, temperature=1.8, seed=seed, max_tokens=24, n=2, **body)
        made = drawn[0]["text"] if path == TEXT else drawn[0]["message"]["content"]
        for i in range(1, len(made) - 1, 3):  # at a stop string, wherever it begins
            check_spans(path, temperature=1.8, seed=5, max_tokens=24, stop=made[i:i + 2], **body)


def test_logprobs_at_an_unfinished_character():
    euro = tokens("€")
    same(len(euro), 3)
    for n in (1, 2, 3):
        bias = {str(euro[0]): 100}
        for path, body in ((TEXT, {"prompt": "abc"}), (CHAT, {})):
            c = check_spans(path, max_tokens=n, logit_bias=bias, **body)[0]
            same(c["text"] if path == TEXT else c["message"]["content"], "\ufffd" * n)


def check_indexes(plain, frames):
    same([c["index"] for c in plain], list(range(6)))
    for i, c in enumerate(plain):
        mine = [f["choices"][0] for f in frames if f["choices"][0]["index"] == i]
        same("".join(m["text"] for m in mine), c["text"])
        same([m["finish_reason"] for m in mine], [None] * (len(mine) - 1) + [c["finish_reason"]])
    assert {f["choices"][0]["index"] for f in frames} == set(range(6))


def test_indexes_of_several_streamed_prompts():
    body = dict(prompt=["one", "two two", ids(30)], n=2, temperature=1.3, seed=3, max_tokens=24, kvblend=FULL)
    plain = text(**body)["choices"]
    assert len({c["text"] for c in plain}) == 6
    check_indexes(plain, stream(TEXT, **body)[0])
    for i, c in enumerate(plain):  # one ends before the others, each in turn
        parts = [c["text"][k:k + 2] for k in range(len(c["text"]) - 1)]
        stop = [s for s in parts if s.isascii() and sum(s in other["text"] for other in plain) == 1][0]
        ended = text(stop=stop, **body)["choices"]
        same([x["finish_reason"] for x in ended], ["stop" if k == i else "length" for k in range(6)])
        check_indexes(ended, stream(TEXT, stop=stop, **body)[0])


def test_echo():
    prompts = ["abc", "ünï", "<|im_end|>"]
    made = [c["text"] for c in text(prompts, n=2)["choices"]]
    want = [p + made[2 * i + k] for i, p in enumerate(prompts) for k in range(2)]
    same([c["text"] for c in text(prompts, n=2, echo=True)["choices"]], want)
    frames, _ = stream(TEXT, prompt=prompts, n=2, echo=True)
    for i, s in enumerate(want):
        same("".join(f["choices"][0]["text"] for f in frames if f["choices"][0]["index"] == i), s)
    r = text(prompts, echo=True, max_tokens=0)
    same([c["text"] for c in r["choices"]], prompts)
    same(r["usage"]["completion_tokens"], 0)
    made = text(tokens("abc"), echo=True)["choices"][0]["text"]
    same(made, "abc" + text(tokens("abc"))["choices"][0]["text"])
    same(text("abc", echo=True, logprobs=1, status=400).error()["param"], "echo")


# ---- refusals ----


def test_unknown_kvblend_fields_name_the_nearest():
    for name, near in (("rato", "ratio"), ("max_ttft", "max_ttft_ms"), ("Mode", "mode"), ("name_space", "namespace"),
                       ("wholly else", None)):
        for path, body in ((CHAT, {}), (TEXT, {"prompt": "x"})):
            e = ask(path, status=400, kvblend={"mode": "full", name: 1}, **body).error()
            same((e["param"], e["code"]), ("kvblend." + name, "unknown_parameter"))
            same(f"did you mean 'kvblend.{near}'?" in e["message"], near is not None)
    ask(CHAT, kvblend={"priority": 3, "mode": None, "explain": True})  # the gateway's own, and what is null


def test_a_full_worker_says_when_to_come_again():
    with Model() as model, worker(model, "--max-running", "1", "--max-queue", "1") as p:
        long = dict(messages=HELLO, max_tokens=8000, ignore_eos=True, stream=True)
        held = []
        for streamed in (False, True):

            def taken():
                engine = p.get("/admin/status").json()["engine"]
                return engine["running"] + engine["waiting"]

            def refused():
                if taken() < 2:
                    held.append(p.open(CHAT, long))
                    return None  # a request that came before it would wait for the other one's end
                r = p.post(CHAT, {"messages": HELLO, "max_tokens": 1, "stream": streamed})
                return r if r.status == 429 else None

            r = until("one runs and one waits", refused)
            same((r.error()["code"], r.error()["type"]), ("queue_full", "server_overloaded"))
            assert int(r.headers["retry-after"]) >= 1 and r.headers["x-should-retry"] == "true", r.headers
        begun = socket.create_connection(("127.0.0.1", p.port), timeout=60)
        begun.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {p.key}\r\nContent-Length: 2\r\n"
                      "Expect: 100-continue\r\n\r\n".encode())
        read_until(begun, b"\r\n\r\n")  # its head was read: it is a request
        p.proc.send_signal(signal.SIGTERM)
        until("it drains", lambda: "draining" in p.log())
        begun.sendall(b"{}")
        r = read_until(begun, b"}}").lower()
        assert r.startswith(b"http/1.1 503") and b'"code":"draining"' in r, r
        assert re.search(rb"\r\nretry-after: [1-9]", r) and b"\r\nx-should-retry: true" in r, r
        for s in held:
            s.close()


def test_what_a_drain_does_not_wait_for_may_be_asked_again():
    with Model() as model, worker(model, "--drain-timeout", "20ms") as p:
        s = p.open(CHAT, dict(messages=HELLO, max_tokens=8000, ignore_eos=True))  # no stream: it has no head yet
        until("it runs", lambda: p.get("/admin/status").json()["engine"]["active"])
        p.proc.send_signal(signal.SIGTERM)
        r = read_until(s, b"}}").lower()
        s.close()
        assert r.startswith(b"http/1.1 503") and b'"code":"draining"' in r, r
        assert b"\r\nretry-after: 2\r\n" in r and b"\r\nx-should-retry: true\r\n" in r, r


def test_only_the_loop_is_told_to_end():
    """A signal that another thread takes is still being handed over while the loop goes."""
    def blocks(status):
        return int(re.search(r"SigBlk:\s*(\w+)", status).group(1), 16) >> signal.SIGTERM - 1 & 1

    threads = {int(f.name): blocks((f / "status").read_text()) for f in pathlib.Path(f"/proc/{w.proc.pid}/task").iterdir()}
    assert len(threads) > 3 and [tid for tid, b in threads.items() if not b] == [w.proc.pid], threads


def test_clients_may_leave_at_any_stage():
    """While their prompt is parsed, planned, computed, answered: what is counted of them belongs to another thread."""
    def active():
        return w.get("/admin/status").json()["engine"]["active"]

    for i in range(12):
        s = w.open(TEXT, {"prompt": ids(1500, first=i, step=3), "max_tokens": 4000, "ignore_eos": True, "stream": True,
                          "kvblend": {"mode": "prefix"}})
        if i % 3 == 1:
            until("it is computed", active)
        if i % 3 == 2:
            read_until(s, b"data: ")
        s.close()
        until("nothing runs", lambda: active() == 0)
    same(text(ids(5), kvblend=FULL)["usage"], usage(5, 8))


if __name__ == "__main__":
    with Model() as folder, worker(folder, "--ram", "64MiB") as w:
        main(globals())
