#!/usr/bin/env python3
"""Running kvblend: drain, reload, several loops and addresses, TLS, logs, systemd; scripted upstreams."""
import collections
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time

from harness import (KVBLEND, KVBLENDCTL, Program, ask_on, certificates, free_port, gateway, listening,
                     main, need, parse_events, proxy, read_until, unix_request, until)
from upstream import Upstream

need(KVBLEND)
CHAT = "/v1/chat/completions"
ANY = "models=* health=off"


def ask(**kw):
    return dict({"model": "up-model", "messages": [{"role": "user", "content": "hello"}]}, **kw)


def active(g):
    return g.admin_get("/admin/status")["gateway"]["in_flight"]


def in_threads(n, fn):
    """fn(i) in n threads; what they return, in order of i."""
    out = [None] * n

    def run(i):
        try:
            out[i] = fn(i)
        except Exception as e:
            out[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


# ---- the end ----

def test_drain_under_load():
    """Everything that had begun or waited ends well; nothing new is taken; the exit status is 0."""
    for loops in (1, 3):
        with Upstream() as up:
            up.script = {"token_s": 0.03}
            with proxy([up.entry(ANY)], "--loops", str(loops), "--max-inflight", "12") as g:
                streams = [g.open(CHAT, ask(stream=True, max_tokens=30)) for _ in range(10)]
                until("they run", lambda: len(up.requests) == 10)
                plain = [g.open(CHAT, ask(script={"wait_s": 0.8})) for _ in range(2)]
                until("all run", lambda: len(up.requests) == 12)
                queued = [g.open(CHAT, ask(script={})) for _ in range(3)]
                until("some wait", lambda: g.admin_get("/admin/status")["gateway"]["waiting"] == 3)
                g.proc.send_signal(signal.SIGTERM)
                until("draining", lambda: unix_request(g.admin[5:], "GET", "/ready").status == 503)

                def refused():
                    with socket.socket() as s:
                        return s.connect_ex(("127.0.0.1", g.port)) != 0

                until("connections are refused", refused)
                for s in streams:
                    data = read_until(s, b"[DONE]")
                    assert b"w29 " in data and b"error" not in data, data[-500:]
                for s in plain:
                    assert b" 200 " in read_until(s, b"}}")[:20]
                for s in queued:
                    got = read_until(s, b"}}")
                    assert b" 200 " in got[:20] or b"draining" in got, got
                assert g.proc.wait(30) == 0
                for s in streams + plain + queued:
                    s.close()


def test_drain_delay():
    """Balancers learn first that it is not ready; until they have, requests are served."""
    with Upstream() as up, proxy([up.entry(ANY)], "--drain-delay", "3s") as g:
        g.proc.send_signal(signal.SIGTERM)
        until("not ready", lambda: g.get("/ready").status == 503)
        r = g.post(CHAT, ask())
        assert r.status == 200, r.body
        assert g.proc.wait(30) == 0


def test_drain_timeout():
    with Upstream() as up, proxy([up.entry(ANY)], "--drain-timeout", "300ms") as g:
        stream = g.open(CHAT, ask(stream=True, script={"n": 100000, "token_s": 0.05}))
        plain = g.open(CHAT, ask(script={"wait_s": 3600}))
        silent = g.open(CHAT, ask(stream=True, script={"wait_s": 3600}))
        until("they run", lambda: len(up.requests) == 3)
        read_until(stream, b"w1 ")
        g.proc.send_signal(signal.SIGTERM)
        data = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", read_until(stream, b"[DONE]"))
        events = parse_events(data)
        assert json.loads(events[-2])["error"]["code"] == "draining", events[-2:]
        for s in (plain, silent):
            got = read_until(s, b"}}")
            assert b"draining" in got, got
        assert g.proc.wait(30) == 0
        until("all were let go", lambda: all(r.left_at for r in up.requests))
        for s in (stream, plain, silent):
            s.close()


def test_second_signal_ends_at_once():
    for sig in (signal.SIGTERM, signal.SIGINT):
        with Upstream() as up, proxy([up.entry(ANY)], "--loops", "2") as g:
            held = [g.open(CHAT, ask(script={"wait_s": 3600})) for _ in range(8)]
            until("they run", lambda: len(up.requests) == 8)
            g.proc.send_signal(sig)
            until("draining", lambda: "gateway.draining" in g.log())
            g.proc.send_signal(sig)
            assert g.proc.wait(30) == 0
            until("all were let go", lambda: all(r.left_at for r in up.requests))
            for s in held:
                s.close()


# ---- reload ----

def config(*ups, keys=("one",), more=""):
    """A file with these upstreams (text of entries, as mappings) and keys."""
    out = 'listen: ["127.0.0.1:0"]\nupstreams:\n'
    for u in ups:
        fields = dict(re.findall(r"(\w+)=(\S+)", u))
        out += f"  - url: {u.split()[0]}\n" + "".join(f"    {k}: \"{v}\"\n" for k, v in fields.items())
    out += "keys:\n  list:\n" + "".join(f"    - {k}\n" for k in keys)
    return out + more


def configured(text, *args, **kw):
    return proxy([], "--config", "{dir}/kvblend.yaml", *args, files={"kvblend.yaml": text}, **kw)


def key(k="one"):
    return {"Authorization": f"Bearer {k}"}


class Load:
    """Requests without pause from several threads, each on kept connections of its own."""

    def __init__(self, g, n=6):
        self.g, self.stop, self.statuses, self.odd = g, False, collections.Counter(), []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]

    def run(self, i):
        k = 0
        while not self.stop:
            k += 1
            stream = (i + k) % 2 == 0
            try:
                r = self.g.post(CHAT, ask(stream=stream, max_tokens=5), headers=key())
                self.statuses[r.status] += 1
                if r.status == 200 and (stream and (len(r.events()) != 8 or
                                                    r.events()[-1] != b"[DONE]")):
                    self.odd.append(r.body)
            except Exception as e:
                self.odd.append(repr(e))

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop = True
        for t in self.threads:
            t.join()

    @property
    def n(self):
        return sum(self.statuses.values())


def test_reload_under_load():
    """Upstreams, keys and limits change; no request fails, running ones end where they began."""
    for loops in ("1", "3"):
        with Upstream("a") as a, Upstream("b") as b:
            with configured(config(a.entry(ANY), keys=["one", "old"]), "--loops", loops) as g:
                long = g.open(CHAT, ask(stream=True, max_tokens=60, script={"token_s": 0.03}),
                              headers="Authorization: Bearer old\r\n")
                read_until(long, b"w1 ")
                with Load(g) as load:
                    until("it runs", lambda: load.n > 20)
                    g.write("kvblend.yaml", config(b.entry(ANY), keys=["one", "new"]))
                    g.proc.send_signal(signal.SIGHUP)
                    until("the new key works",
                          lambda: g.post(CHAT, ask(), headers=key("new")).status == 200)
                    assert g.post(CHAT, ask(), headers=key("old")).status == 401
                    n, m = len(a.requests), load.n
                    until("it goes on", lambda: load.n > m + 20)
                    assert len(a.requests) <= n + 6, "the old upstream still gets requests"
                assert set(load.statuses) == {200} and not load.odd, (load.statuses, load.odd[:2])
                data = read_until(long, b"[DONE]")
                assert b"w59 " in data and b"error" not in data
                long.close()
                assert b.requests


def test_reload_changes_limits():
    with Upstream() as up:
        with configured(config(up.entry(ANY), more="limits: {max_inflight: 1, queue_limit: 0}")) as g:
            held = g.open(CHAT, ask(script={"wait_s": 3600}),
                          headers="Authorization: Bearer one\r\n")
            until("it runs", lambda: len(up.requests) == 1)
            assert g.post(CHAT, ask(), headers=key()).status == 429
            g.write("kvblend.yaml", config(up.entry(ANY), more="limits: {max_inflight: 2}"))
            r = unix_request(g.admin[5:], "POST", "/admin/reload")
            assert r.status == 200, r.body
            until("two may run", lambda: g.post(CHAT, ask(), headers=key()).status == 200)
            g.write("kvblend.yaml", config(up.entry(ANY), keys=["one rpm=2"]))
            assert unix_request(g.admin[5:], "POST", "/admin/reload").status == 200
            until("the limit holds", lambda: g.post(CHAT, ask(), headers=key()).status == 429)
            held.close()


def test_a_reload_names_what_needs_a_restart():
    with Upstream() as up, configured(config(up.entry(ANY))) as g:
        def ctl(*args):
            p = subprocess.run([KVBLENDCTL, *args], env=g.env, capture_output=True, text=True, timeout=30)
            assert p.returncode == 0 and p.stderr == "", p
            return p.stdout
        assert ctl("reload") == "reloaded\n"
        g.write("kvblend.yaml", config(up.entry(ANY), more="limits: {rpm: 90, max_body: 1MiB}\nloops: 2\n"))
        for _ in range(2):  # it stays true until the restart
            assert json.loads(ctl("--json", "reload")) == {
                "reloaded": True, "restart_needed": ["loops", "limits.max_body"]}
        assert ctl("reload").splitlines()[1:] == ["changed, but needs a restart: loops, limits.max_body"]
        g.write("kvblend.yaml", config(up.entry(ANY)))
        assert json.loads(ctl("--json", "reload"))["restart_needed"] == []


def test_a_bad_file_changes_nothing():
    with Upstream() as up, configured(config(up.entry(ANY))) as g:
        for bad in ("listen: [", "unknown_key: 1\n", config("ftp://x models=*"),
                    config("http://127.0.0.1:1/v1 weight=-3"),
                    config(up.entry("ca_file=/nonexistent models=*").replace("http:", "https:")),
                    config(up.entry(ANY), more="limits: {max_inflight: many}"),
                    config(up.entry(ANY), up.entry(ANY)),
                    config(up.entry(ANY), keys=["x rpm=many"]), config(up.entry(ANY), keys=["x", "x id=y"])):
            g.write("kvblend.yaml", bad)
            r = unix_request(g.admin[5:], "POST", "/admin/reload")
            assert r.status >= 400 and r.error()["message"], (bad, r.status, r.body)
            before = g.log().count("config.reload")
            g.proc.send_signal(signal.SIGHUP)
            until("it is logged", lambda: g.log().count("config.reload") > before)
            assert g.post(CHAT, ask(), headers=key()).status == 200, bad
            assert g.proc.poll() is None


def test_many_reloads():
    with Upstream("a") as a, Upstream("b") as b:
        with configured(config(a.entry(ANY), b.entry(ANY)), "--loops", "2") as g:
            with Load(g, 4) as load:
                for i in range(40):
                    up = (a, b)[i % 2]
                    weight = f"{ANY} weight={i % 3 + 1}"
                    g.write("kvblend.yaml", config(up.entry(weight), keys=["one", f"k{i}"]))
                    assert unix_request(g.admin[5:], "POST", "/admin/reload").status == 200
                    if i == 10:
                        rss = g.rss_mib()
            assert set(load.statuses) == {200} and not load.odd, (load.statuses, load.odd[:2])
            grown = g.rss_mib() - rss
            print(f"     30 reloads: {grown:.1f} MiB more")
            assert grown < 20, grown


# ---- loops ----

def test_limits_hold_across_loops():
    """What a limit allows is allowed once, not once per loop."""
    with Upstream() as up:
        entry = up.entry(ANY + " max_inflight=7")
        with proxy([entry], "--loops", "4", "--api-key", "many", "--api-key", "few concurrency=3",
                   "--api-key", "slow rpm=10", "--queue-timeout", "60s") as g:
            until("its loops run", lambda: len(lane_threads(g)) >= 4)
            t0 = time.monotonic()
            got = in_threads(40, lambda i: g.post(CHAT, ask(), headers=key("slow")).status)
            grown = (time.monotonic() - t0) / 6  # ten a minute, while they were asked for
            served = got.count(200)
            assert 10 <= served <= 10 + grown and got.count(429) == 40 - served, (got, grown)
            up.requests.clear()
            held = [g.open(CHAT, ask(script={"wait_s": 3600}),
                           headers="Authorization: Bearer few\r\n") for _ in range(3)]
            until("three run", lambda: len(up.requests) == 3)
            got = in_threads(12, lambda i: g.post(CHAT, ask(), headers=key("few")).status)
            assert got == [429] * 12, got
            held += [g.open(CHAT, ask(script={"wait_s": 3600}),
                            headers="Authorization: Bearer many\r\n") for _ in range(12)]
            until("seven run", lambda: len(up.requests) == 7)
            until("the others wait", lambda: g.metric("kvblend_requests_active") == 15)
            assert len(up.requests) == 7
            for s in held:
                s.close()
            until("nothing is left", lambda: g.metric("kvblend_requests_active") == 0)
            got = in_threads(40, lambda i: g.post(CHAT, ask(), headers=key("many")).status)
            assert got == [200] * 40, got
            until("all are counted",
                  lambda: g.metric('kvblend_requests_total{code="200"}') == served + 40)


def lane_threads(g):
    return os.listdir(f"/proc/{g.proc.pid}/task")


def test_turns_across_loops():
    with Upstream() as up:
        with proxy([up.entry(ANY)], "--loops", "4", "--max-inflight", "5", "--queue-limit", "6") as g:
            held = [g.open(CHAT, ask(script={"wait_s": 3600})) for _ in range(5)]
            until("five run", lambda: len(up.requests) == 5)
            waits = [g.open(CHAT, ask()) for _ in range(6)]
            until("six wait", lambda: g.admin_get("/admin/status")["gateway"]["waiting"] == 6)
            got = in_threads(8, lambda i: g.post(CHAT, ask()))
            assert {r.status for r in got} == {429}
            assert {r.error()["code"] for r in got} == {"server_overloaded"}
            assert all(float(r.headers["retry-after"]) > 0 and r.headers["x-should-retry"] == "true"
                       for r in got)
            held[0].close()  # one turn, handed on and on, whatever lane it came from
            for s in waits:
                assert b" 200 " in read_until(s, b"}}")[:20]
            for s in held + waits:
                s.close()


def test_many_connections_on_many_loops():
    with Upstream() as up, proxy([up.entry(ANY)], "--loops", "4", "--max-inflight", "500") as g:
        def one(i):
            r = g.post(CHAT, ask(stream=True, max_tokens=10 + i % 7, script={"token_s": 0.005}))
            return len(r.events()) == 13 + i % 7 and r.events()[-1] == b"[DONE]"

        assert in_threads(120, one) == [True] * 120
        until("all are logged", lambda: len([x for x in g.access_log() if x["path"] == CHAT]) == 120)
        assert len({x["request_id"] for x in g.access_log()}) == 120


# ---- addresses, TLS ----

def tls_context(ca, cert=None):
    c = ssl.create_default_context(cafile=ca)
    if cert:
        c.load_cert_chain(*cert)
    return c


def tls_socket(port, context, host="localhost"):
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    return context.wrap_socket(s, server_hostname=host)


def test_several_addresses():
    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        cert = certificates(d)
        plain, secure = free_port(), free_port()
        args = ["--listen", "127.0.0.1:0", "--listen", f"127.0.0.1:{plain}", "--listen",
                f"https://127.0.0.1:{secure}", "--listen", f"unix:{d}/s", "--tls-cert",
                cert["server"][0], "--tls-key", cert["server"][1]]
        for loops in ("1", "3"):
            with proxy([up.entry(ANY)], *args, "--loops", loops) as g:
                for _ in range(6):
                    for port in (g.port, plain):
                        s = socket.create_connection(("127.0.0.1", port), timeout=30)
                        assert ask_on(s, "POST", CHAT, ask()).status == 200
                    assert unix_request(f"{d}/s", "POST", CHAT, json.dumps(ask()).encode()
                                        ).status == 200
                    s = tls_socket(secure, tls_context(cert["ca"][0]))
                    assert ask_on(s, "POST", CHAT, ask()).status == 200
                until("all are logged", lambda: len(g.access_log()) >= 24)
                assert {x["client"].split(":")[0] for x in g.access_log()} == {"127.0.0.1", "unix"}
            assert not os.path.exists(f"{d}/s"), "the socket is left behind"


def test_tls():
    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        cert = certificates(d)
        port = free_port()
        with proxy([up.entry(ANY)], "--listen", "127.0.0.1:0", "--listen", f"https://127.0.0.1:{port}",
                   "--tls-cert", cert["server"][0], "--tls-key", cert["server"][1]) as g:
            good = tls_context(cert["ca"][0])
            s = tls_socket(port, good)
            assert s.version() in ("TLSv1.2", "TLSv1.3"), s.version()
            r = ask_on(s, "POST", CHAT, ask(stream=True, max_tokens=200))
            assert len(r.events()) == 203 and r.events()[-1] == b"[DONE]"
            big = json.dumps(ask(pad="x" * (4 << 20))).encode()
            up.script = {"body": "y" * (4 << 20)}
            r = ask_on(tls_socket(port, good), "POST", CHAT, big)
            assert len(r.body) == 4 << 20 and up.requests[-1].body == big
            up.script = {}
            fails(ssl.SSLCertVerificationError,
                  lambda: tls_socket(port, tls_context(cert["stranger"][0])))
            old = tls_context(cert["ca"][0])
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            fails((ssl.SSLError, OSError), lambda: tls_socket(port, old))
            plain = socket.create_connection(("127.0.0.1", port), timeout=30)
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " not in read_until(plain, b"\r\n\r\n")
            plain.close()
            # half a handshake and silence block nobody; an abort reaches the upstream
            half = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
            for h in half:
                h.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert ask_on(tls_socket(port, good), "GET", "/health").status == 200
            n = len(up.requests)
            s = tls_socket(port, good)
            body = json.dumps(ask(script={"wait_s": 3600})).encode()
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                      + body)
            until("it arrived", lambda: len(up.requests) > n)
            s.close()
            until("the upstream noticed", lambda: up.requests[n].left_at)
            for h in half:
                h.close()
            two = tls_socket(port, good)  # pipelined and kept alive
            for _ in range(3):
                two.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
                data = b""
                while data.count(b"HTTP/1.1 200") < 2:
                    data += two.recv(65536)
            two.close()
            assert g.post(CHAT, ask()).status == 200


def fails(kind, fn):
    try:
        fn()
    except kind:
        return
    raise AssertionError("nothing was refused")


def test_client_certificates():
    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        cert = certificates(d)
        port = free_port()
        with proxy([up.entry(ANY)], "--listen", "127.0.0.1:0", "--listen", f"https://127.0.0.1:{port}",
                   "--tls-cert", cert["server"][0], "--tls-key", cert["server"][1],
                   "--tls-client-ca", cert["ca"][0]):
            ca = cert["ca"][0]
            s = tls_socket(port, tls_context(ca, cert["client"]))
            assert ask_on(s, "POST", CHAT, ask()).status == 200

            def refused(context):
                return ask_on(tls_socket(port, context), "POST", CHAT, ask())

            n = len(up.requests)
            fails((ssl.SSLError, OSError), lambda: refused(tls_context(ca)))
            fails((ssl.SSLError, OSError), lambda: refused(tls_context(ca, cert["stranger"])))
            assert len(up.requests) == n


def test_certificate_reload():
    def serial(port, ca):
        s = tls_socket(port, tls_context(ca))
        out = s.getpeercert()["serialNumber"]
        s.close()
        return out

    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        cert = certificates(d)
        server, port = cert["server"], free_port()
        with proxy([up.entry(ANY)], "--listen", "127.0.0.1:0", "--listen", f"https://127.0.0.1:{port}",
                   "--tls-cert", server[0], "--tls-key", server[1], "--loops", "2") as g:
            before = serial(port, cert["ca"][0])
            kept = tls_socket(port, tls_context(cert["ca"][0]))
            with open(server[0], "r+") as f:
                f.write("no certificate")
            g.proc.send_signal(signal.SIGHUP)
            until("the refusal is logged", lambda: "config.reload" in g.log())
            assert serial(port, cert["ca"][0]) == before  # the old one stays
            new = tempfile.mkdtemp(dir=d)
            fresh = certificates(new)
            for name in (0, 1):
                os.replace(fresh["server"][name], server[name])
            g.proc.send_signal(signal.SIGHUP)

            def changed():
                try:
                    return serial(port, fresh["ca"][0]) != before
                except ssl.SSLError:
                    return False

            until("the new one is shown", changed)
            for _ in range(8):  # on all loops
                serial(port, fresh["ca"][0])
            assert ask_on(kept, "POST", CHAT, ask()).status == 200


# ---- headers, logs ----

def test_cors_through_an_upstream():
    with Upstream() as up:
        up.script = {"headers": {"Access-Control-Allow-Origin": "https://evil.example",
                                 "Access-Control-Allow-Credentials": "true"}}
        with proxy([up.entry(ANY)], "--cors-origin", "https://app.example", "--api-key", "one") as g:
            origin = {"Origin": "https://app.example"}
            for path in (CHAT, "/v1/embeddings"):
                r = g.post(path, ask(), headers=dict(origin, **key()))
                assert r.status == 200
                assert [v for n, v in r.pairs if n.lower() == "access-control-allow-origin"] == \
                    ["https://app.example"], r.pairs
                assert "access-control-allow-credentials" not in r.headers
                r = g.post(path, ask(), headers={"Origin": "https://evil.example", **key()})
                assert "access-control-allow-origin" not in r.headers
                r = g.request("OPTIONS", path, headers=dict(
                    origin, **{"Access-Control-Request-Method": "POST"}))
                assert r.status == 204 and "access-control-allow-methods" in r.headers
                r = g.post(path, ask(), headers=origin)  # pages may read refusals
                assert r.status == 401
                assert r.headers["access-control-allow-origin"] == "https://app.example"


LOGGED = {"ts", "request_id", "client", "method", "path", "model", "target", "stream", "status", "end",
          "bytes_in", "bytes_out", "ttft_ms", "queue_ms", "dur_ms", "retries"}


def test_access_log():
    secret = "the river of secrets"
    with Upstream() as up, proxy([up.entry(ANY + " api_key=sk-upstream paths=files")], "--api-key", "one id=me",
                                 "--retries", "0") as g:
        def line(**kw):
            got = [x for x in g.access_log() if all(x.get(k) == v for k, v in kw.items())]
            return got[-1] if got else None

        body = json.dumps(ask(messages=[{"role": "user", "content": secret}]))
        g.post(CHAT + "?token=hidden", body.encode(), headers=dict(key(), **{"x-request-id": "r1"}))
        x = until("the first", lambda: line(request_id="r1"))
        assert LOGGED <= set(x), LOGGED - set(x)
        assert (x["path"], x["status"], x["end"], x["target"], x["key_id"], x["stream"]) == \
            (CHAT, 200, "ok", "up", "me", False), x
        assert x["bytes_in"] >= len(body) and x["bytes_out"] > 100 and x["dur_ms"] >= 0
        assert (x["prompt_tokens"], x["completion_tokens"]) == (7, 4), x
        for i, (script, stream, status, end) in enumerate((
                ({}, True, 200, "ok"), ({"status": 500}, False, 500, "upstream"),
                ({"stop_at": 40, "end": "reset"}, True, 200, "upstream"),
                ({"end": "close", "stop_at": -1}, False, 502, "upstream"))):
            g.post(CHAT, ask(stream=stream, script=script),
                   headers=dict(key(), **{"x-request-id": f"s{i}"}))
            x = until("its line", lambda: line(request_id=f"s{i}"))
            want = (status, end) if status != 500 else (500, x["end"])
            assert (x["status"], x["end"]) == want and x["stream"] == stream, x
        g.post("/v1/files", b"binary\0", headers=dict(key(), **{"x-request-id": "f"}))
        assert until("its line", lambda: line(request_id="f"))["path"] == "/v1/files"
        g.post(CHAT, ask(), headers={"x-request-id": "u", "Authorization": "Bearer wrong-key"})
        assert until("its line", lambda: line(request_id="u"))["status"] == 401
        g.post(CHAT, ask(model='m"\n\x1b[31m'), headers=dict(key(), **{"x-request-id": "odd"}))
        assert until("its line", lambda: line(request_id="odd"))["model"] == 'm"\n\x1b[31m'
        text = open(g.out_path).read() + g.log()
        for hidden in (secret, "hidden", "sk-upstream", "wrong-key", "Bearer", "\x1b"):
            assert hidden not in text, hidden


def test_keepalive_comments():
    """A silent upstream is bridged by comment lines; the events stay as they were."""
    with Upstream() as up, proxy([up.entry(ANY)], "--sse-keepalive", "150ms") as g:
        plain = g.post(CHAT, ask(stream=True, script={})).body
        between = g.post(CHAT, ask(stream=True, script={"token_s": 0.7})).body
        assert between.count(b"\n:") + between.startswith(b":") >= 4, between
        kept = b"\n\n".join(x for x in between.split(b"\n\n") if not x.startswith(b":"))
        assert kept == plain, kept
        half = g.post(CHAT, ask(stream=True, script={  # never within an event
            "body": 'data: {"a":"' + "x" * 50 + '"}\n\ndata: [DONE]\n\n', "type": "text/event-stream",
            "framing": "chunked", "split": 30})).body
        assert parse_events(half)[0] == b'{"a":"' + b"x" * 50 + b'"}'
        r = g.post(CHAT, ask(script={"wait_s": 1}))  # plain answers get none
        assert r.json()["object"] == "chat.completion"
    with Upstream() as up, proxy([up.entry(ANY)], "--sse-keepalive", "0") as g:
        assert b"\n:" not in g.post(CHAT, ask(stream=True, script={"token_s": 0.4})).body


def test_refusals_say_when_to_come_again():
    with Upstream() as up:
        with proxy([up.entry("models=m health=off")], "--max-body", "64KiB", "--max-inflight", "1",
                   "--queue-limit", "0", "--api-key", "one", "--api-key", "rate rpm=1",
                   "--retries", "0") as g:
            r = g.post(CHAT, ask(model="m", pad="x" * 70000), headers=key())
            assert r.status == 413 and r.error()["code"] == "request_too_large"
            assert r.headers["x-should-retry"] == "false" and "retry-after" not in r.headers
            r = g.post("/v1/files", b"x" * 70000, headers=key())
            assert r.status == 413 and r.error()["code"] == "request_too_large"
            assert g.post(CHAT, ask(model="m"), headers=key("rate")).status == 200
            r = g.post(CHAT, ask(model="m"), headers=key("rate"))
            assert r.status == 429 and r.error()["code"] == "rate_limit_exceeded"
            assert 0 < float(r.headers["retry-after"]) <= 60 and r.headers["x-should-retry"] == "true"
            assert int(r.headers["retry-after-ms"]) <= 60000
            held = g.open(CHAT, ask(model="m", script={"wait_s": 3600}),
                          headers="Authorization: Bearer one\r\n")
            until("it runs", lambda: len(up.requests) == 2)
            r = g.post(CHAT, ask(model="m"), headers=key())
            assert r.status == 429 and r.error()["code"] == "server_overloaded"
            assert float(r.headers["retry-after"]) > 0 and r.headers["x-should-retry"] == "true"
            held.close()
    with Upstream() as up:
        up.healthy = False
        with proxy([up.entry("models=m health=/health health_interval=100ms")], ready=False) as g:
            until("it is known to be down", lambda: g.metric(
                'kvblend_gateway_upstream_up{target="up"}') == 0)
            r = g.post(CHAT, ask(model="m"))
            assert r.status in (502, 503) and r.error(), r.body
            assert float(r.headers["retry-after"]) > 0 and r.headers["x-should-retry"] == "true"


# ---- systemd ----

def test_socket_activation():
    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        tcp = socket.create_server(("127.0.0.1", 0))
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(f"{d}/s")
        unix.listen(16)
        port = tcp.getsockname()[1]
        early = socket.create_connection(("127.0.0.1", port), timeout=30)  # before it runs
        early.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        for loops in ("1", "3"):
            script = (f'LISTEN_FDS=2 LISTEN_FDNAMES=a:b LISTEN_PID=$$ exec "$@" '
                      f'3<&{tcp.fileno()} 4<&{unix.fileno()}')
            p = Program(["bash", "-c", script, "sh", KVBLEND, "--listen", "systemd", "--upstream",
                         up.entry(ANY), "--loops", loops], fds=(tcp.fileno(), unix.fileno()))
            p.port = port
            with p as g:
                until("it serves", lambda: "gateway.listening" in g.log() or g.proc.poll())
                if early:
                    assert b" 200 " in read_until(early, b"}")
                    early.close()
                    early = None
                for _ in range(8):
                    assert g.post(CHAT, ask(), timeout=20).status == 200
                    assert unix_request(f"{d}/s", "GET", "/health").status == 200
                g.proc.send_signal(signal.SIGTERM)
                assert g.proc.wait(30) == 0
            assert os.path.exists(f"{d}/s"), "systemd's socket is not ours to remove"
        tcp.close()
        unix.close()


def test_notify():
    with tempfile.TemporaryDirectory() as d, Upstream() as up:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.bind(f"{d}/notify")
        s.settimeout(30)
        said = []

        def hears(word):
            end = time.monotonic() + 30
            while not any(word in x for x in said):
                assert time.monotonic() < end, (word, said)
                said.append(s.recv(4096).decode())
            said.clear()

        text = config(up.entry(ANY))
        p = Program([KVBLEND, "--config", "{dir}/kvblend.yaml"], {"NOTIFY_SOCKET": f"{d}/notify"},
                    {"kvblend.yaml": text})
        with listening(p) as g:
            hears("READY=1")
            g.proc.send_signal(signal.SIGHUP)
            hears("RELOADING=1")
            hears("READY=1")
            g.proc.send_signal(signal.SIGTERM)
            hears("STOPPING=1")
            assert g.proc.wait(30) == 0
        # With a model of its own it is ready once that is loaded; a reload before then says nothing.
        pathlib.Path(d, "hold").touch()
        with gateway(stub=True, ready=False, env={"NOTIFY_SOCKET": f"{d}/notify", "STUB_HOLD": f"{d}/hold"}) as g:
            assert g.get("/ready").status == 503
            g.proc.send_signal(signal.SIGHUP)
            until("it has read its configuration again", lambda: "config.reloaded" in g.log())
            s.setblocking(False)
            try:
                raise AssertionError(s.recv(4096))
            except BlockingIOError:
                s.settimeout(30)
            os.unlink(f"{d}/hold")
            hears("READY=1")
            assert g.get("/ready").status == 200
        s.close()


# ---- the tool ----

def test_ctl():
    with Upstream() as up, configured(config(up.entry(ANY))) as g:
        for args in (["status"], ["targets"], ["reload"]):
            p = subprocess.run([KVBLENDCTL, *args], env=g.env, capture_output=True, text=True,
                               timeout=30)
            assert p.returncode == 0 and p.stdout, (args, p.stdout, p.stderr)


if __name__ == "__main__":
    main(globals())
