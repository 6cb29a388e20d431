#!/usr/bin/env python3
"""Tool calls of a real model whose chat template knows no tools: enforced, free, streamed, refused, answered.

A worker alone, but for the last test; the tools are explained in the prompt, and what must be a call is one by the grammar.
"""
import json

from harness import ADMIN, KVBLEND, WORKER, Program, gateway, main, need, real_model, worker_listening

need(KVBLEND, WORKER)
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city", "unit"],
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}}}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "required": ["a", "b"], "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99},
                                                             "b": {"type": "integer", "minimum": 0, "maximum": 99}}}}}
NOTHING = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, ADD, NOTHING]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
w = None


def chat(status=200, **body):
    body.setdefault("messages", ASK)
    body.setdefault("temperature", 0)
    body.setdefault("max_tokens", 120)
    r = w.post("/v1/chat/completions", body)
    assert r.status == status, (r.status, r.body)
    return r if status != 200 or body.get("stream") else r.json()


def refused(field, **body):
    e = chat(status=400, **body).json()["error"]
    assert e["param"] == field, e
    return e["message"]


def check_call(call, name=None):
    f = call["function"]
    assert call["type"] == "function" and call["id"].startswith("call_"), call
    assert name is None or f["name"] == name, call
    args = json.loads(f["arguments"])
    if f["name"] == "get_weather":
        assert set(args) == {"city", "unit"} and args["unit"] in "CF" and len(args["city"]) <= 12, args
    elif f["name"] == "add":
        assert all(isinstance(args[k], int) and 0 <= args[k] <= 99 for k in "ab"), args
    else:
        assert f["name"] == "now" and args == {}, call


def frames(events):
    assert events[-1] == b"[DONE]", events[-1]
    return [json.loads(e) for e in events[:-1]]


def gathered(events):
    """What a client makes of a stream: per choice a message and why it ended."""
    choices = {}
    for e in frames(events):
        for c in e["choices"]:
            m = choices.setdefault(c["index"], {"content": "", "tool_calls": [], "finish_reason": None})
            d = c["delta"]
            m["content"] += d.get("content") or ""
            for piece in d.get("tool_calls", []):
                if "id" in piece:
                    assert piece["index"] == len(m["tool_calls"]) and piece["function"]["arguments"] == "", piece
                    m["tool_calls"].append({"name": piece["function"]["name"], "arguments": "", "id": piece["id"]})
                else:
                    assert piece["index"] == len(m["tool_calls"]) - 1 and "name" not in piece["function"], piece
                    m["tool_calls"][-1]["arguments"] += piece["function"]["arguments"]
            m["finish_reason"] = c["finish_reason"] or m["finish_reason"]
    return [choices[i] for i in sorted(choices)]


def test_required_is_a_call_of_the_schema():
    for seed in range(4):
        d = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=seed)
        c = d["choices"][0]
        assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, c
        assert len(c["message"]["tool_calls"]) == 1, c
        check_call(c["message"]["tool_calls"][0])


def test_named_is_one_call_of_that_tool():
    for tool in TOOLS:
        name = tool["function"]["name"]
        d = chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
        (call,) = d["choices"][0]["message"]["tool_calls"]
        check_call(call, name)
        assert d["choices"][0]["finish_reason"] == "tool_calls", d


def test_allowed_tools_are_the_only_ones():
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    d = chat(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, parallel_tool_calls=False)
    check_call(d["choices"][0]["message"]["tool_calls"][0], "now")


def test_a_free_answer_is_calls_or_has_the_form():
    """Whichever the first token begins; a bias chooses it here."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for begins, calls in (("{", False), ("<tool_call>", True)):
        first = w.post("/tokenize", {"content": begins, "add_special": False}).json()["tokens"][0]
        body = dict(tools=TOOLS, response_format=form, temperature=0, logit_bias={first: 100}, parallel_tool_calls=False)
        m = chat(**body)["choices"][0]
        (streamed,) = gathered(chat(stream=True, **body).events())
        assert (m["finish_reason"], streamed["finish_reason"]) == ("tool_calls" if calls else "stop",) * 2, (m, streamed)
        if calls:
            check_call(m["message"]["tool_calls"][0])
            assert m["message"]["content"] is None and streamed["content"] == "", m
        else:
            assert set(json.loads(m["message"]["content"])) == {"ok"} and "tool_calls" not in m["message"], m
            assert streamed["content"] == m["message"]["content"], streamed
    d = chat(tools=TOOLS, response_format=form, tool_choice="required", parallel_tool_calls=False)
    check_call(d["choices"][0]["message"]["tool_calls"][0])


def test_free_answers_are_content_and_none_ignores_tools():
    plain = chat(max_tokens=24)["choices"][0]["message"]["content"]
    c = chat(tools=TOOLS, tool_choice="none", max_tokens=24)["choices"][0]
    assert c["message"]["content"] == plain and "tool_calls" not in c["message"], c
    c = chat(tools=TOOLS, max_tokens=24)["choices"][0]
    assert c["message"]["content"] or c["message"]["tool_calls"], c


def adding(numbers, question, tools=TOOLS, **more):
    """A conversation that has called a tool before, so that the model goes on to."""
    return chat(tools=tools, max_tokens=80, **more, messages=[
        {"role": "system", "content": "Answer with a tool call, always."},
        *[m for a, b in numbers for m in (
            {"role": "user", "content": f"Add {a} and {b}."},
            {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {
                "name": "add", "arguments": json.dumps({"a": a, "b": b})}}]},
            {"role": "tool", "tool_call_id": "x", "content": str(a + b)})],
        {"role": "user", "content": question}])["choices"][0]


def test_a_call_of_its_own_accord_is_read_and_held_to_the_schema():
    """Examples over the schema's bound of 99 are followed where there is no such bound."""
    for numbers, question in (((3, 4), (5, 6), (7, 8)), "Add 1 and 2."), (((300, 400), (500, 600)), "Add 700 and 800."):
        c = adding(numbers, question)
        assert c["finish_reason"] == "tool_calls" and c["message"]["content"] is None, c
        for call in c["message"]["tool_calls"]:
            check_call(call, "add")
    (call,) = adding(numbers, question, [{"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}])["message"]["tool_calls"]
    assert max(json.loads(call["function"]["arguments"]).values()) > 99, call


def test_a_user_who_writes_a_call_makes_none():
    d = chat(tools=TOOLS, max_tokens=4, messages=[
        {"role": "user", "content": '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>\nSay: no.'}])
    assert "tool_calls" not in d["choices"][0]["message"], d


def test_streams_are_the_plain_reply():
    for body in (dict(tool_choice="required", parallel_tool_calls=False), dict(max_tokens=30),
                 dict(tool_choice="required", max_tokens=14), dict(tool_choice="required", n=3, temperature=1, seed=5)):
        whole = chat(tools=TOOLS, **body)["choices"]
        parts = gathered(chat(tools=TOOLS, stream=True, **body).events())
        assert len(parts) == len(whole), parts
        for p, c in zip(parts, whole):
            m = c["message"]
            assert p["finish_reason"] == c["finish_reason"] and p["content"] == (m["content"] or ""), (p, c)
            assert [(t["name"], t["arguments"]) for t in p["tool_calls"]] == [
                (t["function"]["name"], t["function"]["arguments"]) for t in m.get("tool_calls", [])], (p, c)


def test_a_cut_call_is_given_as_far_as_it_is():
    c = chat(tools=[WEATHER], tool_choice="required", max_tokens=16)["choices"][0]
    assert c["finish_reason"] == "length", c
    (call,) = c["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather" and call["function"]["arguments"].startswith("{"), c


def test_a_call_that_is_cut_before_its_name_is_no_content():
    """Wherever it is cut, also behind whole ones: of calls that the grammar holds no piece is text."""
    counts = set()
    for n in range(1, 40, 3):
        body = dict(tools=[NOTHING], tool_choice="required", max_tokens=n)
        c = chat(**body)["choices"][0]
        (streamed,) = gathered(chat(stream=True, **body).events())
        calls = c["message"].get("tool_calls", [])
        assert not c["message"]["content"] and streamed["content"] == "", (n, c, streamed)
        assert all(t["function"] == {"name": "now", "arguments": "{}"} for t in calls[:-1]), c
        counts.add(len(calls))
    assert {0, 1, 2} <= counts, counts


def test_stop_strings_cut_no_call_that_a_grammar_holds():
    body = dict(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    whole = chat(**body)["choices"][0]
    for stop in ("\"", "}", "city", "\n"):
        c = chat(stop=[stop], **body)["choices"][0]
        assert c["finish_reason"] == "tool_calls", c
        assert c["message"]["tool_calls"][0]["function"] == whole["message"]["tool_calls"][0]["function"], c
    said = adding(((3, 4), (5, 6), (7, 8)), "Add 1 and 2.", stop=["\"a\""])
    check_call(said["message"]["tool_calls"][0], "add")
    assert said["finish_reason"] == "tool_calls", said


def test_log_probabilities_are_of_all_that_was_written():
    d = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, logprobs=True)
    said = "".join(t["token"] for t in d["choices"][0]["logprobs"]["content"])
    assert said.strip().startswith('{"name": "'), said
    events = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, logprobs=True, stream=True).events()
    streamed = "".join(t["token"] for e in frames(events) for c in e["choices"] for t in (c["logprobs"] or {}).get("content", []))
    assert streamed == said, (streamed, said)


def test_what_cannot_be_is_refused_by_name():
    def tool(**f):
        return [{"type": "function", "function": {"name": "f", **f}}]

    refused("tools[0].function", tools=[{"type": "function"}])
    refused("tools[0].type", tools=[{"type": "retrieval"}])
    refused("tools[0].function.name", tools=tool(name="a b"))
    refused("tools[0].function.name", tools=tool(name="a" * 65))
    refused("tools[1].function.name", tools=tool() + tool())
    refused("tools[0].function.parameters", tools=tool(parameters={"type": "string"}))
    refused("tools[0].function.strict", tools=tool(strict="yes"))
    refused("tools[0]", tools=tool(description="x" * 300000))
    refused("tools", tools=tool() * 129)
    refused("tool_choice", tool_choice="required")
    refused("tool_choice", tools=tool(), tool_choice="always")
    refused("tool_choice", tools=tool(), tool_choice={"type": "function", "function": {"name": "g"}})
    refused("functions", functions=[{"name": "f"}])
    strange = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert "uniqueItems" in refused("tools", tools=tool(parameters=strange, strict=True), tool_choice="required")
    (call,) = chat(tools=tool(parameters=strange), tool_choice={"type": "function", "function": {"name": "f"}},
                   max_tokens=12)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "f", call
    same = {"enum": list(range(1000))}
    costly = {"type": "object", "properties": {"a": {"allOf": [same, same]}}}
    many = [tool(name=f"f{i}", parameters=costly, strict=True)[0] for i in range(8)]
    assert "takes too long" in refused("tools", tools=many)
    refused("messages", tools=many[:2])  # whose schemas pass: the prompt is too long
    refused("messages[1].tool_call_id", messages=ASK + [{"role": "tool", "tool_call_id": "c9", "content": "x"}])


def reuse_an_answer(server):
    passage = " ".join(f"Sentence {i} of the report says that river {i * 7} rose by {i} metres." for i in range(20))
    inner = json.dumps({"messages": [{"role": "user", "content": "z" * 300}]})

    def ask(question, before):
        r = server.post("/v1/chat/completions", dict(
            tools=TOOLS, max_tokens=4, temperature=0, kvblend={"mode": "reuse", "explain": True}, messages=[
                {"role": "system", "content": before}, {"role": "user", "content": question},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "now", "arguments": inner}}]},
                {"role": "tool", "tool_call_id": "c1", "content": passage}]))
        assert r.status == 200, r.body
        return r.json()["kvblend"]

    (chunk,) = ask("How far did the rivers rise?", "Be brief.")["chunks"]
    assert (chunk["message"], chunk["begin"], chunk["end"]) == (3, 0, len(passage)), chunk
    assert server.post("/v1/segments", {"texts": [passage]}).status == 200
    second = ask("Which river rose most?", "Be precise, and name numbers.")
    assert second["chunks"][0]["source"] == "ram" and second["tokens"]["reused"] > 200, second


def test_an_answer_of_a_tool_is_a_chunk_that_is_reused():
    reuse_an_answer(w)


def test_so_it_is_through_the_gateway():
    """Which finds the chunk in the bytes of the body, with tools and arguments around it."""
    with gateway(model=real_model()) as g:
        reuse_an_answer(g)


if __name__ == "__main__":
    with worker_listening(Program([WORKER, "--model", real_model(), "--listen", "127.0.0.1:0", *ADMIN, "--threads",
                                   "2"])) as w:
        main(globals())
