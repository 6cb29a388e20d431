#!/usr/bin/env python3
"""POST /v1/responses: carried over chat to a real worker and to upstreams, kept for who asks again, relayed as it is
where an upstream speaks it. The official client is one of those who ask, where this Python or $KVBLEND_PYTHON has it.
"""
import json

from harness import (KVBLEND, WORKER, Missing, gateway, main, need, other_python, parse_events, proxy, read_until,
                     real_model)
from upstream import Upstream

try:
    import openai
except ImportError:
    other_python("KVBLEND_PYTHON")
    openai = None

need(KVBLEND, WORKER)
RESPONSES = "/v1/responses"
WEATHER = {"type": "function", "name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}


def sse(*chunks):
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"


def chunk(delta, finish=None, **more):
    return dict({"id": "c", "object": "chat.completion.chunk", "model": "up-model",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}, **more)


def calls_weather(**more):
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    return sse(chunk({"role": "assistant", "content": None}), chunk({"reasoning_content": "Let me see."}),
               chunk({"tool_calls": [call]}),
               chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
               chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}),
               chunk({}, "tool_calls"),
               {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7,
                                         "prompt_tokens_details": {"cached_tokens": 4}}, **more})


def typed(reply):
    """The events of a stream, whose numbers follow each other."""
    events = [json.loads(e) for e in reply.events()]
    assert [e["sequence_number"] for e in events] == list(range(len(events))), events
    return events


def texts_of(response):
    return "".join(p["text"] for o in response["output"] if o["type"] == "message" for p in o["content"])


def test_reaches_the_worker_as_chat():
    with gateway("--ram", "64MiB", model=real_model()) as g:
        said = "Name one colour of the sky: \u00e4 \"quoted\"\n"
        body = {"input": said, "instructions": "Answer in one word.", "temperature": 0, "max_output_tokens": 8}
        r = g.post(RESPONSES, body)
        assert r.status == 200, r.body
        response = r.json()
        chat = g.post("/v1/chat/completions", {
            "messages": [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": said}],
            "temperature": 0, "max_tokens": 8}).json()
        assert texts_of(response) == chat["choices"][0]["message"]["content"], (response, chat)
        usage = response["usage"]
        assert usage["input_tokens"] == chat["usage"]["prompt_tokens"], usage
        assert usage["output_tokens"] == chat["usage"]["completion_tokens"], usage
        assert response["object"] == "response" and response["kvblend"]["mode"], response
        streamed = g.post(RESPONSES, dict(body, stream=True, kvblend={"explain": True}))
        assert streamed.headers["content-type"].startswith("text/event-stream")
        events = typed(streamed)
        last = events[-1]["response"]
        assert [e["type"] for e in events[:4]] == ["response.created", "response.in_progress",
                                                   "response.output_item.added", "response.content_part.added"]
        assert texts_of(last) == texts_of(response), last
        assert last["status"] == response["status"] and last["kvblend"]["tokens"], last
        assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == texts_of(last)
        schema = {"type": "object", "properties": {"colour": {"enum": ["blue", "red"]}}, "required": ["colour"]}
        formed = g.post(RESPONSES, dict(body, max_output_tokens=60, text={
            "format": {"type": "json_schema", "name": "sky", "schema": schema}})).json()
        assert json.loads(texts_of(formed))["colour"] in ("blue", "red"), formed


def test_goes_on_from_the_last_one():
    with gateway("--ram", "64MiB", "--api-key", "one id=a", "--api-key", "two id=b", model=real_model()) as g:
        def ask(body, key="one", **kw):
            return g.post(RESPONSES, dict({"temperature": 0, "max_output_tokens": 8}, **body),
                          headers={"Authorization": f"Bearer {key}"}, **kw)

        def fetch(method, rid, key="one"):
            return g.request(method, f"{RESPONSES}/{rid}", headers={"Authorization": f"Bearer {key}"})

        first = ask({"input": "My name is Ada."}).json()
        second = ask({"input": "What is my name?", "previous_response_id": first["id"]}).json()
        whole = ask({"input": [{"role": "user", "content": "My name is Ada."},
                               {"role": "assistant", "content": texts_of(first)},
                               {"role": "user", "content": "What is my name?"}]}).json()
        assert texts_of(second) == texts_of(whole) and second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
        assert fetch("GET", first["id"]).json() == first
        for key, rid in (("two", first["id"]), ("one", "resp_kvb0")):
            assert fetch("GET", rid, key).status == 404
            assert fetch("DELETE", rid, key).status == 404
            e = ask({"input": "x", "previous_response_id": rid}, key)
            assert e.status == 404 and e.error()["param"] == "previous_response_id", e.body
        streamed = typed(ask({"input": "And now?", "previous_response_id": second["id"], "stream": True}))
        assert fetch("GET", streamed[-1]["response"]["id"]).json()["output"] == streamed[-1]["response"]["output"]
        assert fetch("DELETE", first["id"]).json() == {"id": first["id"], "object": "response", "deleted": True}
        assert fetch("GET", first["id"]).status == 404
        assert ask({"input": "x", "previous_response_id": second["id"]}).status == 200, "each holds the whole talk"
        unkept = ask({"input": "x", "store": False}).json()
        assert not unkept["store"] and fetch("GET", unkept["id"]).status == 404
        assert g.get(f"{RESPONSES}/{second['id']}").status == 401


def test_the_store_is_bounded():
    with Upstream(n=1) as up, proxy([up], "--responses-max", "2") as g:
        ids = [g.post(RESPONSES, {"model": "up-model", "input": "x"}).json()["id"] for _ in range(3)]
        assert [g.get(f"{RESPONSES}/{i}").status for i in ids] == [404, 200, 200]
    with Upstream(n=1) as up, proxy([up], "--responses-memory", "0") as g:
        r = g.post(RESPONSES, {"model": "up-model", "input": "x"}).json()
        assert not r["store"] and g.get(f"{RESPONSES}/{r['id']}").status == 404


def test_upstreams_get_chat():
    with Upstream() as up, proxy([up]) as g:
        up.script = {"body": calls_weather(), "type": "text/event-stream"}
        body = {"model": "up-model", "stream": True, "tools": [WEATHER], "tool_choice": "required", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Is it \u00e4 cold?"}]}]}
        events = typed(g.post(RESPONSES + "?x=1", body))
        sent = up.requests[-1]
        assert sent.target == "/v1/chat/completions" and sent.json() == {
            "model": "up-model", "stream": True, "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "Is it \u00e4 cold?"}], "tool_choice": "required",
            "tools": [{"type": "function", "function": {k: WEATHER[k] for k in ("name", "parameters", "strict")}}]}
        last = events[-1]["response"]
        assert [o["type"] for o in last["output"]] == ["reasoning", "function_call"], last
        call = last["output"][1]
        assert (call["call_id"], call["name"], call["arguments"]) == ("call_1", "weather", '{"city":"Oslo"}')
        assert last["usage"]["input_tokens_details"]["cached_tokens"] == 4
        up.script = {"n": 3}
        more = g.post(RESPONSES, {"model": "up-model", "previous_response_id": last["id"], "tools": [WEATHER], "input": [
            {"type": "function_call_output", "call_id": "call_1", "output": "-3"}]})
        assert more.status == 200 and texts_of(more.json()), more.body
        assert [m["role"] for m in up.requests[-1].json()["messages"]] == ["user", "assistant", "tool"]
        assert up.requests[-1].json()["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Oslo"}'


def test_relayed_to_who_speaks_it():
    answer = json.dumps({"id": "resp_theirs", "object": "response", "output": []})
    with Upstream("plain", ["plain"]) as plain, Upstream("native", ["native"], body=answer) as native:
        with proxy([plain, native.entry("paths=responses")]) as g:
            body = b'{"model": "native",  "input": [{"type": "item_reference", "id": "x"}], "background": true}'
            r = g.post(RESPONSES, body, headers={"Content-Type": "application/json"})
            assert r.status == 200 and r.body == answer.encode(), r.body
            assert native.requests[-1].body == body and native.requests[-1].target == RESPONSES
            assert g.get(RESPONSES + "/resp_theirs").status == 200 and native.requests[-1].method == "GET"
            assert g.get(RESPONSES + "/resp_kvb0").status == 404, "ours, and not there"
            assert g.post(RESPONSES, {"model": "plain", "input": "x"}).json()["id"].startswith("resp_kvb")
            assert plain.requests[-1].target == "/v1/chat/completions"


def test_who_speaks_it_is_awaited():
    """A request that comes before the first list of models is not taken for one that must become chat."""
    answer = json.dumps({"id": "resp_theirs", "object": "response", "output": []})
    with Upstream("plain", ["plain"]) as plain, Upstream("native", ["native"], body=answer) as native:
        native.held = True
        with proxy([plain, native.entry("paths=responses")]) as g:
            asks = {name: g.open(RESPONSES, {"model": name, "input": "x"}) for name in ("native", "unknown", "plain")}
            with asks["plain"] as s:
                assert b"resp_kvb" in read_until(s, b"resp_kvb"), "who lists it is known: chat, at once"
            native.held = False
            with asks["native"] as s:
                assert b"resp_theirs" in read_until(s, b"resp_theirs") and native.requests[-1].target == RESPONSES
            with asks["unknown"] as s:
                assert b" 404 " in read_until(s, b"\r\n"), "known to be nobody's"


def test_refusals_name_the_field():
    with Upstream() as up, proxy([up]) as g:
        for body, param in (({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
                            ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
                             "input[0].content[0].type"), ({}, "input")):
            r = g.post(RESPONSES, dict(body, model="up-model"))
            assert r.status == 400 and r.error()["param"] == param, r.body
        deep = b'{"model":"up-model","input":' + b"[" * 100 + b"]" * 100 + b"}"
        assert g.post(RESPONSES, deep).status == 400
        assert not up.requests, "none of it was sent"
        up.script = {"status": 400}
        r = g.post(RESPONSES, {"model": "up-model", "input": "x"})
        assert r.status == 400 and r.error()["message"] == "as told"


def test_what_is_no_answer_becomes_an_error():
    with Upstream() as up, proxy([up], "--retries", "0") as g:
        ask = {"model": "up-model", "input": "x", "stream": True}
        half = sse(chunk({"content": "a"}))[:-len("data: [DONE]\n\n")]
        for text, message in ((half + "data: {nonsense\n\n", "no chat completion"),
                              (half + 'data: {"error":{"message":"it broke"}}\n\n', "it broke"),
                              (half + "data: " + "x" * (2 << 20), "too long")):
            up.script = {"body": text, "type": "text/event-stream"}
            events = typed(g.post(RESPONSES, ask))
            assert events[-1]["type"] == "response.failed", events[-1]
            assert message in events[-1]["response"]["error"]["message"], events[-1]
        up.script = {"body": half, "type": "text/event-stream", "framing": "length"}
        assert typed(g.post(RESPONSES, ask))[-1]["type"] == "response.failed"
        for text in ("{}", "<html>", "[]", '{"choices":[]}'):
            up.script = {"body": text}
            r = g.post(RESPONSES, dict(ask, stream=False))
            assert r.status == 502 and "no chat completion" in r.error()["message"], r.body
        up.script = {"body": json.dumps({"choices": [{"message": {"content": "x" * (9 << 20)}}]})}
        r = g.post(RESPONSES, dict(ask, stream=False))
        assert r.status == 502 and "too long" in r.error()["message"], r.body[:300]
        up.script = {"n": 2}
        assert g.post(RESPONSES, dict(ask, stream=False)).status == 200


def test_a_long_body_holds_nobody_up():
    with Upstream(n=1) as up, proxy([up]) as g:
        text = "w\u00f6rd \\ \"x\" " * 800_000
        s = g.open(RESPONSES, {"model": "up-model", "input": text})
        assert g.get("/health").status == 200
        assert b"200" in s.makefile("rb").readline()
        s.close()
        assert up.requests[-1].json()["messages"] == [{"role": "user", "content": text}]
        lag = [float(x.split()[-1]) for x in g.metrics().split("\n") if "loop_lag" in x and x.split()[0].endswith("_sum")]
        assert all(v < 5 for v in lag), lag


def test_the_official_client():
    if not openai:
        raise Missing("the openai package is not installed")
    with Upstream() as up, proxy([up]) as g:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{g.port}/v1", api_key="none", max_retries=0, timeout=60)
        up.script = {"n": 3}
        r = client.responses.create(model="up-model", input="Hello", instructions="Be brief.")
        assert r.output_text and r.status == "completed" and r.usage.total_tokens, r
        assert client.responses.retrieve(r.id).output_text == r.output_text
        client.responses.delete(r.id)
        up.script = {"body": calls_weather(), "type": "text/event-stream"}
        with client.responses.stream(model="up-model", input="x", tools=[WEATHER]) as stream:
            types = [e.type for e in stream]
            final = stream.get_final_response()
        assert types[-1] == "response.completed" and "response.function_call_arguments.delta" in types, types
        assert final.output[-1].arguments == '{"city":"Oslo"}', final
        try:
            client.responses.create(model="up-model", input="x", tools=[{"type": "file_search", "vector_store_ids": []}])
            raise AssertionError("it was served")
        except openai.BadRequestError as e:
            assert e.param == "tools[0].type", e


if __name__ == "__main__":
    main(globals())
