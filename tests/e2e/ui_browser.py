#!/usr/bin/env python3
"""The operator's page in headless Chromium, against a gateway with its own worker: every view and action, dark, a
phone's width, axe-core, hostile texts, the Content-Security-Policy, no other host. Run by tools/test --ui.

Writes *.png into the folder $KVBLEND_PICTURES. Needs Chromium and the packages of ui.txt (KVBLEND_UI_PYTHON)."""
import contextlib
import copy
import itertools
import json
import os
import shutil
import socket
import time

from harness import (DEADLINE_S, KVBLEND, ROOT, WORKER, Missing, ask_on, free_port, gateway, main, need, other_python,
                     real_model, tiny_model, unix_request, until)

other_python("KVBLEND_UI_PYTHON")
try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    from harness import skip
    skip("playwright and axe-playwright-python are not installed (tools/test --ui)")

from test_ui import Watch

need(KVBLEND, WORKER)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "<img src=x onerror=\"window.hacked=1\">'\"><script>window.hacked=1</script>"
KEY = {"Authorization": "Bearer sesame"}
VIEWS = {"now": "Now", "requests": "Requests", "cache": "Cache", "play": "Playground", "fleet": "Fleet"}
PICTURES = os.environ.get("KVBLEND_PICTURES")  # a folder: screenshots of a real model go there
PICTURE_BYTES = 200000


def documents():
    folder = os.path.join(ROOT, "etc", "demo")
    out = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as f:
            out.append(f.read().strip())
    return out


class Site:
    """A gateway with a real model and a page on its admin address, some requests behind it."""

    def __init__(self, *args, model=None):
        self.port = free_port()
        self.g = gateway("--admin", f"127.0.0.1:{self.port}", "--admin-key", "sesame", "--ram", "512MiB",
                         "--nvme", "{dir}/tier:512MiB", "--api-key", "tenant id=tenant",
                         "--api-key", "acme id=acme namespace=acme", "--show-text", "acme",
                         "--show-text", "/", *args, model=model or (real_model() if PICTURES else tiny_model()),
                         env={"KVBLEND_WORKER_STRATEGY": "auto", "KVBLEND_TIER_WAIT": "4s"})
        self.url = f"http://127.0.0.1:{self.port}/ui"

    def ask(self, order, mode="auto", key="acme", text="Who built the lighthouse at Harrow Point, and when?", **fields):
        docs = documents()
        parts = [{"type": "text", "text": docs[i]} for i in order] + [{"type": "text", "text": text}]
        return self.g.post("/v1/chat/completions", dict(
            {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, "temperature": 0, "stream": True,
             "stream_options": {"include_usage": True}, "kvblend": {"mode": mode}}, **fields),
            headers={"Authorization": f"Bearer {key}"})

    def fill(self):
        assert self.ask([0, 1, 2]).status == 200
        until("the chunks are built", lambda: len(self.chunks()) >= 3)
        assert self.ask([1, 0, 2], "full").status == 200
        for order in ([2, 0, 1], [1, 2, 0, 3], [3, 0], [0, 2]):
            assert self.ask(order, "blend", text=f"{HOSTILE} Who built it?").status == 200
        assert self.ask([0], model=HOSTILE, key="tenant").status == 404
        assert self.ask([0], key="wrong").status == 401

    def warm(self, key):
        r = self.g.post("/v1/segments", {"texts": documents()}, headers={"Authorization": f"Bearer {key}"})
        assert r.status == 200, r.body

    def admin(self, path, method="GET", body=b""):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        r = ask_on(s, method, path, body, headers=KEY)
        assert r.status == 200, (path, r.status, r.body)
        return r.json()

    def watch(self):
        return Watch(self.port)

    def chunks(self):
        return self.admin("/admin/chunks?kind=chunk")["data"]

    def record(self, id_):
        return self.admin(f"/admin/chunks/{id_}")


class Page:
    """A tab that counts what must not happen: scripts' errors, violations of the policy, other hosts."""

    def __init__(self, browser, site, **options):
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(DEADLINE_S * 1000)
        self.site, self.faults = site, []
        p = self.page = self.context.new_page()
        p.on("pageerror", lambda e: self.faults.append(f"error: {e}"))
        p.on("console", lambda m: m.type == "error" and "401" not in m.text and self.faults.append(f"console: {m.text}"))
        p.on("request", lambda r: r.url.startswith((f"http://127.0.0.1:{site.port}/", "data:")) or
             self.faults.append(f"another host: {r.url}"))
        p.add_init_script("addEventListener('securitypolicyviolation', e => console.error('CSP ' + e.violatedDirective))")

    def open(self, view="now", key="sesame"):
        self.page.goto(f"{self.site.url}#{view}")
        if key:
            self.page.get_by_label("Key", exact=True).fill(key)
            self.page.get_by_role("button", name="Open").click()
            expect(self.page.locator("#link")).to_contain_text("live")
        return self.page

    def go(self, view):
        self.page.get_by_role("navigation").get_by_role("link", name=VIEWS[view]).click()
        expect(self.page.get_by_role("heading", level=1)).to_have_text(VIEWS[view])
        expect(self.page.locator("nav a[aria-current=page]")).to_have_text(VIEWS[view])

    def check(self, what):
        """Nothing forbidden so far, nothing that axe finds, no scrolling sideways."""
        found = Axe().run(self.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
        bad = [(v["id"], n["html"][:160], n.get("failureSummary", "")[:200]) for v in found.response["violations"]
               for n in v["nodes"]]
        assert not bad, (what, bad)
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{what}: {wide} pixels too wide"
        assert self.page.evaluate("window.hacked") is None, what
        assert not self.faults, (what, self.faults)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


SITE, BROWSER, STACK = None, None, contextlib.ExitStack()


def start():
    """What all tests share: made once, since a model takes a while to load."""
    global SITE, BROWSER
    if SITE:
        return SITE, BROWSER
    if not CHROMIUM:
        raise Missing("Chromium is not installed")
    play = STACK.enter_context(sync_playwright())
    expect.set_options(timeout=DEADLINE_S * 1000)
    BROWSER = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
    STACK.callback(BROWSER.close)
    SITE = Site()
    STACK.enter_context(SITE.g)
    SITE.fill()
    return SITE, BROWSER


def settled(tab, view):
    """The view shows what it has asked for."""
    p = tab.page
    if view == "now":
        expect(p.get_by_role("heading", name="Time to the first token")).to_be_visible()
        expect(p.locator(".figures dd").first).to_be_visible()
        p.get_by_role("combobox", name="Time").select_option("0")
        expect(p.get_by_role("img", name="Time to the first token: p50")).to_be_visible()
        p.get_by_role("combobox", name="Time").select_option("3600")
        expect(p.get_by_role("img", name="Time to the first token: p50")).to_be_visible()
    elif view == "requests":
        expect(p.locator("tbody tr")).to_have_count(8)
    elif view == "cache":
        expect(p.locator(".treemap rect").first).to_be_visible()
        expect(p.get_by_role("region", name="Tier nvme")).to_be_visible()
    elif view == "play":
        expect(p.get_by_label("Model").locator("option")).to_have_count(1)
    elif view == "fleet":
        expect(p.get_by_role("heading", name="Quality, worker 0")).to_be_visible()
        expect(p.locator(".findings li").first).to_be_visible()
        expect(p.get_by_role("region", name="Loss by the share that is recomputed")).to_contain_text("✓")


def test_every_view_light_dark_and_on_a_phone():
    site, browser = start()
    for name, options in {"light": {}, "dark": {"color_scheme": "dark"},
                          "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
                          "still": {"reduced_motion": "reduce", "viewport": {"width": 1280, "height": 800}}}.items():
        with Page(browser, site, **options) as tab:
            tab.open()
            for view in VIEWS:
                tab.go(view)
                settled(tab, view)
                tab.check(f"{name}: {view}")
            moves = tab.page.evaluate("[...document.querySelectorAll('*')].some(e => getComputedStyle(e).transitionDuration !== '0s')")
            assert name != "still" or not moves


def test_a_wrong_key_is_asked_for_again():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.page
        p.goto(site.url)
        p.get_by_label("Key", exact=True).fill("wrong")
        tab.check("the question for the key")
        p.keyboard.press("Enter")
        expect(p.get_by_text("This key is not accepted.")).to_be_visible()
        p.get_by_label("Key", exact=True).fill("sesame")
        p.keyboard.press("Enter")
        expect(p.locator("#link")).to_contain_text("live")
        assert p.evaluate("JSON.stringify(localStorage)").count("sesame") == 0
        p.get_by_role("button", name="forget key").click()
        expect(p.get_by_label("Key", exact=True)).to_be_visible()
        assert p.evaluate("sessionStorage.length") == 0


def test_requests_and_one_of_them():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.open("requests")
        settled(tab, "requests")
        expect(p.locator("tbody")).to_contain_text("<img")  # as text: the check below would see more
        p.get_by_label("Mode").select_option("full")
        expect(p.locator("tbody tr")).to_have_count(2)
        p.get_by_label("Mode").select_option("")
        p.get_by_label("Find").fill("acme")
        expect(p.locator("tbody tr")).to_have_count(6)
        p.get_by_label("First token at least, ms").fill("100000")
        expect(p.locator("tbody tr")).to_have_count(0)
        p.get_by_label("First token at least, ms").fill("")
        p.get_by_label("Hold").check()
        assert site.ask([1, 0], "blend").status == 200
        p.get_by_label("Hold").uncheck()
        expect(p.locator("tbody tr")).to_have_count(7)
        p.locator("tbody tr").first.get_by_role("link").click()
        chunks = p.get_by_role("group", name="The prompt from its first token").get_by_role("button")
        expect(chunks.nth(1)).to_be_visible()
        chunks.first.click()
        expect(p.get_by_text("now in ram")).to_be_visible()
        for part in ("parse, tokenise", "embeddings, layer 0", "which tokens matter", "layer 1"):
            expect(p.locator(".waterfall")).to_contain_text(part)
        expect(p.locator(".waterfall")).to_contain_text("a full prefill, predicted")
        expect(p.get_by_text("The prefill took")).to_contain_text("predicted")
        expect(p.get_by_role("heading", name="Why")).to_be_visible()
        tab.check("one request")
        p.go_back()
        expect(p.get_by_label("Mode")).to_be_visible()


def test_tokens_that_were_recomputed():
    """Of a request that ran while the page was open; text in one namespace, cells in the other."""
    site, browser = start()
    site.warm("acme")
    site.warm("tenant")
    with Page(browser, site) as tab:
        p = tab.open("requests")
        expect(p.locator("tbody tr").first).to_be_visible()
        for key in ("acme", "tenant"):
            r = site.ask([1, 0], "blend", key=key, text=f"{HOSTILE} Who built it?",
                         kvblend={"mode": "blend", "strategy": "query", "ratio": 0.2})
            assert r.status == 200
            p.evaluate("id => location.hash = 'requests/' + id", r.headers["x-request-id"])
            tokens = p.get_by_role("region", name="Tokens", exact=True)
            expect(tokens).to_contain_text("were recomputed")
            text = tokens.get_by_role("region", name="The prompt's tokens")
            if key == "acme":
                expect(text).to_contain_text(HOSTILE)
                assert text.locator("mark").count() > 0
                words = len(text.inner_text())
                p.get_by_role("group", name="The prompt from its first token").get_by_role("button").nth(1).click()
                until("one chunk is shown", lambda: len(text.inner_text()) < words)
                expect(text).not_to_contain_text(HOSTILE)
                tokens.get_by_role("button", name="The whole prompt").click()
                expect(text).to_contain_text(HOSTILE)
            else:
                expect(text).to_have_count(0)
                expect(tokens.get_by_role("img")).to_be_visible()
                assert "Harrow" not in p.locator("main").inner_text()
            assert p.locator(".strip .marks path").first.get_attribute("d").startswith("M")
            tab.check(f"tokens of {key}")
        p.get_by_role("button", name="Dark").click()
        tab.check("tokens, dark")


def test_a_link_that_brings_the_key():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.page
        p.goto(f"{site.url}#play?key=sesame")
        expect(p.locator("#link")).to_contain_text("live")
        expect(p.get_by_role("heading", level=1)).to_have_text("Playground")
        assert p.url == f"{site.url}#play" and p.evaluate("history.length") == 2, "the key is in no history"
        p.evaluate("location.hash = 'fleet?key=%E0%A4%A'")
        expect(p.get_by_role("heading", level=1)).to_have_text("Fleet")
        tab.check("a key that is no text")


def test_requests_come_by_themselves():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.open("requests")
        expect(p.locator("tbody tr").first).to_be_visible()
        before = p.locator("tbody tr").count()
        assert site.ask([0], key="wrong").status == 401
        expect(p.locator("tbody tr")).to_have_count(before + 1)
        expect(p.locator("tbody tr").first).to_contain_text("401 refused")


def test_a_day_of_an_open_tab():
    """A day's events, thirty seconds apart, with 17 requests each: neither the heap nor the document grows."""
    site, browser = start()
    with site.watch() as w:
        model = w.event()
    line = site.admin("/admin/requests/recent")["requests"][-1]
    step_s = 30
    numbers = itertools.count(1)

    def event(i):
        e = copy.deepcopy(model)
        e["t"] += step_s * i
        now = e["workers"][0]["now"]
        now["generated"] += 17 * i
        now["ttft_s"]["n"][i % len(now["ttft_s"]["n"])] += i
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(e["t"]))
        e["requests"] = [dict(line, request_id=f"r{next(numbers)}", ts=stamp) for _ in range(17)]
        return f"data: {json.dumps(e)}\n\n"

    for view, part, n_parts in (("now", 720, 4), ("requests", 80, 3)):  # a part: more than the page keeps of anything
        with Page(browser, site) as tab:
            p, sent = tab.page, []

            def stream(route):
                first = len(sent) * part  # nothing: the page asks again
                n = part if len(sent) < (n_parts if may_go else 1) else 0
                if n:
                    sent.append(first)
                route.fulfill(status=200, content_type="text/event-stream",
                              body="".join(event(i) for i in range(first, first + n)))

            def told(n):
                last = model["t"] + step_s * (n * part - 1)
                until("the events are there", lambda: p.evaluate(
                    "async () => (await import('/ui/feed.js')).state.last?.t") == last, 300)
                cdp.send("HeapProfiler.collectGarbage")
                return {m["name"]: m["value"] for m in cdp.send("Performance.getMetrics")["metrics"]}

            may_go = False
            cdp = tab.context.new_cdp_session(p)
            cdp.send("Performance.enable")
            p.route("**/admin/watch", stream)
            p.goto(f"{site.url}#{view}?key=sesame")
            early = told(1)
            may_go = True
            late = told(n_parts)
            assert late["Nodes"] <= 1.05 * early["Nodes"] + 50, (view, early["Nodes"], late["Nodes"])
            assert late["JSHeapUsedSize"] <= 1.1 * early["JSHeapUsedSize"] + (1 << 20), (view, early, late)
            print(f"     {view}: {early['Nodes']} nodes, then {late['Nodes']}; "
                  f"{early['JSHeapUsedSize'] >> 10} KiB, then {late['JSHeapUsedSize'] >> 10}", flush=True)
            tab.check(f"a day of {view}")


def test_records_pinned_and_evicted():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.open("cache")
        settled(tab, "cache")
        id_ = site.chunks()[0]["id"]
        p.get_by_label("Find").fill(id_[:12])
        expect(p.get_by_role("region", name="Records").locator("tbody tr")).to_have_count(1)
        p.get_by_role("button", name=f"Pin {id_[:12]}").click()
        tab.check("the question")
        p.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert not site.record(id_)["pinned"]
        p.get_by_role("button", name=f"Pin {id_[:12]}").press("Enter")
        p.get_by_role("dialog").get_by_role("button", name="Pin").click()
        expect(p.get_by_text(f"{id_[:12]}: pinned.")).to_be_visible()
        assert site.record(id_)["pinned"]
        p.get_by_role("button", name=f"Unpin {id_[:12]}").click()
        p.get_by_role("dialog").get_by_role("button", name="Unpin").click()
        expect(p.get_by_text(f"{id_[:12]}: unpinned.")).to_be_visible()
        p.get_by_role("button", name=f"Evict {id_[:12]}").click()
        p.get_by_role("dialog").get_by_role("button", name="Evict").click()
        expect(p.get_by_text(f"{id_[:12]}: evicted.")).to_be_visible()
        assert id_ not in [x["id"] for x in site.chunks()]
        p.get_by_label("Find").fill("")
        p.get_by_role("button", name="Hits", exact=True).click()
        expect(p.locator("th[aria-sort=descending]")).to_contain_text("Hits")
        p.get_by_role("button", name="Hits", exact=True).click()
        expect(p.locator("th[aria-sort=ascending]")).to_contain_text("Hits")
        p.get_by_role("region", name="Tier nvme").get_by_role("button", name="Load into RAM").click()
        p.get_by_role("dialog").get_by_role("button", name="Load").click()
        expect(p.get_by_text("records loaded.")).to_be_visible()
        expect(p.get_by_role("group", name="What happens")).to_contain_text("In the last minute")
        for colour in ("hits", "recent", "age", "tier"):
            p.get_by_label("Colour by").select_option(colour)
        first = p.locator(".treemap rect").first
        first.focus()
        p.keyboard.press("ArrowRight")
        p.keyboard.press("Enter")
        expect(p.get_by_role("region", name="Records").locator("tbody tr")).to_have_count(1)
        tab.check("one record")


def test_records_move_and_the_waterfall_tells_of_it():
    site, browser = start()
    site.warm("acme")
    with Page(browser, site) as tab:
        p = tab.open("cache")
        settled(tab, "cache")
        asked = site.ask([0, 1, 2, 3], "blend").headers["x-request-id"]
        id_ = site.admin(f"/admin/decisions/{asked}")["data"][0]["chunks"][1]["id"]
        p.get_by_label("Find").fill(id_[:12])
        expect(p.get_by_role("region", name="Records").locator("tbody tr")).to_have_count(1)
        p.get_by_role("button", name=f"Move {id_[:12]}").click()
        tab.check("where to")
        p.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert site.record(id_)["tiers"] == "ram,nvme"
        p.get_by_role("button", name=f"Move {id_[:12]}").click()
        p.get_by_role("dialog").get_by_label("To").select_option("nvme")
        p.get_by_role("dialog").get_by_role("button", name="Move").click()
        expect(p.get_by_text(f"{id_[:12]}: moved to nvme.")).to_be_visible()
        assert site.record(id_)["tiers"] == "nvme"
        r = site.ask([0, 1, 2, 3], "blend", kvblend={"mode": "blend", "strategy": "query", "ratio": 0.2})
        assert r.status == 200, r.body
        p.evaluate("id => location.hash = 'requests/' + id", r.headers["x-request-id"])
        expect(p.locator(".waterfall")).to_contain_text("nvme: 1 record,")
        tab.check("a load from NVMe")
        site.admin(f"/admin/chunks/{id_}/move?tier=nvme", "POST")
        p.go_back()
        settled(tab, "cache")
        p.get_by_label("Find").fill(id_[:12])
        expect(p.get_by_role("region", name="Records").locator("tbody tr")).to_have_count(1)
        p.get_by_role("button", name=f"Move {id_[:12]}").click()
        p.get_by_role("dialog").get_by_label("To").select_option("ram")
        p.get_by_role("dialog").get_by_role("button", name="Move").click()
        expect(p.get_by_text(f"{id_[:12]}: moved to ram.")).to_be_visible()
        assert site.record(id_)["tiers"] == "ram,nvme"


def test_texts_are_warmed_and_namespaces_shown():
    site, browser = start()
    space, words = "acme/<img src=x onerror=window.hacked=1>", " ".join(f"word{i}" for i in range(40))
    site.admin("/admin/tiers/quota", "POST", json.dumps({"tier": "ram", "namespace": space, "bytes": "64MiB"}).encode())
    with Page(browser, site) as tab:
        p = tab.open("cache")
        settled(tab, "cache")
        p.get_by_text("Warm texts").click()
        p.get_by_role("button", name="Build records").click()
        expect(p.get_by_text("There is no text.")).to_be_visible()
        p.get_by_label("Texts", exact=True).fill(f"{HOSTILE} {words}\n---\nSecond: {words}")
        p.get_by_label("In namespace").fill(space)
        tab.check("texts to be warmed")
        p.get_by_role("button", name="Build records").click()
        p.get_by_role("dialog").get_by_role("button", name="Build").click()
        expect(p.get_by_text("2 of 2 are stored")).to_be_visible()
        rows = p.get_by_role("region", name="Namespaces").locator("tbody tr").filter(has_text="<img src=x")
        expect(rows.filter(has_text="64.0 MiB")).to_contain_text("ram")
        expect(rows.first).to_contain_text("2")
        rows.first.get_by_role("button").click()
        expect(p.get_by_label("Namespace", exact=True)).to_have_value(space)
        expect(p.get_by_role("region", name="Records").locator("tbody tr")).to_have_count(2)
        tab.check("one namespace's records")


def test_records_of_two_workers():
    _, browser = start()
    site = Site("--worker-count", "2", "--threads", "1", model=tiny_model())
    with site.g, Page(browser, site) as tab:
        until("both are ready", lambda: [w["state"] for w in site.admin("/admin/status")["workers"]] == ["ready"] * 2)
        for i, w in enumerate(site.admin("/admin/status")["workers"]):
            r = unix_request(w["address"][5:], "POST", "/v1/segments", json.dumps({"texts": documents()[:2 + i]}).encode())
            assert r.status == 200, r.body
        p = tab.open("cache")
        settled(tab, "cache")
        records = p.get_by_role("region", name="Records").locator("tbody tr")
        expect(records).to_have_count(5)
        tab.check("two workers")
        id_ = site.admin("/admin/chunks?worker=0")["data"][0]["id"]
        p.get_by_label("Find").fill(id_[:12])
        expect(records).to_have_count(2)
        p.get_by_role("button", name=f"Pin {id_[:12]} at worker 1").click()
        p.get_by_role("dialog").get_by_role("button", name="Pin").click()
        expect(p.get_by_text(f"{id_[:12]} at worker 1: pinned.")).to_be_visible()
        assert [site.admin(f"/admin/chunks/{id_}?worker={i}")["pinned"] for i in (0, 1)] == [False, True]
        p.get_by_role("button", name=f"Move {id_[:12]} at worker 0").click()
        p.get_by_role("dialog").get_by_label("To").select_option("nvme")
        p.get_by_role("dialog").get_by_role("button", name="Move").click()
        expect(p.get_by_text(f"{id_[:12]} at worker 0: moved to nvme.")).to_be_visible()
        p.get_by_role("button", name=f"Evict {id_[:12]} at worker 0").click()
        p.get_by_role("dialog").get_by_role("button", name="Evict").click()
        expect(records).to_have_count(1)
        expect(records).to_contain_text("ram,nvme")
        p.get_by_label("Find").fill("")
        p.get_by_role("region", name="Tier nvme").get_by_role("button", name="Load into RAM").click()
        p.get_by_role("dialog").get_by_role("button", name="Load").click()
        expect(p.get_by_text("records loaded.")).to_be_visible()


def test_the_playground_asks_both():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.open("play")
        settled(tab, "play")
        p.get_by_role("button", name="Example documents").click()
        until("the examples are there", lambda: "Harrow Point" in p.get_by_label("Documents").input_value())
        text = p.get_by_label("Documents").input_value()
        p.get_by_role("button", name="Shuffle").click()
        assert sorted(p.get_by_label("Documents").input_value().split("\n\n")) == sorted(text.split("\n\n"))
        assert p.get_by_label("Documents").input_value() != text
        p.get_by_role("button", name="Ask both").click()
        expect(p.get_by_text("Underlined words differ")).to_be_visible(timeout=120000)
        expect(p.get_by_role("region", name="Blend")).to_contain_text("reused")
        expect(p.locator(".strip .marks path").first).to_be_attached()
        expect(p.get_by_role("region", name="The prompt's tokens")).to_contain_text("Answer the question")
        tab.check("both answers")
        p.get_by_label("Documents").fill(HOSTILE)
        p.get_by_label("Question", exact=True).fill(HOSTILE)
        p.get_by_role("button", name="Ask both").click()
        expect(p.get_by_role("button", name="Ask both")).to_be_enabled(timeout=120000)
        tab.check("hostile documents")


def test_a_worker_is_drained_and_enabled():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.open("fleet")
        settled(tab, "fleet")
        p.get_by_role("button", name="Drain").click()
        p.get_by_role("dialog").get_by_role("button", name="Drain").click()
        expect(p.locator("tbody tr").first).to_contain_text("draining")
        p.get_by_role("button", name="Enable").click()
        p.get_by_role("dialog").get_by_role("button", name="Enable").click()
        expect(p.locator("tbody tr").first).to_contain_text("ready")
        tab.check("after orders")


def test_by_keyboard_alone():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.open()
        p.keyboard.press("Tab")
        expect(p.get_by_role("link", name="Skip to the content")).to_be_focused()
        p.keyboard.press("Enter")
        assert p.evaluate("document.activeElement.id") == "main"
        for _ in range(30):
            p.keyboard.press("Shift+Tab")
            if p.evaluate("document.activeElement.hash") == "#fleet":
                break
        p.keyboard.press("Enter")
        expect(p.get_by_role("heading", level=1)).to_have_text("Fleet")


def test_a_tab_that_nobody_sees_lets_go():
    site, browser = start()
    with Page(browser, site) as tab:
        p = tab.page
        p.clock.install()
        tab.open()
        p.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
                   "document.dispatchEvent(new Event('visibilitychange'))")
        p.clock.fast_forward(31000)
        expect(p.locator("#link")).to_contain_text("paused")
        p.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true});"
                   "document.dispatchEvent(new Event('visibilitychange'))")
        expect(p.locator("#link")).to_contain_text("live")
        tab.check("seen again")


def test_pictures():
    if not PICTURES:
        return
    site, browser = start()
    os.makedirs(PICTURES, exist_ok=True)
    site.warm("acme")
    for name, view, options in (("one", "one", {}), ("cache", "cache", {}), ("play", "play", {}),
                                ("phone", "one", {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"})):
        with Page(browser, site, **dict({"viewport": {"width": 1180, "height": 900}}, **options)) as tab:
            for x in [x for x in site.chunks() if x["namespace"] == "acme" and "nvme" in x["tiers"]][:2]:  # more than one tier
                site.admin(f"/admin/chunks/{x['id']}/move?tier=nvme", "POST")
            if view == "one":
                tab.open("requests")  # while the page is open: what was recomputed is kept
                expect(tab.page.locator("tbody tr").first).to_be_visible()
                r = site.ask([4, 0, 2, 1], "blend")
                tab.page.evaluate("id => location.hash = 'requests/' + id", r.headers["x-request-id"])
                expect(tab.page.locator(".strip button").first).to_be_visible()
            else:
                tab.open(view)
                settled(tab, view)
            if view == "play":
                tab.page.get_by_role("button", name="Example documents").click()
                tab.page.get_by_role("button", name="Ask both").click()
                expect(tab.page.get_by_text("Underlined words differ")).to_be_visible(timeout=600000)
            tab.page.mouse.move(0, 0)
            path = os.path.join(PICTURES, name + ".png")
            tab.page.screenshot(path=path)
            if view == "play":  # what a stranger is to see first
                tab.page.evaluate("scrollTo(0, 0)")
                reused = os.path.join(PICTURES, "reused.png")
                box = tab.page.locator("main > .stack").bounding_box()
                tab.page.screenshot(path=reused, full_page=True, clip=dict(box, height=min(box["height"], 440)))
                assert os.path.getsize(reused) < PICTURE_BYTES, os.path.getsize(reused)
            assert os.path.getsize(path) < PICTURE_BYTES, (path, os.path.getsize(path))


if __name__ == "__main__":
    with STACK:
        main(globals())
