#!/usr/bin/env python3
"""The gateway's doors, tried as a stranger would: raw sockets, no key, bodies that are large, slow, many or
never whole, and more connections than there is room for."""
import json
import os
import resource
import signal
import socket
import struct
import threading

from harness import (DEADLINE_S, KVBLEND, STUB, WORKER, Program, free_port, gateway, listening, main, need,
                     proxy, read_until, tiny_model, until, worker_listening)
from upstream import Upstream

need(KVBLEND, WORKER)
CHAT = "/v1/chat/completions"
KEYED = ("--api-key", "right id=one")
MIB = 1 << 20


def dial(g):
    return socket.create_connection(("127.0.0.1", g.port), timeout=DEADLINE_S)


def head(*lines, line=f"POST {CHAT} HTTP/1.1"):
    return "".join(x + "\r\n" for x in (line, "Host: x", *lines, "")).encode()


def to_end(s):
    """All that the server says, until it ends the connection."""
    try:
        return read_until(s, b"\0never", limit=64 * MIB)
    except ConnectionError:
        return b"reset"
    finally:
        s.close()


def push(s, data):
    """Send until the other side has had enough."""
    try:
        s.sendall(data)
    except OSError:
        pass


def logged(g, n, **fields):
    """The n lines of the access log that have these fields, once they are all there."""
    found = [a for a in g.access_log() if all(a.get(k) == v for k, v in fields.items())]
    return len(found) == n and found


def refused(answer, status, code, closed=True):
    first, _, body = answer.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert not closed or b"\r\nConnection: close" in first, first
    assert json.loads(body)["error"]["code"] == code, body
    return first.lower()


# ---- keys ----

def test_a_stranger_is_refused_at_the_head():
    """Neither 100 Continue nor a wait for the body: the answer comes with the head alone."""
    with gateway(*KEYED, stub=True) as g:
        for key in ((), ("Authorization: Bearer wrong",), ("x-api-key: wrong",)):
            for framing in ("Content-Length: 30000000", "Transfer-Encoding: chunked"):
                for expect in ((), ("Expect: 100-continue",)):
                    s = dial(g)
                    s.sendall(head(framing, *key, *expect))
                    h = refused(to_end(s), 401, "invalid_api_key")
                    assert b"www-authenticate: bearer" in h and b"x-request-id" in h, h
        for line, status, code in ((f"DELETE {CHAT} HTTP/1.1", 405, "method_not_allowed"),
                                   ("POST /v2/none HTTP/1.1", 404, "unknown_url"),
                                   ("GET /health HTTP/1.1", 413, "request_too_large")):
            s = dial(g)
            s.sendall(head("Content-Length: 30000000", "Expect: 100-continue",
                           "Authorization: Bearer right", line=line))
            refused(to_end(s), status, code)
        s = dial(g)  # and who has a key is asked for the body
        s.sendall(head("Content-Length: 2", "Expect: 100-continue", "Authorization: Bearer right"))
        assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"{}")
        assert b"HTTP/1.1 200 OK" in read_until(s, b"\r\n\r\n")
        s.close()
        log = until("they are logged", lambda: logged(g, 12, status=401))
        assert all(a["path"] == CHAT and a["client"] for a in log), log


def test_bodies_of_strangers_take_no_memory():
    """Sixty that send 31 MiB each of a body that never ends; today's default limit is 32 MiB."""
    block = b"x" * MIB
    with gateway(*KEYED, stub=True) as g:
        before, most, open_ = g.rss_mib(), 0, []

        def send(s):
            s.sendall(head(f"Content-Length: {32 * MIB}"))
            for _ in range(31):
                push(s, block)

        for _ in range(60):
            s = dial(g)
            t = threading.Thread(target=send, args=(s,))
            t.start()
            open_.append((s, t))
        for s, t in open_:
            t.join()
            most = max(most, g.rss_mib())
        assert most - before < 40, (before, most)
        for s, _ in open_:
            s.close()
        assert g.get("/health").status == 200


# ---- a worker on TCP, without a gateway before it ----

def tcp_worker(*args):
    return worker_listening(Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", "--ram", "64MiB",
                                     "--threads", "1", *args]))


def test_a_worker_refuses_strangers_at_the_head():
    with tcp_worker("--api-key", "right") as w:
        for line, lines, status, code in (
                (f"POST {CHAT} HTTP/1.1", (), 401, "invalid_api_key"),
                (f"POST {CHAT} HTTP/1.1", ("x-api-key: wrong",), 401, "invalid_api_key"),
                (f"PUT {CHAT} HTTP/1.1", ("x-api-key: right",), 405, "method_not_allowed"),
                ("POST /v2/none HTTP/1.1", ("x-api-key: right",), 404, "unknown_url"),
                ("POST /admin/flush HTTP/1.1", ("x-api-key: right",), 403, "admin_closed")):
            for framing in ("Content-Length: 30000000", "Transfer-Encoding: chunked"):
                for expect in ((), ("Expect: 100-continue",)):
                    s = dial(w)
                    s.sendall(head(framing, *lines, *expect, line=line))
                    assert b"x-request-id" in refused(to_end(s), status, code)
        before, block, open_ = w.rss_mib(), b"x" * MIB, []
        for _ in range(20):
            s = dial(w)
            s.sendall(head(f"Content-Length: {32 * MIB}"))
            for _ in range(31):
                push(s, block)
            open_.append(s)
        assert w.rss_mib() - before < 40, (before, w.rss_mib())
        for s in open_:
            s.close()
        s = dial(w)  # and who has a key is asked for the body
        s.sendall(head("Content-Length: 2", "Expect: 100-continue", "x-api-key: right"))
        assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b"{}")
        assert b"HTTP/1.1 400" in read_until(s, b"\r\n\r\n")
        s.close()


def test_a_worker_says_once_what_is_wrong_with_a_body():
    with tcp_worker() as w:
        for lines, sent, status, code in ((("Content-Length: 64000000",), b"", 413, "request_too_large"),
                                          (("Transfer-Encoding: chunked",), b"zz\r\n", 400, "bad_request")):
            s = dial(w)
            s.sendall(head(*lines) + sent)
            answer = to_end(s)
            assert answer.count(b"HTTP/1.1 ") == 1, answer
            refused(answer, status, code)
        assert w.get("/health").status == 200


# ---- memory of bodies ----

def keyed(*lines, **kw):
    return head("Authorization: Bearer right", *lines, **kw)


def test_one_budget_for_all_bodies():
    """Half-sent bodies share limits.body_memory; what has no room is told when to come again."""
    with gateway(*KEYED, "--max-body", "4MiB", "--body-memory", "8MiB", stub=True) as g:
        def used():
            return g.metric("kvblend_gateway_body_bytes")

        held = []
        for _ in range(7):
            s = dial(g)
            s.sendall(keyed("Content-Length: 1200000") + b"{" + b" " * (MIB - 1))
            held.append(s)
        until("they have come", lambda: used() == 7 * MIB)
        s = dial(g)  # by its length: before it sends a byte
        s.sendall(keyed("Content-Length: 2000000", "Expect: 100-continue"))
        h = refused(to_end(s), 503, "server_overloaded")
        assert b"retry-after: " in h and b"x-should-retry: true" in h, h
        s = dial(g)  # in chunks nobody knows before
        s.sendall(keyed("Transfer-Encoding: chunked"))
        push(s, (b"10000\r\n" + b" " * 65536 + b"\r\n") * 30)
        assert b"retry-after" in refused(to_end(s), 503, "server_overloaded")
        assert g.metric("kvblend_gateway_bodies_refused_total") == 2
        assert used() == 7 * MIB
        r = g.post(CHAT, {"messages": [], "pad": "x" * 100000}, headers={"x-api-key": "right"})
        assert r.status == 200, r.body  # what fits goes on
        for s in held:
            s.close()
        until("all is given back", lambda: used() == 0)
        body = b'{"messages":[]}' + b" " * (4 * MIB - 15)
        assert g.post(CHAT, body, headers={"x-api-key": "right"}).status == 200
        until("and of what was answered", lambda: used() == 0)


def test_translated_bodies_are_charged():
    """A body that becomes chat is held beside it, as is a conversation that is kept."""
    with gateway(*KEYED, "--max-body", "1MiB", "--body-memory", "1MiB", stub=True) as g:
        def send(path, kib, **fields):
            turn = {"role": "user", "content": "x" * (kib << 10)}
            return g.post(path, dict(fields, max_tokens=1) | {"input" if "responses" in path else "messages": [turn]},
                          headers={"x-api-key": "right"})

        assert send(CHAT, 400).status == 200
        for path in "/v1/responses", "/v1/messages":
            r = send(path, 400)
            assert r.status == 503 and r.headers.get("retry-after"), (r.status, r.body)
            assert send(path, 300).status == 200
        assert g.metric("kvblend_gateway_bodies_refused_total") == 2
        until("all is given back", lambda: g.metric("kvblend_gateway_body_bytes") == 0)


def test_claims_take_nothing_from_others():
    """Heads that announce much and send nothing."""
    with gateway(*KEYED, "--max-body", "4MiB", "--body-memory", "4MiB", stub=True) as g:
        held = []
        for _ in range(50):
            s = dial(g)
            s.sendall(keyed("Content-Length: 4000000", "Expect: 100-continue"))
            assert read_until(s, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            held.append(s)
        assert g.post(CHAT, {"messages": []}, headers={"x-api-key": "right"}).status == 200
        for s in held:
            s.close()


def test_a_slow_body_is_ended():
    """Silence, and bytes that drip: both are below the floor."""
    with gateway(*KEYED, "--client-timeout", "500ms", "--body-rate", "1MiB", stub=True) as g:
        for framing, some in (("Content-Length: 30000000", b"x"),
                              ("Transfer-Encoding: chunked", b"1\r\nx\r\n")):
            for drips in (False, True):
                s = dial(g)
                s.sendall(keyed(framing))
                done = threading.Event()

                def drip():
                    while not done.wait(0.02):
                        push(s, some)

                t = threading.Thread(target=drip if drips else done.wait)
                t.start()
                answer = read_until(s, b"\r\n\r\n")
                done.set()
                t.join()
                s.close()
                assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert g.metric('kvblend_requests_total{code="408"}') == 4


def test_bodies_that_break_are_answered_once():
    """Whoever has a key and sends nonsense for a body gets an error of ours, its own id, and no more."""
    with gateway(*KEYED, "--max-body", "1MiB", stub=True) as g:
        for rest, status in ((b"zz\r\n", 400), (b"100001\r\n", 413), (b"3\r\nabcd\r\n", 400)):
            s = dial(g)
            s.sendall(keyed("Transfer-Encoding: chunked", "x-request-id: mine") + rest)
            answer = to_end(s)
            assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1") == 1, answer
            assert b"x-request-id: mine\r\n" in answer, answer
        log = until("they are logged", lambda: logged(g, 3, request_id="mine"))
        assert [a["status"] for a in log] == [400, 413, 400] and log[0]["key_id"] == "one", log


# ---- connections ----

def raise_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def drop(sockets):
    """Without TIME_WAIT: the next test needs the ports."""
    for s in sockets:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def fds(g):
    return len(os.listdir(f"/proc/{g.proc.pid}/fd"))


def served(s, line=b"GET /health HTTP/1.1"):
    s.sendall(line + b"\r\nHost: x\r\n\r\n")
    return read_until(s, b"}").startswith(b"HTTP/1.1 200 OK")


def test_ten_thousand_idle_connections_of_one_address():
    """As many as there are descriptors for, up to 10 000, that say nothing."""
    n = min(10000, raise_limit() - 200)
    if n < 10000:
        print(f"     {n} connections: the hard limit of descriptors allows no more")
    with gateway(stub=True) as g:
        other = socket.create_connection(("127.0.0.1", g.port), DEADLINE_S, ("127.0.0.2", 0))
        assert served(other)
        held = []
        try:
            for i in range(n):
                held.append(dial(g))
                if i % 1000 == 999:
                    assert g.get("/health", timeout=30).status == 200, i
            for _ in range(20):
                assert g.get("/health", timeout=30).status == 200
            assert g.get("/v1/models").status == 200
            assert served(other), "another address lost its connection"
            assert fds(g) < raise_limit() / 2, fds(g)
        finally:
            drop(held)
            other.close()
        until("they are gone", lambda: fds(g) < 200)
        assert g.get("/ready").status == 200


def test_connections_per_address():
    with gateway("--connections-per-address", "4", stub=True) as g:
        idle = [dial(g) for _ in range(4)]
        assert all(served(s) for s in idle)
        s = dial(g)
        assert served(s)  # the oldest made room
        assert idle[0].recv(1) == b""
        assert g.metric("kvblend_gateway_connections_evicted_total") >= 1
        for x in (*idle, s):
            x.close()
        busy = [g.open(CHAT, {"messages": [], "stub": {"wait_s": 60}}) for _ in range(4)]

        def in_flight():
            return g.admin_get("/admin/status")["gateway"]["in_flight"]

        until("they run", lambda: in_flight() == 4)
        r = g.post(CHAT, {"messages": []})
        assert (r.status, r.error()["code"]) == (429, "too_many_connections"), r.body
        assert r.headers["connection"] == "close" and r.headers["retry-after"] == "1", r.headers
        for _ in range(10):
            r = g.get("/health")
            assert r.status == 200 and r.headers["connection"] == "close", r.headers
        with socket.create_connection(("127.0.0.1", g.port), DEADLINE_S, ("127.0.0.2", 0)) as s:
            assert served(s, b"GET /v1/models HTTP/1.1")
        busy.pop().close()
        until("one place is free", lambda: in_flight() == 3)
        until("and can be had", lambda: g.post(CHAT, {"messages": []}).status == 200)
        drop(busy)


def test_when_descriptors_run_out_the_oldest_idle_goes():
    """Few descriptors, no bound for an address, several loops."""
    raise_limit()
    cmd = ["sh", "-c", 'ulimit -n 700 && exec "$0" "$@"', KVBLEND, "--listen", "127.0.0.1:0", "--model",
           STUB, "--worker-bin", STUB, "--connections-per-address", "100000", "--loops", "2"]
    with listening(Program(cmd)) as g:
        held = []
        for _ in range(800):
            held.append(dial(g))
            assert g.get("/health", timeout=30).status == 200
        assert fds(g) <= 700
        r = g.post(CHAT, {"messages": []})
        assert r.status == 200, r.body
        assert held[0].recv(1) == b"" and served(held[-1])
        drop(held)


# ---- the end ----

def test_a_draining_gateway_begins_nothing_new():
    """On connections that it knows: what runs ends, what comes now is sent away."""
    chat = {"messages": [], "stub": {"wait_s": 3}}
    with gateway(stub=True) as g:
        idle, half_head, half_body, late_head = (dial(g) for _ in range(4))
        for s in (idle, half_head, half_body, late_head):
            assert served(s)
        half_head.sendall(head("Content-Length: 2")[:-4])
        half_body.sendall(head("Content-Length: 15") + b'{"mess')
        busy = g.open(CHAT, chat)
        busy.sendall(head("Content-Length: 15") + b'{"messages":[]}')  # sent ahead
        until("it runs", lambda: g.admin_get("/admin/status")["gateway"]["in_flight"] == 1)
        g.proc.send_signal(signal.SIGTERM)
        until("it drains", lambda: "gateway.draining" in g.log())
        refused(to_end(half_body), 503, "draining")  # nobody waits for the rest
        half_head.sendall(b"\r\n\r\n{}")
        refused(to_end(half_head), 503, "draining")
        assert to_end(idle) == b"" and to_end(late_head) == b""
        answer = to_end(busy)
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 ") == 1, answer
        assert b"\r\nConnection: close" in answer
        assert g.proc.wait(DEADLINE_S) == 0


# ---- what must not pass ----

def test_loops_of_gateways_end():
    """One that names itself, two that name each other: each request goes round once."""
    a, b = free_port(), free_port()
    entry = "http://127.0.0.1:%d models=* health=off name=next"
    for ports, rounds in (((a,), 2), ((a, b), 2)):
        ring = [proxy([entry % ports[(i + 1) % len(ports)]], "--listen", f"127.0.0.1:{p}", ready=False)
                for i, p in enumerate(ports)]
        try:
            for body in ({"model": "m", "messages": []}, {"model": "m", "stream": True, "messages": []}):
                r = ring[0].post(CHAT, body, timeout=20)
                assert (r.status, r.error()["code"]) == (508, "loop_detected"), r.body
            r = ring[0].get("/v1/whatever", timeout=20)
            assert r.status in (404, 508), r.body
            until("they are logged", lambda: logged(ring[0], 2 * rounds, path=CHAT, status=508))
            assert ring[0].admin_get("/admin/targets")["targets"][0]["breaker"] == "closed"
        finally:
            for g in ring:
                g.__exit__(None, None)


def test_hops_of_others_pass():
    with Upstream() as up, proxy([up.entry("models=*")]) as g:
        r = g.post(CHAT, {"model": "m", "messages": []}, headers={"X-KVBlend-Hop": "one, two"})
        assert r.status == 200, r.body
        hop = [x for x in up.requests if x.path == CHAT][-1].header("x-kvblend-hop")
        assert hop.startswith("one, two, ") and hop.count(",") == 2 and len(hop) == 26, hop
        many = ",".join(str(i) for i in range(8))
        r = g.post(CHAT, {"model": "m", "messages": []}, headers={"X-KVBlend-Hop": many})
        assert r.status == 508 and r.headers["x-should-retry"] == "false", r.body


def test_an_upstreams_cors_headers_stay_behind():
    """Whether CORS is on or off: which pages may read an answer is said by this configuration alone."""
    theirs = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true",
              "Access-Control-Expose-Headers": "x-theirs", "X-Theirs": "1"}
    page = {"Origin": "https://evil.example"}
    for args in ((), ("--cors-origin", "https://app.example")):
        with Upstream() as up, proxy([up.entry("models=*")], *args) as g:
            up.script = {"headers": theirs}
            for ask in ({"model": "m", "messages": []}, {"model": "m", "stream": True, "messages": []}):
                r = g.post(CHAT, ask, headers=page)
                assert r.status == 200 and r.headers["x-theirs"] == "1", r.headers
                assert not [k for k in r.headers if k.startswith("access-control")], r.headers


if __name__ == "__main__":
    main(globals())
