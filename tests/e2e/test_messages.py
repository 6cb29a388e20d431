#!/usr/bin/env python3
"""POST /v1/messages and /v1/messages/count_tokens: carried over chat to a real worker and to upstreams, relayed as they
are where an upstream speaks them. The official client is one of those who ask, where this Python or
$KVBLEND_FRAMEWORKS_PYTHON has it.
"""
import json
import os

from harness import KVBLEND, ROOT, WORKER, Missing, gateway, main, need, other_python, proxy, real_model, until
from test_responses import calls_weather, chunk, sse
from upstream import Upstream

try:
    import anthropic
except ImportError:
    other_python("KVBLEND_FRAMEWORKS_PYTHON")
    anthropic = None

need(KVBLEND, WORKER)
MESSAGES, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def passages():
    """Six documents of a few hundred tokens."""
    with open(os.path.join(ROOT, "tests", "data", "calibration", "pages.jsonl")) as f:
        words = " ".join(str(v) for line in f for v in json.loads(line).values()).split()
    return [f"Document {i}. " + " ".join(words[i * 160:(i + 1) * 160]) for i in range(6)]


def typed(reply):
    out = []
    for block in reply.body.decode().split("\n\n"):
        lines = dict(x.split(": ", 1) for x in block.split("\n") if x and not x.startswith(":"))
        if lines:
            out.append(json.loads(lines["data"]))
            assert out[-1]["type"] == lines["event"], block
    return out


def failure(reply, status, kind):
    assert reply.status == status, (reply.status, reply.body)
    e = reply.json()
    assert e["type"] == "error" and e["error"]["type"] == kind, e
    return e["error"]["message"]


def text_of(message):
    return "".join(b["text"] for b in message["content"] if b["type"] == "text")


def test_reaches_the_worker_as_chat():
    with gateway("--ram", "64MiB", model=real_model()) as g:
        body = {"system": "Answer in one word.", "max_tokens": 8, "temperature": 0,
                "messages": [{"role": "user", "content": "Name one colour of the \u00e4 \"sky\".\n"}]}
        r = g.post(MESSAGES, body, headers={"anthropic-version": "2023-06-01"})
        assert r.status == 200, r.body
        message = r.json()
        chat = g.post(CHAT, {"messages": [{"role": "system", "content": body["system"]}] + body["messages"],
                             "temperature": 0, "max_tokens": 8}).json()
        assert text_of(message) == chat["choices"][0]["message"]["content"], (message, chat)
        usage = message["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"], usage
        assert message["stop_reason"] == {"stop": "end_turn", "length": "max_tokens"}[chat["choices"][0]["finish_reason"]]
        counted = g.post(COUNT, {k: body[k] for k in ("system", "messages")})
        assert counted.json() == {"input_tokens": chat["usage"]["prompt_tokens"]}, counted.body
        events = typed(g.post(MESSAGES, dict(body, stream=True, kvblend={"explain": True})))
        assert [e["type"] for e in events[:3]] == ["message_start", "ping", "content_block_start"], events
        assert [e["type"] for e in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"], events
        deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(deltas) == text_of(message) and events[-2]["kvblend"]["tokens"], events
        begun = dict(body, messages=body["messages"] + [{"role": "assistant", "content": "The colour is"}])
        assert text_of(g.post(MESSAGES, begun).json()) == g.post(CHAT, {
            "messages": [{"role": "system", "content": body["system"]}] + begun["messages"], "temperature": 0,
            "max_tokens": 8, "continue_final_message": True, "add_generation_prompt": False,
        }).json()["choices"][0]["message"]["content"], "an answer that is begun goes on"
        formed = g.post(MESSAGES, dict(body, max_tokens=60, output_config={"format": {
            "type": "json_schema", "schema": {"enum": ["blue", "red"]}}})).json()
        assert json.loads(text_of(formed)) in ("blue", "red"), formed


def reused(r):
    assert r.status == 200, r.body
    return r.json()["kvblend"]["tokens"]


def test_a_line_that_changes_costs_no_reuse():
    """A client's header, or a date, at a prompt's head; behind it the same instructions, then documents in new orders."""
    texts = passages()
    rules = "\n".join(f"Rule {i}: answer from the documents alone, and say so when they do not tell, number {i}."
                      for i in range(24))
    with gateway("--ram", "256MiB", model=real_model()) as g:
        def ask(i, route, documents):
            head = f"x-client-header: version=2.1.{i}; entry=cli; check={i * 7919:05x};"
            question = f"Question {i}: what do the documents say?"
            more = {"max_tokens": 2, "temperature": 0, "kvblend": {"mode": "blend", "ratio": 0.1, "explain": True}}
            user = {"role": "user", "content": [{"type": "text", "text": t} for t in documents + [question]]}
            if route == MESSAGES:
                return g.post(MESSAGES, dict(more, messages=[user],
                                             system=[{"type": "text", "text": head}, {"type": "text", "text": rules}]))
            return g.post(CHAT, dict(more, messages=[{"role": "system", "content": f"{head}\n{rules}"}, user]))

        for route in (MESSAGES, CHAT):
            n_rules = g.post("/tokenize", {"content": rules}).json()["count"]
            for i in range(5):
                turned = texts[i % 6:] + texts[:i % 6]
                tokens = reused(ask(i, route, turned))
            total = sum(tokens.values())
            assert tokens["reused"] + tokens["recomputed"] + tokens["prefix"] > 0.8 * total, (route, tokens)
            assert tokens["computed"] < 0.5 * n_rules + 120, (route, tokens, "what follows the line is reused, too")


def test_upstreams_get_chat():
    with Upstream() as up, proxy([up]) as g:
        body = {"model": "up-model", "max_tokens": 50, "tools": [WEATHER], "stop_sequences": ["x"],
                "tool_choice": {"type": "tool", "name": "weather"}, "metadata": {"user_id": "u"},
                "messages": [{"role": "user", "content": "Is it cold?"}]}
        up.script = {"body": calls_weather(kvblend={"mode": "full"}), "type": "text/event-stream"}
        events = typed(g.post(MESSAGES + "?beta=true", dict(body, stream=True)))
        sent = up.requests[-1]
        assert sent.target == CHAT and sent.json() == {
            "model": "up-model", "max_completion_tokens": 50, "stop": ["x"], "stream": True,
            "stream_options": {"include_usage": True}, "messages": body["messages"],
            "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather.",
                                                        "parameters": WEATHER["input_schema"]}}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}}}, sent.json()
        started = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
        assert started == ["thinking", "tool_use"], events
        parts = [e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"]
        assert json.loads("".join(parts)) == {"city": "Oslo"}
        assert events[-2]["delta"]["stop_reason"] == "tool_use" and events[-2]["kvblend"] == {"mode": "full"}
        assert events[-2]["usage"]["cache_read_input_tokens"] == 4 and events[-2]["usage"]["input_tokens"] == 5
        up.script = {"n": 3}
        result = [{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "-3"}]},
                  {"type": "text", "text": "So?"}]
        use = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
        r = g.post(MESSAGES, dict(body, messages=body["messages"] + [
            {"role": "assistant", "content": [use]}, {"role": "user", "content": result}]))
        assert text_of(r.json()), r.body
        assert [m["role"] for m in up.requests[-1].json()["messages"]] == ["user", "assistant", "tool", "user"]


def test_relayed_to_who_speaks_it():
    answer = '{"type": "message",  "content": []}'
    with Upstream("plain", ["plain"]) as plain, Upstream("native", ["native"], body=answer) as native:
        with proxy([plain, native.entry("paths=messages")]) as g:
            until("both have said what they serve: before that any may get what names no other",
                  lambda: {m["id"] for m in g.get("/v1/models").json()["data"]} == {"plain", "native"})
            body = b'{"model": "native",  "messages": [{"role": "user", "content": [{"type": "image"}]}]}'
            for path in (MESSAGES, COUNT):
                r = g.post(path, body)
                assert r.status == 200 and r.body == answer.encode(), r.body
                assert native.requests[-1].body == body and native.requests[-1].target == path
            assert g.post(MESSAGES, {"model": "plain", "messages": [{"role": "user", "content": "x"}]}).status == 200
            assert plain.requests[-1].target == CHAT


def test_counting():
    ask = {"model": "up-model", "messages": [{"role": "user", "content": "x"}]}
    with Upstream() as up, proxy([up]) as g:
        up.script = {"body": '{"count": 12, "tokens": []}'}
        assert g.post(COUNT, ask).json() == {"input_tokens": 12}
        assert up.requests[-1].target == "/tokenize", up.requests[-1].target
        up.script = {"status": 404}
        assert "/tokenize" in failure(g.post(COUNT, ask), 501, "api_error")


def test_errors_have_their_shape():
    ask = {"model": "up-model", "messages": [{"role": "user", "content": "x"}]}
    with Upstream() as up, proxy([up], "--api-key", "one", "--retries", "0") as g:
        def post(body, key="one", path=MESSAGES):
            return g.post(path, body, headers={"x-api-key": key})

        assert post(ask).status == 200
        assert g.post(MESSAGES, ask, headers={"Authorization": "Bearer one"}).status == 200
        failure(post(ask, "two"), 401, "authentication_error")
        failure(post(dict(ask, model="none")), 404, "not_found_error")
        image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
        assert "messages[0].content[0].type" in failure(post(dict(ask, messages=image)), 400, "invalid_request_error")
        web = [{"type": "web_search_20250305", "name": "web_search"}]
        assert "tools[0].type" in failure(post(dict(ask, tools=web)), 400, "invalid_request_error")
        failure(post(b"{"), 400, "invalid_request_error")
        failure(post({"model": "up-model"}), 400, "invalid_request_error")
        failure(g.get(MESSAGES, headers={"x-api-key": "one"}), 405, "invalid_request_error")
        up.script = {"status": 429, "headers": {"Retry-After": "7"}}
        r = post(ask)
        assert failure(r, 429, "rate_limit_error") == "as told" and r.headers["retry-after"] == "7"
        up.script = {"status": 500, "body": "<html>", "type": "text/html"}
        r = post(ask)
        failure(r, 500, "api_error")
        assert r.headers["content-type"] == "application/json", r.headers
        half = sse(chunk({"content": "a"}))[:-len("data: [DONE]\n\n")]
        for text in (half + "data: nonsense\n\n", half):
            up.script = {"body": text, "type": "text/event-stream", "framing": "length"}
            events = typed(post(dict(ask, stream=True)))
            assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error", events


def test_the_official_client():
    if not anthropic:
        raise Missing("the anthropic package is not installed")
    with Upstream() as up, proxy([up], "--api-key", "one") as g:
        client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{g.port}", api_key="one", max_retries=0, timeout=60)
        ask = dict(model="up-model", max_tokens=5, messages=[{"role": "user", "content": "Hello"}])
        m = client.messages.create(**ask)
        assert m.content[0].text and m.stop_reason == "end_turn" and m.usage.output_tokens == 5, m
        up.script = {"body": calls_weather(), "type": "text/event-stream"}
        with client.messages.stream(tools=[WEATHER], **ask) as stream:
            kinds = [e.type for e in stream]
            final = stream.get_final_message()
        assert "input_json" in kinds and final.stop_reason == "tool_use", kinds
        assert [b.type for b in final.content] == ["thinking", "tool_use"] and final.content[1].input == {"city": "Oslo"}
        up.script = {"body": '{"count": 3}'}
        assert client.messages.count_tokens(model="up-model", messages=ask["messages"]).input_tokens == 3
        try:
            client.messages.create(**dict(ask, model="none"))
            raise AssertionError("it was served")
        except anthropic.NotFoundError as e:
            assert "none" in e.message, e


if __name__ == "__main__":
    main(globals())
