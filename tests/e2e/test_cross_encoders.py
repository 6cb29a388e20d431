#!/usr/bin/env python3
"""/v1/rerank and /v1/score of cross-encoders, alone and through the gateway: scores, shapes, cuts, refusals, routing.

The models are those of tests/data/encoders, whose scores sentence-transformers' CrossEncoder computed.
"""
import concurrent.futures
import json
import os
import signal

from harness import (KVBLEND, ROOT, WORKER, Program, gateway, main, need, parse_metrics, tiny_model, until,
                     worker_listening)

need(KVBLEND, WORKER)
ENCODERS = os.path.join(ROOT, "tests", "data", "encoders")
RERANK, SCORE = "/v1/rerank", "/v1/score"
NAMES = ("cross-bert", "cross-xlmr", "cross-modernbert")
w = None  # the worker that most tests share


def folder(name):
    return os.path.join(ENCODERS, name)


def golden(name):
    with open(folder(name) + ".json", encoding="utf-8") as f:
        return json.load(f)["pairs"]


def worker(model, *args):
    return worker_listening(Program([WORKER, "--model", model, "--listen", "127.0.0.1:0", "--threads", "2", *args]))


def ask(path=RERANK, status=200, server=None, **body):
    r = (server or w).post(path, body)
    assert r.status == status, (r.status, r.body)
    return r.json()


def scores(reply):
    """By document."""
    return {x["index"]: x["relevance_score"] for x in reply["results"]}


def refused(param, code, path=RERANK, **body):
    e = ask(path, 400, **dict({"query": "q", "documents": ["a"]} if path == RERANK else {}, **body))["error"]
    assert (e["param"], e["code"]) == (param, code), e
    return e["message"]


def test_scores_are_those_of_cross_encoder():
    for name in NAMES:
        pairs = [p for p in golden(name) if p["document"]]
        with gateway(model=folder(name)) as g:
            got = ask(SCORE, server=g, text_1=[p["query"] for p in pairs], text_2=[p["document"] for p in pairs],
                      truncation=True)
            values = [d["score"] for d in got["data"]]
            for p, v in zip(pairs, values):
                assert abs(v - p["score"]) < 1e-4, (name, p, v)
            for i in (0, len(pairs) - 1):  # alone, by the other route: the same to the bit
                one = ask(server=g, model=name, query=pairs[i]["query"], documents=[pairs[i]["document"]],
                          truncation=True)
                assert scores(one) == {0: values[i]}, (one, values[i])
            listed = g.get("/v1/models").json()["data"]
            assert [(m["id"], m["task"], m["tasks"]) for m in listed] == [(name, "rerank", ["rerank"])], listed
            line = until("the access log has it", lambda: [x for x in g.access_log() if x["path"] == SCORE])[0]
            assert line["prompt_tokens"] == got["usage"]["prompt_tokens"], line


def test_shape():
    pairs = [p for p in golden("cross-bert") if p["document"]]
    documents = [p["document"] for p in pairs]
    r = ask(query="which cat?", documents=documents, truncation=True, top_n=3, return_documents=True,
            kvblend={"explain": True})
    got = [x["relevance_score"] for x in r["results"]]
    assert r["id"].startswith("rerank-") and len(got) == 3 and got == sorted(got, reverse=True)
    assert all(x["document"] == {"text": documents[x["index"]]} for x in r["results"])
    told = r["kvblend"]
    assert (told["order"], told["strategy"]) == ("query_first", "full")
    assert told["tokens"] == {"prefix": 0, "reused": 0, "recomputed": 0, "computed": r["usage"]["prompt_tokens"]}
    assert {d["tokens"] for d in told["documents"] if d["truncated"]} == {128}
    assert sum(d["tokens"] for d in told["documents"]) == r["usage"]["prompt_tokens"]
    whole = scores(ask(query="which cat?", documents=documents, truncation=True))
    assert sorted(whole) == list(range(len(documents))) and scores(r).items() <= whole.items()
    assert scores(w.post("/v2/rerank", {"query": "which cat?", "documents": [{"title": "a", "text": "b"}]}).json()) == \
        scores(ask(query="which cat?", documents=["a\nb"]))
    s = ask(SCORE, text_1="which cat?", text_2=documents, truncation=True)
    assert s["object"] == "list" and {d["index"]: d["score"] for d in s["data"]} == whole
    same = ask(query="a", documents=["x"] * 9)  # of equal ones the earlier first
    assert [x["index"] for x in same["results"]] == list(range(9))


def test_what_is_too_long():
    long = "a " * 300
    assert "documents[1]" in refused("documents", "context_length_exceeded", documents=["a", long])
    assert "text_2[0]" in refused("text_2", "context_length_exceeded", path=SCORE, text_1="q", text_2=long)
    for more in ({}, {"truncation": True}):  # the query is not cut
        assert "query" in refused("query", "context_length_exceeded", query=long, **more)
    r = ask(query="q", documents=[long, "a"], max_tokens_per_doc=5, kvblend={"explain": True})
    assert [(d["tokens"], d["truncated"]) for d in r["kvblend"]["documents"]] == [(5 + 4, True), (1 + 4, False)]
    cut = scores(ask(query="q", documents=[long], truncation=True))
    assert cut == scores(ask(query="q", documents=["a " * (128 - 4)]))


def test_bad_requests():
    refused("documents", "missing_required_parameter", documents=None)
    refused("documents", "empty_array", documents=[])
    refused("documents", "array_above_max_length", documents=["a"] * 1001)
    refused("query", "invalid_value", query="")
    refused("query", "invalid_type", query=5)
    refused("top_n", "integer_below_min_value", top_n=0)
    refused("instruction", "unsupported_parameter", instruction="Judge.")
    refused("kvblend.order", "invalid_value", kvblend={"order": "document_first"})
    refused("rank_fields", "unsupported_parameter", rank_fields=["a"])
    assert w.post(RERANK, b"{").status == 400 and w.post(RERANK, b"[" * 100000).status == 400
    assert ask(status=404, model="other", query="q", documents=["a"])["error"]["code"] == "model_not_found"
    for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/segments"):
        e = w.post(path, {"input": "a"}).error()
        assert e["code"] == "scores_only" and RERANK in e["message"], (path, e)


def test_requests_side_by_side_get_their_own():
    documents = [f"the {i} and " * (1 + i % 9) for i in range(24)]
    alone = scores(ask(query="which cat?", documents=documents))
    before = w.metric("kvblend_scored_documents_total")

    def again(i):
        mine = documents[i:] + documents[:i]
        got = scores(ask(query="which cat?", documents=mine))
        return all(got[k] == alone[(k + i) % len(mine)] for k in range(len(mine)))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(again, range(24)))
    assert w.metric("kvblend_scored_documents_total") == before + 24 * 24
    parse_metrics(w.metrics())


def test_a_client_that_leaves_ends_the_work():
    body = {"query": "q", "documents": ["a " * 120] * 1000}
    with w.open(RERANK, body):
        until("it is at work", lambda: w.metric("kvblend_embedding_requests_waiting") == 1)
    until("nothing is left of it", lambda: w.metric("kvblend_embedding_requests_waiting") == 0)
    assert scores(ask(query="q", documents=["x"]))


def test_what_is_under_way_ends_before_the_worker():
    with worker(folder("cross-bert")) as own:
        with own.open(RERANK, {"query": "q", "documents": ["a " * 120] * 300}) as s:
            until("it is asked", lambda: own.metric("kvblend_embedding_requests_waiting") == 1)
            own.proc.send_signal(signal.SIGTERM)
            s.settimeout(60)
            assert s.recv(12) == b"HTTP/1.1 200"
            while s.recv(1 << 16):
                pass
        assert own.proc.wait(60) == 0


def test_models_of_one_gateway():
    """One for chats, one for vectors, a cross-encoder: by name, and without one by what they are for."""
    ranks = {"query": "q", "documents": ["a", "b"]}
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with gateway("--also-model", folder("bert-cls") + " threads=1 served_model_name=vectors", "--also-model",
                 folder("cross-bert") + " threads=1 served_model_name=ranks", model=tiny_model()) as g:
        until("all are ready", lambda: g.get("/ready").json()["workers"] == 3)
        own = os.path.basename(tiny_model()).removesuffix(".gguf")
        assert {m["id"]: m["task"] for m in g.get("/v1/models").json()["data"]} == {
            own: "generate", "vectors": "embed", "ranks": "rerank"}
        for more in ({"model": "ranks"}, {"model": "default"}, {}):
            for path in (RERANK, "/v2/rerank"):
                assert ask(path, server=g, **ranks, **more)["model"] == "ranks"
            assert g.post("/v1/embeddings", dict(more, input="a", model="vectors")).status == 200
        assert ask(SCORE, server=g, text_1="q", text_2="d")["model"] == "ranks"
        assert g.post("/v1/chat/completions", chat).json()["model"] == own
        assert g.post("/v1/embeddings", {"input": "a"}).json()["model"] == "vectors"
        for path, body in (("/v1/chat/completions", chat), ("/v1/embeddings", {"input": "a"})):
            e = g.post(path, dict(body, model="ranks"))
            assert (e.status, e.error()["code"]) == (404, "scores_only"), e.body
        assert ask(status=404, server=g, model="vectors", **ranks)["error"]["code"] == "embeddings_only"


if __name__ == "__main__":
    with worker(folder("cross-bert")) as w:
        main(globals())
