#!/usr/bin/env python3
"""The admin API's doors, as strangers try them: the socket's mode, keys on TCP, pages of other origins."""
import os
import socket
import subprocess
import tempfile
import threading

from harness import (ADMIN, DEADLINE_S, KVBLEND, KVBLENDCTL, WORKER, Program, ask_on, certificates, clean_env,
                     free_port, listening, main, need, proxy, tiny_model, unix_request, until,
                     worker_listening)
from upstream import Upstream

need(KVBLEND, KVBLENDCTL, WORKER)
ANY = "models=* health=off"
KEY = {"Authorization": "Bearer sesame"}


def test_the_socket_is_its_user_s_alone():
    """From its first moment on, whatever the umask says."""
    with Upstream() as up:
        for umask in ("000", "022", "077", "177"):
            for own in (False, True):
                args = [KVBLEND, "--listen", "127.0.0.1:0", "--upstream", up.entry(ANY)]
                args += ["--admin", "unix:{dir}/a.sock"] if own else []
                p = Program(["bash", "-c", f'umask {umask}; exec "$@"', "sh", *args])
                path = f"{p.dir}/a.sock" if own else p.admin[5:]
                seen, over = set(), threading.Event()

                def look():
                    while not over.is_set():
                        try:
                            seen.add(os.stat(path).st_mode)
                        except OSError:
                            pass

                watcher = threading.Thread(target=look)
                watcher.start()
                try:
                    with listening(p):
                        until("the socket is there", lambda: seen)
                        seen.add(os.stat(path).st_mode)
                finally:
                    over.set()
                    watcher.join()
                assert {x & 0o7777 for x in seen} == {0o600}, (umask, own, [oct(x) for x in seen])


def test_tcp_and_public_need_a_key():
    for args, what in ((["--admin", "127.0.0.1:0"], "admin.listen: HOST:PORT needs admin.keys"),
                       (["--admin-public"], "admin.public needs admin.keys")):
        r = subprocess.run([KVBLEND, "--check", *args], capture_output=True, text=True, env=clean_env(),
                           timeout=DEADLINE_S)
        assert r.returncode == 2 and what in r.stderr, r
        r = subprocess.run([KVBLEND, "--check", *args, "--admin-key", "x"], capture_output=True, text=True,
                           env=clean_env(), timeout=DEADLINE_S)
        assert r.returncode == 0, r


def asks(port):
    def ask(method, path, headers, body=None):
        s = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        return ask_on(s, method, path, body, headers)
    return ask


def state_of(ask):
    return ask("GET", "/admin/targets", KEY).json()["targets"][0]["state"]


def check_keys(ask):
    chat = b'{"model":"up-model","messages":[]}'
    for bad in ({}, {"Authorization": "Bearer tenant"}, {"Authorization": "Bearer sesam"}, {"X-Api-Key": "tenant"},
                {"Authorization": "Bearer "}, {"Authorization": "Basic sesame"}):
        for method, path, body in (("GET", "/admin/status", None), ("POST", "/admin/targets/up/drain", b""),
                                   ("POST", "/admin/reload", b"{}"), ("GET", "/admin/keys", None),
                                   ("GET", "/admin/none", None)):
            r = ask(method, path, bad, body)
            assert r.status == 401 and r.error()["code"] == "invalid_api_key", (path, bad, r.status, r.body)
    assert ask("GET", "/admin/status", {"X-Api-Key": "sesame"}).status == 200
    assert ask("GET", "/health", {}).status == 200
    assert state_of(ask) == "ready"
    return chat


def check_pages(ask, port):
    """Pages of other origins, and names that another's DNS may lend to this address."""
    plain = {"Content-Type": "text/plain"}
    for bad in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": f"http://localhost:{port}"},
                {"Host": "evil.example"}, {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},
                {"Host": "127.0.0.1.evil.example"}, {"Host": "kv.other"}):
        for key in ({}, KEY):
            r = ask("POST", "/admin/targets/up/drain", dict(plain, **bad, **key), b"")
            assert r.status == 403 and r.error()["code"] == "foreign_origin", (bad, key, r.status, r.body)
            r = ask("GET", "/admin/status", dict(bad, **key))
            assert r.status == 403 and b"uptime" not in r.body, (bad, r.body)
    assert state_of(ask) == "ready"
    for good in ({"Origin": f"http://127.0.0.1:{port}", "Host": f"127.0.0.1:{port}"}, {"Host": f"localhost:{port}"}, {"Host": "KV.internal:1"},
                 {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}, {"Host": "[::1]:8011"}):
        assert ask("GET", "/admin/status", dict(good, **KEY)).status == 200, good


def test_admin_on_tcp():
    port = free_port()
    with Upstream() as up:
        with proxy([up.entry(ANY)], "--api-key", "tenant", "--admin", f"127.0.0.1:{port}", "--admin-key", "sesame",
                   "--admin-key=sha256:" + "0" * 64, "--admin-host", "kv.internal", "--admin", "unix:{dir}/a") as g:
            ask = asks(port)
            chat = check_keys(ask)
            check_pages(ask, port)
            assert ask("GET", "/metrics", {"Authorization": "Bearer tenant"}).status == 401
            assert ask("GET", "/metrics", KEY).status == 200
            path = "/v1/chat/completions"  # who may administer may also ask; others may not
            assert ask("POST", path, {"Authorization": "Bearer tenant"}, chat).status == 401
            assert ask("POST", path, {}, chat).status == 401
            assert ask("POST", path, KEY, chat).status == 200
            assert g.get("/admin/status", headers=KEY).status == 404
            for env, code in (({}, 1), ({"KVBLEND_ADMIN_KEY": "wrong"}, 1), ({"KVBLEND_ADMIN_KEY": "sesame"}, 0)):
                r = subprocess.run([KVBLENDCTL, "--admin", f"127.0.0.1:{port}", "targets"], capture_output=True,
                                   text=True, timeout=DEADLINE_S, env=dict(clean_env(), **env))
                assert r.returncode == code, (env, r)
            r = subprocess.run([KVBLENDCTL, "--admin", f"unix:{g.dir}/a", "targets"], capture_output=True, text=True,
                               timeout=DEADLINE_S, env=clean_env())
            assert r.returncode == 0, r
            with open(f"/proc/{g.proc.pid}/cmdline") as f:
                assert "sesame" not in f.read() + g.log()


def test_admin_on_the_public_address():
    with Upstream() as up:
        with proxy([up.entry(ANY)], "--api-key", "tenant", "--admin-public", "--admin-key", "sesame", "--admin-host",
                   "kv.internal", "--cors-origin", "https://evil.example", "--listen", "127.0.0.1:0", "--listen",
                   "unix:{dir}/p") as g:
            check_keys(asks(g.port))
            check_pages(asks(g.port), g.port)
            s = socket.socket(socket.AF_UNIX)  # a public unix socket is no private one
            s.connect(f"{g.dir}/p")
            assert ask_on(s, "GET", "/admin/status", None, {"Host": "localhost"}).status == 401


# ---- workers ----

CHAT = "/v1/chat/completions"


def rag(n=3):
    parts = [{"type": "text", "text": f"Note {i}. " + "The old mill by the river still turns. " * 8} for i in range(n)]
    return {"model": "default", "max_tokens": 2,
            "messages": [{"role": "user", "content": parts + [{"type": "text", "text": "Does it turn?"}]}]}


def worker(*args, listen="127.0.0.1:0"):
    return worker_listening(Program([WORKER, "--model", tiny_model(), "--listen", listen, "--ram", "64MiB",
                                     "--threads", "1", *args]), ready=False)


def behind(*workers, args=(), ready=True):
    cmd = [KVBLEND, "--listen", "127.0.0.1:0", *args]
    for w in workers:
        cmd += ["--worker", w]
    return listening(Program(cmd), ready)


ROUTES = [("GET", "/admin/status"), ("GET", "/admin/chunks"), ("GET", "/admin/decisions"), ("POST", "/admin/clear"),
          ("POST", "/admin/flush"), ("POST", "/admin/segment"), ("GET", "//admin//tiers"), ("GET", "/admin/%73tatus")]
FEED = "/admin/residents?epoch=0&since=0&wait_ms=0"


def test_a_worker_s_admin_routes_are_off_on_tcp():
    key = {"Authorization": "Bearer sesame"}
    with worker() as w:
        until("it serves", lambda: w.get("/health").status == 200)
        for method, path in ROUTES + [("GET", FEED)]:
            r = w.request(method, path, b"{}" if method == "POST" else None)
            assert r.status == 403 and r.error()["code"] == "admin_closed", (path, r.status, r.body)
        assert w.post(CHAT, rag()).status == 200
        assert w.get("/v1/models/default/").status == 200
    with worker("--api-key", "sesame") as w:
        until("it serves", lambda: w.get("/health").status == 200)
        for bad in ({}, {"Authorization": "Bearer sesam"}, {"X-Api-Key": "sesamex"}):
            assert w.post(CHAT, rag(), headers=bad).status == 401
            assert w.get(FEED, headers=bad).status == 401
        for method, path in ROUTES:
            assert w.request(method, path, b"{}" if method == "POST" else None, key).status == 403, path
        assert w.get(FEED, headers=key).status == 200  # by which gateways route
        with open(f"/proc/{w.proc.pid}/cmdline") as f:
            assert "sesame" not in f.read() + w.log()
    with worker(*ADMIN) as w:
        until("it serves", lambda: w.get("/health").status == 200)
        assert w.get("/admin/status").status == 200
        assert w.get("/admin/status", headers={"Authorization": "Bearer x"}).status == 401
    r = subprocess.run([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", "--admin-tcp"],
                       capture_output=True, text=True, timeout=DEADLINE_S, env=clean_env())
    assert r.returncode == 2 and "--admin-tcp needs --api-key" in r.stderr, r
    with worker(listen="unix:{dir}/w.sock") as w:  # its user's own
        path = f"{w.dir}/w.sock"
        assert os.stat(path).st_mode & 0o7777 == 0o600
        until("it serves", lambda: unix_request(path, "GET", "/health").status == 200)
        assert unix_request(path, "GET", "/admin/status").status == 200


def learned(g):
    return unix_request(g.admin[5:], "GET", "/metrics").body.decode().count("kvblend_gateway_directory_texts 3")


def test_a_worker_with_a_key_behind_the_gateway():
    with worker("--api-key", "sesame") as w, worker(*ADMIN) as a:
        with behind(f"http://127.0.0.1:{w.port} api_key=sesame") as g:
            assert g.post(CHAT, rag(), headers={"Authorization": "Bearer client"}).status == 200
            until("it is known what is held there", lambda: learned(g))
            assert "status" not in g.admin_get("/admin/status")["workers"][0]
            with open(f"/proc/{g.proc.pid}/cmdline") as f:
                assert "sesame" not in f.read() + g.log()
        with behind(f"127.0.0.1:{a.port} api_key=sesame") as g:  # administered through the gateway
            assert g.admin_get("/admin/status")["workers"][0]["status"]["state"] == "ready"
            assert g.admin_get("/admin/chunks")["data"] == []
        for entry in (f"http://127.0.0.1:{w.port}", f"http://127.0.0.1:{w.port} api_key=sesam"):
            with behind(entry, ready=False) as g:
                until("it was asked", lambda: "state=loading" in g.log())
                assert g.post(CHAT, rag()).status == 503


def test_a_worker_on_https():
    with tempfile.TemporaryDirectory() as d:
        files = certificates(d)
        (cert, key), ca = files["server"], files["ca"][0]
        with worker("--api-key", "sesame", "--tls-cert", cert, "--tls-key", key) as w:
            entry = f"https://127.0.0.1:{w.port} api_key=sesame"
            with behind(f"{entry} ca_file={ca}") as g:
                assert g.post(CHAT, rag()).status == 200
                until("it is known what is held there", lambda: learned(g))
            with behind(entry, ready=False) as g:  # by an authority that nobody knows
                assert g.post(CHAT, rag()).status in (502, 503)
                assert "state=ready" not in g.log() and g.get("/ready").status == 503


if __name__ == "__main__":
    main(globals())
