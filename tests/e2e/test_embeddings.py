#!/usr/bin/env python3
"""/v1/embeddings of own workers, through the gateway and alone: vectors, forms, limits, errors, two kinds of model.

The models are those of tests/data/encoders, whose vectors sentence-transformers computed.
"""
import base64
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile

from harness import (ADMIN, KVBLEND, KVBLENDCTL, ROOT, WORKER, Program, clean_env, gateway, listening, main, need,
                     parse_metrics, tiny_model, until, unix_request, worker_listening)
from upstream import Upstream

need(KVBLEND, WORKER, KVBLENDCTL)
ENCODERS = os.path.join(ROOT, "tests", "data", "encoders")
PATH = "/v1/embeddings"


def folder(name):
    return os.path.join(ENCODERS, name)


def golden(name):
    with open(folder(name) + ".json", encoding="utf-8") as f:
        return [t for t in json.load(f)["texts"] if t["text"]]


def worker(model, *args, ready=True):
    return worker_listening(Program([WORKER, "--model", model, "--listen", "127.0.0.1:0", "--threads", "2", *args]),
                            ready)


def vectors(reply):
    assert reply.status == 200, (reply.status, reply.body)
    body = reply.json()
    assert body["object"] == "list" and set(body["usage"]) == {"prompt_tokens", "total_tokens"}, body
    assert [d["index"] for d in body["data"]] == list(range(len(body["data"])))
    assert all(d["object"] == "embedding" for d in body["data"])
    return [d["embedding"] for d in body["data"]]


def near(a, b, off):
    assert len(a) == len(b), (len(a), len(b))
    assert max(abs(x - y) for x, y in zip(a, b)) < off, (a, b)


def most(g):
    """How far a vector may be off: auto rounds products to 16 bits where the CPU does that fast and the file has no more."""
    return 2e-2 if any(f"gemm=own-{name}" in g.log() for name in ("bf16", "int16")) else 1e-4


def refused(reply, status, code, *says):
    assert reply.status == status, (reply.status, reply.body)
    e = reply.error()
    assert e["code"] == code and all(s in e["message"] for s in says), e


def test_vectors_are_those_of_sentence_transformers():
    names = ("bert-cls", "bert-mean", "xlmr-mean", "qwen3-last", "nomic-mean", "gte-cls", "modernbert-mean")
    for name, args in [(n, ["--dtype", "f32"]) for n in names] + [("bert-cls", [])]:
        texts = golden(name)
        with gateway(*args, model=folder(name)) as g:
            body = {"model": name, "input": [t["text"] for t in texts], "truncate": True, "user": "u"}
            got = vectors(g.post(PATH, body))
            for t, v in zip(texts, got):
                near(v, t["vector"], most(g))
            # alone, in the other form, by other paths: the same values
            for i in (0, len(texts) - 1):
                one = g.post("/embeddings", {"input": texts[i]["text"], "truncate_prompt_tokens": -1})
                assert vectors(one) == [got[i]]
            coded = vectors(g.post(PATH, dict(body, encoding_format="base64")))
            for text, v in zip(coded, got):
                raw = base64.b64decode(text, validate=True)
                assert [f"{x:.9g}" for x in struct.unpack(f"<{len(v)}f", raw)] == [f"{x:.9g}" for x in v]
            assert [m["id"] for m in g.get("/v1/models").json()["data"]] == [name]
            line = until("the access log has it", lambda: [x for x in g.access_log() if x["path"] == PATH])[0]
            assert line["status"] == 200 and texts[2]["text"] not in json.dumps(line), line


def test_token_ids_and_dimensions():
    with worker(folder("bert-cls")) as w:
        text = "The cat."
        ids = w.post("/tokenize", {"prompt": text}).json()["tokens"]
        whole = vectors(w.post(PATH, {"input": text}))[0]
        assert vectors(w.post(PATH, {"input": ids})) == [whole]
        assert vectors(w.post(PATH, {"input": [ids, ids[:3]]}))[0] == whole
        assert w.post(PATH, {"input": [text, text]}).json()["usage"]["prompt_tokens"] == 2 * len(ids)
        short = vectors(w.post(PATH, {"input": text, "dimensions": 8}))[0]
        length = sum(x * x for x in whole[:8]) ** 0.5
        near(short, [x / length for x in whole[:8]], 1e-6)
        assert vectors(w.post(PATH, {"input": text, "dimensions": 48})) == [whole]
    with worker(folder("bert-mean")) as w:  # whose vectors have lengths of their own
        whole = vectors(w.post(PATH, {"input": text}))[0]
        assert vectors(w.post(PATH, {"input": text, "dimensions": 8}))[0] == whole[:8]


def test_bad_requests_name_the_input():
    with worker(folder("bert-cls"), "--served-model-name", "emb") as w:
        long = "the " * 300
        for body, code, says in (
                ({}, "missing_required_parameter", "input"),
                ({"input": []}, "empty_array", "input"),
                ({"input": ""}, "invalid_value", "'input'"),
                ({"input": ["a", ""]}, "invalid_value", "input[1]"),
                ({"input": [["a"]]}, "invalid_value", "input[0]"),
                ({"input": [[1], []]}, "empty_array", "input[1]"),
                ({"input": [[1], [1, 900]]}, "invalid_value", "input[1]"),
                ({"input": [1, -1]}, "invalid_value", "token"),
                ({"input": [1, 2.5]}, "invalid_value", "token"),
                ({"input": ["a", 7]}, "invalid_type", "input[1]"),
                ({"input": {"text": "a"}}, "invalid_type", "input"),
                ({"input": ["a", long]}, "context_length_exceeded", "input[1]"),
                ({"input": [[5] * 101]}, "context_length_exceeded", "100"),
                ({"input": ["a"] * 2049}, "array_above_max_length", "2048"),
                ({"input": "a", "dimensions": 0}, "invalid_value", "48"),
                ({"input": "a", "dimensions": 49}, "invalid_value", "48"),
                ({"input": "a", "dimensions": "8"}, "invalid_type", "dimensions"),
                ({"input": "a", "encoding_format": "int8"}, "invalid_value", "int8"),
                ({"input": "a", "encoding_format": 1}, "invalid_type", "encoding_format"),
                ({"input": "a", "truncate": "END"}, "invalid_type", "truncate"),
                ({"input": "a", "truncate_prompt_tokens": 5}, "unsupported_parameter", "truncate_prompt_tokens"),
                ({"input": "a", "normalize": False}, "unsupported_parameter", "normalize"),
                ({"input": "a", "user": 1}, "invalid_type", "user")):
            refused(w.post(PATH, body), 400, code, says)
        refused(w.post(PATH, {"input": "a", "model": "other"}), 404, "model_not_found", "other")
        refused(w.post(PATH, b"{"), 400, "invalid_json")
        refused(w.post(PATH, b"[" * 100000), 400, "invalid_json")
        refused(w.get(PATH), 405, "method_not_allowed")
        vectors(w.post(PATH, {"input": "a", "model": "emb"}))


def test_the_tokens_of_a_request_are_bounded():
    with worker(tiny_model(), "--embed", "last") as w:
        refused(w.post(PATH, {"input": [[5] * 200] * 2048}), 400, "array_above_max_length", "input[1500]", "300000")
        with w.open(PATH, {"input": [[5] * 100] * 2048}):
            pass  # the client leaves: its texts are not computed to the end
        assert len(vectors(w.post(PATH, {"input": "a"}))) == 1
        done = w.metric("kvblend_embedding_texts_total")
        assert done < 2048, done
    with worker(folder("qwen3-last"), "--ctx", "64") as w:
        assert w.get("/v1/models").json()["data"][0]["max_model_len"] == 64
        refused(w.post(PATH, {"input": [[5] * 64, [5] * 65]}), 400, "context_length_exceeded", "input[1]", "64")


def test_models_say_what_they_do_not_do():
    with worker(folder("bert-cls"), *ADMIN) as w:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/segments"):
            refused(w.post(path, {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}), 404,
                    "embeddings_only", "bert-cls", "/v1/embeddings")
        refused(w.get("/admin/chunks"), 404, "embeddings_only")
        status = w.get("/admin/status").json()
        assert status["model"]["pooling"] == "cls" and status["model"]["width"] == 48, status
        assert w.get("/health").json()["device"] == "cpu"
        parse_metrics(w.metrics())
    with worker(tiny_model()) as w:
        refused(w.post(PATH, {"input": "a"}), 404, "no_embeddings", "--embed")
    with worker(tiny_model(), "--embed", "mean") as w:
        mean = vectors(w.post(PATH, {"input": "hello there"}))[0]
    with worker(tiny_model(), "--embed", "last") as w:
        last = vectors(w.post(PATH, {"input": "hello there"}))[0]
    assert len(mean) == len(last) == 64 and mean != last
    p = Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", "--embed", "cls"])
    with p:
        assert p.proc.wait(60) == 1 and "cls" in p.log(), p.log()


def test_requests_side_by_side_get_their_own():
    texts = [f"the {i} and " * (1 + i % 9) for i in range(48)]
    with gateway(model=folder("bert-cls")) as g:
        alone = [vectors(g.post(PATH, {"input": t}))[0] for t in texts]

        def ask(i):
            mine = texts[i:] + texts[:i]
            return vectors(g.post(PATH, {"input": mine})) == alone[i:] + alone[:i]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert all(pool.map(ask, range(36)))
        page = parse_metrics(g.metrics())
        assert any(v >= len(texts) for _, _, v in page["kvblend_embedding_texts_total"][1])


def test_keys_queue_and_drain():
    with gateway("--api-key", "k1", model=folder("bert-cls")) as g:
        refused(g.post(PATH, {"input": "a"}), 401, "invalid_api_key")
        auth = {"Authorization": "Bearer k1"}
        vectors(g.post(PATH, {"input": "a"}, headers=auth))
        r = json.loads(os.popen(f"{KVBLENDCTL} --admin {g.admin} status --json").read())
        assert r, "kvblendctl status"
        assert unix_request(g.admin[5:], "GET", "/admin/status").status == 200
    with worker(folder("bert-mean"), "--max-queue", "1") as w:
        big = json.dumps({"input": [[5] * 128] * 600}).encode()
        socks = [w.open(PATH, big) for _ in range(6)]
        try:  # one at a time: some of them are told to come again
            heads = [s.recv(12) for s in socks]
            assert b"HTTP/1.1 200" in heads and b"HTTP/1.1 429" in heads, heads
        finally:
            for s in socks:
                s.close()
        with w.open(PATH, big) as s:  # what is under way ends, then the worker does
            until("it is asked", lambda: w.metric("kvblend_embedding_requests_waiting") == 1)
            w.proc.send_signal(signal.SIGTERM)
            s.settimeout(60)
            assert s.recv(12) == b"HTTP/1.1 200"
            while s.recv(1 << 16):
                pass
        assert w.proc.wait(60) == 0


def test_several_models_of_one_gateway():
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with gateway("--also-model", folder("bert-cls") + " threads=1 served_model_name=emb",
                 "--also-model", f"{tiny_model()} served_model_name=second threads=1", model=tiny_model()) as g:
        first = os.path.basename(tiny_model()).removesuffix(".gguf")
        until("all are ready", lambda: g.get("/ready").json()["workers"] == 3)
        assert {m["id"]: m["task"] for m in g.get("/v1/models").json()["data"]} == {
            first: "generate", "emb": "embed", "second": "generate"}
        texts = golden("bert-cls")
        for more in ({"model": "emb"}, {"model": "default"}, {}):  # unnamed: to the model that is for it
            got = vectors(g.post(PATH, dict(more, input=[t["text"] for t in texts], truncate=True)))
            near(got[2], texts[2]["vector"], most(g))
        for name in (first, "second", "default", None):
            r = g.post("/v1/chat/completions", dict(chat, model=name) if name else chat)
            assert r.status == 200, (name, r.body)
            assert name in (None, "default", r.json()["model"]), r.body
        refused(g.post(PATH, {"model": first, "input": "a"}), 404, "no_embeddings", first)
        refused(g.post("/v1/chat/completions", dict(chat, model="emb")), 404, "embeddings_only", "emb")
        refused(g.post(PATH, {"model": "nobody", "input": "a"}), 404, "model_not_found", "nobody")
        assert g.post("/tokenize", {"prompt": "a", "model": "emb"}).status == 200
        for command in ("status", "tiers", "quality", "targets", "ls"):
            p = subprocess.run([KVBLENDCTL, "--admin", g.admin, command], env=g.env, capture_output=True, text=True)
            assert p.returncode == 0, (command, p.stdout, p.stderr)
        parse_metrics(g.metrics())
        # A death harms the others nothing, and the model comes back.
        pids = [w["pid"] for w in g.admin_get("/admin/status")["workers"]]
        victim = [p for p in pids if "served-model-name=emb" in open(f"/proc/{p}/cmdline").read()]
        os.kill(*victim, signal.SIGKILL)
        assert g.post("/v1/chat/completions", dict(chat, model=first)).status == 200
        until("it is back", lambda: g.post(PATH, {"model": "emb", "input": "a"}).status == 200)
    with Upstream() as up:
        to = ("--upstream", up.entry())
        with gateway("--also-model", folder("bert-cls"), *to, model=tiny_model()) as g:
            until("all are ready", lambda: g.get("/ready").json() == {"status": "ready", "workers": 2, "upstreams": 1})
            for more in ({"model": "bert-cls"}, {}):
                assert len(vectors(g.post(PATH, dict(more, input="a")))[0]) == 48
            assert not up.requests
            assert vectors(g.post(PATH, {"model": "up-model", "input": "a"})) == [[0.5, -1.0, 0.25]]
        with gateway(*to, model=tiny_model()) as g:  # no worker is for it
            until("both are ready", lambda: g.get("/ready").json() == {"status": "ready", "workers": 1, "upstreams": 1})
            assert vectors(g.post(PATH, {"input": "a"})) == [[0.5, -1.0, 0.25]]
            n = len(up.requests)
            assert g.post("/v1/chat/completions", chat).status == 200 and len(up.requests) == n


def state_of(g, name):
    """Of the worker whose model has this name: its state and process."""
    target = [t for t in g.admin_get("/admin/targets")["targets"] if t["models"] == [name]][0]
    worker = [w for w in g.admin_get("/admin/status")["workers"] if w["index"] == target["index"]][0]
    return target["state"], worker["pid"]


def test_a_model_on_demand():
    entry = folder("bert-cls") + " load=on_demand idle=1s served_model_name=emb threads=1"
    texts = [t["text"] for t in golden("bert-cls")]
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with gateway("--also-model", entry, "--retry-wait", "120s", model=tiny_model()) as g:
        until("the other one is ready", lambda: g.post("/v1/chat/completions", chat).status == 200)
        assert g.get("/ready").json() == {"status": "ready", "workers": 2}
        assert "emb" in [m["id"] for m in g.get("/v1/models").json()["data"]]
        assert state_of(g, "emb") == ("asleep", 0)
        p = subprocess.run([KVBLENDCTL, "--admin", g.admin, "status"], env=g.env, capture_output=True, text=True)
        assert p.returncode == 0 and "asleep" in p.stdout, (p.stdout, p.stderr)

        def ask(i):
            return vectors(g.post(PATH, {"model": "emb", "input": texts[i % len(texts)], "truncate": True}))[0]
        for _ in range(2):  # they all wait for one process
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                got = list(pool.map(ask, range(16)))
            for i, v in enumerate(got):
                near(v, golden("bert-cls")[i % len(texts)]["vector"], most(g))
            until("it is ended", lambda: state_of(g, "emb") == ("asleep", 0), 60)
        assert g.log().count("worker.started") >= 3, g.log()
        assert {m["id"]: m["task"] for m in g.get("/v1/models").json()["data"]}["emb"] == "embed"
        assert len(vectors(g.post(PATH, {"input": "a"}))[0]) == 48  # what it is for is known by now
        pid = state_of(g, "emb")[1]
        if pid:  # unless it is idle already: a death is no matter
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert len(ask(0)) == 48
        assert g.post("/v1/chat/completions", chat).status == 200
    bad = os.path.join(ROOT, "tests", "fuzz") + " load=on_demand served_model_name=bad"
    with gateway("--also-model", bad, "--retry-wait", "1s", model=folder("bert-mean")) as g:
        until("the other one is ready", lambda: g.post(PATH, {"input": "a"}).status == 200)
        refused(g.post(PATH, {"model": "bad", "input": "a"}), 503, "model_loading")
        assert len(vectors(g.post(PATH, {"input": "a"}))) == 1


def wide_encoder(into, width=256, layers=12, words=900, positions=512):
    """A BERT that weighs something: MiB of its weights. What it says is of no use."""
    tensors = {"embeddings.word_embeddings.weight": (words, width),
               "embeddings.position_embeddings.weight": (positions, width),
               "embeddings.token_type_embeddings.weight": (2, width)}
    norms, linears = ["embeddings.LayerNorm"], []
    for i in range(layers):
        at = f"encoder.layer.{i}."
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
        linears += [(at + f"attention.self.{x}", width, width) for x in ("query", "key", "value")]
        linears += [(at + "attention.output.dense", width, width), (at + "intermediate.dense", 4 * width, width),
                    (at + "output.dense", width, 4 * width)]
    for name in norms:
        tensors[name + ".weight"] = tensors[name + ".bias"] = (width,)
    for name, rows, cols in linears:
        tensors[name + ".weight"], tensors[name + ".bias"] = (rows, cols), (rows,)
    head, at = {}, 0
    for name, shape in tensors.items():
        n = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    with open(os.path.join(into, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + struct.pack("<f", 0.01) * (at // 4))
    with open(os.path.join(into, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": ["BertModel"], "hidden_size": width, "num_hidden_layers": layers,
                   "num_attention_heads": 4, "intermediate_size": 4 * width, "vocab_size": words,
                   "max_position_embeddings": positions, "hidden_act": "gelu", "pad_token_id": 0}, f)
    shutil.copy(os.path.join(folder("bert-cls"), "tokenizer.json"), into)
    return at / (1 << 20)


def test_models_side_by_side_keep_to_what_is_stated():
    """docs/gateway.md, "Memory": weights, ram, kv_pages, a batch's rows, and 32 MiB; none of it when it sleeps."""
    def anon_mib(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return int(f.read().split("RssAnon:")[1].split()[0]) / 1024

    with tempfile.TemporaryDirectory() as wide:
        weights, width = wide_encoder(wide), 256
        with gateway("--also-model", f"{wide} dtype=f32 threads=1 served_model_name=wide load=on_demand idle=1s",
                     "--also-model", f"{tiny_model()} ram=32MiB kv_pages=8MiB threads=1 served_model_name=second",
                     "--retry-wait", "120s", model=folder("bert-cls")) as g:
            until("the others are ready", lambda: g.get("/ready").json().get("workers") == 3)
            for i in range(80):  # more KV than there is room for
                parts = [f"{i} {k} " + "mill and wheel " * 20 for k in range(4)] + ["what?"]
                r = g.post("/v1/chat/completions", {"model": "second", "max_tokens": 1, "messages": [
                    {"role": "user", "content": [{"type": "text", "text": t} for t in parts]}]})
                assert r.status == 200, r.body
            chat = state_of(g, "second")[1]
            until("its room is full", lambda: anon_mib(chat) > 32 + 8)
            assert anon_mib(chat) < 32 + 8 + 32, anon_mib(chat)
            assert len(vectors(g.post(PATH, {"model": "wide", "input": [[5] * 500] * 8}))) == 8
            state, pid = state_of(g, "wide")
            if pid:  # unless it is idle already
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    got = anon_mib(pid)
                    assert got < weights + 20 * width * 1024 / (1 << 20) + 32, (got, weights)
            until("it sleeps", lambda: state_of(g, "wide") == ("asleep", 0), 60)
            assert not pid or not os.path.exists(f"/proc/{pid}")


def test_models_alone_and_wrong_ones():
    with Program([KVBLEND, "--listen", "127.0.0.1:0", "--config", "{dir}/c.yaml"],
                 files={"c.yaml": f"models:\n  - {{path: {folder('bert-cls')}, served_model_name: a}}\n"
                                  f"  - {folder('bert-mean')} threads=1\n"}) as g:
        listening(g)
        until("both are ready", lambda: g.get("/ready").json()["workers"] == 2)
        for name in ("a", "bert-mean"):
            assert len(vectors(g.post(PATH, {"input": "a", "model": name}))) == 1
    for entry, says in ((f"{folder('bert-cls')} threads=many", "threads"), ("/nowhere", "/nowhere"),
                        (f"{folder('bert-cls')} listen=x", "listen"), (f"{folder('bert-cls')} word", "word"),
                        (f"{folder('bert-cls')} device=auto", "device"), (f"{folder('bert-cls')} load=later", "on_demand"),
                        (f'"{folder("bert-cls")}', "quote"), ("", "path")):
        p = subprocess.run([KVBLEND, "--check", "--also-model", entry], env=clean_env(), capture_output=True, text=True)
        assert p.returncode == 1 or p.returncode == 2, (entry, p)
        assert "models:" in p.stderr + p.stdout and says in p.stderr + p.stdout, (entry, p)


if __name__ == "__main__":
    main(globals())
