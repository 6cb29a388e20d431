#!/usr/bin/env python3
"""Keys, limits, CORS, trace context and the access log, as clients and operators see them."""
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from harness import KVBLEND, Missing, clean_env, gateway, main, need, parse_metrics, read_until, until

try:
    import openai
except ImportError:
    openai = None
    other = os.environ.get("KVBLEND_PYTHON")  # a Python that has the package
    if other and not os.environ.get("KVBLEND_REEXEC"):
        os.environ["KVBLEND_REEXEC"] = "1"
        os.execv(other, [other, os.path.abspath(__file__)] + sys.argv[1:])

need(KVBLEND)
CHAT = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def ask(**kw):
    return dict({"model": "stub-model", "messages": [{"role": "user", "content": "hello"}]}, **kw)


def key(name):
    return {"Authorization": "Bearer " + name}


def last(g):
    return g.admin_get("/admin/status")["workers"][0]["status"]["last_completion"]


def limited(r, kind, retry=True):
    e = r.error()
    assert (r.status, e["type"], e["code"]) == (429, kind, "rate_limit_exceeded"), (r.status, e)
    assert r.headers["x-should-retry"] == ("true" if retry else "false"), r.headers
    if retry:
        ms, s = int(r.headers["retry-after-ms"]), int(r.headers["retry-after"])
        assert ms > 0 and s == -(-ms // 1000), (ms, s)
    else:
        assert "retry-after" not in r.headers
    return r.headers


def test_requests_per_minute():
    with gateway("--api-key", "a id=team-a rpm=3", "--api-key", "b", stub=True) as g:
        for i in range(3):
            r = g.post(CHAT, ask(), headers=key("a"))
            assert r.status == 200, r.body
            assert r.headers["x-ratelimit-limit-requests"] == "3"
            assert r.headers["x-ratelimit-remaining-requests"] == str(2 - i), (i, r.headers)
            assert re.fullmatch(r"(\d+m)?[\d.]+(s|ms)", r.headers["x-ratelimit-reset-requests"])
            assert "x-ratelimit-limit-tokens" not in r.headers
        h = limited(g.post(CHAT, ask(), headers=key("a")), "requests")
        assert h["x-ratelimit-remaining-requests"] == "0" and 1 <= int(h["retry-after"]) <= 20, h
        r = g.post(CHAT, ask(), headers=key("b"))
        assert r.status == 200 and not [k for k in r.headers if k.startswith("x-ratelimit")]
        assert g.get("/v1/models", headers=key("a")).status == 200  # costs nothing
        assert g.metric('kvblend_gateway_key_requests_total{key="team-a"}') == 3
        assert g.metric('kvblend_gateway_key_limited_total{key="team-a"}') == 1
        parse_metrics(g.metrics())


def test_a_request_that_never_ran_costs_nothing():
    with gateway("--rpm", "2", "--api-key", "a", "--max-inflight", "1", "--queue-limit", "0",
                 stub=True) as g:
        slow = g.open(CHAT, ask(stub={"wait_s": 60}), headers="Authorization: Bearer a\r\n")
        until("it runs", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 1)
        for _ in range(4):
            r = g.post(CHAT, ask(), headers=key("a"))
            assert r.status == 429 and r.error()["code"] == "server_overloaded", r.body
        slow.close()
        until("it ended", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 0)
        for _ in range(3):
            r = g.post(CHAT, b"{", headers=key("a"))
            assert r.status == 400
        assert g.post(CHAT, ask(), headers=key("a")).status == 200
        limited(g.post(CHAT, ask(), headers=key("a")), "requests")


def test_tokens_are_corrected_by_usage():
    name = 'kvblend_gateway_key_tokens_total{key="a-key",kind="%s"}'
    with gateway("--api-key", "a id=a-key tpm=100000", stub=True) as g:
        def used_by(body):
            before = [g.metric(name % k) or 0 for k in ("prompt", "completion")]
            r = g.post(CHAT, body, headers=key("a"))
            assert r.status == 200, r.body
            after = [g.metric(name % k) for k in ("prompt", "completion")]
            return after[0] - before[0], after[1] - before[1]

        r = g.post(CHAT, ask(max_tokens=60000, stub={"n": 1}), headers=key("a"))
        left = int(r.headers["x-ratelimit-remaining-tokens"])  # what was asked for is held back
        assert 100000 - 60100 < left < 100000 - 60000, left
        assert used_by(ask(max_tokens=99000, stub={"n": 5, "prompt_tokens": 70})) == (70, 5)
        assert used_by(ask(stream=True, stream_options={"include_usage": True},
                           stub={"n": 5, "prompt_tokens": 40, "split": True})) == (40, 5)
        body = ask(max_tokens=6, stream=True)  # no usage: the prompt's estimate and its events
        assert used_by(body) == (len(json.dumps(body)) // 4 + 1, 8)


def compact(body):
    return json.dumps(body, separators=(",", ":")).encode()


def test_an_account_is_charged_to_the_token():
    """A debt says when it will be paid: at 30 tokens a minute each of them is two seconds."""
    plain = {"prompt": "x", "stub": {"n": 5, "prompt_tokens": 40}}
    stream = dict(plain, stream=True, stream_options={"include_usage": True})
    untold = {"prompt": "x", "stream": True, "stub": {"n": 23}}  # an event for each, and the end
    cases = [(plain, 45), (stream, 45), (untold, len(compact(untold)) // 4 + 1 + 24)]
    keys = [x for i in range(len(cases)) for x in ("--api-key", f"k{i} id=id-{i} tpm=30")]
    with gateway(*keys, stub=True) as g:
        for i, (body, used) in enumerate(cases):
            begun, more = time.monotonic(), b'{"prompt":"x"}'
            r = g.post("/v1/completions", compact(body), headers=key(f"k{i}"))
            assert r.status == 200, r.body
            until("it is settled", lambda: g.admin_get("/admin/keys")["keys"][i]["running"] == 0)
            r = g.post("/v1/completions", more, headers=key(f"k{i}"))
            assert (r.status, r.error()["type"]) == (429, "tokens"), r.body
            debt_ms = (used + len(more) // 4 + 1 - 30) * 2000
            passed_ms = (time.monotonic() - begun) * 1000 + 1
            assert debt_ms - passed_ms <= int(r.headers["retry-after-ms"]) <= debt_ms, (debt_ms, r.headers)


def test_token_limits_refuse():
    with gateway("--api-key", "a tpm=1000", stub=True) as g:
        r = g.post(CHAT, ask(pad="x" * 8000), headers=key("a"))  # no minute is that long
        limited(r, "tokens", retry=False)
        assert "Limit 1000" in r.error()["message"]
        # A max_tokens beyond the limit asks for the whole minute; then the worker reports more.
        r = g.post(CHAT, ask(max_tokens=5000), headers=key("a"))
        assert r.status == 200 and r.headers["x-ratelimit-remaining-tokens"] == "0"
        r = g.post(CHAT, ask(max_tokens=1), headers=key("a"))
        assert r.status == 429 and r.error()["type"] == "tokens"
        assert r.headers["x-should-retry"] == "false"  # a debt of minutes: no client waits for that
        assert int(r.headers["retry-after"]) > 60, r.headers
        assert "m" in r.headers["x-ratelimit-reset-tokens"]


def test_failed_requests_cost_no_tokens():
    with gateway("--api-key", "a tpm=1000", stub=True) as g:
        for _ in range(20):
            r = g.post(CHAT, ask(max_tokens=800, stub={"status": 500}), headers=key("a"))
            assert r.status == 500, r.body
        long = dict(ask(max_tokens=1), pad="x" * 2400)  # some 600 tokens
        r = g.post(CHAT, dict(long, stub={"die": "before"}), headers=key("a"))
        assert r.status == 502, r.body  # the worker was lost twice
        r = until("it is back", lambda: [r for r in [g.post(CHAT, long, headers=key("a"))]
                                         if r.status not in (502, 503)])[0]
        assert r.status == 200, r.body
    with gateway("--api-key", "a id=a tpm=1000", stub=True) as g:
        assert g.post(CHAT, ask(stub={"status": 500}), headers=key("a")).status == 500
        assert g.post(CHAT, ask(stub={"die": "before"}), headers=key("a")).status == 502
        x = until("both are settled", lambda: [k for k in g.admin_get("/admin/keys")["keys"] if not k["running"]])[0]
        assert x["tokens_left"] == 1000, x
        for kind in ("prompt", "completion"):
            assert g.metric(f'kvblend_gateway_key_tokens_total{{key="a",kind="{kind}"}}') == 0, kind


def test_requests_at_once():
    with gateway("--api-key", "a concurrency=2", stub=True) as g:
        def run(n, results):
            r = g.post(CHAT, ask(max_tokens=30, stream=True, stub={"token_s": 0.01}), headers=key("a"))
            results.append(r.status)

        held = [g.open(CHAT, ask(max_tokens=100000, stream=True, stub={"token_s": 0.05}),
                       headers="Authorization: Bearer a\r\n") for _ in range(2)]
        for s in held:
            read_until(s, b"data: ")
        h = limited(g.post(CHAT, ask(), headers=key("a")), "requests")
        assert h["retry-after"] == "1"
        held[0].close()  # a stream that its client leaves gives its place back
        until("a place is free", lambda: g.post(CHAT, ask(), headers=key("a")).status == 200)
        held[1].close()
        until("both are free", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 0)
        results = []
        threads = [threading.Thread(target=run, args=(i, results)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert set(results) <= {200, 429} and results.count(200) >= 2, results
        assert g.post(CHAT, ask(), headers=key("a")).status == 200


def test_limits_without_keys():
    with gateway("--rpm", "2", "--key-concurrency", "1", stub=True) as g:
        held = g.open(CHAT, ask(max_tokens=100000, stream=True, stub={"token_s": 0.05}))
        read_until(held, b"data: ")
        limited(g.post(CHAT, ask()), "requests")
        held.close()
        until("it has left", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 0)
        assert g.post(CHAT, ask()).headers["x-ratelimit-remaining-requests"] == "0"
        limited(g.post(CHAT, ask()), "requests")


def test_many_at_once_never_exceed_the_limit():
    with gateway("--api-key", "a rpm=40", stub=True) as g:
        statuses = []

        def run():
            for _ in range(10):
                statuses.append(g.post(CHAT, ask(max_tokens=1), headers=key("a")).status)

        threads = [threading.Thread(target=run) for _ in range(10)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert set(statuses) == {200, 429} and len(statuses) == 100
        assert 40 <= statuses.count(200) <= 80, statuses.count(200)  # a minute, and its refill


def test_models_and_namespace():
    with gateway("--api-key", "a models=stub-* namespace=acme", "--api-key", "b models=gpt-*|other",
                 stub=True) as g:
        sent = dict(key("a"), **{"X-KVBlend-Namespace": "somebody-else"})
        assert g.post(CHAT, ask(), headers=sent).status == 200
        assert last(g)["headers"]["x-kvblend-namespace"] == "acme"
        for body in (ask(), {"messages": ask()["messages"]}):
            r = g.post(CHAT, body, headers=key("b"))
            assert r.status == 403 and r.headers["x-should-retry"] == "false", r.body
            e = r.error()
            assert (e["type"], e["code"]) == ("permission_denied", "model_not_allowed"), e
        assert [m["id"] for m in g.get("/v1/models", headers=key("a")).json()["data"]] == ["stub-model"]
        assert g.get("/v1/models", headers=key("b")).json()["data"] == []
        assert g.get("/v1/models/stub-model", headers=key("b")).status == 404


def test_operators_see_what_is_left():
    with gateway("--api-key", "a id=x rpm=5 namespace=n models=stub*", "--api-key", "b id=y", stub=True) as g:
        assert g.post(CHAT, ask(), headers=key("a")).status == 200
        x, y = g.admin_get("/admin/keys")["keys"]
        assert x.pop("work_share") == 1 and y.pop("work_share") == 0, (x, y)
        for k in (x, y):
            assert (k.pop("weight"), k.pop("priority"), k.pop("waiting")) == (1, 5, 0), k
        assert x == {"id": "x", "namespace": "n", "models": "stub*", "running": 0, "concurrency": 0,
                     "rpm": 5, "tpm": 0, "requests_left": 4}, x
        assert y == {"id": "y", "namespace": "y", "running": 0, "concurrency": 0, "rpm": 0, "tpm": 0}, y


def test_hashed_keys_and_reload():
    made = subprocess.run([KVBLEND, "--hash-key"], input="s3cret\n", capture_output=True, text=True,
                          env=clean_env(), check=True).stdout.strip()
    salt, digest = made.split(":")[1:]
    assert hashlib.sha256((salt + "s3cret").encode()).hexdigest() == digest
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "keys")

        def write(text):
            with open(path, "w") as f:
                f.write(text)

        write(f"# salted\n{made} id=one rpm=3\n")
        with gateway("--api-key-file", path, stub=True) as g:
            assert g.post(CHAT, ask(), headers=key(made)).status == 401
            assert g.post(CHAT, ask(), headers=key("s3cret")).status == 200
            running = g.open(CHAT, ask(max_tokens=100000, stream=True, stub={"token_s": 0.05}),
                             headers="Authorization: Bearer s3cret\r\n")
            read_until(running, b"data: ")
            write("new id=one rpm=3\n")  # another key of the same account
            g.proc.send_signal(signal.SIGHUP)
            until("the old key is out",
                  lambda: g.get("/v1/models", headers=key("s3cret")).status == 401)
            assert b"data: " in running.recv(65536)  # the old request goes on
            r = g.post(CHAT, ask(), headers=key("new"))
            assert r.status == 200 and r.headers["x-ratelimit-remaining-requests"] == "0", r.headers
            running.close()
            write("new id=one rpm=wrong\n")
            g.proc.send_signal(signal.SIGHUP)
            until("the refusal is logged", lambda: "config.reload " in g.log())
            assert g.get("/v1/models", headers=key("new")).status == 200
            assert "s3cret" not in g.log() + json.dumps(g.access_log())
            until("its id is logged", lambda: "one" in {x.get("key_id") for x in g.access_log()})
        r = subprocess.run([KVBLEND, "--check", "--api-key-file", path], capture_output=True, text=True,
                           env=clean_env())
        assert r.returncode == 2 and ":1: rpm= has a value" in r.stderr, r


def test_cors():
    origin = "https://app.example"
    ask_for = {"Origin": origin, "Access-Control-Request-Method": "POST",
               "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}
    with gateway("--api-key", "a rpm=1", "--cors-origin", origin, stub=True) as g:
        r = g.request("OPTIONS", CHAT, headers=ask_for)
        assert r.status == 204 and r.body == b"" and "content-length" not in r.headers
        assert r.headers["access-control-allow-origin"] == origin
        assert r.headers["access-control-allow-methods"] == "POST"
        assert r.headers["access-control-allow-headers"] == ask_for["Access-Control-Request-Headers"]
        assert r.headers["access-control-max-age"] == "600"
        r = g.request("OPTIONS", CHAT, headers=dict(ask_for, Origin="https://evil.example"))
        assert r.status == 204 and "access-control-allow-origin" not in r.headers
        foreign = {"Access-Control-Allow-Origin": "*"}
        r = g.post(CHAT, ask(stub={"headers": foreign}), headers=dict(key("a"), Origin=origin))
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin
        assert "x-ratelimit-remaining-requests" in r.headers["access-control-expose-headers"]
        for r in (g.post(CHAT, ask(), headers=dict(key("a"), Origin=origin)),
                  g.post(CHAT, ask(), headers={"Origin": origin}), g.get("/x", headers={"Origin": origin})):
            assert r.status in (429, 401, 404) and r.headers["access-control-allow-origin"] == origin
        assert "access-control-allow-origin" not in g.get("/health").headers
    with gateway(stub=True) as g:
        assert g.request("OPTIONS", CHAT, headers=ask_for).status == 405
        r = g.post(CHAT, ask(), headers={"Origin": origin})
        assert not [k for k in r.headers if k.startswith("access-control")]


def test_trace_and_request_id():
    parent = "b7ad6b7169203331"
    with gateway(stub=True) as g:
        r = g.post(CHAT, ask(), headers={"traceparent": f"00-{TRACE}-{parent}-01", "tracestate": "v=1",
                                         "x-request-id": "trace-me"})
        assert r.headers["x-request-id"] == "trace-me"
        h = last(g)["headers"]
        version, trace, span, flags = h["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "01") and span != parent and len(span) == 16
        assert h["tracestate"] == "v=1" and h["x-request-id"] == "trace-me"
        line = until("the line", lambda: [x for x in g.access_log() if x["request_id"] == "trace-me"])[0]
        assert (line["trace_id"], line["span_id"], line["parent_id"]) == (TRACE, span, parent), line
        for bad in ("garbage", f"00-{TRACE.upper()}-{parent}-01", f"ff-{TRACE}-{parent}-01"):
            r = g.post(CHAT, ask(), headers={"traceparent": bad, "tracestate": "v=1"})
            assert r.status == 200
            assert not {"traceparent", "tracestate"} & set(last(g)["headers"]), bad
        r = g.post(CHAT, ask(), headers={"x-request-id": "no spaces please"})
        assert re.fullmatch(r"req_[0-9a-f]{32}", r.headers["x-request-id"])


def test_access_log():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "access.jsonl")

        def lines():
            with open(path) as f:
                return [json.loads(x) for x in f]

        with gateway("--access-log", path, "--api-key", "secret-key id=team", stub=True) as g:
            body = ask(messages=[{"role": "user", "content": "private words"}], max_tokens=7,
                       stub={"prompt_tokens": 50, "cached_tokens": 30})
            r = g.post(CHAT + "?token=hidden", body, headers=key("secret-key"))
            assert r.status == 200
            stream = dict(body, stream=True, stream_options={"include_usage": True})
            assert g.post(CHAT, stream, headers=key("secret-key")).status == 200
            assert g.post(CHAT, body, headers=key("wrong-key")).status == 401
            first, second, third = until("three lines", lambda: len(lines()) == 3 and lines())
            for x in (first, second):
                assert x["key_id"] == "team" and x["status"] == 200 and x["model"] == "stub-model"
                assert (x["prompt_tokens"], x["completion_tokens"], x["cached_tokens"]) == (50, 7, 30)
                assert x["path"] == CHAT and x["method"] == "POST" and x["target"] == "worker-0"
                assert 0 <= x["queue_ms"] <= x["ttft_ms"] <= x["dur_ms"] and x["bytes_in"] > 0
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", x["ts"])
            assert first["request_id"] == r.headers["x-request-id"] and second["stream"]
            assert third["status"] == 401 and third["end"] == "refused" and "key_id" not in third
            with open(path) as f:
                text = f.read()
            for word in ("private words", "secret-key", "wrong-key", "hidden"):
                assert word not in text, word
            for n, sig in enumerate((signal.SIGUSR1, signal.SIGHUP)):
                os.rename(path, path + str(n))
                g.proc.send_signal(sig)
                until("the file is back", lambda: os.path.exists(path))
                g.post(CHAT, body, headers=key("secret-key"))
                until("its line", lambda: len(lines()) == 1)
            assert g.metric("kvblend_gateway_log_lines_lost_total") == 0
    with gateway("--access-log", "-", "--max-body", "1KiB", stub=True) as g:
        r = g.post(CHAT, ask(pad="x" * 2000), headers={"x-request-id": "too-big"})
        assert r.status == 413 and r.headers["x-request-id"] == "too-big", r.body
        line = until("a line on standard output", lambda: g.access_log())[0]
        assert (line["status"], line["end"], line["request_id"]) == (413, "refused", "too-big"), line


def test_metrics_stay_bounded():
    keys = []
    for i in range(100):
        keys += ["--api-key", f"k{i} id=key-{i}"]
    with gateway(*keys, stub=True) as g:
        for i in range(100):
            assert g.post(CHAT, ask(max_tokens=1), headers=key(f"k{i}")).status == 200
        page = parse_metrics(g.metrics())
        samples = page["kvblend_gateway_key_requests_total"][1]
        assert len(samples) == 65, len(samples)
        assert sum(v for _, _, v in samples) == 100
        assert {"key": "other"} in [labels for _, labels, _ in samples]


def test_official_client():
    if not openai:
        raise Missing("the openai package is not installed")
    with gateway("--api-key", "a rpm=1", "--api-key", "b models=x", stub=True) as g:
        def client(k, **kw):
            return openai.OpenAI(base_url=f"http://127.0.0.1:{g.port}/v1", api_key=k, timeout=60, **kw)

        def chat(c):
            return c.chat.completions.with_raw_response.create(
                model="stub-model", messages=[{"role": "user", "content": "x"}], max_tokens=1)

        r = chat(client("a"))
        assert r.headers["x-ratelimit-remaining-requests"] == "0"
        assert r.parse().usage.completion_tokens == 1 and r.parse()._request_id
        try:
            chat(client("a", max_retries=0))
            raise AssertionError("no limit")
        except openai.RateLimitError as e:
            assert e.code == "rate_limit_exceeded" and 0 < int(e.response.headers["retry-after"]) <= 60
        try:
            chat(client("b"))
            raise AssertionError("allowed")
        except openai.PermissionDeniedError as e:
            assert e.code == "model_not_allowed"


if __name__ == "__main__":
    main(globals())
