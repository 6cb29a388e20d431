#!/usr/bin/env python3
"""The description of the API: valid by a published validator, served, and true. Every example is sent to a gateway with three
models; each answer has the schema that its operation names, and of the public API no member that the schema does not name.

Python: that of $KVBLEND_PYTHON (jsonschema; openapi-spec-validator for one test).
"""
import copy
import json
import os
import re

from harness import KVBLEND, MODELS, ROOT, WORKER, Missing, gateway, main, need, other_python, skip, tiny_model, unix_request, until

other_python("KVBLEND_PYTHON")
try:
    import jsonschema
except ImportError:
    skip("the package jsonschema is not installed")

need(KVBLEND, WORKER)
FILES = {"public": "openapi.json", "admin": "openapi-admin.json"}
METHODS = ("get", "post", "delete")
UPSTREAM = "upstreams"  # what the tag says is relayed, in whatever form
STREAMS = ("/admin/watch", "/admin/events/kv")


def document(name):
    with open(os.path.join(ROOT, "etc", FILES[name])) as f:
        return json.load(f)


def closed(schema):
    """The same, with members that are not named forbidden where it does not speak of others."""
    if isinstance(schema, list):
        return [closed(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: closed(v) for k, v in schema.items()}
    if isinstance(out.get("properties"), dict) and "additionalProperties" not in out:
        out["additionalProperties"] = False
    return out


def spelled(path, parameters):
    """The path with each of the words that a place in it may hold, in their order: what is pinned is unpinned, too; and
    what its query has to say."""
    needed = [f"{p['name']}={p['schema']['enum'][0]}" for p in parameters if p["in"] == "query" and p.get("required")]
    path = "?".join([path, *needed])
    for p in parameters:
        words = p["schema"].get("enum") if p["in"] == "path" else None
        if words:
            return [path.replace("{%s}" % p["name"], word) for word in words]
    return [path]


def operations(doc):
    for path, entry in doc["paths"].items():
        for method in METHODS:
            if method in entry:
                yield path, method, entry[method], entry.get("parameters", []) + entry[method].get("parameters", [])


class Site:
    """A gateway with a model for chats, one for embeddings and one that reranks."""

    def __init__(self):
        self.g = gateway("--nvme", "{dir}/nvme:64MiB", "--served-model-name", "chat", "--also-model",
                         f"{MODELS}/../encoders/bert-mean served_model_name=embedder", "--also-model",
                         f"{MODELS}/qwen3-reranker served_model_name=reranker", model=tiny_model())
        self.known = {}

    def __enter__(self):
        for path, body in (("completions", {"model": "chat", "prompt": "a", "max_tokens": 1}),
                           ("embeddings", {"model": "embedder", "input": "a"}), ("rerank", {"model": "reranker", "query": "a", "documents": ["b"]})):
            until(path, lambda path=path, body=body: self.g.post("/v1/" + path, body).status == 200)
        return self

    def __exit__(self, *why):
        self.g.__exit__(*why)

    def ask(self, method, path, parameters, body):
        for p in parameters:
            if "{%s}" % p["name"] in path:
                path = path.replace("{%s}" % p["name"], p.get("example") or self.known[path.split("{")[0]])
        r = unix_request(self.g.admin[5:], method.upper(), path, body)
        answer = r.json() if r.headers.get("content-type", "").startswith("application/json") else r.body.decode()
        if method == "post" and path == "/v1/responses":
            self.known["/v1/responses/"] = answer["id"]
        if path == "/v1/segments":
            self.known["/v1/segments/"] = answer["data"][0]["id"]
            self.known["/admin/chunks/"] = answer["data"][1]["id"]
        if path.startswith("/admin/") and "decisions" in path:
            self.known["/admin/decisions/"] = answer["data"][-1]["id"]
        return r, answer


def check(doc, operation, reply, answer, strict):
    where = operation["operationId"]
    assert str(reply.status) in operation["responses"], (where, reply.status, answer)
    content = operation["responses"][str(reply.status)]["content"]
    kind = reply.headers["content-type"].split(";")[0]
    assert kind in content, (where, kind, answer)
    whole = {"$ref": "#/schema", "schema": content[kind]["schema"], "components": doc["components"]}
    jsonschema.Draft202012Validator(closed(whole) if strict else whole).validate(answer)


def run(name, strict):
    """How many requests there were. The operations that drop what others ask for come last."""
    doc, n = document(name), 0
    with Site() as site:
        site.ask("post", "/v1/segments", [], document("public")["paths"]["/v1/segments"]["post"]["requestBody"]["content"]
                 ["application/json"]["examples"]["two texts"]["value"])
        for path, method, operation, parameters in sorted(operations(doc), key=lambda x: (x[1] == "delete", x[0] == "/admin/clear")):
            if operation["tags"] == [UPSTREAM] or path in STREAMS:
                continue
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if "requestBody" in operation:
                assert content.get("examples"), f"{path} has no example"
            for example in content.get("examples", {"": {"value": None}}).values():
                if example["value"] is not None:
                    jsonschema.Draft202012Validator({"$ref": "#/schema", "schema": content["schema"], "components": doc["components"]}
                                                    ).validate(example["value"])
                for one in spelled(path, parameters):
                    reply, answer = site.ask(method, one, parameters, example["value"])
                    check(doc, operation, reply, answer, strict)
                    n += 1
    return n


def test_documents_are_valid():
    try:
        from openapi_spec_validator import OpenAPIV31SpecValidator
    except ImportError as e:
        raise Missing("the package openapi-spec-validator is not installed") from e
    for name in FILES:
        OpenAPIV31SpecValidator(document(name)).validate()
    broken = copy.deepcopy(document("public"))
    broken["paths"]["/version"]["get"].pop("responses")
    broken["paths"]["/version"]["get"]["parameters"] = [{"name": "x"}]
    assert not OpenAPIV31SpecValidator(broken).is_valid()


def test_every_reference_leads_somewhere():
    for name in FILES:
        doc = document(name)
        refs = set(re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', json.dumps(doc)))
        assert all(x in doc["components"][kind] for kind, x in refs), refs
        assert {x for kind, x in refs if kind == "schemas"} == set(doc["components"]["schemas"]), name
        ids = [o["operationId"] for _, _, o, _ in operations(doc)]
        assert len(ids) == len(set(ids)), ids


def test_each_address_serves_its_own():
    with gateway(stub=True) as g:
        assert g.get("/openapi.json").json() == document("public") == g.get("/v1/openapi.json").json()
        assert g.get("/admin/openapi.json").status == 404
        until("the admin socket is there", lambda: os.path.exists(g.admin[5:]))
        assert g.admin_get("/admin/openapi.json") == document("admin")
        assert g.admin_get("/openapi.json") == document("public")


def test_a_member_that_is_not_named_is_seen():
    doc = document("public")
    schema = {"$ref": "#/components/schemas/TokenCounts", "components": doc["components"]}
    counts = {"prefix": 0, "reused": 0, "recomputed": 0, "computed": 4}
    for answer, fine in ((counts, True), (dict(counts, other=1), False), ({"prefix": 0}, False)):
        assert jsonschema.Draft202012Validator(closed(schema)).is_valid(answer) == fine, answer


def test_examples_of_the_public_api():
    assert run("public", True) > 25


def test_examples_of_the_admin_api():
    assert run("admin", False) > 25


if __name__ == "__main__":
    main(globals())
