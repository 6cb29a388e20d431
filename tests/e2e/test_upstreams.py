#!/usr/bin/env python3
"""kvblend in front of scripted OpenAI-compatible upstreams: what passes through, and who gets it."""
import collections
import gzip
import json
import os
import random
import socket
import tempfile
import threading

from harness import (KVBLEND, KVBLENDCTL, STUB, Program, certificates, gateway, listening, main, need,
                     parse_metrics, proxy, read_until, until)
from upstream import Upstream
import subprocess

need(KVBLEND)
CHAT = "/v1/chat/completions"
ANY = "models=* health=off"
OPEN = ANY + " paths=*"


def ask(**kw):
    return dict({"model": "up-model", "messages": [{"role": "user", "content": "hello"}]}, **kw)


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


def multipart(fields):
    out = b"".join(b'--XyZ\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % f
                   for f in fields)
    return out + b"--XyZ--\r\n"


FORM = "multipart/form-data; boundary=XyZ"


# ---- bytes ----

def test_every_route_passes_byte_for_byte():
    """Method, target, body and answer arrive as they were sent, whatever the route."""
    upload = multipart([(b"purpose", b"batch"), (b"file", noise(100000))])
    speech = multipart([(b"model", b"up-model"), (b"file", noise(70000, 2))])
    cases = [
        ("POST", "/v1/embeddings", b'{"model":"up-model","input":"a"}', "application/json"),
        ("POST", "/v1/rerank", b'{"model" : "up-model", "query":"q", "documents":["a"]}', None),
        ("POST", "/v1/score", b'{"model":"up-model","text_1":"q","text_2":["a"]}', None),
        ("POST", "/v1/responses", b'{"model":"up-model","input":"hello"}', "application/json"),
        ("POST", "/v1/messages", b'{"model":"up-model","max_tokens":3,"messages":[]}', None),
        ("POST", "/v1/moderations", b'{"input":"no model is named"}', "application/json"),
        ("POST", "/v1/images/generations", b'{"model":"up-model","prompt":"x"}', None),
        ("POST", "/v1/files", upload, FORM),
        ("POST", "/v1/audio/transcriptions", speech, FORM),
        ("POST", "/v1/audio/speech", b'{"model":"up-model","input":"hi"}', None),
        ("POST", "/v1/something/new?x=1&y=%20z&&=", b"\0\xff not json", "application/octet-stream"),
        ("POST", "/v1/empty", b"", None),
        ("GET", "/v1/files?limit=2&after=a%2Fb", None, None),
        ("GET", "/v1/files/a%2Fb/content", None, None),
        ("GET", "/v1/batches/b1", None, None),
        ("DELETE", "/v1/files/f1", None, None),
        ("PUT", "/v1/things/1", noise(9000, 3), "application/octet-stream"),
        ("PATCH", "/v1/things/1", b"{}", "application/merge-patch+json"),
    ]
    with Upstream() as up, proxy([up.entry(OPEN)]) as g:
        for i, (method, target, body, kind) in enumerate(cases):
            answer = noise(1 + i * 7919, i)
            up.script = {"body": answer, "type": "application/x-test", "status": 200 + i % 3,
                         "framing": ("length", "chunked", "close")[i % 3],
                         "headers": {"X-Odd": f"value  {i}"}}
            r = g.request(method, target, body, {"Content-Type": kind} if kind else {})
            got = up.requests.pop()
            assert not up.requests, (target, up.requests)
            assert (got.method, got.target) == (method, target), (got.method, got.target, target)
            assert got.body == (body or b""), target
            assert got.header("content-type") == kind, (target, got.headers)
            assert r.status == 200 + i % 3 and r.body == answer, (target, r.status, r.body[:200])
            assert r.headers["content-type"] == "application/x-test", r.headers
            assert r.headers["x-odd"] == f"value  {i}", r.headers
        up.script = {"body": b"12345", "headers": {"X-Odd": "h"}}
        r = g.request("HEAD", "/v1/files/f1")
        assert r.status == 200 and r.body == b"" and r.headers["x-odd"] == "h"
        assert r.headers.get("content-length") == "5", r.headers
        assert up.requests.pop().method == "HEAD"
        up.script = {"status": 204}
        assert g.request("DELETE", "/v1/files/f2").status == 204
        assert not up.malformed


def test_paths_with_and_without_v1():
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        for path in (CHAT, "/chat/completions", "//v1//chat/completions"):
            assert g.post(path, ask()).status == 200, path
            assert up.requests.pop().target == CHAT
    with tempfile.TemporaryDirectory() as d, Upstream(unix=f"{d}/u") as up:
        with proxy([up.entry(ANY)]) as g:  # a unix socket stands for the root
            assert g.post("/v1/embeddings", ask()).status == 200
            assert up.requests.pop().target == "/v1/embeddings"
    with Upstream() as up:
        other = up.url[:-3] + "/openai/deployments/d1"
        with proxy([f"{other} {ANY}"]) as g:
            assert g.post(CHAT + "?api-version=1", ask()).status == 200
            assert up.requests.pop().target == "/openai/deployments/d1/chat/completions?api-version=1"


def test_a_chat_body_is_never_rewritten():
    odd = ('{ "model"\t:"up-model",\n "messages":[{"role":"user","content":"\\u00e4 \\ud83d\\ude00 é 𝄞"}]'
           ',"temperature":1.50e0, "x":-0.0, "y":1E300, "z":123456789012345678901234567890,'
           '"dup":1,"dup":2, "nested":{"model":"other","stream":true}, "empty":{} , "a":[ ]}').encode()
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        for body in (odd, b"\n\t " + odd + b"  \n", odd[:-1] + b',"pad":"' + b"x" * 300000 + b'"}'):
            for path in (CHAT, "/v1/completions", "/v1/embeddings"):
                assert g.post(path, body).status == 200
                assert up.requests.pop().body == body, path


def test_a_chunked_body_arrives_whole():
    body = json.dumps(ask(pad="x" * 70000)).encode()
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        for line in ("", "Expect: 100-continue\r\n"):
            s = socket.create_connection(("127.0.0.1", g.port), timeout=20)
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{line}Transfer-Encoding: chunked\r\n\r\n"
                      .encode())
            if line:
                assert read_until(s, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
            for i in range(0, len(body), 9999):
                piece = body[i:i + 9999]
                s.sendall(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece))
            s.sendall(b"0\r\nX-Trailer: t\r\n\r\n")
            assert b" 200 " in read_until(s, b"\r\n\r\n")
            s.close()
            assert up.requests.pop().body == body and not up.malformed


def test_a_stream_passes_byte_for_byte():
    """Also odd framing: comments, CR LF, other fields, several data lines, a byte a segment."""
    odd = (b": comment\n\nevent: message_start\ndata: {\"a\":1}\n\ndata: one\ndata: two\n\n"
           b"id: 7\r\ndata: crlf\r\n\r\nretry: 10\n\ndata:{\"nospace\":true}\n\n"
           b"data: \xf0\x9f\x98\x80\n\nevent: message_stop\ndata: {}\n\ndata: [DONE]\n\n")
    with Upstream() as up, proxy([up.entry(OPEN)]) as g:
        for path in (CHAT, "/v1/responses", "/v1/messages", "/v1/other"):
            for split in (0, 1, 13):
                for framing in ("chunked", "close"):
                    up.script = {"body": odd, "type": "text/event-stream", "split": split,
                                 "framing": framing}
                    r = g.post(path, ask(stream=True))
                    assert r.status == 200 and r.body == odd, (path, split, framing, r.body)
                    assert r.headers["content-type"].startswith("text/event-stream")
        huge = b"data: " + b"x" * (4 << 20) + b"\n\ndata: [DONE]\n\n"
        up.script = {"body": huge, "type": "text/event-stream", "framing": "chunked"}
        assert g.post(CHAT, ask(stream=True)).body == huge
        up.script = {}
        for path in (CHAT, "/v1/completions"):
            r = g.post(path, ask(stream=True, max_tokens=7, stream_options={"include_usage": True}))
            events = r.events()
            assert events[-1] == b"[DONE]" and json.loads(events[-2])["choices"] == []
            assert json.loads(events[-2])["usage"]["completion_tokens"] == 7
            assert r.headers.get("x-accel-buffering") == "no", r.headers
            assert "no-cache" in r.headers.get("cache-control", ""), r.headers


ONE = {"Authorization": "Bearer one"}


def charged(g):
    """What the key `me` has used: prompts, completions."""
    until("all is settled", lambda: not g.admin_get("/admin/keys")["keys"][0]["running"])
    return [g.metric(f'kvblend_gateway_key_tokens_total{{key="me",kind="{k}"}}') for k in ("prompt", "completion")]


def test_prompts_under_way_are_counted_by_their_length():
    """And charged when the client leaves: the upstream may have been at them for long."""
    def under_way(g):
        target, = g.admin_get("/admin/targets")["targets"]
        return target["prompt_tokens_in_flight"]

    body = json.dumps(ask(script={"wait_s": 60}, pad="x" * 1000)).encode()
    with Upstream() as up, proxy([up.entry(ANY)], "--api-key", "one id=me") as g:
        held = [g.open(CHAT, body, headers="Authorization: Bearer one\r\n") for _ in range(2)]
        until("both are there", lambda: len(up.requests) == 2)
        tokens = 2 * (len(body) // 4 + 1)
        assert under_way(g) == tokens, under_way(g)
        for s in held:
            s.close()
        until("both have left", lambda: under_way(g) == 0)
        assert charged(g) == [tokens, 0], charged(g)


def test_what_generates_nothing_costs_what_it_says():
    """Nothing, unless the answer has a usage."""
    with Upstream() as up, proxy([up.entry(ANY)], "--api-key", "one id=me") as g:
        assert g.post("/tokenize", {"prompt": "x" * 500}, headers=ONE).status == 200
        assert charged(g) == [0, 0], charged(g)
        up.script = {"body": json.dumps({"usage": {"input_tokens": 9, "output_tokens": 4}})}
        assert g.post("/tokenize", {"prompt": "x" * 500}, headers=ONE).status == 200
        assert charged(g) == [9, 4], charged(g)


def test_the_usage_of_a_long_answer_counts():
    """What is passed on as it comes has its usage at the end, in whatever pieces it arrives."""
    big = json.dumps({"choices": [{"index": 0, "text": "x" * 300000}], "usage": {
        "prompt_tokens": 41, "completion_tokens": 23, "prompt_tokens_details": {"cached_tokens": 5}}})
    with Upstream() as up, proxy([up.entry(ANY)], "--api-key", "one id=me") as g:
        for i, extra in enumerate(({}, {"split": 1500}, {"framing": "chunked", "type": "text/plain"})):
            up.script = dict(body=big, **extra)
            r = g.post("/v1/completions", ask(), headers={**ONE, "x-request-id": f"b{i}"})
            assert r.status == 200 and r.body == big.encode(), extra
            x = until("its line", lambda: [x for x in g.access_log() if x["request_id"] == f"b{i}"])[0]
            assert (x["prompt_tokens"], x["completion_tokens"], x["cached_tokens"]) == (41, 23, 5), x
            assert charged(g) == [41 * (i + 1), 23 * (i + 1)], charged(g)
        silent, body = json.dumps({"choices": [{"index": 0, "text": "x" * 300000}]}), json.dumps(ask()).encode()
        up.script = {"body": silent}
        assert g.post("/v1/completions", body, headers=ONE).body == silent.encode()
        assert charged(g) == [3 * 41 + len(body) // 4 + 1, 3 * 23 + len(silent) // 4], charged(g)


def test_a_stream_may_end_without_done():
    """A clean end is the upstream's own business: not every API says [DONE]."""
    with Upstream() as up, proxy([up.entry(OPEN)]) as g:
        body = b"event: a\ndata: 1\n\nevent: message_stop\ndata: {}\n\n"
        up.script = {"body": body, "type": "text/event-stream", "framing": "chunked"}
        r = g.post("/v1/messages", ask(stream=True))
        assert r.body == body, r.body


def test_events_are_flushed_one_by_one():
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        up.script = {"body": "data: first\n\n" + "x" * 100, "type": "text/event-stream",
                     "framing": "chunked", "stop_at": 13, "end": "hold"}
        s = g.open(CHAT, ask(stream=True))
        assert b"data: first\n\n" in read_until(s, b"data: first\n\n")
        s.close()


def test_compressed_and_binary_answers():
    text = json.dumps({"x": "y" * 5000})
    with Upstream() as up, proxy([up.entry(OPEN)]) as g:
        up.script = {"body": text, "gzip": True}
        for path in ("/v1/embeddings", "/v1/files/1"):
            r = g.post(path, ask(), headers={"Accept-Encoding": "gzip"})
            if r.headers.get("content-encoding") == "gzip":
                assert gzip.decompress(r.body) == text.encode(), path
            else:
                assert r.body == text.encode(), path
        stream = b"data: {}\n\ndata: [DONE]\n\n"
        up.script = {"body": gzip.compress(stream), "type": "text/event-stream",
                     "headers": {"Content-Encoding": "gzip"}, "framing": "chunked", "split": 5}
        r = g.post(CHAT, ask(stream=True), headers={"Accept-Encoding": "gzip"})
        assert r.headers["content-encoding"] == "gzip" and gzip.decompress(r.body) == stream


def test_errors_of_the_upstream_pass_untouched():
    with Upstream() as up, proxy([up.entry(ANY)], "--retries", "0") as g:
        for status in (400, 401, 403, 404, 409, 422, 429, 500, 503):
            body = '{"error" : {"message":"told", "code":%d}}' % status
            up.script = {"status": status, "body": body, "headers": {
                "Retry-After": "7", "x-should-retry": "false", "x-ratelimit-limit-requests": "9"}}
            for stream in (False, True):
                r = g.post(CHAT, ask(stream=stream))
                assert (r.status, r.body) == (status, body.encode()), (status, r.status, r.body)
                assert r.headers["retry-after"] == "7" and r.headers["x-should-retry"] == "false"
                assert r.headers["x-ratelimit-limit-requests"] == "9"
                assert [n for n, _ in r.pairs if n.lower() == "retry-after"] == ["Retry-After"]


CLOSED = ["organization/usage/completions", "organization/admin_api_keys", "files", "files/", "files/f1/content",
          "files?purpose=batch", "batches", "fine_tuning/jobs", "assistants", "threads/t/messages", "vector_stores",
          "uploads", "responses/r1", "responses/r1/cancel", "chat/completions/c1", "evals", "videos/v1", "", "x/y",
          "load_lora_adapter", "Embeddings", "embeddings/x", "fil%65s", "%2e/files", "embeddings/../files",
          "embeddings/%2e%2e/files", "embeddings/%2E%2E%2Ffiles", "embeddings%2f..%2ffiles", "embeddings/..;/files",
          "embeddings;x=/../files", "embeddings/..%5cfiles", "embeddings/%252e%252e/files", "embeddings%00/files",
          "embeddings/.", "embeddings%20", "embeddings%3f/files", "embeddings%23"]


def test_an_upstream_s_key_opens_what_computes_and_no_more():
    """As a stranger tries it: everything else of the operator's account, by every spelling of a path."""
    with Upstream() as up, proxy([up.entry(ANY + " api_key=sk-operator")]) as g:
        for path in CLOSED:
            for prefix in ("/v1/", "//v1//", "/v1/./", "/v1/x/../", "/V1/", "http://x/v1/", "/", "/v1/v1/"):
                for method in ("GET", "POST", "DELETE"):
                    s = g.open(prefix + path, b"{}", method, "Connection: close\r\n")
                    status = int(read_until(s, b"\r\n\r\n").split(b" ", 2)[1])
                    s.close()
                    assert status in (400, 404, 405), (method, prefix + path, status)
        assert not up.requests, [r.head for r in up.requests]
        for path, to in (("/v1/embeddings/", "/v1/embeddings"), ("//v1//embeddings", "/v1/embeddings"),
                         ("/v1/%65mbeddings?a=//b", "/v1/embeddings?a=//b"), ("/embeddings", "/v1/embeddings"),
                         ("/v1/audio/speech", "/v1/audio/speech")):
            assert g.post(path, ask()).status == 200, path  # what is open is sent as it is known
            assert up.requests.pop().target == to, path
        for method in ("GET", "DELETE", "PUT"):
            assert g.request(method, "/v1/responses").status == 405


def test_keys_are_on_no_command_line():
    with Upstream() as up:
        for more in ("api_key=sk-hidden", '"api_key=sk-hidden" name=x', "models=* api_key=sk-hidden health=off"):
            with proxy([up.url + " " + more], "--api-key", "sk-hidden-too") as g:
                until("it is ready", lambda: g.get("/ready").status == 200)
                with open(f"/proc/{g.proc.pid}/cmdline") as f:
                    line = f.read()
                assert "sk-hidden" not in line + g.log() and up.url in line, line


def test_paths_that_an_entry_opens():
    """By whole segments, to the upstream whose entry says so; nothing leads out of them."""
    with Upstream("a") as a, Upstream("b") as b:
        with proxy([a.entry(ANY), b.entry(ANY + " priority=9 api_key=sk-b paths=files,fine_tuning/jobs")]) as g:
            for path, to in (("/v1/files", None), ("/v1/files/f1/content?x=%2e%2e", None), ("/v1/files/a%2Fb", None),
                             ("/v1//files//f1", "/v1/files/f1"), ("//v1/fine_tuning/jobs/", "/v1/fine_tuning/jobs/"),
                             ("/v1/files?next=http://h/", None)):
                r = g.get(path)
                assert r.status == 200, (path, r.status, r.body)
                assert b.requests.pop().target == (to or path), path
            for path in ("filesystem", "Files", "fine_tuning", "fine_tuning/jobs2", "files/../organization",
                         "files/%2e%2e/organization", "files%2f..%2forganization", "files/..%2Forganization",
                         "files/%252e%252e/organization", "files/..;/organization", "files;/../organization",
                         "files/..%5corganization", "files/.%2e/organization", "batches", "x/../files/../batches"):
                assert g.get("/v1/" + path).status in (400, 404), path
            assert not a.requests and not b.requests
            assert g.post("/v1/embeddings", ask()).status == 200 and len(a.requests) == 1


def test_whose_organization_pays():
    """The operator's, unless the entry leaves it to the client."""
    mine = {"OpenAI-Organization": "org-x", "openai-project": "proj-x"}
    with Upstream("a") as a, Upstream("b") as b:
        with proxy([a.entry("models=a health=off api_key=sk-a"),
                    b.entry("models=b health=off client_organization=true")]) as g:
            for path in (CHAT, "/v1/embeddings"):
                assert g.post(path, ask(model="a"), headers=mine).status == 200
                got = a.requests.pop()
                assert not got.all("openai-organization") + got.all("openai-project"), got.headers
                assert g.post(path, ask(model="b"), headers=mine).status == 200
                got = b.requests.pop()
                assert (got.header("openai-organization"), got.header("openai-project")) == ("org-x", "proj-x")


# ---- headers ----

def test_hop_by_hop_headers_stay_here():
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        up.script = {"headers": [
            ("Connection", "x-up-private"), ("X-Up-Private", "1"), ("Keep-Alive", "timeout=5"),
            ("Proxy-Authenticate", "Basic"), ("Upgrade", "h2c"), ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2"), ("X-Up-Public", "2")]}
        sent = {"Connection": "keep-alive, X-Private", "X-Private": "1", "Keep-Alive": "timeout=9",
                "TE": "trailers", "Trailer": "X", "Proxy-Authorization": "Basic eA==",
                "Proxy-Connection": "keep-alive", "Upgrade": "websocket", "OpenAI-Organization": "org",
                "OpenAI-Project": "proj",
                "anthropic-version": "2023-06-01", "User-Agent": "test/1", "Accept": "a/b",
                "x-stainless-retry-count": "0", "X-Public": "2"}
        r = g.post("/v1/embeddings", ask(), headers=sent)
        got = up.requests.pop()
        names = {n.lower() for n, _ in got.headers}
        gone = {"x-private", "keep-alive", "te", "trailer", "proxy-authorization",
                "proxy-connection", "upgrade", "openai-organization", "openai-project"}
        assert not names & gone, names & gone
        assert "x-private" not in (got.header("connection") or "").lower()
        for name in ("anthropic-version", "User-Agent", "Accept",
                     "x-stainless-retry-count", "X-Public"):
            assert got.all(name.lower()) == [sent[name]], name
        assert got.header("host") == f"127.0.0.1:{up.port}"
        for name in ("x-up-private", "keep-alive", "proxy-authenticate", "upgrade"):
            assert name not in r.headers, name
        assert r.headers["x-up-public"] == "2"
        assert [v for n, v in r.pairs if n == "Set-Cookie"] == ["a=1", "b=2"], r.pairs


def test_authorization_is_replaced():
    with tempfile.NamedTemporaryFile("w", suffix=".key") as f:
        f.write("sk-from-file\n")
        f.flush()
        with Upstream("a") as a, Upstream("b") as b, Upstream("c") as c:
            ups = [a.entry("models=a health=off api_key=sk-up"),
                   b.entry(f"models=b health=off api_key_file={f.name}"),
                   c.entry("models=c health=off paths=files")]
            with proxy(ups, "--api-key", "sk-client") as g:
                for up, model, want in ((a, "a", ["Bearer sk-up"]), (b, "b", ["Bearer sk-from-file"]),
                                        (c, "c", [])):
                    for headers in ({"Authorization": "Bearer sk-client"}, {"X-Api-Key": "sk-client"}):
                        for path in (CHAT, "/v1/embeddings"):
                            assert g.post(path, ask(model=model), headers=headers).status == 200
                            got = up.requests.pop()
                            assert got.all("authorization") == want, got.headers
                            assert b"sk-client" not in got.head, got.head
                assert g.post(CHAT, ask(model="a"), headers={"Authorization": "Bearer x"}).status == 401
                assert g.get("/v1/files").status == 401
                assert not a.requests
                assert "sk-" not in g.log() + json.dumps(g.access_log())


def test_request_id_and_trace_reach_the_upstream():
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with Upstream() as up, proxy([up.entry(OPEN)]) as g:
        for path in (CHAT, "/v1/embeddings", "/v1/other"):
            r = g.post(path, ask(), headers={"x-request-id": "mine-7", "traceparent": parent,
                                             "tracestate": "a=b"})
            got = up.requests.pop()
            assert r.headers["x-request-id"] == "mine-7" == got.header("x-request-id")
            version, trace, span, flags = got.header("traceparent").split("-")
            assert (version, trace, flags) == ("00", parent[3:35], "01"), got.headers
            assert span != "b7ad6b7169203331" and got.header("tracestate") == "a=b"
            r = g.post(path, ask())
            assert r.headers["x-request-id"] == up.requests.pop().header("x-request-id")


# ---- models ----

def test_aliases_and_globs():
    with Upstream("a") as a, Upstream("b") as b:
        ups = [a.entry("models=fast=up-model,gpt-4*,exact health=off"),
               b.entry("models=llama-?b health=off")]
        with proxy(ups) as g:
            for up, said, sent in ((a, "fast", "up-model"), (a, "gpt-4", "gpt-4"),
                                   (a, "gpt-4o-mini", "gpt-4o-mini"), (a, "exact", "exact"),
                                   (b, "llama-7b", "llama-7b")):
                for path in (CHAT, "/v1/embeddings", "/v1/images/generations"):
                    body = b'{ "x":[1,2], "model" :  "%s" , "y":"%s"}' % (said.encode(),
                                                                         said.encode())
                    want = body.replace(b'"model" :  "%s"' % said.encode(),
                                        b'"model" :  "%s"' % sent.encode())
                    assert g.post(path, body).status == 200, (path, said)
                    assert up.requests.pop().body == want, (path, said)
            assert g.post(CHAT, b'{"model":"f\\u0061st"}').status == 200
            assert a.requests.pop().json() == {"model": "up-model"}
            for name in ("gpt-3", "llama-70b", "Fast", "exac", "up-model"):
                r = g.post(CHAT, ask(model=name))
                assert r.status == 404 and r.error()["code"] == "model_not_found", (name, r.body)
            assert not a.requests and not b.requests
            ids = [m["id"] for m in g.get("/v1/models").json()["data"]]
            assert "fast" in ids and "exact" in ids and "up-model" not in ids, ids
            assert g.get("/v1/models/fast").json()["id"] == "fast"


def test_a_form_names_one_model_to_everybody():
    """Readers of forms differ: who may use some models only sends what they all read alike."""
    def part(disposition, value):
        return b"--XyZ\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (disposition, value)
    good, end = part(b'name="model"', b"open"), b"--XyZ--\r\n"
    sound = part(b'name="file"; filename="a.wav"', b'x; name="model"\r\n\r\nother\r\n')
    odd = [part(b'name="model"', b"secret"), part(b"name=model", b"secret"),
           part(b"name*=utf-8''model", b"secret"), part(b'name="mod\\el"', b"secret"),
           part(b'\r\n name="model"', b"secret"), part(b'NAME="model"', b"secret"),
           part(b'name="x"; name="model"', b"secret")]
    with Upstream() as up, proxy([up.entry(ANY)], "--api-key", "narrow models=open",
                                 "--api-key", "wide") as g:
        def send(key, *parts):
            return g.post("/v1/audio/transcriptions", b"".join(parts) + end, headers={
                "Content-Type": FORM, "Authorization": f"Bearer {key}"}).status
        assert send("narrow", good, sound) == send("narrow", sound, good) == 200
        n = len(up.requests)
        for x in odd:
            for parts in ((good, x), (x, good), (x,), (sound, x)):
                assert send("narrow", *parts) in (403, 404), parts
        assert len(up.requests) == n
        for x in odd:
            assert send("wide", good, x) == 200, x


def test_models_of_the_upstream_are_asked_for():
    with Upstream("a", models=["m1", "m2"]) as a, Upstream("b", models=["m2", "m3"]) as b:
        with proxy([a.entry(), b.entry()]) as g:
            until("all are known", lambda: sorted(
                m["id"] for m in g.get("/v1/models").json()["data"]) == ["m1", "m2", "m3"])
            assert g.post(CHAT, ask(model="m1")).status == 200 and len(a.requests) == 1
            assert g.post(CHAT, ask(model="m3")).status == 200 and len(b.requests) == 1
            assert g.post(CHAT, ask(model="m4")).error()["code"] == "model_not_found"
            for up in (a, b):
                up.stop_listening()
            assert g.get("/v1/models").status == 200  # from memory


# ---- who gets it ----

def test_long_lists_of_models_are_joined():
    """Each name once, in the order of the targets, and only what the key may use."""
    lists = [[f"v/{x}-{i}" for i in range(1500)] + ["both"] for x in "ab"]
    with Upstream("a", models=lists[0]) as a, Upstream("b", models=lists[1]) as b:
        with proxy([a.entry(), b.entry()], "--api-key", "all", "--api-key", "some models=v/b-1*,both") as g:
            def listed(key):
                r = g.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
                return [m["id"] for m in r.json()["data"]]
            want = lists[0] + lists[1][:-1]
            until("all are listed", lambda: listed("all") == want)
            assert listed("some") == [m for m in want if m.startswith("v/b-1") or m == "both"]


def spread(g, ups, n, **kw):
    for up in ups:
        up.requests.clear()
    for i in range(n):
        assert g.post(CHAT, ask(**kw)).status == 200
    return [len(up.requests) for up in ups]


def test_weights():
    with Upstream("a") as a, Upstream("b") as b:
        with proxy([a.entry(ANY + " weight=8"), b.entry(ANY + " weight=1")]) as g:
            n = spread(g, (a, b), 150)
            assert n[0] > 1.5 * n[1] and n[1] > 0, n


def test_priorities():
    with Upstream("a") as a, Upstream("b") as b:
        with proxy([a.entry(ANY + " priority=0"), b.entry(ANY + " priority=1")]) as g:
            assert spread(g, (a, b), 20) == [20, 0]
            a.stop_listening()
            assert spread(g, (a, b), 10) == [0, 10]


def test_the_less_busy_one_gets_it():
    with Upstream("a") as a, Upstream("b") as b:
        with proxy([a.entry(ANY), b.entry(ANY)]) as g:
            held = [g.open(CHAT, ask(script={"wait_s": 60})) for _ in range(12)]
            until("all are there", lambda: len(a.requests) + len(b.requests) == 12)
            assert abs(len(a.requests) - len(b.requests)) <= 4, (len(a.requests), len(b.requests))
            for sock in held:
                sock.close()
            until("all have left", lambda: active(g) == 0)


def active(g):
    return g.metric("kvblend_requests_active")


def test_affinity():
    """The same beginning goes to the same upstream; different ones spread."""
    def send(g, i):
        text = f"topic {i} " * 400
        return g.post(CHAT, ask(messages=[{"role": "system", "content": text},
                                          {"role": "user", "content": "q"}])).status

    with Upstream("a") as a, Upstream("b") as b, Upstream("c") as c:
        ups = (a, b, c)
        with proxy([u.entry(ANY) for u in ups], "--balance", "affinity") as g:
            homes = collections.Counter()
            for i in range(12):
                for u in ups:
                    u.requests.clear()
                for _ in range(3):
                    assert send(g, i) == 200
                where = [len(u.requests) for u in ups]
                assert sorted(where) == [0, 0, 3], (i, where)
                homes[where.index(3)] += 1
            assert len(homes) >= 2, homes


def test_max_inflight_of_an_upstream():
    with Upstream() as up, proxy([up.entry(ANY + " max_inflight=2")], "--queue-timeout", "400ms") as g:
        held = [g.open(CHAT, ask(script={"wait_s": 60})) for _ in range(2)]
        until("two run", lambda: len(up.requests) == 2)
        waits = g.open(CHAT, ask())
        r = g.post(CHAT, ask())
        assert r.status == 429 and r.error()["code"] == "server_overloaded", r.body
        assert r.headers["x-should-retry"] == "true" and float(r.headers["retry-after"]) > 0
        assert b" 429 " in read_until(waits, b"}}")
        waits.close()
        assert len(up.requests) == 2
    with Upstream() as up, proxy([up.entry(ANY + " max_inflight=2")]) as g:
        held = [g.open(CHAT, ask(script={"wait_s": 60})) for _ in range(2)]
        until("two run", lambda: len(up.requests) == 2)
        waits = g.open(CHAT, ask())
        until("it waits", lambda: active(g) == 3)
        assert len(up.requests) == 2
        held[0].close()  # leaving hands the place on
        assert b" 200 " in read_until(waits, b"}}")
        for s in held + [waits]:
            s.close()


def test_upstreams_without_a_limit_take_any_number():
    """Unless --max-inflight is given: what bounds the own worker says nothing about them."""
    with Upstream() as up, proxy([up.entry(ANY)], "--queue-limit", "0") as g:
        held = [g.open(CHAT, ask(script={"wait_s": 60})) for _ in range(100)]
        until("all are there", lambda: len(up.requests) == 100)
        assert g.post(CHAT, ask()).status == 200
        for s in held:
            s.close()


def test_a_stalled_upstream_blocks_nobody_else():
    with Upstream("a") as a, Upstream("b") as b:
        a.script = {"wait_s": 3600}
        with proxy([a.entry("models=slow health=off"), b.entry("models=quick health=off")],
                   "--max-inflight", "200") as g:
            held = [g.open(CHAT, ask(model="slow")) for _ in range(50)]
            until("all hang", lambda: len(a.requests) == 50)
            for _ in range(30):
                assert g.post(CHAT, ask(model="quick"), timeout=10).status == 200
                assert g.get("/health", timeout=10).status == 200
            assert len(b.requests) == 30
            for s in held:
                s.close()
            until("all left the stalled one", lambda: all(r.left_at for r in a.requests))


def test_a_full_upstream_takes_no_other_model_s_turn():
    """Requests that wait for one upstream hold no turn that another one's need."""
    with Upstream("a") as a, Upstream("b") as b:
        a.script = {"wait_s": 3600}
        with proxy([a.entry("models=slow health=off max_inflight=1"),
                    b.entry("models=quick health=off")]) as g:
            held = [g.open(CHAT, ask(model="slow")) for _ in range(100)]
            until("one runs", lambda: len(a.requests) == 1)
            until("the others wait", lambda: active(g) == 100)
            for _ in range(10):
                assert g.post(CHAT, ask(model="quick"), timeout=10).status == 200
            for s in held:
                s.close()


def group_of(model):
    """Admission's group, as the gateway hashes a name."""
    h = 2166136261
    for c in model.encode():
        h = (h ^ c) * 16777619 & 0xffffffff
    return (h ^ h >> 16) % 64


def test_models_of_one_group_wait_for_their_own_upstream():
    """Names may share a hash: who waits for one model's upstream holds up nobody else's requests."""
    other = next(n for n in (f"m{i}" for i in range(10000)) if group_of(n) == group_of("slow"))
    with Upstream("a") as a, Upstream("b") as b:
        a.script = {"wait_s": 3600}
        with proxy([a.entry("models=slow health=off max_inflight=1"),
                    b.entry(f"models={other} health=off")]) as g:
            held = [g.open(CHAT, ask(model="slow")) for _ in range(10)]
            until("one runs", lambda: len(a.requests) == 1)
            until("the others wait", lambda: active(g) == 10)
            for _ in range(5):
                assert g.post(CHAT, ask(model=other), timeout=10).status == 200
            for s in held:
                s.close()


def test_own_worker_and_upstream_side_by_side():
    with Upstream() as up, gateway("--upstream", up.entry("models=up-model health=off"),
                                   stub=True) as g:
        until("the worker is there, too", lambda: {"stub-model", "up-model"} <= {
            m["id"] for m in g.get("/v1/models").json()["data"]})
        assert g.post(CHAT, ask(model="stub-model")).json()["model"] == "stub-model"
        assert not up.requests
        assert g.post(CHAT, ask()).json()["model"] == "up-model" and len(up.requests) == 1
        got = up.requests.pop()
        assert not [n for n, _ in got.headers if n.lower().startswith("x-kvblend") and
                    n != "X-KVBlend-Hop"], got.headers
        s = g.open(CHAT, ask(stream=True, max_tokens=40, script={"token_s": 0.02}))
        data = read_until(s, b"w1 ")
        os.kill(g.admin_get("/admin/status")["workers"][0]["pid"], 9)
        assert g.post(CHAT, ask()).status == 200
        data += read_until(s, b"[DONE]")
        assert b"w39 " in data and b"error" not in data, data[-300:]
        s.close()
        until("the worker is back", lambda: g.post(CHAT, ask(model="stub-model")).status == 200)


def test_a_worker_that_refuses_to_start_leaves_the_upstream():
    with Upstream() as up:
        p = Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", STUB, "--worker-bin", STUB,
                     "--upstream", up.entry(ANY)], {"STUB_REFUSE": "1"})
        with listening(p, ready=False) as g:
            until("the worker has given up", lambda: "cannot be read" in g.log())
            until("the upstream serves", lambda: g.post(CHAT, ask()).status == 200)


# ---- https ----

def test_https_upstreams():
    with tempfile.TemporaryDirectory() as d:
        cert = certificates(d)
        ca, stranger = cert["ca"][0], cert["stranger"][0]
        with Upstream(tls=cert["server"]) as up:
            good = up.entry(f"{ANY} ca_file={ca}")
            by_name = good.replace("127.0.0.1", "localhost")
            for entry, status in (
                    (good, 200), (by_name, 200), (up.entry(f"{ANY} insecure=true"), 200),
                    (up.entry(f"{ANY} ca_file={stranger}"), 502), (up.entry(ANY), 502)):
                with proxy([entry], "--retries", "0") as g:
                    r = g.post(CHAT, ask())
                    assert r.status == status, (entry, r.status, r.body)
                    if status == 200:
                        r = g.post(CHAT, ask(stream=True, max_tokens=50))
                        assert r.events()[-1] == b"[DONE]" and len(r.events()) == 53
                        big = json.dumps(ask(pad="x" * 1000000)).encode()
                        assert g.post(CHAT, big).status == 200
                        assert up.requests[-1].body == big
                        assert up.n_accepted <= len(up.requests) + 8
            n = len(up.requests)
        with open(os.path.join(d, "san"), "w") as f:
            f.write("subjectAltName=DNS:elsewhere.example\n")
        subprocess.run(["openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey",
                        "ca.key", "-days", "2", "-CAcreateserial", "-extfile", "san", "-out",
                        "wrong.pem"], cwd=d, check=True, capture_output=True)
        wrong = (os.path.join(d, "wrong.pem"), cert["server"][1])
        with Upstream(tls=wrong) as up, proxy([up.entry(f"{ANY} ca_file={ca}")], "--retries", "0",
                                              ready=False) as g:
            r = g.post(CHAT, ask())
            assert r.status == 502 and r.error()["code"] == "upstream_unreachable", r.body
            assert not up.requests
        with Upstream(tls=cert["server"] + (ca,)) as up:
            files = f"{ANY} ca_file={ca} cert_file={cert['client'][0]} key_file={cert['client'][1]}"
            for entry, status in ((up.entry(files), 200), (up.entry(f"{ANY} ca_file={ca}"), 502)):
                with proxy([entry], "--retries", "0") as g:
                    assert g.post(CHAT, ask()).status == status, entry
    assert n > 0


# ---- what operators see ----

def test_targets_and_drain():
    with Upstream("a") as a, Upstream("b") as b:
        with proxy([a.entry(ANY), b.entry(ANY)]) as g:
            spread(g, (a, b), 10)
            names = {t["name"]: t for t in targets(g)}
            assert set(names) == {"a", "b"}, names
            held = g.open(CHAT, ask(script={"wait_s": 0.5}))
            ctl(g, "drain", "a")
            assert spread(g, (a, b), 10) == [0, 10]
            assert b" 200 " in read_until(held, b"}}")  # what runs there ends well
            held.close()
            assert {t["name"]: t for t in targets(g)}["a"]["state"] == "draining"
            assert "draining" in ctl(g, "targets")
            ctl(g, "enable", "a")
            until("it gets requests again", lambda: spread(g, (a, b), 10)[0] > 0)
            assert ctl(g, "drain", "nobody", ok=False) != ""


def nobody_there():
    """A port that refuses, as long as the socket lives."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    return s, f"http://127.0.0.1:{s.getsockname()[1]}"


def test_why_an_upstream_is_down():
    """/ready, errors and kvblendctl say it; a gateway without workers does not speak of them."""
    with tempfile.TemporaryDirectory() as d, Upstream() as up, Upstream() as closed, socket.socket() as silent:
        cert = certificates(d)
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        held, refusing = nobody_there()
        closed.healthy = 401
        up.healthy = False
        with Upstream(tls=cert["server"]) as secure, held:
            for entry, word in ((refusing, "connection refused"), (closed.entry(""), "401: the key is not accepted"),
                                (up.entry(""), "it answers 503"), (secure.entry(""), "certificate is not accepted"),
                                ("http://" + "x" * 64 + ":1", "its name cannot be resolved"),  # longer than any
                                (f"http://127.0.0.1:{silent.getsockname()[1]}", "no answer in time")):
                with proxy([entry + " name=far health_interval=100ms api_key=sesame"], "--retries", "0",
                           "--retry-wait", "0", "--health-failures", "1", ready=False) as g:
                    r = until("it is known", lambda: (lambda r: r if word in r.error()["message"] else None)(
                        g.get("/ready")))
                    assert (r.status, r.error()["code"]) == (503, "upstream_unavailable"), r.body
                    assert r.error()["message"].startswith("No upstream is ready yet: "), r.body
                    said = [r.body, g.post(CHAT, ask()).body, g.get("/v1/models").body, g.post("/v1/segments", {}).body,
                            *(ctl(g, x, ok=x in ("status", "targets", "quality")).encode()
                              for x in ("status", "targets", "quality", "ls", "tiers"))]
                    assert all(word.encode() in said[i] for i in (0, 1, 2, 4, 5)), (word, said)
                    assert b"No upstream can be reached: " in said[1], said
                    assert not [x for x in said[:3] if b"orker" in x or b"sesame" in x or b"127.0.0.1" in x], said
                    assert b"has no workers" in said[3] and b"has no workers" in said[7] + said[8], said
                    assert b"sesame" not in b"".join(said)
                    t, = targets(g)
                    assert t["state"] in ("down", "loading") and word in t["reason"], t
                    assert b"orker" not in said[4], said


def test_a_reason_goes_when_it_is_well_again():
    with Upstream() as up, proxy([up.entry("name=far health_interval=50ms")], "--retries", "0") as g:
        assert g.get("/ready").json() == {"status": "ready", "upstreams": 1}
        assert "reason" not in targets(g)[0]
        up.plan.append({"end": "close", "stop_at": -1})
        r = g.post(CHAT, ask())
        assert r.status == 502 and r.error()["message"] == (
            "The upstream was lost before it answered: the connection was cut."), r.body
        until("it is forgotten", lambda: "reason" not in targets(g)[0])
        up.healthy = False
        until("it is down", lambda: targets(g)[0].get("reason") == "it answers 503")
        until("it is refused", lambda: g.get("/ready").status == 503)
        up.healthy = True
        until("it is back", lambda: g.get("/ready").status == 200 and "reason" not in targets(g)[0])


def test_an_open_breaker_says_why():
    with Upstream() as up:
        up.script = {"status": 500, "body": "{}"}
        with proxy([up.entry(ANY + " name=far")], "--retries", "0", "--breaker-failures", "2",
                   "--breaker-open", "60s") as g:
            r = until("it is open", lambda: (lambda r: r if r.status == 503 else None)(g.post(CHAT, ask())))
            assert r.error()["code"] == "upstream_unavailable" and "it answers 500" in r.error()["message"], r.body
            assert "breaker open: it answers 500" in ctl(g, "status")


def targets(g):
    r = g.admin_get("/admin/targets")
    return r if isinstance(r, list) else r.get("targets") or r.get("data")


def ctl(g, *args, ok=True):
    p = subprocess.run([KVBLENDCTL, *args], env=g.env, capture_output=True, text=True, timeout=30)
    assert (p.returncode == 0) == ok, (args, p.returncode, p.stdout, p.stderr)
    return p.stdout + p.stderr


def test_metrics_and_log_of_targets():
    with Upstream("a") as a, Upstream("b") as b:
        a.script = {"end": "reset", "stop_at": -1}
        with proxy([a.entry(ANY + " priority=0"), b.entry(ANY + " priority=1")]) as g:
            assert g.post(CHAT, ask()).status == 200
            families = parse_metrics(g.metrics())
            p = "kvblend_gateway_upstream_"
            for name in ("up", "inflight", "requests_total", "failures_total", "breaker_open",
                         "picked_total"):
                assert {s[1]["target"] for s in families[p + name][1]} >= {"b"}, name
            assert g.metric(p + 'picked_total{target="a"}') >= 1
            assert g.metric(p + 'picked_total{target="b"}') == 1
            assert g.metric(p + 'requests_total{target="b",code="200"}') == 1
            assert g.metric(p + 'failures_total{target="a"}') >= 1
            assert g.metric(p + 'inflight{target="b"}') == 0
            assert g.metric("kvblend_gateway_failovers_total") == 1
            line = until("it is logged", lambda: [x for x in g.access_log() if x["path"] == CHAT])[0]
            assert (line["target"], line["status"], line["end"]) == ("b", 200, "ok"), line
            assert line["retries"] >= 1 and line["model"] == "up-model"


if __name__ == "__main__":
    main(globals())
