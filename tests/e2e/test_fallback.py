#!/usr/bin/env python3
"""What the own worker cannot serve goes to the fallback: what leaves, what does not, what clients see."""
import json
import os
import subprocess
import tempfile

from harness import (KVBLEND, WORKER, clean_env, gateway, main, need, read_until, unix_request,
                     until)
from upstream import Upstream

need(KVBLEND, WORKER)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
IMAGE = [{"type": "text", "text": "what is it?"},
         {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
FIELD = "messages[0].content"


def picture(**kw):
    return dict({"messages": [{"role": "user", "content": IMAGE}], "max_tokens": 3}, **kw)


def site(up, *args, fields="models=big health=off", model="big", **kw):
    more = ["--fallback-model", model] if model else []
    return served(gateway("--upstream", up.entry(fields), "--fallback-upstream", up.name, *more, *args, **kw))


def served(g):
    """Its worker is ready, too: until then nobody is refused anything for another to serve."""
    try:
        until("the worker is ready", lambda: [t["state"] for t in g.admin_get("/admin/targets")["targets"]
                                              if t["kind"] == "worker"] == ["ready"])
    except BaseException:
        g.__exit__(Exception, None)
        raise
    return g


def counted(g, what):
    return g.metric('kvblend_gateway_fallback_total{what="%s"}' % what)


def same_but_model(sent, got):
    """The bytes that left are those that came, with the model's name in its place."""
    return got == sent.replace(b'"default"', b'"big"')


def test_each_route_whole_and_streamed():
    with Upstream() as up, site(up) as g:
        for path, ask in ((CHAT, picture(model="default")),
                          (TEXT, {"model": "default", "prompt": "a", "suffix": "b", "max_tokens": 3})):
            field = FIELD if path == CHAT else "suffix"
            for stream in (False, True):
                body = json.dumps(dict(ask, stream=stream), indent=1).encode()
                r = g.post(path, body, headers={"X-KVBlend-Namespace": "secret"})
                got = up.requests.pop()
                assert r.status == 200 and r.headers["x-kvblend-fallback"] == field, (r.status, r.headers)
                assert got.path == path and same_but_model(body, got.body), got.body
                assert not [n for n, _ in got.headers if n.lower().startswith("x-kvblend-") and
                            n.lower() != "x-kvblend-hop"], got.headers
                text = ("".join(json.loads(e)["choices"][0].get("delta", {}).get("content") or
                                json.loads(e)["choices"][0].get("text") or "" for e in r.events()[:-1])
                        if stream else str(r.json()["choices"][0]))
                assert "w0 w1 w2 " in text, (path, stream, r.body)
                assert "error" not in r.body.decode()
        assert counted(g, "asked") == 4 and counted(g, "failed") == 0
        line = until("it is logged", lambda: next((x for x in g.access_log() if x.get("stream")), None))
        assert (line["unsupported"], line["target"], line["status"]) == (FIELD, "up", 200), line
        r = g.post(CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
        assert r.status == 200 and "x-kvblend-fallback" not in r.headers and not up.requests


def test_the_model_is_named_where_the_request_names_none():
    with Upstream() as up, site(up) as g:
        for body in (b' {"messages":[{"role":"user","content":[{"type":"input_audio"}]}]}',
                     b'{"model" : null, "audio":{"voice":"x"},"messages":[]}'):
            assert g.post(CHAT, body).status == 200
            got = up.requests.pop()
            assert got.json() == dict(json.loads(body), model="big"), got.body
    with Upstream() as up, site(up, fields="models=* health=off", model=None) as g:
        body = json.dumps(picture(model="default")).encode()
        assert g.post(CHAT, body).status == 200 and up.requests.pop().body == body
        assert g.post(CHAT, picture()).status == 200 and "model" not in up.requests.pop().json()
    with Upstream() as up, site(up, fields='"models=an alias=there" health=off', model="an alias") as g:
        assert g.post(CHAT, picture()).status == 200 and up.requests.pop().json()["model"] == "there"
    with Upstream() as up, site(up, fields="models=other health=off", model=None) as g:
        r = g.post(CHAT, picture(model="default"))
        assert r.status == 400 and not up.requests, r.body
        assert r.error()["message"].endswith("The fallback did not answer: it does not serve this model.")


def test_what_is_wrong_stays_here():
    """Malformed, unknown, too long: the worker's answer, byte for byte, and nothing leaves."""
    long = {"messages": [{"role": "user", "content": "mill river " * 3000}]}
    with Upstream() as up, site(up) as g, gateway() as alone:
        for ask, code in ((picture(temperature=3), "decimal_above_max_value"),
                          ({"messages": [{"role": "user", "content": [7]}]}, "invalid_value"),
                          ({"messages": []}, "empty_array"), (long, "context_length_exceeded"),
                          ({"messages": [{"role": "user", "content": "a"}], "kvblend": {"x": 1}},
                           "unknown_parameter")):
            r, other = g.post(CHAT, ask), alone.post(CHAT, ask)
            assert r.status == 400 and r.error()["code"] == code, r.body
            assert r.body == other.body
        assert not up.requests and counted(g, "asked") == 0
        r = g.post("/tokenize", {"messages": picture()["messages"]})
        assert r.status == 400 and not up.requests, r.body


def test_nobody_else_is_asked_unless_configured():
    with gateway() as g:
        r = g.post(CHAT, picture(stream=True))
        e = r.error()
        assert r.status == 400 and e["code"] == "unsupported_parameter" and e["param"] == FIELD, r.body
        assert "image_url" in e["message"] and "fallback.upstream" in e["message"], e
        assert counted(g, "unset") == 1 and "x-kvblend-fallback" not in r.headers
    keys = ["--api-key", "open id=a", "--api-key", "shut id=b fallback=false",
            "--api-key", "few id=c models=default", "--api-key", "more id=d models=default,big"]
    with Upstream() as up, site(up, *keys) as g:
        for key, may in (("open", True), ("shut", False), ("few", False), ("more", True)):
            r = g.post(CHAT, picture(model="default"), headers={"Authorization": f"Bearer {key}"})
            assert (r.status == 200) == may == bool(up.requests), (key, r.body)
            assert may or "not passed on" in r.error()["message"], r.body
            up.requests.clear()
        assert counted(g, "forbidden") == 2 and counted(g, "asked") == 2


def test_a_fallback_that_is_down():
    """The worker's word, and what failed; tries end where retries do."""
    with Upstream() as up, site(up, "--retries", "2", "--breaker-failures", "100") as g:
        up.script = {"end": "reset", "stop_at": -1}
        for stream in (False, True):
            r = g.post(CHAT, picture(stream=stream))
            e = r.error()
            assert r.status == 400 and e["code"] == "unsupported_parameter" and e["param"] == FIELD, r.body
            assert "image_url" in e["message"] and "The fallback did not answer: the connection was cut." in e["message"], e
            assert len(up.requests) == 3, len(up.requests)
            assert "x-kvblend-fallback" not in r.headers
            up.requests.clear()
        assert counted(g, "failed") == 2
        until("it is logged", lambda: any(x["status"] == 400 and x["end"] == "upstream" and
                                          x["target"] == "up" for x in g.access_log()))
    with Upstream() as up, site(up) as g:
        up.stop_listening()
        r = g.post(CHAT, picture())
        assert r.status == 400 and "connection refused" in r.error()["message"], r.body
        r = g.post(CHAT, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
        assert r.status == 200, r.body  # the worker is none the worse


def test_what_the_fallback_says_counts():
    with Upstream() as up, site(up) as g:
        for status in (400, 401, 429, 500, 503):
            up.script = {"status": status, "headers": {"X-Kvblend-Fallback": "not ours"}}
            r = g.post(CHAT, picture())
            assert r.status == status and r.error()["code"] == "told", (status, r.body)
            assert [v for k, v in r.pairs if k.lower() == "x-kvblend-fallback"] == [FIELD], r.pairs
        assert len(up.requests) == 5


def test_a_client_that_has_waited_long():
    """It has a stream's headers already: the fallback's events follow, or the worker's error."""
    cannot = {"wait_s": 3, "status": 400, "headers": {"x-kvblend-unsupported": "tools"}}
    ask = dict(picture(stream=True), stub=cannot)
    with Upstream() as up, site(up, "--sse-keepalive", "50ms", "--retries", "0", stub=True) as g:
        for down in (False, True):
            up.script = {"end": "reset", "stop_at": -1} if down else {}
            r = g.post(CHAT, ask)
            assert r.status == 200 and r.body.startswith(b": keep-alive"), r.body
            events = r.events()
            assert events[-1] == b"[DONE]" and up.requests, r.body
            up.requests.clear()
            if down:
                assert "The fallback did not answer" in json.loads(events[0])["error"]["message"], events
            else:
                assert "w2" in json.loads(events[3])["choices"][0]["delta"]["content"], events


def test_a_full_fallback_holds_up_nobody_else():
    """What waits for its room takes no turn from requests for the worker, of which one runs at once."""
    hello = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    with Upstream() as up, site(up, fields="models=big health=off max_inflight=1") as g:
        up.plan = [{"wait_s": 60}]
        held = g.open(CHAT, json.dumps(picture()).encode())
        until("the first is there", lambda: len(up.requests) == 1)
        waits = [g.open(CHAT, json.dumps(picture()).encode()) for _ in range(3)]
        until("the others were refused here", lambda: counted(g, "asked") == 4)
        for _ in range(3):
            assert g.post(CHAT, hello).status == 200
        assert len(up.requests) == 1
        held.close()  # which cancels it there
        for s in waits:
            assert b" 200 " in read_until(s, b"\r\n\r\n")
            s.close()
        until("the upstream saw it leave", lambda: up.requests[0].left_at)
        assert len(up.requests) == 4


def test_a_bound_on_all_requests_counts_the_fallback():
    hello = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    with Upstream() as up, site(up, "--max-inflight", "1") as g:
        up.plan = [{"wait_s": 60}]
        held = g.open(CHAT, json.dumps(picture()).encode())
        until("it is there", lambda: len(up.requests) == 1)
        waits = g.open(CHAT, json.dumps(hello).encode())
        until("the next one waits", lambda: g.metric("kvblend_gateway_queue_length") == 1)
        held.close()
        assert b" 200 " in read_until(waits, b"\r\n\r\n")
        waits.close()


def test_the_configuration_is_checked():
    def check(text):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "c.yaml")
            with open(path, "w") as f:
                f.write(text)
            r = subprocess.run([KVBLEND, "--check", "--config", path], capture_output=True, text=True,
                               env=clean_env(), timeout=60)
            return r.returncode, r.stdout + r.stderr
    ups = 'upstreams: [{url: "http://127.0.0.1:9/v1", name: there}]\n'
    assert check(ups + "fallback: {upstream: there, model: big}\n")[0] == 0
    for text, word in ((ups + "fallback: {upstream: their}\n", '"their"'),
                       ("fallback: {upstream: there}\n", "upstreams"),
                       (ups + "fallback: {model: big}\n", "fallback.upstream")):
        code, said = check(text)
        assert code == 2 and "fallback." in said and word in said, (text, code, said)


def test_a_reload_sets_and_clears_it():
    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        path = os.path.join(d, "c.yaml")

        def write(text):
            with open(path, "w") as f:
                f.write("log: {level: info}\n" + text)

        write("")
        with served(gateway("--upstream", up.entry("models=big health=off"), "--config", path)) as g:
            for fallback, status in (("", 400), ("fallback: {upstream: up, model: big}\n", 200), ("", 400)):
                write(fallback)
                assert unix_request(g.admin[5:], "POST", "/admin/reload").status == 200
                assert g.post(CHAT, picture()).status == status, fallback


if __name__ == "__main__":
    main(globals())
