#!/usr/bin/env python3
"""The gateway in front of a worker whose behaviour the test steers (stub_worker.py)."""
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time

from harness import (KVBLEND, STUB, WORKER, Program, clean_env, gateway, main, need, parse_events,
                     listening, parse_metrics, read_until, unix_request, until)
from upstream import Upstream
import random
import subprocess

need(KVBLEND)
CHAT = "/v1/chat/completions"


def ask(**kw):
    return dict({"model": "stub-model", "messages": [{"role": "user", "content": "hello"}]}, **kw)


def stub_state(g):
    return g.admin_get("/admin/status")["workers"][0].get("status") or {}


def test_plain_and_stream():
    with gateway(stub=True) as g:
        r = g.post(CHAT, ask())
        assert r.status == 200 and r.json()["object"] == "chat.completion", r.body
        assert r.headers["x-kvblend-stub"] == "yes"
        for path in ("/chat/completions", "//v1//chat/completions", "/v1/chat/completions/"):
            assert g.post(path, ask()).status == 200, path
        r = g.post(CHAT, ask(stream=True, max_tokens=3, stub={"split": True}))
        events = r.events()
        assert r.headers["content-type"].startswith("text/event-stream")
        assert events[-1] == b"[DONE]" and len(events) == 6, events
        text = "".join(json.loads(e)["choices"][0]["delta"].get("content", "") for e in events[:-1])
        assert text == "w0 w1 w2 ", text
        assert g.post("/v1/completions", {"prompt": "a", "model": "stub-model"}).status == 200
        assert g.post("/tokenize", {"content": "a b c"}).json()["count"] == 3


def test_body_goes_through_untouched():
    with gateway(stub=True) as g:
        body = json.dumps(ask(odd="\u00e4 \\ \u2028", x=[1.50, -0.0]), ensure_ascii=False, indent=3)
        g.post(CHAT, body.encode(), headers={"x-request-id": "mine-1", "X-KVBlend-Mode": "full",
                                             "Authorization": "Bearer s"})
        last = stub_state(g)["last_completion"]
        assert last["body"] == body
        h = last["headers"]
        assert h["x-request-id"] == "mine-1" and h["x-kvblend-mode"] == "full"
        assert "authorization" not in h


def test_models_and_unknown_model():
    with gateway(stub=True) as g:
        r = g.get("/v1/models").json()
        assert r["object"] == "list" and r["data"][0]["max_model_len"] == 2048
        for path in ("/v1/models/stub-model", "/v1/models/stub-model/", "/models//stub-model//"):
            r = g.get(path)
            assert r.status == 200 and r.json()["id"] == "stub-model", (path, r.status, r.body)
        for r in (g.get("/v1/models/nope"), g.get("/v1/models/nope/"), g.post(CHAT, ask(model="nope"))):
            e = r.error()
            assert r.status == 404 and e["code"] == "model_not_found" and e["param"] == "model", e


def test_refusals():
    deep = b"[" * 65 + b"]" * 65
    with gateway("--max-body", "100KiB", stub=True) as g:
        cases = [
            (b"[1]", 400, "invalid_json"), (b"", 400, "invalid_json"), (b"{", 400, "invalid_json"),
            (b'{"a":' + deep + b"}", 400, "invalid_json"),
            (b'{"a":"\xff"}', 400, "invalid_utf8"),
            (b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}', 400, "invalid_json"),
            (b'{"messages":[],"kvblend":{"x":[-1e999]}}', 400, "invalid_json"),
            (b'{"a":"' + b"x" * (1 << 17) + b'"}', 413, "request_too_large"),
        ]
        for body, status, code in cases:
            r = g.post(CHAT, body)
            assert (r.status, r.error()["code"]) == (status, code), (body[:20], r.status, r.body)
        big = json.dumps(ask(pad="x" * 90000)).encode()  # read on a helper thread
        assert g.post(CHAT, big).status == 200
        assert g.post(CHAT, big[:-1]).error()["code"] == "invalid_json"
        r = g.get(CHAT)
        assert r.status == 405 and r.headers["allow"] == "POST"
        assert r.error()["code"] == "method_not_allowed"
        r = g.get("/v1/nothing")
        assert r.status == 404 and r.error()["code"] == "unknown_url"
        assert "x-request-id" in r.headers
        assert g.get("/admin/status").status == 404
        s = socket.create_connection(("127.0.0.1", g.port), timeout=20)
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
                  b"Transfer-Encoding: chunked\r\n\r\n")
        data = read_until(s, b"}}")
        assert data.startswith(b"HTTP/1.1 400"), data
        assert json.loads(data.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"
        s.close()
        assert g.metric('kvblend_requests_total{code="413"}') == 1


def test_keys_and_reload():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("# keys\nfrom-file\n")
        f.flush()
        with gateway("--api-key", "secret", "--api-key-file", f.name, stub=True, ready=False) as g:
            until("ready", lambda: g.get("/ready").status == 200)
            r = g.post(CHAT, ask())
            assert r.status == 401 and r.error()["code"] == "invalid_api_key"
            assert r.headers["www-authenticate"] == "Bearer"
            ok = {"Authorization": "Bearer secret"}
            assert g.post(CHAT, ask(), headers=ok).status == 200
            assert g.post(CHAT, ask(), headers={"X-Api-Key": "from-file"}).status == 200
            assert g.post(CHAT, ask(), headers={"Authorization": "Bearer secre"}).status == 401
            assert g.get("/v1/models").status == 401 and g.get("/ready").status == 200
            f.write("second\n")
            f.flush()
            g.proc.send_signal(signal.SIGHUP)
            second = {"Authorization": "Bearer second"}
            until("the new key works", lambda: g.post(CHAT, ask(), headers=second).status == 200)
            f.write("x" * 2000)  # no key is that long
            f.flush()
            g.proc.send_signal(signal.SIGHUP)
            until("the refusal is logged", lambda: "config.reload " in g.log())
            assert g.post(CHAT, ask(), headers=second).status == 200  # unchanged
            assert "secret" not in g.log() + json.dumps(g.access_log())


def test_admission():
    with gateway("--max-inflight", "1", "--queue-limit", "1", "--queue-timeout", "300ms",
                 stub=True) as g:
        slow = ask(stub={"wait_s": 30})
        a = g.open(CHAT, slow)
        until("the first runs", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 1)
        b = g.open(CHAT, ask())
        until("the second waits", lambda: g.admin_get("/admin/status")["gateway"]["waiting"] == 1)
        r = g.post(CHAT, ask())
        assert r.status == 429 and r.error()["code"] == "server_overloaded", r.body
        assert r.headers["x-should-retry"] == "true" and int(r.headers["retry-after"]) >= 1
        assert b"HTTP/1.1 429" in read_until(b, b"}}")  # its time in the queue is over
        c = g.open(CHAT, ask())
        until("the next waits", lambda: g.admin_get("/admin/status")["gateway"]["waiting"] == 1)
        a.close()  # leaving hands the turn on
        assert b"HTTP/1.1 200" in read_until(c, b"}}")
        for s in (b, c):
            s.close()


def test_a_full_worker_says_when_to_come_again():
    """Its refusal passes as it came."""
    with gateway(stub=True) as g:
        hint = {"Retry-After": "7", "x-should-retry": "true"}
        for status in (429, 503):
            r = g.post(CHAT, ask(stub={"status": status, "headers": hint}))
            assert r.status == status, r.body
            assert (r.headers["retry-after"], r.headers["x-should-retry"]) == ("7", "true"), r.headers


def cancel_ms(g, body):
    """Leave a request at work and measure how long the worker's part of it lives on."""
    aborted = stub_state(g).get("aborted", 0)
    s = g.open(CHAT, body)
    until("it runs", lambda: stub_state(g).get("active") == 1)
    assert g.metric("kvblend_requests_active") == 1
    if body.get("stream"):
        read_until(s, b"w3")
    t0 = time.monotonic()
    s.close()
    until("the worker saw its client go", lambda: stub_state(g).get("aborted", 0) > aborted)
    took = (time.monotonic() - t0) * 1e3
    assert g.metric("kvblend_requests_active") == 0
    return took


def test_client_gone_cancels():
    """Within 100 ms; the best of five tries, because the machine may be busy with other things."""
    with gateway(stub=True) as g:
        for body in (ask(stub={"wait_s": 30}),
                     ask(stream=True, max_tokens=9999, stub={"token_s": 0.01})):
            took = []
            while len(took) < 5 and (not took or min(took) > 100):
                took.append(cancel_ms(g, body))
            assert min(took) < 100, took
        logged = until("both are logged", lambda: two(
            [x for x in g.access_log() if x["path"] == CHAT]))
        assert {x["status"] for x in logged} == {499}
        assert {x["end"] for x in logged} == {"client_abort"}


def two(lines):
    """The lines once there are two at least."""
    return lines if len(lines) >= 2 else None


def test_slow_reader_holds_the_worker_back():
    with gateway(stub=True) as g:
        s = g.open(CHAT, ask(stream=True, max_tokens=4000, stub={"pad": 20000}))  # 80 MB
        read_until(s, b"w0")
        before = g.metric("kvblend_gateway_relay_bytes_total")
        until("the relay stops", lambda: steady(g, "kvblend_gateway_relay_bytes_total"))
        moved = g.metric("kvblend_gateway_relay_bytes_total")
        assert moved < 40e6, (before, moved)
        total = 0
        while True:
            got = s.recv(1 << 20)
            total += len(got)
            if not got or got.endswith(b"0\r\n\r\n"):
                break
        assert total > 80e6
        s.close()


def steady(g, name):
    """Unchanged over ten readings in a row."""
    v = g.metric(name)
    return all(g.metric(name) == v for _ in range(10))


def test_worker_death_before_the_answer_is_retried():
    with gateway(stub=True) as g:
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        s = g.open(CHAT, ask(stub={"wait_s": 1}))
        until("it runs", lambda: stub_state(g).get("active") == 1)
        os.kill(pid, signal.SIGKILL)
        assert b"HTTP/1.1 200" in read_until(s, b"}}")
        w = g.admin_get("/admin/status")["workers"][0]
        assert w["restarts"] == 1 and w["pid"] != pid
        assert g.metric("kvblend_gateway_worker_restarts_total") == 1
        s.close()
        r = g.post(CHAT, ask(stub={"die": "before"}))  # dies again on the retry
        assert r.status == 502 and r.error()["code"] == "upstream_unreachable"


def kill(g):
    os.kill(g.admin_get("/admin/status")["workers"][0]["pid"], signal.SIGKILL)


def test_worker_death_behind_a_comment_is_retried():
    """A real worker says that it is at work after 2 s: that is no answer yet."""
    with gateway(stub=True) as g:
        s = g.open(CHAT, ask(stream=True, max_tokens=2, stub={"comment": 1, "wait_s": 1}))
        head = read_until(s, b": working")
        kill(g)
        data = head + read_until(s, b"[DONE]")
        assert data.count(b"HTTP/1.1") == 1 and data.count(b": working") == 2, data
        assert b'"w1' in data and b"error" not in data, data
        s.close()
        until("nothing is left", lambda: g.metric("kvblend_requests_active") == 0)
        x = until("it is logged", lambda: [x for x in g.access_log() if x["path"] == CHAT])[0]
        assert x["retries"] == 1 and x["end"] == "ok" and x["ttft_ms"] > 1000, x
        assert g.admin_get("/admin/targets")["targets"][0]["ttfb_ms"] > 1000


def test_requests_wait_for_a_restart():
    """Those that come while the only worker restarts, too; a gateway that starts says so at once."""
    with gateway(stub=True, env={"STUB_HOLD": "{dir}/hold"}) as g:
        hold = g.write("hold", "")
        kill(g)
        until("it is away", lambda: g.get("/ready").status == 503)
        asked = [g.open(CHAT, ask(stream=i % 2 == 1)) for i in range(4)]
        until("they wait", lambda: waiting(g) == 4)
        assert g.get("/v1/models").status == 200
        os.unlink(hold)
        for s in asked:
            data = read_until(s, b"usage" if s in asked[::2] else b"[DONE]")
            assert b" 200 " in data[:20] and b"error" not in data, data
            s.close()
    with gateway("--retry-wait", "200ms", stub=True, env={"STUB_HOLD": "{dir}/hold"}) as g:
        g.write("hold", "")
        kill(g)
        until("it is away", lambda: g.get("/ready").status == 503)
        r = g.post(CHAT, ask())
        assert r.status == 503 and r.error()["code"] == "model_loading", r.body
        assert r.headers["x-should-retry"] == "true" and "retry-after" in r.headers
        assert waiting(g) == 0


def waiting(g):
    return sum(r["stage"] == "waiting" for r in g.admin_get("/admin/requests")["requests"])


def test_worker_death_in_the_answer():
    with gateway(stub=True) as g:
        r = g.post(CHAT, ask(stream=True, max_tokens=6, stub={"die": "middle"}))
        events = r.events()
        assert r.status == 200 and events[-1] == b"[DONE]", events
        assert json.loads(events[-2])["error"]["code"] == "upstream_unreachable"
        for e in events[:-2]:
            assert json.loads(e)["object"] == "chat.completion.chunk"
        until("it was restarted", lambda: g.metric("kvblend_gateway_worker_restarts_total") == 1)
        until("it is back", lambda: g.get("/ready").status == 200)
        r = g.post(CHAT, ask(stub={"die": "middle"}))
        assert r.status == 502 and r.error()["code"] == "upstream_unreachable"


def test_loading_and_refusal():
    with gateway(stub=True, ready=False, env={"STUB_LOAD_S": "1.5"}) as g:
        assert g.get("/health").status == 200
        r = g.get("/ready")
        assert r.status == 503
        r = g.post(CHAT, ask())
        assert r.status == 503 and r.error()["code"] == "model_loading"
        assert r.headers["x-should-retry"] == "true" and "retry-after" in r.headers
        assert g.get("/v1/models").status == 503
        until("ready", lambda: g.get("/ready").status == 200)
        assert g.post(CHAT, ask()).status == 200
    p = Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", STUB, "--worker-bin", STUB],
                {"STUB_REFUSE": "1"})
    with p:
        assert p.proc.wait(30) == 1 and "cannot be read" in p.log()


def test_drain():
    with gateway(stub=True) as g:
        s = g.open(CHAT, ask(stream=True, max_tokens=40, stub={"token_s": 0.02}))
        read_until(s, b"w1")
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        g.proc.send_signal(signal.SIGTERM)
        until("draining", lambda: unix_request(g.admin[5:], "GET", "/ready").status == 503)
        data = b"w1" + read_until(s, b"[DONE]")
        assert b"w39" in data and b"error" not in data
        assert g.proc.wait(30) == 0
        assert not alive(pid)
        assert not os.path.exists(g.admin[5:])


def test_drain_timeout_and_second_signal():
    with gateway("--drain-timeout", "200ms", stub=True) as g:
        s = g.open(CHAT, ask(stream=True, max_tokens=9999, stub={"token_s": 0.02}))
        read_until(s, b"w1")
        g.proc.send_signal(signal.SIGTERM)
        events = parse_events(re.sub(rb"\r\n[0-9a-f]+\r\n", b"", read_until(s, b"[DONE]")))
        assert json.loads(events[-2])["error"]["code"] == "draining", events[-2:]
        assert g.proc.wait(30) == 0
    with gateway(stub=True) as g:
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        s = g.open(CHAT, ask(stub={"wait_s": 60}))
        until("it runs", lambda: stub_state(g).get("active") == 1)
        g.proc.send_signal(signal.SIGTERM)
        until("draining", lambda: "gateway.draining" in g.log())
        g.proc.send_signal(signal.SIGTERM)
        assert g.proc.wait(30) == 0
        assert not alive(pid)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_worker_dies_with_the_gateway():
    with gateway(stub=True) as g:
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        g.proc.kill()
        until("the worker is gone", lambda: not alive(pid))


def test_metrics_merge():
    with gateway(stub=True) as g:
        g.post(CHAT, ask())
        text = g.metrics()
        lines = text.split("\n")
        assert [x for x in lines if re.match(r"kvblend_requests_active\b", x)] == \
            ["kvblend_requests_active 0"], text
        assert 'kvblend_worker_requests_active{worker="0"} 0' in lines
        assert 'kvblend_ttft_seconds_bucket{worker="0",le="+Inf"} 1' in lines
        parse_metrics(text)
        assert 'kvblend_requests_total{code="200"} 1' in lines


def test_detector():
    para = "\n\n".join(f"Paragraph {i}. " + "The river runs past the old mill. " * 12
                       for i in range(4))
    body = ask(messages=[{"role": "system", "content": "Be brief."},
                         {"role": "user", "content": para + "\n\nWhere does the river run?"}])
    with gateway(stub=True) as g:
        g.post(CHAT, body)
        last = stub_state(g)["last_completion"]
        segs = last["headers"].get("x-kvblend-segments", "")
        assert re.match(r"^\d+:\d+-\d+:", segs), last["headers"]
        text = body["messages"][1]["content"].encode()
        for seg in segs.split(","):
            msg, span, _ = seg.split(":", 2)
            begin, end = map(int, span.split("-"))
            assert msg == "1" and 0 <= begin < end <= len(text)
        for marked in (dict(body, documents=[{"text": "x"}]),
                       dict(body, kvblend={"separator": "##"}),
                       dict(body, messages=[{"role": "user",
                                             "content": [{"type": "text", "text": para}] * 2}])):
            g.post(CHAT, marked)
            assert "x-kvblend-segments" not in stub_state(g)["last_completion"]["headers"]
        g.post(CHAT, dict(body, messages=[  # one part alone marks nothing
            {"role": "user", "content": [{"type": "text", "text": para + "\n\nWhere?"}]}]))
        assert stub_state(g)["last_completion"]["headers"]["x-kvblend-segments"].startswith("0:")
        g.post(CHAT, body, headers={"X-KVBlend-Segments": "1:0-5:mine"})
        assert stub_state(g)["last_completion"]["headers"]["x-kvblend-segments"] == "1:0-5:mine"


def test_remote_worker():
    with tempfile.TemporaryDirectory() as d:
        stub = subprocess.Popen([STUB, "--listen", f"unix:{d}/w.sock", "--served-model-name", "far"])
        try:
            with Program([KVBLEND, "--listen", "127.0.0.1:0", "--worker", f"unix:{d}/w.sock"]) as g:
                m = until("it listens", lambda: re.search(r"gateway\.listening .*port=(\d+)", g.log()))
                g.port = int(m.group(1))
                until("ready", lambda: g.get("/ready").status == 200)
                assert g.post(CHAT, ask(model="far")).status == 200
                stub.kill()
                stub.wait()
                r = g.post(CHAT, ask(model="far"))
                assert r.status == 502 and r.error()["code"] == "upstream_unreachable", r.body
                assert g.get("/v1/models").status == 200  # from memory
        finally:
            stub.kill()
            stub.wait()


def test_two_workers():
    with tempfile.TemporaryDirectory() as d:
        stubs = [subprocess.Popen([STUB, "--listen", f"unix:{d}/{n}.sock", "--served-model-name", n])
                 for n in ("one", "two")]
        try:
            with Program([KVBLEND, "--listen", "127.0.0.1:0", "--worker", f"unix:{d}/one.sock",
                          "--worker", f"unix:{d}/two.sock"]) as g:
                m = until("it listens", lambda: re.search(r"gateway\.listening .*port=(\d+)", g.log()))
                g.port = int(m.group(1))
                until("both are ready",
                      lambda: g.metric("kvblend_gateway_workers_ready") == 2)
                assert [x["id"] for x in g.get("/v1/models").json()["data"]] == ["one", "two"]
                for n in ("one", "two"):
                    assert g.post(CHAT, ask(model=n)).json()["model"] == n
                r = g.post(CHAT, ask(model="three"))
                assert r.status == 404 and r.error()["code"] == "model_not_found"
                assert 'kvblend_ttft_seconds_count{worker="1"} 1' in g.metrics()
        finally:
            for s in stubs:
                s.kill()
                s.wait()


def test_twenty_streams():
    with gateway(stub=True) as g:
        done = []

        def one(i):
            r = g.post(CHAT, ask(stream=True, max_tokens=20 + i, stub={"token_s": 0.002}))
            done.append(len(r.events()) == 23 + i and r.events()[-1] == b"[DONE]")

        threads = [threading.Thread(target=one, args=(i,)) for i in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert done == [True] * 20


def test_lanes_under_load():
    """Four loops, fewer turns than clients, and everything at once: streams, failures, clients that
    leave, reloads, the admin API. Every request that stays gets an answer, and nothing is left."""
    with Upstream("a") as a, Upstream("b") as b:
        args = ["--loops", "4", "--max-inflight", "6", "--queue-limit", "500", "--listen", "127.0.0.1:0"]
        for up in (a, b):
            args += ["--upstream", up.entry("models=* health=off max_inflight=4")]
        with listening(Program([KVBLEND] + args, None)) as g:
            wrong = []

            def client(seed):
                rnd = random.Random(seed)
                for i in range(25):
                    script = rnd.choice(({}, {"n": 30}, {"status": 429}, {"token_s": 0.01},
                                         {"body": "x" * 200000}, {"wait_s": 0.02}))
                    stream, leave = rnd.random() < 0.5, rnd.random() < 0.25
                    body = ask(stream=stream, model=f"m{rnd.randrange(3)}", script=script,
                               pad="p" * rnd.choice((10, 90000)))
                    if leave:
                        s = g.open(CHAT, body)
                        if rnd.random() < 0.5:
                            s.recv(1)
                        s.close()
                        continue
                    r = g.post(CHAT, body)
                    ok = r.status in (200, 429)
                    if ok and r.status == 200 and stream and "body" not in script:
                        ok = r.events()[-1] == b"[DONE]"
                    if not ok:
                        wrong.append((seed, i, r.status, r.body[-200:]))

            def operator():
                for _ in range(20):
                    g.admin_get("/admin/requests")
                    g.admin_get("/admin/status")
                    g.proc.send_signal(signal.SIGHUP)
                    g.metrics()

            threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
            threads.append(threading.Thread(target=operator))
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert not wrong, wrong[:3]
            until("nothing is left", lambda: g.metric("kvblend_requests_active") == 0)
            gate = g.admin_get("/admin/status")["gateway"]
            assert (gate["in_flight"], gate["waiting"], gate["loops"]) == (0, 0, 4), gate
            held = [g.open(CHAT, ask(stream=True, script={"token_s": 0.01, "n": 300}))
                    for _ in range(4)]
            until("they run", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 4)
            g.proc.send_signal(signal.SIGTERM)
            for s in held:
                assert b"[DONE]" in read_until(s, b"[DONE]")
                s.close()
            assert g.proc.wait(30) == 0


def test_configuration_check():
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write("limits:\n  max_inflght: 3\n  queue_timeout: soon\nworker: {ram: 1GiB}\n")
        f.flush()
        r = subprocess.run([KVBLEND, "--check", "--config", f.name], capture_output=True, text=True,
                           timeout=60, env=clean_env())
        assert r.returncode == 2
        assert f"{f.name}:2: limits.max_inflght: unknown key" in r.stderr, r.stderr
        assert f"{f.name}:3: limits.queue_timeout: expected a duration" in r.stderr, r.stderr
    r = subprocess.run([KVBLEND, "--check", "--listen", ":1"], capture_output=True, text=True, timeout=60,
                       env=dict(clean_env(), KVBLEND_QUEUE_LIMITS="9"))
    assert r.returncode == 0 and r.stdout.strip() == "configuration ok", r
    assert r.stderr == ("warning: environment variable KVBLEND_QUEUE_LIMITS is unknown; expected one like "
                        "KVBLEND_QUEUE_LIMIT\n"), r
    with tempfile.TemporaryDirectory() as d:
        names = ("keys", "secret", "up")
        for name in names:
            with open(f"{d}/{name}", "w") as f:
                f.write("sk-text\n")
        args = [KVBLEND, "--check", "--api-key-file", f"{d}/keys", "--secret", f"file:{d}/secret", "--upstream",
                f"http://127.0.0.1:1 api_key_file={d}/up"]
        for mode, n in ((0o600, 0), (0o400, 0), (0o640, 3), (0o604, 3), (0o620, 3)):
            for name in names:
                os.chmod(f"{d}/{name}", mode)
            r = subprocess.run(args, capture_output=True, text=True, timeout=60, env=clean_env())
            assert r.returncode == 0 and r.stdout.strip() == "configuration ok", r
            lines = r.stderr.splitlines()
            assert len(lines) == n and "sk-text" not in r.stderr, r.stderr
            assert all(x.startswith("warning: ") and "chmod 600" in x for x in lines), lines
    sample = os.path.join(os.path.dirname(STUB), "..", "..", "etc", "kvblend.yaml")
    r = subprocess.run([KVBLEND, "--check", "--config", sample], capture_output=True, text=True,
                       timeout=60, env=clean_env())
    assert r.returncode == 0 and r.stdout.strip() == "configuration ok" and r.stderr == "", r
    with open(sample) as f:
        shown, section = set(), ""
        for line in f:
            section = (re.match(r"(?:# )?([a-z_]+):", line) or [None, section])[1]
            shown |= {section} | {f"{section}.{x}" for x in re.findall(r"([a-z_]+):", line)}
    described = subprocess.run([KVBLEND, "--help"], capture_output=True, text=True, timeout=60).stdout
    known = set(re.findall(r"\(([a-z_.]+)\)$", described, re.M))
    assert len(known) > 70 and known <= shown, known - shown


def test_choices_are_the_workers():
    """What the gateway lets pass its worker takes, and the other way round."""
    need(WORKER)
    shown = subprocess.run([WORKER, "--help"], capture_output=True, text=True, timeout=60).stdout
    listed = dict(re.findall(r"^  --([a-z-]+) ([a-z0-9]+(?:\\|[a-z0-9]+)+)", shown, re.M))
    for name in ("strategy", "dtype", "kv-dtype", "policy", "codec"):
        for value in listed[name].split("|") + ["nonsense"]:
            r = subprocess.run([KVBLEND, "--check", f"--{name}={value}"], capture_output=True, text=True,
                               timeout=60, env=clean_env())
            assert r.returncode == (2 if value == "nonsense" else 0), (name, value, r.stderr)
            assert value != "nonsense" or f"expected {listed[name]}" in r.stderr, (name, r.stderr)


def test_a_worker_warns_of_variables_too():
    need(WORKER)
    r = subprocess.run([WORKER, "--model", "/nonexistent", "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60, env=dict(
        clean_env(), KVBLEND_WORKER_RAMM="1GiB", KVBLEND_WORKER_COUNT="1", KVBLEND_WORKER_BIN="x",
        KVBLEND_WORKER_THREADS="1", KVBLEND_LISTEN=":0"))
    said = [line for line in r.stderr.splitlines() if "unknown_variable" in line]
    assert len(said) == 1 and 'name="KVBLEND_WORKER_RAMM is unknown; expected one like KVBLEND_WORKER_RAM"' in said[0], r.stderr


def test_no_model_says_what_to_do():
    with tempfile.TemporaryDirectory() as d:
        r = subprocess.run([KVBLEND, "--listen", "127.0.0.1:0", "--worker-bin", STUB],
                           capture_output=True, text=True,
                           timeout=60,
                           env=dict(clean_env(), KVBLEND_MODELS=d, XDG_RUNTIME_DIR=d))
        assert r.returncode == 1 and d in r.stderr and "kvblend pull" in r.stderr and "KVBLEND_MODEL" in r.stderr, r.stderr


if __name__ == "__main__":
    main(globals())
