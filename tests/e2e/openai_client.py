#!/usr/bin/env python3
"""The official `openai` client against the gateway and its real worker on a tiny random model.

Run by a Python that has the package: $KVBLEND_PYTHON, else this one; skipped when neither has it.
Base URL and model can be given instead of starting a gateway: OPENAI_BASE_URL (and OPENAI_MODEL).
"""
import os
import signal
import threading
import time

from harness import KVBLEND, WORKER, gateway, main, need, other_python, skip, until

try:
    import openai
except ImportError:
    other_python("KVBLEND_PYTHON")
    skip("the openai package is not installed")

need(KVBLEND, WORKER)
HELLO = [{"role": "user", "content": "Say hello to the river."}]
GREEDY = {"temperature": 0, "max_tokens": 8}
NO_EOS = {"ignore_eos": True}
server = None  # the gateway all tests share
model = None


def client(**kw):
    kw.setdefault("api_key", "key-one")
    kw.setdefault("max_retries", 0)
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=60, **kw)


def chat(c=None, **kw):
    body = dict(GREEDY, model=model, messages=HELLO)
    body.update(kw)
    return (c or client()).chat.completions.create(**body)


def tokens(**body):
    """How many the worker's own tokenizer makes of it."""
    r = server.post("/tokenize", body, headers={"X-Api-Key": "key-one"})
    assert r.status == 200, r.body
    return r.json()["count"]


def made_chat():
    """Tokens of the greedy answer, by its logprobs; the one that ended it has none."""
    c = chat(logprobs=True).choices[0]
    return len(c.logprobs.content) + (c.finish_reason == "stop")


def check_usage(u, prompt, completion, reused=0, recomputed=0):
    """To the digit: counts are what people pay by."""
    d = u.prompt_tokens_details
    got = (u.prompt_tokens, u.completion_tokens, u.total_tokens, d.cached_tokens, d.prefix_tokens, d.reused_tokens,
           d.recomputed_tokens, d.cache_write_tokens, u.completion_tokens_details.reasoning_tokens)
    want = (prompt, completion, prompt + completion, reused, 0, reused, recomputed, 0, 0)
    assert got == want, (got, want)


def expect(kind, fn, status, code=None):
    try:
        fn()
    except kind as e:
        assert e.status_code == status, e
        assert code is None or e.code == code, (e.code, code)
        assert e.request_id, "no x-request-id on the error"
        retry = e.response.headers["x-should-retry"]
        assert retry == ("true" if status in (408, 429, 503) else "false"), (status, retry)
        return e
    raise AssertionError(f"no {kind.__name__}")


def test_models():
    c = client()
    ids = [m.id for m in c.models.list()]
    assert ids == [model], ids
    m = c.models.retrieve(model)
    assert m.id == model and m.model_extra["max_model_len"] > 0


def test_chat():
    r = chat()
    assert r.object == "chat.completion" and r.model == model and r._request_id
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.content
    assert r.choices[0].finish_reason in ("stop", "length")
    check_usage(r.usage, tokens(messages=HELLO), made_chat())


def test_chat_stream():
    want = chat().choices[0].message.content
    for include in (False, True):
        kw = {"stream_options": {"include_usage": True}} if include else {}
        chunks = list(chat(stream=True, **kw))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == want
        assert chunks[0].choices[0].delta.role == "assistant"
        if include:
            assert chunks[-1].choices == [] and chunks[-1].usage == chat().usage
            assert all(c.usage is None for c in chunks[:-1])
        else:
            assert all(c.usage is None for c in chunks)
        last = [c for c in chunks if c.choices][-1]
        assert last.choices[0].finish_reason in ("stop", "length")


def test_progress():
    """Frames that the client does not know pass through it, and its own fields stay usable."""
    told, text = [], ""
    for c in client().chat.completions.create(model=model, messages=HELLO, stream=True, **GREEDY,
                                              extra_body={"return_progress": True}):
        progress = (c.model_extra or {}).get("prompt_progress")
        if progress:
            told.append(progress)
        assert bool(progress) <= (c.choices[0].delta.content is None)
        text += c.choices[0].delta.content or ""
    assert text and told[-1]["processed"] == told[-1]["total"] > 0, told


def test_completions():
    c = client()
    kw = dict(model=model, prompt="The river", **GREEDY)
    r = c.completions.create(**kw)
    assert r.object == "text_completion" and r.choices[0].text
    lp = c.completions.create(**dict(kw, logprobs=0)).choices[0]
    made, river = len(lp.logprobs.tokens) + (lp.finish_reason == "stop"), tokens(prompt="The river")
    check_usage(r.usage, river, made)
    for include in (False, True):
        o = {"stream_options": {"include_usage": True}} if include else {}
        chunks = list(c.completions.create(stream=True, **o, **kw))
        assert "".join(x.choices[0].text for x in chunks if x.choices) == r.choices[0].text
        assert chunks[-1].usage == (r.usage if include else None)
    both = c.completions.create(**dict(kw, prompt=["The river", "A mill"]))
    assert [x.index for x in both.choices] == [0, 1]
    assert both.choices[0].text == r.choices[0].text
    second = c.completions.create(**dict(kw, prompt="A mill")).usage
    check_usage(both.usage, river + second.prompt_tokens, made + second.completion_tokens)
    ids = c.completions.create(**dict(kw, prompt=[5, 6, 7]))
    assert ids.usage.prompt_tokens == 3
    check_usage(c.completions.create(**dict(kw, n=3, temperature=1, extra_body=NO_EOS)).usage, river, 24)
    check_usage(c.completions.create(**dict(kw, max_tokens=0, extra_body={"echo": True})).usage, river, 0)


def test_logprobs():
    r = chat(logprobs=True, top_logprobs=3)
    content = r.choices[0].logprobs.content
    check_usage(r.usage, tokens(messages=HELLO), len(content) + (r.choices[0].finish_reason == "stop"))
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob
        assert t.top_logprobs[0].bytes == t.bytes  # greedy; a random model's tokens are raw bytes
    assert "".join(t.token for t in content) == r.choices[0].message.content
    c = client().completions.create(model=model, prompt="The river", logprobs=2, **GREEDY)
    lp = c.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset)
    parts = list(chat(stream=True, logprobs=True))
    n = sum(len(x.choices[0].logprobs.content) for x in parts if x.choices and x.choices[0].logprobs)
    assert n == len(content)


def test_stop():
    text = chat(max_tokens=40, extra_body=NO_EOS).choices[0].message.content
    i = next(i for i in range(2, len(text)) if text[i:i + 2].isascii() and text[i:i + 2].strip())
    stop = text[i:i + 2]
    cut = text[:text.index(stop)]
    for how in (stop, [stop, "never seen"]):
        r = chat(max_tokens=40, stop=how, extra_body=NO_EOS)
        assert r.choices[0].finish_reason == "stop" and r.choices[0].message.content == cut
    chunks = list(chat(max_tokens=40, stop=stop, stream=True, extra_body=NO_EOS))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == cut


def test_two_choices():
    r = chat(n=2, temperature=1.0, seed=3)
    assert [c.index for c in r.choices] == [0, 1]
    again = chat(n=2, temperature=1.0, seed=3)
    assert [c.message.content for c in r.choices] == [c.message.content for c in again.choices]
    texts = {0: "", 1: ""}
    for c in chat(n=2, temperature=1.0, seed=3, stream=True):
        for x in c.choices:
            texts[x.index] += x.delta.content or ""
    assert [texts[0], texts[1]] == [c.message.content for c in r.choices]


def test_errors():
    expect(openai.BadRequestError, lambda: chat(messages=[]), 400)
    expect(openai.BadRequestError, lambda: chat(temperature=9), 400)
    expect(openai.BadRequestError,
           lambda: chat(messages=[{"role": "user", "content": "word " * 40000}]), 400,
           "context_length_exceeded")
    e = expect(openai.AuthenticationError, lambda: chat(client(api_key="wrong")), 401,
               "invalid_api_key")
    assert e.response.headers["www-authenticate"] == "Bearer"
    e = expect(openai.NotFoundError, lambda: chat(model="no-such-model"), 404, "model_not_found")
    assert e.param == "model"
    big = [{"role": "user", "content": "x" * (3 << 20)}]
    expect(openai.APIStatusError, lambda: chat(messages=big), 413, "request_too_large")


def test_overload():
    """The worker stands still meanwhile: nothing ends before it may."""
    def stages():
        return sorted(r["stage"] for r in server.admin_get("/admin/requests")["requests"])

    worker = server.admin_get("/admin/status")["workers"][0]["pid"]
    answers = []
    asked = [threading.Thread(target=lambda: answers.append(chat())) for _ in range(5)]
    os.kill(worker, signal.SIGSTOP)
    try:
        for t in asked:
            t.start()
        until("four run, one waits", lambda: stages() == ["calling"] * 4 + ["queued"])
        e = expect(openai.RateLimitError, chat, 429, "server_overloaded")
        assert float(e.response.headers["retry-after"]) > 0
        assert e.response.headers["x-should-retry"] == "true"
    finally:
        os.kill(worker, signal.SIGCONT)
    for t in asked:
        t.join()
    assert len(answers) == 5 and all(a.choices for a in answers), answers
    assert chat(client(max_retries=2)).choices


def test_early_break_cancels():
    took = []
    while len(took) < 5 and (not took or min(took) > 0.1):
        s = chat(stream=True, max_tokens=6000, extra_body=NO_EOS)
        for _ in s:
            break
        t0 = time.monotonic()
        s.close()
        until("nothing is active", lambda: server.metric("kvblend_requests_active") == 0 and
              engine_idle())
        took.append(time.monotonic() - t0)
    assert min(took) < 0.1, took


def engine_idle():
    e = server.admin_get("/admin/status")["workers"][0]["status"]["engine"]
    return e["active"] == 0 and e["running"] == 0


def test_twenty_streams():
    want = chat(max_tokens=12, extra_body=NO_EOS).choices[0].message.content
    got = []

    def one():
        c = client(max_retries=8)  # four at a time, one waits: the rest is told to come again
        got.append("".join(x.choices[0].delta.content or ""
                           for x in chat(c, max_tokens=12, stream=True, extra_body=NO_EOS)
                           if x.choices))

    threads = [threading.Thread(target=one) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 20, got


def test_kvblend_extension():
    text = " ".join(f"item{i * 7919 % 997}" for i in range(80))
    parts = [{"type": "text", "text": text}, {"type": "text", "text": text[::-1]},
             {"type": "text", "text": "What is it?"}]
    ask = {"messages": [{"role": "user", "content": parts}]}
    r = chat(**ask, extra_body={"kvblend": {"mode": "full"}})
    assert r.model_extra["kvblend"]["strategy"] == "full"

    def sources():
        k = chat(**ask, extra_body={"kvblend": {"ratio": 0.15}}).model_extra["kvblend"]
        return [c["source"] for c in k["chunks"]]

    until("both chunks come from RAM", lambda: sources() == ["ram", "ram"])
    r = chat(**ask, extra_body={"kvblend": {"ratio": 0.5}, **NO_EOS})
    k = r.model_extra["kvblend"]
    held = sum(c["tokens"] for c in k["chunks"])
    assert k["ratio"] == 0.5 and k["ttft_ms"] > 0
    check_usage(r.usage, tokens(**ask), 8, reused=held - (held + 1) // 2, recomputed=(held + 1) // 2)
    chunks = list(chat(**ask, stream=True, extra_body={"kvblend": {"explain": True}}))
    assert len(chunks[-1].model_extra["kvblend"]["chunks"]) == 2
    assert all("kvblend" not in (c.model_extra or {}) for c in chunks[:-1])


if __name__ == "__main__":
    with gateway("--api-key", "key-one", "--max-body", "2MiB", "--max-inflight", "4",
                 "--queue-limit", "1", "--queue-timeout", "30s") as server:
        model = server.get("/v1/models", headers={"X-Api-Key": "key-one"}).json()["data"][0]["id"]
        main(globals())
