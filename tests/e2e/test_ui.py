#!/usr/bin/env python3
"""The operator's page without a browser: where it is served, what its headers forbid, who may watch and act, what
the routes that it reads answer. ui_browser.py (tools/test --ui) drives it in Chromium."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

from harness import (DEADLINE_S, KVBLEND, ROOT, WORKER, ask_on, clean_env, document, free_port, gateway, main, need,
                     parse_events, proxy, until)
from upstream import Upstream

need(KVBLEND, WORKER)
KEY = {"Authorization": "Bearer sesame"}
ANY = "models=* health=off"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FORBIDDEN = ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
             "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"]


def asks(port):
    def ask(method, path, headers=None, body=None):
        s = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        return ask_on(s, method, path, body, headers or {})
    return ask


class Watch:
    """GET /admin/watch over an open connection; event() waits for the next one."""

    def __init__(self, port, headers=KEY):
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
        self.c.request("GET", "/admin/watch", headers=headers)
        self.r = self.c.getresponse()

    def event(self):
        text = b""
        while not text.endswith(b"\n\n"):
            line = self.r.readline()
            if not line:
                return None
            text += line
        return json.loads(parse_events(text)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.c.close()


def page_files():
    return sorted(f for f in os.listdir(os.path.join(ROOT, "ui")) if os.path.splitext(f)[1] in TYPES)


def test_files_are_served_without_a_key_and_hold_nothing_foreign():
    port = free_port()
    with Upstream() as up, proxy([up.entry(ANY)], "--admin", f"127.0.0.1:{port}", "--admin-key", "sesame") as g:
        ask = asks(port)
        for path in ["/ui", "/ui/"] + ["/ui/" + f for f in page_files()]:
            r = ask("GET", path)
            name = path[4:] or "index.html"
            assert r.status == 200, (path, r.status)
            assert r.headers["content-type"].startswith(TYPES[os.path.splitext(name)[1]]), (path, r.headers)
            assert [x.strip() for x in r.headers["content-security-policy"].split(";")] == FORBIDDEN
            assert r.headers["x-content-type-options"] == "nosniff"
            with open(os.path.join(ROOT, "ui", name), "rb") as f:
                assert r.body == f.read(), path
            foreign = [w for w in (b"http://", b"https://", b"eval(", b"innerHTML", b"document.write") if w in r.body]
            assert foreign in ([], [b"http://"]) and r.body.count(b"http://") == r.body.count(b"http://www.w3.org/"), path
            assert ask("HEAD", path).status == 200
            assert ask("POST", path, body=b"{}").status in (405, 413), path
            assert g.request("GET", path).status in (401, 404), "the public address has no page"
        for bad in ("/ui/none.js", "/ui/../admin/status", "/uix", "/ui/app.js/", "/v1/ui"):
            assert ask("GET", bad, KEY).status == 404, bad


def test_public_only_when_told_so():
    r = subprocess.run([KVBLEND, "--check", "--ui-public"], capture_output=True, text=True, env=clean_env(),
                       timeout=DEADLINE_S)
    assert r.returncode == 2 and "ui.public needs admin.public" in r.stderr, r
    with Upstream() as up, proxy([up.entry(ANY)], "--admin-public", "--ui-public", "--admin-key", "sesame",
                                 "--api-key", "tenant", "--loops", "3") as g:
        assert g.get("/ui/app.js").status == 200
        for headers, status in (({}, 401), ({"Authorization": "Bearer tenant"}, 401), (KEY, 200)):
            assert g.get("/admin/requests/recent", headers=headers).status == status
        with contextlib.ExitStack() as several:  # on whatever loop a connection comes to
            watchers = [several.enter_context(Watch(g.port)) for _ in range(8)]
            assert all(w.event() and w.event()["workers"] == [] for w in watchers)
            assert g.stop() == 0
    with Upstream() as up, proxy([up.entry(ANY)], "--admin-public", "--admin-key", "sesame") as g:
        assert g.get("/ui/app.js").status == 404


def test_actions_of_other_origins():
    """With the key, too: what a browser says of where a request comes from is believed."""
    port = free_port()
    with Upstream() as up, proxy([up.entry(ANY)], "--admin", f"127.0.0.1:{port}", "--admin-key", "sesame",
                                 "--admin", "unix:{dir}/a.sock") as g:
        def unix(method, path, headers=None, body=None):
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(DEADLINE_S)
            s.connect(f"{g.dir}/a.sock")
            return ask_on(s, method, path, body, headers or {})
        own = f"127.0.0.1:{port}"
        for ask, key in ((asks(port), KEY), (unix, {})):
            for bad in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
                        {"Origin": "null"}, {"Host": "evil.example", "Origin": "http://evil.example"}):
                for method, path in (("POST", "/admin/targets/up/drain"), ("GET", "/admin/watch"), ("GET", "/admin/status")):
                    r = ask(method, path, dict({"Host": own}, **bad, **key), b"" if method == "POST" else None)
                    assert r.status == 403 and r.error()["code"] == "foreign_origin", (bad, path, r.status)
            for good in ({"Sec-Fetch-Site": "same-origin", "Origin": f"http://{own}"}, {"Sec-Fetch-Site": "none"}, {}):
                r = ask("GET", "/admin/targets", dict({"Host": own}, **good, **key))
                assert r.status == 200 and r.json()["targets"][0]["state"] == "ready", (good, r.status)
                assert r.headers["cache-control"] == "no-store" and r.headers["x-content-type-options"] == "nosniff"
        assert unix("GET", "/admin/status", {"Host": "whatever"}).status == 200, "tools name what host they like"


def test_watching():
    """A stream of what goes on: requests once each, by every watcher; it holds no shutdown up."""
    port = free_port()
    with Upstream() as up, proxy([up.entry(ANY)], "--admin", f"127.0.0.1:{port}", "--admin-key", "sesame",
                                 "--api-key", "tenant id=t", "--access-log", "off") as g:
        def chat(model):
            return g.post("/v1/chat/completions", {"model": model, "messages": []},
                          headers={"Authorization": "Bearer tenant"})
        assert asks(port)("GET", "/admin/watch").status == 401
        assert asks(port)("HEAD", "/admin/watch", KEY).status == 200
        assert chat("before").status == 200
        with Watch(port) as a:
            assert a.r.status == 200 and a.r.headers["content-type"].startswith("text/event-stream")
            assert "no-store" in a.r.headers.get_all("cache-control")
            first = a.event()
            assert [x["model"] for x in first["requests"]] == ["before"], first
            assert first["requests"][0]["key_id"] == "t" and first["workers"] == []
            assert set(first["gateway"]) >= {"in_flight", "waiting", "draining", "loop_lag_ms", "uptime_s"}
            assert chat("<img src=x onerror=alert(1)>").status == 200
            with Watch(port) as b:
                assert len(b.event()["requests"]) == 2
                seen = []
                until("the request is told of", lambda: seen.extend(a.event()["requests"]) or seen)
                assert [x["model"] for x in seen] == ["<img src=x onerror=alert(1)>"]
                assert a.event()["requests"] == [], "told once"
            recent = asks(port)("GET", "/admin/requests/recent", KEY).json()["requests"]
            assert [x["model"] for x in recent] == ["before", "<img src=x onerror=alert(1)>"], "nothing of the page's own"
            g.proc.send_signal(signal.SIGTERM)
            while a.event():
                pass
            assert g.stop() == 0


def test_workers_are_left_alone_where_nobody_watches():
    port = free_port()
    with gateway("--health-interval", "1s", stub=True, env={"KVBLEND_ADMIN": f"127.0.0.1:{port}",
                                                            "KVBLEND_ADMIN_KEY": "sesame"}):
        def asked(path):
            status = asks(port)("GET", "/admin/status", KEY).json()["workers"][0]["status"]
            return status["asked"].get(path, 0)

        def asked_by_the_page():
            """Meanwhile so many probes come that a page's second is long over."""
            before, probes = asked("/admin/now"), asked("/health")
            until("more probes", lambda: asked("/health") >= probes + 4)
            return asked("/admin/now") - before
        assert asked_by_the_page() == 0
        with Watch(port) as w:
            assert w.event() and w.event() and asked("/admin/now") >= 2
        until("it is seen to have gone", lambda: asked_by_the_page() == 0)


def test_what_the_quickstart_prints_opens():
    """Its variables alone: the page, what it reads, and what the playground asks, by the admin key."""
    port = free_port()
    with gateway(env={"KVBLEND_ADMIN": f"127.0.0.1:{port}", "KVBLEND_ADMIN_KEY": "sesame",
                      "KVBLEND_SHOW_TEXT": "/playground"}) as g:
        ask = asks(port)
        assert ask("GET", "/ui").status == 200 and ask("GET", "/ui/play.js").status == 200
        for path in ("/admin/decisions", "/v1/models"):
            assert ask("GET", path).status == 401 and ask("GET", path, KEY).status == 200, path
        def post(asking, path, key, **body):
            r = asking("POST", path, dict(key, **{"Content-Type": "application/json"}), json.dumps(body).encode())
            assert r.status == 200, r.body
            return r
        with Watch(port) as w:
            assert w.event()
            for asking, key, space in ((ask, KEY, "playground"), (asks(g.port), {}, "another")):
                post(asking, "/v1/segments", key, texts=[document(0), document(1)], namespace=space)
                parts = [{"type": "text", "text": t} for t in (document(1), document(0), "What of it?")]
                r = post(asking, "/v1/chat/completions", key, messages=[{"role": "user", "content": parts}], max_tokens=1,
                         kvblend={"namespace": space, "mode": "blend"})
                heat = ask("GET", "/admin/heat/" + r.headers["x-request-id"], KEY)
                assert heat.status == 200 and (heat.json()["prompts"][0]["text"] is not None) == (space == "playground")


def test_tokens_of_a_request_are_shown_where_it_is_allowed():
    """Which tokens were recomputed, while somebody watches; their text only in namespaces that the operator has named,
    whatever a caller calls itself, and to nobody without the admin key."""
    port, texts = free_port(), [document(i) for i in range(3)]
    keys = {k: {"Authorization": f"Bearer {k}-key"} for k in "ab"}
    with gateway("--admin", f"127.0.0.1:{port}", "--admin-key", "sesame", "--api-key", "a-key id=acme",
                 "--api-key", "b-key id=beta", "--show-text", "acme") as g:
        ask = asks(port)

        def blend(key, n=3, strategy="query", **fields):
            parts = [{"type": "text", "text": t} for t in texts[:n]] + [{"type": "text", "text": "<b>What</b> é item?"}]
            names = {"namespace": fields.pop("namespace")} if "namespace" in fields else {}
            r = g.post("/v1/segments", dict({"texts": texts}, **names), headers=keys[key])
            assert r.status == 200, r.body
            r = g.post("/v1/chat/completions", headers=keys[key], body=dict(
                {"messages": [{"role": "user", "content": parts}], "max_tokens": 1,
                 "kvblend": dict({"mode": "blend", "strategy": strategy, "ratio": 0.25}, **names)}, **fields))
            assert r.status == 200 and r.json()["kvblend"]["tokens"]["reused"] > 0, r.body
            return r

        def heat(r):
            return ask("GET", "/admin/heat/" + r.headers["x-request-id"], KEY)

        unseen = heat(blend("a"))
        assert unseen.status == 404 and "nobody watched" in unseen.error()["message"], unseen.body
        with Watch(port) as w:
            assert w.event()
            shown, hidden = blend("a"), blend("b")
            for r, text in ((shown, True), (hidden, False), (blend("a", namespace="team"), True),
                            (blend("b", namespace="acme"), False), (blend("b", namespace="/acme"), False)):
                answer = heat(r)
                assert answer.status == 200, answer.body
                one, tokens = answer.json()["prompts"][0], r.json()["kvblend"]["tokens"]
                levels = bytes.fromhex(one["heat"])
                assert len(levels) == one["tokens"] == sum(tokens.values())
                assert sum(x >= 128 for x in levels) == tokens["recomputed"] > 0
                assert sum(x != 127 for x in levels) == tokens["reused"] + tokens["recomputed"]
                assert max(x & 127 for x in levels if x != 127) == 126, "the hottest is as hot as can be"
                coldest = min(x for x in levels if x >= 128) - 128
                assert all(x <= coldest for x in levels if x < 127), "what was recomputed is what scored most"
                assert (one["text"] is not None) == text, (r.json(), one)
                if text:
                    said = "".join(one["text"])
                    assert len(one["text"]) == len(levels) and "<b>What</b> é item?" in said and texts[0] in said
                else:
                    assert b"item" not in answer.body
            for strategy in ("hkvd", "sink"):
                r = blend("a", strategy=strategy)
                one, tokens = heat(r).json()["prompts"][0], r.json()["kvblend"]["tokens"]
                levels = bytes.fromhex(one["heat"])
                assert len(levels) == one["tokens"] == sum(tokens.values())
                assert sum(x >= 128 for x in levels) == tokens["recomputed"] > 0
                assert sum(x != 127 for x in levels) == tokens["reused"] + tokens["recomputed"]
                if strategy == "hkvd":
                    assert max(x & 127 for x in levels if x != 127) == 126, levels.hex()
                else:  # which has no scores: a chunk's first tokens
                    assert re.fullmatch(rb"\x7f*(\x80+\0+\x7f+)+", levels), levels.hex()
            path = "/admin/heat/" + shown.headers["x-request-id"]
            by_reply = ask("GET", "/admin/heat/" + shown.json()["id"], KEY)
            assert by_reply.status == 200 and by_reply.json() == heat(shown).json()
            for stranger in (None, *keys.values(), {"Authorization": "Bearer wrong"}):
                assert ask("GET", path, stranger).status == 401
                assert g.request("GET", path, headers=stranger or {}).status in (401, 404)
            for _ in range(16):
                blend("b", 2)
            assert heat(shown).status == 404, "a few are kept"
            assert heat(hidden).status == 404


def test_watchers_are_bounded():
    port = free_port()
    with Upstream() as up, proxy([up.entry(ANY)], "--admin", f"127.0.0.1:{port}", "--admin-key", "sesame"):
        watchers = [Watch(port) for _ in range(16)]
        for w in watchers:
            assert w.event()
        r = asks(port)("GET", "/admin/watch", KEY)
        assert r.status == 429 and r.error()["code"] == "too_many_connections", r.status
        watchers.pop().__exit__()

        def again():
            with Watch(port) as w:
                return w.r.status == 200
        until("a place is free", again)
        for w in watchers:
            w.__exit__()


def test_a_worker_s_word_is_passed_on():
    port = free_port()
    with gateway("--admin", f"127.0.0.1:{port}", "--admin-key", "sesame") as g:
        with Watch(port) as w:
            assert w.event()["workers"][0]["now"]["tokens"]["computed"] == 0
            first = until("a minute begins", lambda: asks(port)("GET", "/admin/past", KEY).json()["workers"][0]["past"])[0]
            assert first["tokens"]["computed"] == 0 and first["tiers"][0]["tier"] == "ram" and first["t"] > 1e9
            r = g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is item 7?"}],
                                                "max_tokens": 2})
            assert r.status == 200, r.body
            now = until("the decision is told of",
                        lambda: (lambda x: x if x["decisions"] else None)(w.event()["workers"][0]["now"]))
        assert now["tokens"] == r.json()["kvblend"]["tokens"]
        lists = asks(port)("GET", "/admin/decisions", KEY).json()
        assert [x["id"] for x in lists["data"]] == [now["decisions"][0]["id"]] == [r.headers["x-request-id"]]


def cpu_ms(*pids):
    """Of all threads of the processes, since their start."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{task}/schedstat") as f:
                total += int(f.read().split()[0])
    return total / 1e6


def test_what_watching_costs():
    """With one who watches, 1000 requests a minute and $KVBLEND_UI_RECORDS records: at most 1 % of a core more."""
    port, records, minute = free_port(), int(os.environ.get("KVBLEND_UI_RECORDS", "512")), 1000
    with gateway("--admin", f"127.0.0.1:{port}", "--admin-key", "sesame", "--ram", f"{records * 40 + 65536}KiB",
                 "--namespace", "*=contexts:off") as g:
        ask = asks(port)
        pids = g.proc.pid, ask("GET", "/admin/status", KEY).json()["workers"][0]["pid"]
        for begin in range(0, records, 256):
            texts = [f"{i} is what it begins with, and then it goes on" for i in range(begin, min(records, begin + 256))]
            assert g.post("/v1/segments", {"texts": texts}).status == 200

        def page(query):
            before = cpu_ms(*pids)
            r = ask("GET", f"/admin/chunks?{query}", KEY)
            assert r.status == 200 and r.json()["total"] == records, r.body[:200]
            return cpu_ms(*pids) - before
        pages = {q: page(q) for q in ("kind=chunk&sort=hits&limit=50", "kind=chunk&sort=idle_s&order=asc&limit=300")}
        begun, before = time.time(), cpu_ms(*pids)
        idle = until("two seconds are over", lambda: time.time() > begun + 2 and cpu_ms(*pids) - before) / 2
        with Watch(port) as w:
            assert w.event()
            spent = []
            for _ in range(4):  # the requests of a second, then the events that tell of them
                for i in range(minute // 60 + 1):
                    assert g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": f"What is {i}?"}],
                                                           "max_tokens": 1}).status == 200
                begun, before, told = time.time(), cpu_ms(*pids), 0
                while told < 2:
                    e = w.event()
                    told += e["t"] > begun
                spent.append((cpu_ms(*pids) - before) / told)
        cost = sorted(spent)[len(spent) // 2] - idle
        print(f"     {records} records: {cost:.2f} ms of CPU a second beside {idle:.2f} of an idle one; "
              f"pages {[round(x, 1) for x in pages.values()]} ms")
        assert cost <= 10, (spent, idle)


if __name__ == "__main__":
    main(globals())
