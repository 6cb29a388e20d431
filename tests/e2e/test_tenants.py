#!/usr/bin/env python3
"""Tenants: what one API key has sent, and a stranger with another key at every door to it.

The stranger knows the texts, the ids of the records and the name of the namespace. What a request
has cost shows in what was computed for it, which says the same as its time and never flakes.
"""
import json
import json
import re
import subprocess

from harness import (KVBLEND, KVBLENDCTL, WORKER, Program, clean_env, gateway, main, need, proxy, tiny_model,
                     unix_request, until)

need(KVBLEND, WORKER, KVBLENDCTL)
CHAT = "/v1/chat/completions"
KEYS = ("--api-key", "a-key id=acme", "--api-key", "b-key id=beta", "--api-key", "c-key",
        "--api-key", "d-key id=delta namespace=shared", "--api-key", "e-key id=eps namespace=shared")
A, B, C, D, E = ({"Authorization": f"Bearer {k}-key"} for k in "abcde")
HEADER = "X-KVBlend-Namespace"


def tenants(*args, **kw):
    return gateway(*KEYS, "--ram", "64MiB", *args, **kw)


def document(i, words=64):
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(words // 2))


def wishes(name):
    """Ways to ask for a namespace: headers, and fields of the body."""
    yield {}, {}
    for n in (name, name + "/", "/" + name, "../" + name, "\x1f" + name, name + "\x1f"):
        if n.isprintable():
            yield {HEADER: n}, {}
            yield {HEADER: n, "Connection": HEADER}, {}
        yield {}, {"cache_salt": n}
        yield {}, {"kvblend": {"namespace": n}}
    yield {HEADER: name}, {"cache_salt": name, "kvblend": {"namespace": name}}
    yield {"x-kvblend-namespace": name, HEADER.upper(): name}, {}


def body(texts, question="What does the note say?", shape="parts", **kw):
    kv = dict({"mode": "reuse", "store": False, "explain": True}, **kw.pop("kvblend", {}))
    content = [{"type": "text", "text": question}]
    if shape == "parts":
        content = [{"type": "text", "text": t} for t in texts] + content
    elif shape == "documents":
        kw["documents"] = texts
    else:  # ranges
        joined = "".join(texts)
        at = [sum(len(t) for t in texts[:i]) for i in range(len(texts) + 1)]
        kv["segments"] = [{"message": 0, "begin": b, "end": e} for b, e in zip(at, at[1:])]
        content = joined + question
    return dict({"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0,
                 "kvblend": kv}, **kw)


def ask(g, key, request, headers=None):
    r = g.post(CHAT, request, headers=dict(key, **(headers or {})))
    assert r.status == 200, (r.status, r.body)
    return r.json()


def cost(answer):
    """All that an answer says of the cache, but for the names of records and the times."""
    chunks = [{k: v for k, v in c.items() if k != "id"} for c in answer["kvblend"]["chunks"]]
    return {"usage": answer["usage"], "chunks": chunks, "tokens": answer["kvblend"]["tokens"],
            "cost": answer["kvblend"].get("cost"), "strategy": answer["kvblend"]["strategy"],
            "tiers": answer["kvblend"].get("tiers")}


def build(g, key, texts, **kw):
    r = g.post("/v1/segments", dict({"texts": texts}, **kw), headers=key)
    assert r.status == 200, (r.status, r.body)
    assert {x["status"] for x in r.json()["data"]} == {"ready"}, r.body
    return [x["id"] for x in r.json()["data"]]


def reused(answer):
    return answer["kvblend"]["tokens"]["reused"] + answer["kvblend"]["tokens"]["prefix"]


def test_chunks_by_every_mark():
    """However chunks are marked: a stranger's request costs what it costs with an empty cache."""
    texts = [document(i) for i in range(3)]
    with tenants() as g:
        cold = {s: cost(ask(g, B, body(texts, shape=s))) for s in ("parts", "documents", "ranges")}
        for s, c in cold.items():
            assert {(x["source"], x["miss"]) for x in c["chunks"]} == {("computed", "never")}, (s, c)
        build(g, A, texts)
        build(g, A, [t + "\n" for t in texts])
        build(g, A, ["\n" + t for t in texts])
        for s in cold:
            assert reused(ask(g, A, body(texts, shape=s))) > 0, s
            for headers, fields in wishes("acme"):
                kv = {"kvblend": fields.get("kvblend", {})}
                x = ask(g, B, body(texts, shape=s, **{**fields, **kv}), headers)
                assert cost(x) == cold[s], (s, headers, fields, x["kvblend"])
        assert reused(ask(g, C, body(texts))) == 0


def test_records_by_their_ids():
    """Not there and not yours look the same, and what is not yours stays."""
    texts = [document(i) for i in range(2)]
    none = "0" * 32
    with tenants() as g:
        ids = build(g, A, texts)
        salted = build(g, A, texts, namespace="team")
        assert not set(ids) & set(salted)
        for headers, fields in wishes("acme"):
            inner = fields.get("cache_salt") or fields.get("kvblend", {}).get("namespace") or ""
            if not inner.isprintable():
                continue
            for method in ("GET", "DELETE"):
                for query in ("", f"?namespace={inner}", "?namespace=team", f"?x={inner}&namespace={inner}"):
                    never = g.request(method, f"/v1/segments/{none}{query}", headers=dict(B, **headers))
                    assert never.status == 404, never.body
                    for i in ids + salted:
                        r = g.request(method, f"/v1/segments/{i}{query}", headers=dict(B, **headers))
                        assert r.status == 404, (r.status, r.body)
                        assert r.body.replace(i.encode(), none.encode()) == never.body
        for i in ids:
            assert g.get(f"/v1/segments/{i}", headers=A).status == 200
            assert g.get(f"/v1/segments/{i}?namespace=team", headers=A).status == 404
        for i in salted:
            assert g.get(f"/v1/segments/{i}?namespace=team", headers=A).status == 200
        assert g.request("DELETE", f"/v1/segments/{ids[0]}", headers=A).status == 200
        assert g.get(f"/v1/segments/{ids[0]}", headers=A).status == 404


def test_warm_up_of_the_same_text():
    """Who warms a text up learns nothing of others that have it, and takes nothing from them."""
    text = document(7)
    with tenants() as g:
        mine, = build(g, A, [text])
        seen = {mine}
        for headers, fields in wishes("acme"):
            ns = fields.get("cache_salt") or fields.get("kvblend", {}).get("namespace")
            before = g.metric('kvblend_builds_total{worker="0"}')
            theirs, = build(g, dict(B, **headers), [text], **({"namespace": ns} if ns else {}))
            assert theirs != mine
            fresh = theirs not in seen
            assert g.metric('kvblend_builds_total{worker="0"}') == before + fresh, (headers, fields)
            seen.add(theirs)
        for i in seen - {mine}:
            _ = g.request("DELETE", f"/v1/segments/{i}", headers=B)
        assert g.get(f"/v1/segments/{mine}", headers=A).status == 200


def test_exact_prefixes():
    """The exact prefix cache is divided like the chunks."""
    text = " ".join(document(i, 200) for i in range(3))

    def prefix(key, headers=None, store=True, **fields):
        kv = dict({"mode": "prefix", "store": store}, **fields.pop("kvblend", {}))
        return ask(g, key, dict({"messages": [{"role": "user", "content": text}], "max_tokens": 1,
                                 "temperature": 0, "kvblend": kv}, **fields), headers)

    with tenants() as g:
        cold = cost(prefix(B, store=False))
        until("A has its prefix", lambda: prefix(A)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
        for headers, fields in wishes("acme"):
            x = prefix(B, headers, store=False, **fields)
            assert x["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, x["usage"]
            assert cost(x) == cold, (headers, fields, x["kvblend"])


def orders():
    return [[(a * i + b) % 5 for i in range(5)] for a in (1, 2, 3, 4) for b in range(3)]


def plain(order):
    """Paragraphs that nothing marks: where documents end is what the segmenter learns."""
    towns = ["\n\n".join(document(10 * i + k, 40) for k in range(2)) for i in range(5)]
    text = "\n\n".join(towns[i] for i in order) + "\n\nWhich of them has a mill?"
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0,
            "kvblend": {"explain": True, "store": False}}


def cuts(answer):
    return [(c["message"], c["begin"], c["end"], c["detector"]) for c in answer["kvblend"]["chunks"]]


def test_learned_boundaries():
    """What one key has taught the segmenter does not show in another's cuts."""
    last = [4, 2, 0, 3, 1]
    with tenants() as g:
        first = cuts(ask(g, C, plain(last)))
        for o in orders():
            taught = cuts(ask(g, A, plain(o)))
        taught = cuts(ask(g, A, plain(last)))
        assert taught != first, first
        spaces = set()
        for headers, fields in wishes("acme"):
            space = fields.get("cache_salt") or fields.get("kvblend", {}).get("namespace")
            if space in spaces:  # its own history by now
                continue
            spaces.add(space)
            kv = dict(plain(last)["kvblend"], **fields.get("kvblend", {}))
            x = ask(g, B, dict(plain(last), **{**fields, "kvblend": kv}), headers)
            assert cuts(x) == first, (headers, fields, x["kvblend"])

        def told(space):
            r = unix_request(g.admin[5:], "POST", f"/admin/boundaries?space={space}", plain(last))
            return [(s["message"], s["begin"], s["end"]) for s in r.json()["segments"]]

        for space in ("", "/acme", "acme/x", "acme/acme"):
            assert told(space) == [c[:3] for c in first], space
        mine = told("acme")  # without learning from it
        assert mine == [c[:3] for c in cuts(ask(g, A, plain(last)))] != [c[:3] for c in first]


def test_routing():
    """Where a tenant's texts are does not draw a stranger's requests there."""
    texts = [document(i) for i in range(3)]
    resident = 'kvblend_gateway_routed_tokens_total{kind="resident"}'
    with tenants("--worker-count", "2", "--threads", "1") as g:
        until("both are ready", lambda: g.get("/ready").json()["workers"] == 2)
        build(g, A, texts)
        until("the gateway knows it", lambda: g.metric("kvblend_gateway_directory_texts") == 3)
        for headers, fields in wishes("acme"):
            kv = {"kvblend": fields.get("kvblend", {})}
            ask(g, B, body(texts, **{**fields, **kv}), headers)
            assert g.metric(resident) == 0, (headers, fields)
        ask(g, A, body(texts))
        assert g.metric(resident) > 0


def test_a_body_divides_its_keys_namespace():
    texts = [document(i) for i in range(2)]
    with tenants() as g:
        build(g, A, texts, namespace="team")
        assert reused(ask(g, A, body(texts))) == 0
        assert reused(ask(g, A, body(texts, cache_salt="team"))) > 0
        assert reused(ask(g, A, body(texts, kvblend={"namespace": "team"}))) > 0
        assert reused(ask(g, A, body(texts, cache_salt="team", kvblend={"namespace": "x"}))) == 0
        assert reused(ask(g, A, body(texts, cache_salt="team"), {HEADER: "beta"})) > 0
        assert reused(ask(g, B, body(texts, cache_salt="team"))) == 0


def test_sharing_is_said():
    texts = [document(i) for i in range(2)]
    with tenants() as g:
        ids = build(g, D, texts)
        assert reused(ask(g, E, body(texts))) > 0
        assert g.get(f"/v1/segments/{ids[0]}", headers=E).status == 200
        assert reused(ask(g, B, body(texts, cache_salt="shared"), {HEADER: "shared"})) == 0
        assert [k.get("namespace") for k in g.admin_get("/admin/keys")["keys"]][:2] == ["acme", "beta"]


def test_operators_act_for_any():
    """kvblendctl names a tenant as quotas do: what it warms is that tenant's, and no other's."""
    with tenants() as g:
        path = g.write("doc", document(3))
        warm = [KVBLENDCTL, "--admin", g.admin, "--json", "warm", path]

        def ctl(*args):
            r = subprocess.run([*args], capture_output=True, text=True, timeout=60)
            assert r.returncode == 0, r.stderr
            return json.loads(r.stdout)

        for name in ("acme", "acme/team", "/team", None):
            made = ctl(*warm, *(["--namespace", name] if name else []))["data"][0]["id"]
            ours = {(n, q) for n, k in (("acme", A), ("beta", B))
                    for q in ("", "?namespace=team", "?namespace=acme")
                    if g.get(f"/v1/segments/{made}{q}", headers=k).status == 200}
            assert ours == {"acme": {("acme", "")}, "acme/team": {("acme", "?namespace=team")}}.get(
                name, set()), (name, ours)
        request = g.write("request.json", json.dumps(body([document(3)])))
        for name, cached in (("acme", True), ("beta", False)):
            r = ctl(KVBLENDCTL, "--admin", g.admin, "--json", "segment", request, "--namespace", name)
            assert [s["cached"] for s in r["segments"]] == [cached], r


def test_quotas_name_keys():
    """KEY is the key's namespace, KEY/BODY what a body makes of it: caps reach these and no other."""
    with tenants() as g:
        build(g, A, [document(0)])
        one = g.admin_get("/admin/chunks")["data"][0]["bytes"]
    quota = 2 * one + 4096
    with tenants("--namespace", f"acme=ram:{quota}", "--namespace", f"beta/team=ram:{quota}") as g:
        sets = {}
        for name, key, kw in (("acme", A, {}), ("acme/team", A, {"namespace": "team"}), ("beta", B, {}),
                              ("beta/team", B, {"namespace": "team"})):
            sets[name] = [build(g, key, [document(i)], **kw)[0] for i in range(6)]
        held = {x["id"] for x in g.admin_get("/admin/chunks")["data"]}
        n = {name: len(held & set(ids)) for name, ids in sets.items()}
        assert n["acme/team"] == n["beta"] == 6, n
        assert 1 <= n["acme"] <= 2 and 1 <= n["beta/team"] <= 2, n


def test_without_keys_the_header_is_a_label():
    """A gateway without keys has one tenant; its header divides as a body does, and protects nothing."""
    texts = [document(i) for i in range(2)]
    with gateway("--ram", "64MiB") as g:
        build(g, {HEADER: "x"}, texts)
        assert reused(ask(g, {}, body(texts))) == 0
        assert reused(ask(g, {}, body(texts, cache_salt="x"))) == 0
        assert reused(ask(g, {}, body(texts), {HEADER: "x"})) > 0


def test_a_worker_believes_no_stranger():
    """On TCP a worker takes a namespace's name from who knows its key, and says so to others: one that
    ignored it would put all tenants of a gateway without the key into one."""
    def worker(*args):
        p = Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", "--ram", "64MiB", *args])
        p.port = int(until("the worker listens", lambda: re.search(r"listening .*port=(\d+)", p.log())).group(1))
        return p

    texts = [document(1)]
    with worker() as p:
        until("it serves", lambda: p.get("/ready").status == 200)
        assert reused(ask(p, {}, body(texts))) == 0
        mine, = build(p, {}, texts)
        for method, path, sent in (("POST", CHAT, body(texts)), ("POST", "/v1/segments", {"texts": texts}),
                                   ("GET", f"/v1/segments/{mine}", None), ("DELETE", f"/v1/segments/{mine}", None)):
            r = p.request(method, path, sent, headers={HEADER: "acme"})
            assert r.status == 403 and r.error()["code"] == "namespace_closed", (r.status, r.body)
        assert p.get(f"/v1/segments/{mine}").status == 200
        with proxy([], "--worker", f"http://127.0.0.1:{p.port}", *KEYS) as g:  # has no key of the worker's
            r = g.post(CHAT, body(texts), headers=A)
            assert r.status == 403 and r.error()["code"] == "namespace_closed", (r.status, r.body)
    with worker("--api-key", "sesame") as p:
        until("it serves", lambda: p.get("/ready").status == 200)
        key = {"Authorization": "Bearer sesame"}
        build(p, dict(key, **{HEADER: "acme"}), texts)
        assert reused(ask(p, dict(key, **{HEADER: "acme"}), body(texts))) > 0
        assert reused(ask(p, key, body(texts))) == 0
        assert p.post(CHAT, body(texts), headers={HEADER: "acme"}).status == 401


def test_what_is_open_tells_of_nobody():
    """Without a key: that it runs. Metrics tell of all keys: on the admin address, or where the
    configuration opens them, and no tenant's key stands for either."""
    names = ("acme", "beta", "shared", "delta", "smollm")
    with tenants() as g:
        build(g, A, [document(1)])
        for path in ("/health", "/ready", "/ping", "/version", "/metrics", "/v1/metrics", "/metrics/",
                     "//metrics", "/v1/models", "/v1/models/x", "/admin/keys", "/v1/segments/x"):
            r = g.get(path)
            assert r.status == 200 or r.error()["code"], r.body
            assert not any(n.encode() in r.body for n in names), (path, r.body)
        for path in ("/metrics", "/v1/metrics", "/metrics/", "//metrics"):
            for headers in ({}, A, {"X-Forwarded-For": "127.0.0.1", "Host": "localhost"}):
                for method in ("GET", "HEAD"):
                    r = g.request(method, path, headers=headers)
                    assert r.status == 403, (path, r.status)
                    assert method == "HEAD" or r.error()["code"] == "not_public"
        assert 'key="acme"' in g.metrics()
    with tenants("--metrics-public", stub=True) as g:
        assert 'key="acme"' in g.get("/metrics").body.decode()


def test_models_of_others():
    """Whether a model exists that the key may not use is not told: not by its list, nor by an error."""
    with proxy(["http://127.0.0.1:1 models=theirs,mine"], "--api-key", "b-key models=mine,unknown",
               ready=False) as g:
        assert [m["id"] for m in g.get("/v1/models", headers=B).json()["data"]] == ["mine"]
        request = {"messages": [{"role": "user", "content": "x"}]}
        for ask_for in (lambda m: g.post(CHAT, dict(request, model=m), headers=B),
                        lambda m: g.get(f"/v1/models/{m}", headers=B)):
            there, nowhere = ask_for("theirs"), ask_for("nobody")
            assert there.status == nowhere.status in (403, 404), (there.status, nowhere.status)
            assert there.body.replace(b"theirs", b"nobody") == nowhere.body, (there.body, nowhere.body)
        assert g.post(CHAT, dict(request, model="unknown"), headers=B).status == 404


def test_keys_that_would_meet_are_refused():
    def check(*keys):
        args = [x for k in keys for x in ("--api-key", k)]
        r = subprocess.run([KVBLEND, "--check", *args], capture_output=True, text=True, env=clean_env(),
                           timeout=60)
        assert not any(k.split()[0] in r.stderr for k in keys), r.stderr
        return r.returncode, r.stderr

    assert check("key-1 id=a", "key-2 id=b namespace=c", "key-3 id=d namespace=c")[0] == 0
    code, why = check("key-1 id=acme", "key-2 id=b namespace=acme")
    assert code == 2 and "acme" in why and "namespace=" in why, why
    code, why = check("key-1 id=org/acme")
    assert code == 2 and "org/acme" in why and "namespace=" in why, why
    assert check("key-1 id=org/acme namespace=acme")[0] == 0


if __name__ == "__main__":
    main(globals())
