#!/usr/bin/env python3
"""When upstreams fail or clients leave: retries, fail-over, breaker, health, aborts, slow readers.

Scripted upstreams. Where an order of tries matters the failing upstream has the better priority.
"""
import json
import os
import re
import socket
import threading
import time

from harness import KVBLEND, main, need, parse_events, proxy, read_until, until
from upstream import Upstream

need(KVBLEND)
CHAT = "/v1/chat/completions"
ANY = "models=* health=off"
DEAF = ("--breaker-failures", "255")  # where a test fails more often than breakers bear


def ask(**kw):
    return dict({"model": "up-model", "messages": [{"role": "user", "content": "hello"}]}, **kw)


def pair(a, b, *args, first="", **kw):
    """kvblend in front of a, and of b for when a fails."""
    return proxy([a.entry(f"{ANY} priority=0 {first}"), b.entry(f"{ANY} priority=1")], *args, **kw)


def dechunk(raw):
    """(head, data, whole) of one raw chunked answer, as far as it came."""
    head, rest = raw.split(b"\r\n\r\n", 1)
    assert b"chunked" in head.lower(), head
    data = b""
    while True:
        line, found, rest = rest.partition(b"\r\n")
        if not found:
            return head, data, False
        n = int(line, 16)
        if n == 0:
            return head, data, rest == b"\r\n"
        data += rest[:n]
        if len(rest) < n + 2:
            return head, data, False
        rest = rest[n + 2:]


def read_all(sock):
    pieces = []
    try:
        while True:
            pieces.append(sock.recv(1 << 16))
            if not pieces[-1]:
                return b"".join(pieces)
    except ConnectionError:
        return b"".join(pieces)
    finally:
        sock.close()


# ---- before the first byte ----

FAILURES = {
    "reset before the head": {"end": "reset", "stop_at": -1},
    "closed before the head": {"end": "close", "stop_at": -1},
    "half a head": {"raw": "HTTP/1.1 200 OK\r\nConte"},
    "no HTTP": {"raw": "hello there\r\n\r\n"},
    "429": {"status": 429},
    "502": {"status": 502},
    "503": {"status": 503},
    "504": {"status": 504},
    "silent": {"wait_s": 3600},
}


def test_failover_before_the_first_byte():
    with Upstream("a") as a, Upstream("b") as b:
        with pair(a, b, *DEAF, first="first_byte_timeout=300ms") as g:
            for i, (name, script) in enumerate(FAILURES.items()):
                for stream in (False, True):
                    a.script = script
                    n = len(b.requests)
                    body = json.dumps(ask(stream=stream)).encode()
                    r = g.post(CHAT, body)
                    assert r.status == 200, (name, stream, r.status, r.body)
                    assert b"told" not in r.body and b"error" not in r.body, (name, r.body)
                    assert len(b.requests) == n + 1, (name, stream)
                    assert a.requests[-1].body == b.requests[-1].body == body
            assert g.metric("kvblend_gateway_failovers_total") == 2 * len(FAILURES)
            a.stop_listening()
            assert g.post(CHAT, ask()).status == 200


def test_what_is_not_tried_elsewhere():
    """Answers that another one would give as well, and those that cost a generation."""
    with Upstream("a") as a, Upstream("b") as b, pair(a, b, *DEAF) as g:
        for status in (400, 401, 403, 404, 413, 422, 500):
            a.script = {"status": status}
            assert g.post(CHAT, ask()).status == status
        assert not b.requests and len(a.requests) == 7


def test_all_fail():
    """The last upstream's own words are the answer; lost connections are 502."""
    with Upstream("a") as a, Upstream("b") as b, pair(a, b, *DEAF) as g:
        a.script, b.script = {"status": 503, "body": "first"}, {"status": 429, "body": "second"}
        r = g.post(CHAT, ask())
        assert (r.status, r.body) in ((429, b"second"), (503, b"first")), (r.status, r.body)
        for up in (a, b):
            up.script = {"end": "reset", "stop_at": -1}
        for stream in (False, True):
            r = g.post(CHAT, ask(stream=stream))
            assert r.status == 502 and r.error()["code"] == "upstream_unreachable", r.body
        for up in (a, b):
            up.stop_listening()
        r = g.post(CHAT, ask())
        assert r.status in (502, 503) and r.error(), r.body


def test_retries_are_bounded():
    for retries, most in ((0, 1), (1, 2), (2, 3)):
        ups = [Upstream(f"u{i}") for i in range(5)]
        try:
            for u in ups:
                u.script = {"status": 503}
            with proxy([u.entry(ANY) for u in ups], "--retries", str(retries), *DEAF) as g:
                assert g.post(CHAT, ask()).status == 503
                n = sum(len(u.requests) for u in ups)
                assert n == most, (retries, n)
                assert max(len(u.requests) for u in ups) == 1
        finally:
            for u in ups:
                u.close()


def test_first_byte_timeout():
    with Upstream() as up, proxy([up.entry(ANY + " first_byte_timeout=200ms")], "--retries", "0") as g:
        for stream in (False, True):
            r = g.post(CHAT, ask(stream=stream, script={"wait_s": 3600}))
            assert r.status == 504 and r.error()["code"] == "upstream_timeout", r.body
        until("it was let go", lambda: all(r.left_at for r in up.requests))


def test_connect_timeout():
    """A listener whose queue is full answers no SYN: connecting takes for ever."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    address = full.getsockname()
    fill = [socket.socket() for _ in range(4)]
    for s in fill:
        s.setblocking(False)
        s.connect_ex(address)
    with Upstream("b") as b:
        dead = f"http://127.0.0.1:{address[1]}/v1 name=a {ANY} connect_timeout=200ms"
        with proxy([dead + " priority=0", b.entry(ANY + " priority=1")], ready=False) as g:
            t0 = time.monotonic()
            r = g.post(CHAT, ask())
            assert r.status == 200 and len(b.requests) == 1, r.body
            assert time.monotonic() - t0 < 10
        with proxy([dead], "--retries", "0", ready=False) as g:
            r = g.post(CHAT, ask())
            assert r.status in (502, 504) and r.error(), r.body
    for s in fill + [full]:
        s.close()


def test_total_timeout():
    with Upstream() as up:
        with proxy([up.entry(ANY + " total_timeout=500ms")], "--retries", "0") as g:
            r = g.post(CHAT, ask(stream=True, max_tokens=1000, script={"token_s": 0.05}))
            events = r.events()
            assert events[-1] == b"[DONE]", events[-3:]
            assert json.loads(events[-2])["error"]["code"] == "upstream_timeout", events[-2]
            r = g.post(CHAT, ask(script={"wait_s": 3600}))
            assert r.status == 504 and r.error()["code"] == "upstream_timeout"


def test_stale_connections_are_harmless():
    """Keep-alive connections that the upstream closes at the wrong moment: nobody notices."""
    with Upstream() as up, proxy([up.entry(ANY)], *DEAF) as g:
        for close in ("silent", "announce", "reset"):
            up.script = {"close": close}
            for i in range(40):
                r = g.post(CHAT, ask())
                assert r.status == 200, (close, i, r.status, r.body)
        up.script = {}
        for _ in range(20):
            assert g.post(CHAT, ask()).status == 200
            up.close_idle()
        n = up.n_accepted
        for _ in range(20):
            assert g.post(CHAT, ask()).status == 200
        assert up.n_accepted - n <= 2, "connections are not used again"


def test_what_a_dying_connection_took_along_is_not_repeated():
    """A kept connection that ends without a word: a completion is sent again, what may have been done is not."""
    with Upstream() as up, proxy([up.entry(ANY + " paths=batches")], *DEAF) as g:
        for path, body, status, times in ((CHAT, ask(), 200, 2), ("/v1/batches", {"endpoint": CHAT}, 502, 1)):
            assert g.post(path, body).status == 200  # a connection to keep
            n = len(up.requests)
            up.plan = [{"end": "close", "stop_at": -1}]
            assert g.post(path, body).status == status, path
            assert len(up.requests) - n == times, path


def test_interim_answers():
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        for early in (100, 102, 103):
            for stream in (False, True):
                r = g.post(CHAT, ask(stream=stream, script={"early": early}))
                assert r.status == 200 and r.body, (early, r.status)


# ---- before the first token of a stream ----

SSE = {"type": "text/event-stream", "framing": "chunked"}
COMMENT = ": working\n\n"


def chunk(*choices, **kw):
    return "data: " + json.dumps(dict({"id": "first", "choices": choices}, **kw)) + "\n\n"


def role(index=0):
    return {"index": index, "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None, "finish_reason": None}


# What a target may say without a token.
OPENINGS = {
    "headers": "",
    "a comment": COMMENT,
    "comments": COMMENT * 3,
    "a role": chunk(role()),
    "two roles": chunk(role(0)) + COMMENT + chunk(role(1)),
    "two roles in one": chunk(role(0), role(1)),
    "an empty text": chunk({"index": 0, "text": "", "finish_reason": None}),
    "no choices": chunk(prompt_filter_results=[{"prompt_index": 0}]),
    "half a token": COMMENT + chunk({"index": 0, "delta": {"content": "half"}})[:-2],
}


def settled(g, *names):
    until("nothing is left", lambda: g.metric("kvblend_requests_active") == 0)
    for name in names:
        assert g.metric('kvblend_gateway_upstream_inflight{target="%s"}' % name) == 0
    for k in g.admin_get("/admin/keys")["keys"]:
        assert k["running"] == 0, k


def all_logged(g, n):
    def lines():
        return [x for x in g.access_log() if x["path"] == CHAT]
    until("all are logged", lambda: len(lines()) >= n)
    return lines()


def test_a_stream_without_a_token_is_sent_again():
    key = {"Authorization": "Bearer k"}
    with Upstream("a") as a, Upstream("b") as b:
        with pair(a, b, *DEAF, "--api-key", "k id=k", first="idle_timeout=300ms") as g:
            n = 0
            for name, said in OPENINGS.items():
                for end in ("reset", "close", "hold"):
                    a.script = dict(SSE, body=said + "x" * 9, stop_at=len(said), end=end)
                    body = json.dumps(ask(stream=True, max_tokens=3,
                                          stream_options={"include_usage": True})).encode()
                    r = g.post(CHAT, body, headers=key)
                    n += 1
                    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream")
                    events = r.events()
                    assert b"error" not in r.body and b"first" not in r.body, (name, end, r.body)
                    assert b"half" not in r.body, (name, end, r.body)
                    assert len(events) == 7 and events[-1] == b"[DONE]", (name, end, r.body)
                    assert len(b.requests) == n and a.requests[-1].body == b.requests[-1].body == body
            settled(g, "a", "b")
            logged = all_logged(g, n)
            assert {(x["status"], x["end"], x["retries"], x["target"], x["completion_tokens"])
                    for x in logged} == {(200, "ok", 1, "b", 3)}
            for kind, tokens in (("prompt", 7), ("completion", 3)):  # once each, as the second one says
                name = 'kvblend_gateway_key_tokens_total{key="k",kind="%s"}' % kind
                assert g.metric(name) == tokens * n, (kind, g.metric(name))
            assert g.metric("kvblend_gateway_failovers_total") == n


def test_progress_is_passed_on_and_counts_for_nothing():
    """At once, before any token: what dies after it is sent again, and it is no token to anybody."""
    said = "".join(chunk({"index": 0, "delta": {"role": "assistant", "content": None}},
                         prompt_progress={"total": 9, "cache": 0, "processed": n, "time_ms": n})
                   for n in range(5))
    with Upstream("a") as a, Upstream("b") as b:
        with pair(a, b, *DEAF, "--api-key", "k id=k", first="idle_timeout=300ms") as g:
            for n, end in enumerate(("reset", "close", "hold"), 1):
                a.script = dict(SSE, body=said + "x" * 9, stop_at=len(said), end=end)
                r = g.post(CHAT, ask(stream=True, max_tokens=3), headers={"Authorization": "Bearer k"})
                assert r.body.startswith(said.encode()), (end, r.body)
                events = r.events()
                assert len(events) == 5 + 6 and events[-1] == b"[DONE]" and b"error" not in r.body, r.body
                assert len(b.requests) == n
            settled(g, "a", "b")
            name = 'kvblend_gateway_key_tokens_total{key="k",kind="completion"}'
            assert g.metric(name) == 3 * 5, g.metric(name)  # b's events but [DONE], three times


def test_the_second_target_of_a_stream_refuses():
    """The client has a stream's headers: what is no stream comes as an error frame."""
    with Upstream("a") as a, Upstream("b") as b:
        a.script = dict(SSE, body=COMMENT + "x", stop_at=len(COMMENT), end="reset")
        with pair(a, b, *DEAF, "--api-key", "k id=k") as g:
            for script, code in (({"status": 400}, "told"), ({"status": 429}, "told"),
                                 ({"end": "reset", "stop_at": -1}, "upstream_unreachable"),
                                 ({"body": "{}"}, "upstream_unreachable"), (a.script, "upstream_unreachable")):
                b.script = script
                r = g.post(CHAT, ask(stream=True), headers={"Authorization": "Bearer k"})
                events = r.events()
                assert r.status == 200 and len(events) == 2 and events[1] == b"[DONE]", (script, r.body)
                assert json.loads(events[0])["error"]["code"] == code, (script, r.body)
            settled(g, "a", "b")
            for kind in ("prompt", "completion"):  # the client got nothing
                name = 'kvblend_gateway_key_tokens_total{key="k",kind="%s"}' % kind
                assert not g.metric(name), (kind, g.metric(name))


def test_streams_without_a_token_are_bounded():
    with Upstream() as up, proxy([up.entry(ANY)], *DEAF, "--retries", "2") as g:
        up.script = dict(SSE, body=COMMENT + "x", stop_at=len(COMMENT), end="close")
        events = g.post(CHAT, ask(stream=True)).events()
        assert len(events) == 2 and json.loads(events[0])["error"], events
        assert len(up.requests) == 3, len(up.requests)


def test_what_only_opens_an_answer_arrives_with_it():
    """Held back until the first token, then passed on as it came; the end alone lets it go, too."""
    token = chunk({"index": 0, "delta": {"content": "x"}})
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        for said in OPENINGS.values():
            for rest in (token + "data: [DONE]\n\n", "data: [DONE]\n\n", ""):
                for split in (0, 1):
                    up.script = dict(SSE, body=said + rest, split=split)
                    r = g.post(CHAT, ask(stream=True))
                    assert r.body == (said + rest).encode(), (said, rest, r.body)


def test_ttft_is_the_first_tokens():
    """Neither headers, a comment nor a role stop the clock."""
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        up.script = {"token_s": 0.4, "n": 1, "early": 102}
        assert len(g.post(CHAT, ask(stream=True)).events()) == 4
        up.script = {"body_wait_s": 0.4, "n": 1}
        assert len(g.post(CHAT, ask(stream=True)).events()) == 4
        up.script = dict(SSE, body=COMMENT)
        g.post(CHAT, ask(stream=True))
        logged = all_logged(g, 3)
        assert all(400 <= x["ttft_ms"] <= x["dur_ms"] for x in logged[:2]), logged
        assert "ttft_ms" not in logged[2], logged[2]  # no token, no time
        assert g.admin_get("/admin/targets")["targets"][0]["ttfb_ms"] >= 400


# ---- after it ----

DEATHS = {
    "reset": {"stop_at": 420, "end": "reset"},
    "closed": {"stop_at": 420, "end": "close"},
    "bad chunk": {"raw": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                         "Transfer-Encoding: chunked\r\n\r\nf\r\ndata: {\"a\":1}\n\n\r\nZZ\r\n"},
    "short of its length": {"stop_at": 50, "end": "close", "framing": "length",
                            "body": "data: {\"a\":1}\n\ndata: {\"b\"" + "x" * 100,
                            "type": "text/event-stream"},
    "idle": {"stop_at": 420, "end": "hold"},
}


def test_stream_death_is_an_error_frame():
    """After the first token nothing is tried again; whole events, one error, [DONE], a clean end."""
    with Upstream("a") as a, Upstream("b") as b:
        with pair(a, b, *DEAF, first="idle_timeout=300ms") as g:
            for name, script in DEATHS.items():
                for path in (CHAT, "/v1/completions"):
                    s = g.open(path, ask(stream=True, max_tokens=3, script=script), headers=
                               "Connection: close\r\n")
                    _, data, whole = dechunk(read_all(s))
                    assert whole, (name, data)
                    events = parse_events(data)
                    assert events[-1] == b"[DONE]", (name, data)
                    e = json.loads(events[-2])["error"]
                    code = "upstream_timeout" if name == "idle" else "upstream_unreachable"
                    assert e["code"] == code and e["message"] and e["type"], (name, e)
                    for x in events[:-2]:
                        json.loads(x)
            assert not b.requests, "tried again after the first byte"


def test_half_an_event_is_not_shown():
    whole = 'data: {"whole":1}\n\n'
    with Upstream() as up, proxy([up.entry(ANY)], *DEAF) as g:
        for cut in range(len(whole) + 1, 2 * len(whole)):
            up.script = {"body": whole * 3, "type": "text/event-stream", "framing": "chunked",
                         "stop_at": cut, "end": "close", "split": 7}
            r = g.post(CHAT, ask(stream=True))
            events = r.events()
            assert events[0] == b'{"whole":1}' and len(events) == 3, (cut, r.body)
            assert json.loads(events[1])["error"] and events[2] == b"[DONE]", (cut, r.body)


def test_plain_death_never_looks_whole():
    with Upstream() as up, proxy([up.entry(ANY)], *DEAF) as g:
        for size in (100, 100000, 3000000):
            for framing in ("length", "chunked"):
                for end in ("close", "reset"):
                    up.script = {"body": "x" * size, "framing": framing, "end": end,
                                "stop_at": size // 2}
                    raw = read_all(g.open(CHAT, ask(), headers="Connection: close\r\n"))
                    status = int(raw[9:12]) if raw else 0
                    if status == 200:
                        head, body = raw.split(b"\r\n\r\n", 1)
                        length = re.search(rb"(?i)content-length: (\d+)", head)
                        if length:
                            assert len(body) < int(length.group(1)), (size, framing, end)
                        else:
                            assert not dechunk(raw)[2], (size, framing, end)
                    else:
                        assert status in (0, 502), raw[:300]


def test_idle_timeout_of_a_plain_answer():
    with Upstream() as up, proxy([up.entry(ANY + " idle_timeout=300ms")], "--retries", "0") as g:
        up.script = {"body": "x" * 1000, "stop_at": 500, "end": "hold"}
        raw = read_all(g.open(CHAT, ask(), headers="Connection: close\r\n"))
        assert b" 504 " in raw[:20] or len(raw.split(b"\r\n\r\n", 1)[1]) < 1000, raw
        until("it was let go", lambda: up.requests[0].left_at)


# ---- breaker, health ----

def test_breaker():
    with Upstream() as up:
        up.script = {"end": "reset", "stop_at": -1}
        with proxy([up.entry(ANY)], "--retries", "0", "--breaker-failures", "3", "--breaker-open",
                   "700ms") as g:
            codes = [g.post(CHAT, ask()).status for _ in range(3)]
            assert codes == [502] * 3, codes
            until("the breaker opens", lambda: open_breakers(g) == 1)
            n = len(up.requests)
            r = g.post(CHAT, ask(), headers={"x-test": "open"})
            if len(up.requests) == n:  # not yet the time for the one try
                assert r.status in (502, 503) and r.error(), r.body
                assert r.headers["x-should-retry"] in ("true", "false"), r.headers
            up.script = {}
            until("it serves again", lambda: g.post(CHAT, ask()).status == 200)
            until("the breaker is closed", lambda: open_breakers(g) == 0)
            for _ in range(5):
                assert g.post(CHAT, ask()).status == 200


def open_breakers(g):
    return g.metric('kvblend_gateway_upstream_breaker_open{target="up"}')


def test_breaker_spares_the_upstream():
    """Open: nothing but its one try gets there, everybody is served elsewhere."""
    with Upstream("a") as a, Upstream("b") as b:
        a.script = {"status": 503}
        with pair(a, b, "--breaker-failures", "3", "--breaker-open", "600s") as g:
            for _ in range(30):
                assert g.post(CHAT, ask()).status == 200
            assert len(b.requests) == 30 and len(a.requests) <= 4, len(a.requests)


def test_clients_that_leave_open_no_breaker():
    with Upstream() as up, proxy([up.entry(ANY)], "--breaker-failures", "3") as g:
        for i in range(10):
            s = g.open(CHAT, ask(script={"wait_s": 3600}))
            until("it arrived", lambda: len(up.requests) == i + 1)
            s.close()
            until("it left", lambda: up.requests[-1].left_at)
        assert g.post(CHAT, ask()).status == 200


def test_a_long_stream_shows_that_it_is_back():
    """The breaker's one try may be a stream of minutes: its beginning tells enough."""
    with Upstream() as up:
        up.script = {"status": 500}
        with proxy([up.entry(ANY)], "--retries", "0", "--breaker-failures", "3", "--breaker-open",
                   "300ms") as g:
            assert [g.post(CHAT, ask()).status for _ in range(3)] == [500] * 3
            until("the breaker opens", lambda: open_breakers(g) == 1)
            up.script = {}
            s = g.open(CHAT, ask(stream=True, script={"n": 100000, "token_s": 0.05}))
            read_until(s, b"data: ")
            for _ in range(5):
                assert g.post(CHAT, ask(), timeout=10).status == 200
            assert open_breakers(g) == 0
            s.close()


def test_a_health_check_that_drips():
    """Bytes that come one by one, for ever, are no sign of health."""
    server = socket.create_server(("127.0.0.1", 0))

    def drip():
        while True:
            try:
                s, _ = server.accept()
                s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while True:
                    s.sendall(b"x")
                    time.sleep(0.2)
            except ConnectionError:
                continue
            except OSError:
                return
    threading.Thread(target=drip, daemon=True).start()
    with proxy([f"http://127.0.0.1:{server.getsockname()[1]} name=up health=/health"], ready=False) as g:
        until("it is known to be down", lambda: state_of(g, "up") == "down")
    server.close()


def test_active_health():
    with Upstream("a") as a, Upstream("b") as b:
        health = "health=/health health_interval=100ms"
        with proxy([a.entry(f"models=* {health} priority=0"), b.entry(f"models=* {health} priority=1")],
                   *DEAF) as g:
            assert g.post(CHAT, ask()).status == 200 and len(a.requests) == 1
            a.healthy = False
            until("it is taken out", lambda: up_state(g, "a") == 0)
            n = len(a.requests)
            for _ in range(5):
                assert g.post(CHAT, ask()).status == 200
            assert len(a.requests) == n and len(b.requests) >= 5
            a.healthy = True
            until("it is back", lambda: up_state(g, "a") == 1)
            assert g.post(CHAT, ask()).status == 200 and len(a.requests) == n + 1
            b.healthy = a.healthy = False
            until("nobody is ready", lambda: g.get("/ready").status == 503)
            r = g.post(CHAT, ask())
            assert r.status in (502, 503) and r.error(), r.body
            assert g.get("/health").status == 200
            a.healthy = True
            until("ready again", lambda: g.get("/ready").status == 200)
            # Globs are resolved by the upstream's list, for GET /v1/models.
            assert {p.path for p in a.probes + b.probes} <= {"/health", "/v1/models"}


def up_state(g, name):
    return g.metric('kvblend_gateway_upstream_up{target="%s"}' % name)


def state_of(g, name):
    return {t["name"]: t["state"] for t in g.admin_get("/admin/targets")["targets"]}[name]


def test_a_dead_upstream_comes_back():
    with Upstream() as up, proxy([up.entry("models=* health_interval=100ms")], *DEAF) as g:
        assert g.post(CHAT, ask()).status == 200
        up.stop_listening()
        assert g.post(CHAT, ask()).status in (502, 503)
        up.listen()
        until("it serves again", lambda: g.post(CHAT, ask()).status == 200)


# ---- clients that leave ----

def leave_ms(g, up, body, path=CHAT, marker=None):
    """How long after the client's end the upstream's connection ended."""
    n = len(up.requests)
    s = g.open(path, body)
    until("it arrived", lambda: len(up.requests) > n)
    if marker:
        read_until(s, marker)
    t0 = time.monotonic()
    s.close()
    until("the upstream noticed", lambda: up.requests[n].left_at)
    until("nothing is left", lambda: g.metric("kvblend_requests_active") == 0)
    return (up.requests[n].left_at - t0) * 1e3


def test_abort_reaches_the_upstream():
    """At every stage, within 100 ms: the best of five tries, because the machine may be busy."""
    long = {"n": 100000, "token_s": 0.05}
    stages = {
        "plain, before the head": (ask(script={"wait_s": 3600}), None),
        "plain, between head and body": (ask(script={"body_wait_s": 3600}), None),
        "plain, in the body": (ask(script={"body": "x" * 100000, "stop_at": 70000, "end": "hold"}),
                               None),
        "stream, before the head": (ask(stream=True, script={"wait_s": 3600}), None),
        "stream, before the first event": (ask(stream=True, script={"body_wait_s": 3600}), None),
        "stream, between events": (ask(stream=True, script=long), b"w3 "),
        "stream, silent": (ask(stream=True, script={"stop_at": 900, "end": "hold"}), b"w1 "),
        "stream, flooding": (ask(stream=True, script={"n": 1000000, "pad": 1000}), b"w3 "),
    }
    with Upstream() as up, proxy([up.entry(ANY)]) as g:
        for name, (body, marker) in stages.items():
            for path in (CHAT, "/v1/images/generations") if "stream" not in name else (CHAT,):
                took = []
                while len(took) < 5 and (not took or min(took) > 100):
                    took.append(leave_ms(g, up, body, path, marker))
                print(f"     abort, {name}: {min(took):.1f} ms")
                assert min(took) < 100, (name, took)
        until("all are logged", lambda: len(g.access_log()) >= len(stages))
        assert {x["status"] for x in g.access_log()} == {499}
        assert {x["end"] for x in g.access_log()} == {"client_abort"}


def test_leaving_the_queue():
    with Upstream() as up, proxy([up.entry(ANY)], "--max-inflight", "1") as g:
        first = g.open(CHAT, ask(script={"wait_s": 3600}))
        until("it runs", lambda: len(up.requests) == 1)
        for _ in range(3):
            s = g.open(CHAT, ask())
            until("it waits", lambda: waiting(g) == 1)
            s.close()
            until("it is gone", lambda: waiting(g) == 0)
        first.close()
        until("the place is free", lambda: g.metric("kvblend_requests_active") == 0)
        assert g.post(CHAT, ask()).status == 200 and len(up.requests) == 2


def waiting(g):
    return g.admin_get("/admin/status")["gateway"]["waiting"]


def test_leaving_while_it_is_tried_elsewhere():
    with Upstream("a") as a, Upstream("b") as b, pair(a, b) as g:
        a.script, b.script = {"status": 503}, {"wait_s": 3600}
        s = g.open(CHAT, ask())
        until("the second has it", lambda: len(b.requests) == 1)
        s.close()
        until("it was let go", lambda: b.requests[0].left_at)


# ---- slow readers ----

def test_a_slow_reader_costs_no_memory():
    """Upstreams that send a gigabyte to clients that read nothing: held back, not stored."""
    with Upstream() as up, proxy([up.entry(ANY + " paths=files")], "--client-timeout", "600s") as g:
        up.script = {"n": 100000, "pad": 10000}
        plain = {"body": "y" * 64, "repeat": 1 << 20, "framing": "chunked"}
        g.post(CHAT, ask(script={"n": 1}))
        before = g.rss_mib()
        held = [g.open(CHAT, ask(stream=True)) for _ in range(4)]
        held += [g.open(path, ask(script=plain), headers="Connection: close\r\n")
                 for path in (CHAT, "/v1/files")]
        until("they run", lambda: len(up.requests) == 7)
        until("the relay stops", lambda: steady(g))
        for _ in range(10):
            assert g.post(CHAT, ask(script={}), timeout=10).status == 200
        grown = g.rss_mib() - before
        print(f"     6 slow readers: {grown:.1f} MiB more")
        assert grown < 40, grown
        slow = held[4]  # read on, it comes whole
        data = read_all(slow)
        assert data.count(b"y") >= 64 << 20
        for s in held:
            s.close()
        until("all were let go", lambda: g.metric("kvblend_requests_active") == 0)


def steady(g):
    v = g.metric("kvblend_gateway_relay_bytes_total")
    return all(g.metric("kvblend_gateway_relay_bytes_total") == v for _ in range(20))


def test_a_client_that_reads_nothing_is_cut():
    with Upstream() as up, proxy([up.entry(ANY)], "--client-timeout", "300ms") as g:
        s = g.open(CHAT, ask(stream=True, script={"n": 100000, "pad": 10000}))
        until("it was let go", lambda: up.requests and up.requests[0].left_at)
        s.close()


# ---- bursts ----

def test_an_upstream_dies_under_load():
    """Every request is answered once: whole, or with an error that says so."""
    with Upstream("a") as a, Upstream("b") as b:
        for u in (a, b):
            u.script = {"token_s": 0.005}
        bad, done = [], []
        with proxy([a.entry("models=* health=off"), b.entry("models=* health=off")], *DEAF) as g:
            def client(i):
                for k in range(8):
                    stream = (i + k) % 2 == 0
                    try:
                        r = g.post(CHAT, ask(stream=stream, max_tokens=10))
                    except Exception as e:
                        bad.append(repr(e))
                        continue
                    if stream and r.status == 200:
                        events = r.events()
                        errors = [e for e in events if b'"error"' in e]
                        if events[-1] != b"[DONE]" or len(errors) > 1 or (
                                not errors and len(events) != 13):
                            bad.append(r.body)
                    elif r.status not in (200, 502):
                        bad.append((r.status, r.body))
                    done.append(r.status)

            threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
            for t in threads:
                t.start()
            until("it runs", lambda: len(done) > 20)
            a.stop_listening()
            until("it goes on", lambda: len(done) > 50 or bad)
            a.listen()
            for t in threads:
                t.join()
            assert not bad, bad[:3]
            assert len(done) == 96 and done.count(200) > 80, done
            until("nothing is left", lambda: g.metric("kvblend_requests_active") == 0)
            for name in ("a", "b"):
                assert g.metric('kvblend_gateway_upstream_inflight{target="%s"}' % name) == 0


if __name__ == "__main__":
    main(globals())
