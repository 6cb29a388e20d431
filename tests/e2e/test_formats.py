#!/usr/bin/env python3
"""Answers that must have a form, asked for with the official `openai` client through the gateway, of a real model.

Run by a Python that has the packages (openai, jsonschema): $KVBLEND_PYTHON, else this one; skipped when neither has.
"""
import json
import re

from harness import KVBLEND, Missing, WORKER, gateway, main, need, other_python, real_model, skip

try:
    import jsonschema
    import openai
except ImportError:
    other_python("KVBLEND_PYTHON")
    skip("the openai or the jsonschema package is not installed")

need(KVBLEND, WORKER)
ASK = [{"role": "user", "content": "Tell me about Ada Lovelace, born in London in 1815."}]
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "born", "tags", "kind"], "properties": {
    "name": {"type": "string", "maxLength": 40}, "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    "kind": {"enum": ["person", "place"]}}}
STRICT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
server = model = None


def client():
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=120)


def chat(**kw):
    body = dict(model=model, messages=ASK, temperature=0, max_tokens=200)
    body.update(kw)
    return client().chat.completions.create(**body)


def streamed(**kw):
    chunks = list(chat(stream=True, **kw))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    return text, [c.choices[0].finish_reason for c in chunks if c.choices][-1]


def check_person(choice):
    assert choice.finish_reason == "stop", choice
    jsonschema.validate(json.loads(choice.message.content), PERSON)


def refused(**kw):
    try:
        chat(**kw)
    except openai.BadRequestError as e:
        return e.param, e.message
    raise AssertionError("accepted")


def test_json_schema():
    r = chat(response_format=STRICT)
    check_person(r.choices[0])
    assert streamed(response_format=STRICT) == (r.choices[0].message.content, "stop")


def test_several_choices_at_high_temperature():
    r = chat(response_format=STRICT, n=4, temperature=2, seed=3, logprobs=True, top_logprobs=5)
    assert len(r.choices) == 4 and len({c.message.content for c in r.choices}) > 1
    for c in r.choices:
        check_person(c)
        assert "".join(t.token for t in c.logprobs.content) == c.message.content
        assert all(top.logprob > -9999 for t in c.logprobs.content for top in t.top_logprobs)


def test_json_object():
    r = chat(response_format={"type": "json_object"}, temperature=1, seed=1)
    if r.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(r.choices[0].message.content), dict)
    assert r.choices[0].message.content.startswith("{")


def test_guided():
    year = chat(extra_body={"guided_regex": r"born (in|on) 1[0-9]{3}\."}, temperature=1).choices[0]
    assert re.fullmatch(r"born (in|on) 1[0-9]{3}\.", year.message.content) and year.finish_reason == "stop"
    for body in ({"guided_choice": ["London", "Paris"]}, {"structured_outputs": {"choice": ["London", "Paris"]}}):
        assert chat(extra_body=body).choices[0].message.content in ("London", "Paris")
    for body in ({"guided_json": PERSON}, {"guided_json": json.dumps(PERSON)}, {"structured_outputs": {"json": PERSON}}):
        check_person(chat(extra_body=body).choices[0])


def test_grammar():
    chess = 'root ::= "1. " move " " move\nmove ::= ([NBRQK] [a-h] | [a-h]) [1-8]\n'
    for body in ({"grammar": chess}, {"guided_grammar": chess}, {"structured_outputs": {"grammar": chess}}):
        c = chat(extra_body=body, temperature=1).choices[0]
        assert re.fullmatch(r"1\. [NBRQK]?[a-h][1-8] [NBRQK]?[a-h][1-8]", c.message.content), c
    param, message = refused(extra_body={"grammar": "root ::= root \"a\" | \"b\""})
    assert param == "grammar" and "'root' begins with itself" in message


def test_completions():
    r = client().completions.create(model=model, prompt=["Ada was born in", "She lived in"], n=2, max_tokens=20,
                                    temperature=1, extra_body={"guided_choice": [" London.", " Rome."]})
    assert len(r.choices) == 4 and all(c.text in (" London.", " Rome.") for c in r.choices), r


def test_limits_and_stops():
    c = chat(response_format=STRICT, max_tokens=5).choices[0]
    assert c.finish_reason == "length" and c.message.content.startswith("{")
    c = chat(response_format=STRICT, stop=['"born"']).choices[0]
    assert c.finish_reason == "stop" and '"born"' not in c.message.content and "name" in c.message.content
    c = chat(extra_body={"guided_choice": ["yes", "no"], "min_tokens": 20, "ignore_eos": True}).choices[0]
    assert c.message.content in ("yes", "no") and c.finish_reason == "stop"


def test_refusals():
    bad = {"type": "object", "properties": {"a": {"not": {}}}}
    param, message = refused(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": bad}})
    assert param == "response_format.json_schema.schema" and "#/properties/a" in message and "'not'" in message
    param, message = refused(extra_body={"guided_json": {"type": "object", "properties": {"a": False}, "required": ["a"]}})
    assert param == "guided_json" and "nothing can meet" in message
    assert refused(extra_body={"guided_regex": "a{2"*3 + "("})[0] == "guided_regex"
    assert refused(extra_body={"guided_regex": "a", "guided_choice": ["b"]})[0] == "guided_choice"


def test_other_requests_are_unchanged():
    plain = chat(max_tokens=12).choices[0].message.content
    chat(response_format=STRICT)
    assert chat(max_tokens=12).choices[0].message.content == plain
    assert chat(max_tokens=12, response_format={"type": "text"}).choices[0].message.content == plain


if __name__ == "__main__":
    try:
        path = real_model()
    except Missing as e:
        skip(e)
    with gateway(model=path) as server:
        model = server.get("/v1/models").json()["data"][0]["id"]
        main(globals())
