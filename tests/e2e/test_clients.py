#!/usr/bin/env python3
"""Unmodified clients against kvblend: openai, langchain-openai, llama-index (openai-like), LiteLLM.

One gateway serves two models to all of them: the real worker's on tiny random weights, and a scripted
upstream's. Run by a Python that has the packages: $KVBLEND_CLIENTS_PYTHON (tools/test makes it, list:
clients.txt), else this one; skipped when neither has them.
"""
import asyncio
import json
import os
import random
import tempfile
import threading

from harness import KVBLEND, ROOT, WORKER, gateway, main, need, other_python, skip, until
from upstream import Upstream

os.environ.update({"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false",
                   "OPENAI_API_KEY": "key-one", "TOKENIZERS_PARALLELISM": "false"})
try:
    import httpx
    import litellm
    import openai
    from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
    from llama_index.core import SimpleDirectoryReader
    from llama_index.core.llms import ChatMessage
    from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
    from llama_index.core.schema import MetadataMode, NodeWithScore
    from llama_index.llms.openai_like import OpenAILike
except ImportError as e:
    other_python("KVBLEND_CLIENTS_PYTHON")
    skip(f"the client packages are not installed: {e}")

need(KVBLEND, WORKER)
HELLO = [{"role": "user", "content": "Say hello to the river."}]
ANSWER = "w0 w1 w2 w3 w4 w5 "  # of the scripted upstream, for 6 tokens
server = up = base = None
own = None  # name of the worker's model


# One loop for all tests: langchain keeps its asynchronous connections from one call to the next.
run = asyncio.new_event_loop().run_until_complete


def models():
    return (own, "up-model")


def script(**kw):
    return {"script": kw}


def raised(kind, fn):
    try:
        fn()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


# ---- openai ----

def client(kind=openai.OpenAI, **kw):
    return kind(base_url=base, timeout=60, **dict({"api_key": "key-one", "max_retries": 0}, **kw))


def kw(model, **more):
    return dict({"model": model, "messages": HELLO, "max_tokens": 6, "temperature": 0}, **more)


def test_openai_models():
    ids = {m.id for m in client().models.list()}
    assert ids == set(models()), ids
    for name in models():
        assert client().models.retrieve(name).id == name


def test_openai_chat():
    c = client()
    for model in models():
        r = c.chat.completions.create(**kw(model))
        text = r.choices[0].message.content
        assert text and r.usage.completion_tokens <= 6 and r._request_id
        chunks = list(c.chat.completions.create(stream=True, stream_options={"include_usage": True},
                                                **kw(model)))
        assert text == "".join(x.choices[0].delta.content or "" for x in chunks if x.choices)
        assert chunks[-1].usage.total_tokens == r.usage.total_tokens and not chunks[-1].choices
    assert text == ANSWER
    with c.chat.completions.stream(**kw("up-model")) as s:  # the helper with events
        assert s.get_final_completion().choices[0].message.content == text


def test_openai_completions():
    c = client()
    for model in models():
        ask = dict(model=model, prompt="The river", max_tokens=6, temperature=0)
        text = c.completions.create(**ask).choices[0].text
        parts = [x.choices[0].text for x in c.completions.create(stream=True, **ask) if x.choices]
        assert text and "".join(parts) == text


def test_openai_async():
    async def all_of_it():
        async with client(openai.AsyncOpenAI) as c:
            assert {m.id async for m in c.models.list()} == set(models())
            for model in models():
                r = await asyncio.gather(*[c.chat.completions.create(**kw(model)) for _ in range(8)])
                texts = {x.choices[0].message.content for x in r}
                assert len(texts) == 1, texts
                text = ""
                async for x in await c.chat.completions.create(stream=True, **kw(model)):
                    text += x.choices[0].delta.content or "" if x.choices else ""
                assert {text} == texts
                r = await c.completions.create(model=model, prompt="a", max_tokens=3)
                assert r.choices[0].text is not None
            e = await c.embeddings.create(model="up-model", input="a")
            assert e.data[0].embedding == [0.5, -1.0, 0.25]

    run(all_of_it())


def test_openai_other_routes():
    c = client()
    e = c.embeddings.create(model="up-model", input=["a", "b"])
    assert [x.index for x in e.data] == [0, 1] and e.data[1].embedding == [0.5, -1.0, 0.25]
    data = os.urandom(200000)
    raw = c.files.with_raw_response.create(file=("a.bin", data), purpose="batch")
    assert raw.status_code == 200 and data in up.requests[-1].body
    up.plan = [{"body": data, "type": "audio/mpeg"}]
    assert c.audio.speech.create(model="up-model", voice="alloy", input="x").read() == data
    up.plan = [{"body": data, "type": "application/octet-stream"}]
    assert c.files.content("f1").read() == data
    events = [{"type": "response.output_text.delta", "sequence_number": 1, "item_id": "i",
               "output_index": 0, "content_index": 0, "delta": "hi", "logprobs": []}]
    up.plan = [{"type": "text/event-stream", "framing": "chunked", "body": "".join(
        f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)}]
    got = list(c.responses.create(model="up-model", input="x", stream=True))
    assert [x.delta for x in got] == ["hi"], got


ERRORS = {400: openai.BadRequestError, 401: openai.AuthenticationError,
          403: openai.PermissionDeniedError, 404: openai.NotFoundError, 409: openai.ConflictError,
          422: openai.UnprocessableEntityError, 429: openai.RateLimitError,
          500: openai.InternalServerError, 503: openai.InternalServerError}


def test_openai_errors_of_the_upstream():
    c = client()
    for status, kind in ERRORS.items():
        for stream in (False, True):
            e = raised(kind, lambda: c.chat.completions.create(
                stream=stream, extra_body=script(status=status), **kw("up-model")))
            assert e.status_code == status and e.code == "told", (status, e)


def test_openai_errors_of_the_gateway():
    e = raised(openai.NotFoundError, lambda: client().chat.completions.create(**kw("nobody")))
    assert e.code == "model_not_found" and e.param == "model" and e.request_id
    e = raised(openai.AuthenticationError,
               lambda: client(api_key="wrong").chat.completions.create(**kw("up-model")))
    assert e.code == "invalid_api_key"
    e = raised(openai.APIStatusError, lambda: client().chat.completions.create(
        **kw("up-model", messages=[{"role": "user", "content": "x" * (3 << 20)}])))
    assert e.status_code == 413 and e.code == "request_too_large"
    e = raised(openai.InternalServerError, lambda: client().chat.completions.create(
        extra_body=script(end="reset", stop_at=-1), **kw("up-model")))
    assert (e.status_code, e.code) == (502, "upstream_unreachable"), e


def test_openai_retries_as_told():
    for status, header in ((429, {"Retry-After": "0.05"}), (503, {"retry-after-ms": "20"}),
                           (500, {}), (503, {"x-should-retry": "true", "retry-after-ms": "5"})):
        up.requests.clear()
        up.plan = [{"status": status, "headers": header}, {}]
        r = client(max_retries=2).chat.completions.create(**kw("up-model"))
        assert r.choices[0].message.content == ANSWER
        counts = [x.header("x-stainless-retry-count") for x in up.requests]
        assert counts == ["0", "1"], (status, header, counts)
    up.requests.clear()
    up.plan = [{"status": 503, "headers": {"x-should-retry": "false"}}]
    raised(openai.InternalServerError,
           lambda: client(max_retries=2).chat.completions.create(**kw("up-model")))
    assert len(up.requests) == 1


def test_openai_stream_death():
    s = client().chat.completions.create(stream=True, extra_body=script(stop_at=300, end="reset"),
                                         **kw("up-model"))
    got = []
    e = raised(openai.APIError, lambda: got.extend(s))
    assert e.code == "upstream_unreachable", e
    c = client().chat.completions
    raised((openai.APIConnectionError, openai.InternalServerError), lambda: c.create(
        extra_body=script(body="x" * 1000, stop_at=500, end="reset"), **kw("up-model")))


def test_openai_early_break():
    for model in models():
        more = script(n=100000, token_s=0.02) if model == "up-model" else {"ignore_eos": True}
        s = client().chat.completions.create(stream=True, extra_body=more,
                                             **kw(model, max_tokens=1500))
        next(iter(s))
        s.close()
        until("nothing is left", lambda: server.metric("kvblend_requests_active") == 0)
    until("the upstream noticed", lambda: up.requests[-1].left_at)


# ---- langchain ----

def lc(kind, model, **more):
    return kind(model=model, base_url=base, api_key="key-one", max_tokens=6, temperature=0,
                max_retries=0, timeout=60, **more)


def test_langchain_chat():
    for model in models():
        chat = lc(ChatOpenAI, model)
        r = chat.invoke("Say hello.")
        assert r.content and r.usage_metadata["output_tokens"] <= 6
        assert r.response_metadata["finish_reason"] in ("stop", "length")
        again = chat.invoke([("system", "Be brief."), ("human", "Say hello."), ("ai", "hello"),
                             ("human", "Again.")])
        assert again.usage_metadata["input_tokens"] >= 7
        parts = list(lc(ChatOpenAI, model, stream_usage=True).stream("Say hello."))
        whole = parts[0]
        for p in parts[1:]:
            whole += p
        assert whole.content == r.content
        assert whole.usage_metadata["total_tokens"] == r.usage_metadata["total_tokens"]
        assert [x.content for x in chat.batch(["Say hello."] * 4)] == [r.content] * 4

        async def later():
            text = "".join([p.content async for p in chat.astream("Say hello.")])
            return text, (await chat.ainvoke("Say hello.")).content

        assert run(later()) == (r.content, r.content)


def test_langchain_llm_and_embeddings():
    for model in models():
        llm = lc(OpenAI, model)
        text = llm.invoke("The river")
        assert text and "".join(llm.stream("The river")) == text
    e = OpenAIEmbeddings(model="up-model", base_url=base, api_key="key-one", max_retries=0,
                         check_embedding_ctx_length=False)
    assert e.embed_documents(["a", "b"]) == [[0.5, -1.0, 0.25]] * 2
    raised(openai.NotFoundError, lambda: lc(ChatOpenAI, "nobody").invoke("x"))


def test_an_own_encoder():
    """Vectors of the worker by the official client (which asks for base64) and by langchain."""
    folder = os.path.join(ROOT, "tests", "data", "encoders", "bert-cls")
    with open(folder + ".json", encoding="utf-8") as f:
        golden = [t for t in json.load(f)["texts"] if t["text"]]
    texts = [t["text"] for t in golden]
    with gateway("--dtype", "f32", model=folder) as g:  # what auto takes depends on the CPU
        at = dict(base_url=f"http://127.0.0.1:{g.port}/v1", api_key="none", max_retries=0)
        more = {"truncate": True}
        got = [d.embedding for d in openai.OpenAI(**at).embeddings.create(model="bert-cls", input=texts,
                                                                         extra_body=more).data]
        e = OpenAIEmbeddings(model="bert-cls", check_embedding_ctx_length=False, model_kwargs={"extra_body": more}, **at)
        for mine in (got, e.embed_documents(texts)):
            assert len(mine) == len(golden)
            assert all(abs(x - y) < 1e-4 for v, t in zip(mine, golden) for x, y in zip(v, t["vector"]))


# ---- llama-index ----

def test_llama_index():
    for model in models():
        for is_chat in (True, False):
            llm = OpenAILike(model=model, api_base=base, api_key="key-one", max_tokens=6,
                             temperature=0, is_chat_model=is_chat, max_retries=0, timeout=60,
                             context_window=2048)
            ask = [ChatMessage(role="user", content="Say hello.")]
            text = llm.chat(ask).message.content
            assert text
            assert "".join(x.delta or "" for x in llm.stream_chat(ask)) == text
            text = llm.complete("The river").text
            assert text and "".join(x.delta or "" for x in llm.stream_complete("The river")) == text

            async def later():
                parts = [x.delta or "" async for x in await llm.astream_complete("The river")]
                return "".join(parts), (await llm.acomplete("The river")).text

            assert run(later()) == (text, text)


def seen_and_reused(body, answer, texts, seen):
    """Bytes of the documents that were asked for before, and how many of them stand in chunks that were held."""
    whole = reused = 0
    for m, message in enumerate(body["messages"]):
        data = message["content"].encode()
        held = [(c["begin"], c["end"]) for c in answer["kvblend"]["chunks"]
                if c["message"] == m and c["source"] != "computed"]
        for text in texts:
            begin = data.find(text.encode())
            if begin < 0:
                continue
            end = begin + len(text.encode())
            if text in seen:
                whole += end - begin
                reused += sum(max(0, min(e, end) - max(b, begin)) for b, e in held)
            seen.add(text)
    return whole, reused


def test_llama_index_documents_in_new_orders():
    """Its default template and metadata, four of eight files, thirty orders, without a pause between them."""
    rng = random.Random(20)
    words = "harbour granite signal keeper winter lantern railway orchard copper meadow".split()
    exchanges = []

    def note(response):
        response.read()
        exchanges.append((json.loads(response.request.content), response.json()))

    with tempfile.TemporaryDirectory() as folder, httpx.Client(event_hooks={"response": [note]}) as http:
        for i in range(8):
            with open(os.path.join(folder, f"{words[i]}.md"), "w") as f:
                f.write("\n\n".join(" ".join(rng.choice(words) for _ in range(50)) for _ in range(1 + i % 2)))
        nodes = SimpleDirectoryReader(folder).load_data()
        texts = [n.get_content(metadata_mode=MetadataMode.LLM).strip() for n in nodes]
        assert all(t.startswith("file_path: ") for t in texts)
        llm = OpenAILike(model=own, api_base=base, api_key="key-one", max_tokens=2, temperature=0,
                         is_chat_model=True, max_retries=0, timeout=60, context_window=8192, http_client=http,
                         additional_kwargs={"extra_body": {"kvblend": {"explain": True}}})
        for k in range(30):
            get_response_synthesizer(llm=llm, response_mode=ResponseMode.COMPACT).synthesize(
                f"What of the {rng.choice(words)} in {1800 + k}?",
                nodes=[NodeWithScore(node=n, score=1) for n in rng.sample(nodes, 4)])
    seen = set()
    each = [seen_and_reused(body, answer, texts, seen) for body, answer in exchanges]
    assert len(each) == 30 and len(seen) == 8, each
    whole, reused = (sum(x) for x in zip(*each[4:]))
    assert reused >= 0.95 * whole, (reused / whole, each)


# ---- LiteLLM ----

def ll(name, **more):
    return dict({"model": "openai/" + name, "api_base": base, "api_key": "key-one", "num_retries": 0,
                 "max_tokens": 6, "temperature": 0, "messages": HELLO, "timeout": 60,
                 "max_retries": 0}, **more)


def test_litellm():
    for model in models():
        r = litellm.completion(**ll(model))
        text = r.choices[0].message.content
        assert text and r.usage.completion_tokens <= 6
        chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True},
                                         **ll(model)))
        assert "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == text
        used = [x.usage for x in chunks if getattr(x, "usage", None)]
        assert used and used[-1].total_tokens == r.usage.total_tokens, used

        async def later():
            whole = await litellm.acompletion(**ll(model))
            parts = [x async for x in await litellm.acompletion(stream=True, **ll(model))]
            return (whole.choices[0].message.content,
                    "".join(x.choices[0].delta.content or "" for x in parts if x.choices))

        assert run(later()) == (text, text)
        ask = ll(model, model="text-completion-openai/" + model, prompt="The river")
        del ask["messages"]
        assert litellm.text_completion(**ask).choices[0].text is not None
    e = litellm.embedding(model="openai/up-model", input=["a"], api_base=base, api_key="key-one",
                          encoding_format="float")
    assert e.data[0]["embedding"] == [0.5, -1.0, 0.25]


def test_litellm_errors():
    raised(litellm.NotFoundError, lambda: litellm.completion(**ll("nobody")))
    raised(litellm.AuthenticationError, lambda: litellm.completion(**ll("up-model", api_key="no")))
    raised(litellm.RateLimitError, lambda: litellm.completion(
        extra_body=script(status=429), **ll("up-model")))
    raised(litellm.BadRequestError, lambda: litellm.completion(
        extra_body=script(status=400), **ll("up-model")))


def test_everybody_at_once():
    """The four clients together, each with streams: nobody gets another one's words."""
    want = {m: client().chat.completions.create(**kw(m)).choices[0].message.content
            for m in models()}
    bad = []

    def check(name, fn):
        try:
            got = fn()
            bad.extend([(name, got)] if got not in want.values() else [])
        except Exception as e:
            bad.append((name, repr(e)))

    def one(model):
        for _ in range(3):
            check("openai", lambda: "".join(
                x.choices[0].delta.content or "" for x in
                client().chat.completions.create(stream=True, **kw(model)) if x.choices))
            check("langchain", lambda: "".join(
                p.content for p in lc(ChatOpenAI, model).stream(HELLO[0]["content"])))
            check("litellm", lambda: litellm.completion(**ll(model)).choices[0].message.content)

    threads = [threading.Thread(target=one, args=(m,)) for m in models() for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad, bad[:3]


if __name__ == "__main__":
    with Upstream() as up, gateway("--upstream", up.entry("models=up-model health=off paths=files,responses"),
                                   "--api-key", "key-one", "--max-body", "2MiB",
                                   "--breaker-failures", "255") as server:
        base = f"http://127.0.0.1:{server.port}/v1"

        def worker_model():
            r = server.get("/v1/models", headers={"X-Api-Key": "key-one"}).json()
            return [m["id"] for m in r["data"] if m["id"] != "up-model"]

        own = until("the worker's model is there", worker_model)[0]
        main(globals())
