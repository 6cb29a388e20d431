#!/usr/bin/env python3
"""Traces by OTLP over HTTP: what a collector gets of gateway and worker, and that a bad collector costs nothing but
spans.

The collector is the test's own. Where the classes of the published protobuf are installed ($KVBLEND_CLIENTS_PYTHON),
they read what it got and know every field.
"""
import base64
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time

from harness import KVBLEND, WORKER, Missing, document, gateway, main, need, other_python, proxy, until
from upstream import Upstream

need(KVBLEND, WORKER)
CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "Bearer collectors-key"
INTERNAL, SERVER = 1, 2


class Collector:
    """Takes OTLP; `plan` is a list of answers, (status, body) or "silent", used up, then 200 and {}."""

    def __init__(self, plan=()):
        self.plan, self.bodies, self.refused, self.heads = list(plan), [], 0, []
        self.lock, self.over = threading.Lock(), threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.lock:
                    answer = outer.plan.pop(0) if outer.plan else (200, b"{}")
                    outer.heads.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                    if answer != "silent" and answer[0] == 200:
                        outer.bodies.append(json.loads(body))
                    else:
                        outer.refused += 1
                if answer == "silent":
                    outer.over.wait()
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # the other side may leave when it likes
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self):
        """All so far, each with the name of its service."""
        with self.lock:
            bodies = list(self.bodies)
        return [Span(x, values(r["resource"]["attributes"])["service.name"])
                for b in bodies for r in b["resourceSpans"] for s in r["scopeSpans"] for x in s["spans"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def values(attributes):
    """{key: value}; every key once, every value of one known kind."""
    out = {}
    for a in attributes:
        (kind, v), = a["value"].items()
        assert a["key"] not in out, a
        assert kind in ("stringValue", "intValue", "doubleValue") and isinstance(v, (float, int)) == (
            kind == "doubleValue"), a
        out[a["key"]] = int(v) if kind == "intValue" else v
    return out


class Span:
    def __init__(self, x, service):
        self.trace, self.id, self.parent = x["traceId"], x["spanId"], x.get("parentSpanId", "")
        self.name, self.kind, self.service = x["name"], x["kind"], service
        self.start, self.end = int(x["startTimeUnixNano"]) / 1e9, int(x["endTimeUnixNano"]) / 1e9
        self.attributes, self.status = values(x["attributes"]), x["status"]
        assert re.fullmatch("[0-9a-f]{32}", self.trace) and re.fullmatch("[0-9a-f]{16}", self.id), x
        assert self.start <= self.end, x

    def __repr__(self):
        return f"{self.service}:{self.name}({self.attributes})"


def traced(c, *args, **kw):
    return gateway("--traces-endpoint", c.url, "--traces-headers", "authorization=" + SECRET, *args, **kw)


def chat(numbers, **more):
    return {"messages": [{"role": "user", "content":
            [{"type": "text", "text": document(i)} for i in numbers] + [{"type": "text", "text": "What does it say?"}]}],
            "max_tokens": 4, "temperature": 0, "kvblend": {"mode": "blend", "ratio": 0.25}, **more}


def with_steps(c, n=1):
    """The spans, once those of n requests are whole: each has a gateway's and a worker's, and the latter's decode."""
    def all_of(name, service):
        return [s for s in c.spans() if s.name.startswith(name) and s.service == service]

    until("spans of gateway and worker", lambda: len(all_of("chat", "kvblend")) >= n and
          len(all_of("kvblend.decode", "kvblend-worker")) >= n)
    return c.spans()


def only(spans, service, name):
    found = [s for s in spans if s.service == service and s.name.startswith(name)]
    assert len(found) == 1, (service, name, found)
    return found[0]


def test_a_request_from_queue_to_decode():
    """The tree, times within the request, the client's ids, the conventions' attributes; nothing of the texts."""
    with Collector() as c, traced(c) as g:
        assert g.post("/v1/segments", {"texts": [document(i) for i in range(3)]}).status == 200
        begun = time.time()
        r = g.post(CHAT, chat(range(3)), headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"})
        ended = time.time()
        assert r.status == 200, r.body
        answer = r.json()
        spans = [s for s in with_steps(c) if s.trace == TRACE]
        top, below = only(spans, "kvblend", "chat"), only(spans, "kvblend-worker", "chat")
        assert (top.parent, below.parent, top.kind, below.kind) == (PARENT, top.id, SERVER, SERVER)
        assert len({s.id for s in spans}) == len(spans)
        for s in spans:
            assert begun - 1 < s.start and s.end < ended + 1, (s, begun, ended)  # the clocks are one
            if s not in (top, below):
                mother = top if s.service == "kvblend" else below
                assert s.parent == mother.id and s.kind == INTERNAL, s
                assert mother.start <= s.start + 1e-3 and s.end <= mother.end + 1e-3, (s, mother)
        assert top.start <= below.start + 1e-3 and below.end <= top.end + 1e-3
        steps = [only(spans, "kvblend-worker", "kvblend." + x) for x in ("prepare", "queue", "lookup", "blend", "decode")]
        for before, after in zip(steps, steps[1:]):
            assert before.end <= after.start + 1e-3, (before, after)
        only(spans, "kvblend", "kvblend.relay")
        usage, report = answer["usage"], answer["kvblend"]
        for s in (top, below):
            a = s.attributes
            assert a["gen_ai.operation.name"] == "chat" and a["gen_ai.provider.name"] == "kvblend"
            assert a["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
            assert a["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
            assert a["gen_ai.usage.cache_read.input_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
            assert (a["http.response.status_code"], a["kvblend.request_id"]) == (200, "mine") and s.status == {}
        a = below.attributes
        assert (a["kvblend.mode"], a["kvblend.strategy"]) == (report["mode"], report["strategy"])
        assert abs(a["kvblend.ratio"] - report["ratio"]) < 1e-3 and a["gen_ai.response.model"] in below.name
        assert {k: a["kvblend.tokens." + k] for k in report["tokens"]} == report["tokens"]
        assert not re.search("item[0-9]|note[0-9]|What does it say", json.dumps(c.bodies)), "text of a prompt"
        assert all(h["authorization"] == SECRET and p == "/v1/traces" for p, h in c.heads), c.heads
        assert {h["content-type"] for _, h in c.heads} == {"application/json"}
        assert SECRET not in g.log() and SECRET.encode() not in open(f"/proc/{g.proc.pid}/cmdline", "rb").read()
        until("they are counted", lambda: g.metric("kvblend_trace_spans_sent_total") >= 3)


def test_records_that_have_to_be_loaded():
    folder = tempfile.mkdtemp(prefix="kvb-traces-")
    tiers, env = ("--ram", "16MiB", "--nvme", folder + "/tier:64MiB"), {"KVBLEND_TIER_WAIT": "4s"}
    try:
        with Collector() as c:
            with gateway(*tiers, env=env) as g:
                assert g.post("/v1/segments", {"texts": [document(i) for i in range(3)]}).status == 200
                assert g.stop() == 0
            with traced(c, *tiers, env=env) as g:
                r = g.post(CHAT, chat(range(3)))
                assert r.status == 200 and {x["source"] for x in r.json()["kvblend"]["chunks"]} >= {"nvme"}, r.body
                spans = with_steps(c)
        load, blend = (only(spans, "kvblend-worker", "kvblend." + x) for x in ("load", "blend"))
        assert load.start <= blend.start and load.start < load.end <= blend.end + 1e-3, (load, blend)
    finally:
        shutil.rmtree(folder)


def test_whose_traces_are_kept():
    """Whoever began a trace decides; of those that begin here, a share. Hostile headers begin a new one."""
    with Collector() as c, Upstream() as u, proxy([u], "--traces-endpoint", c.url, "--traces-sample", "0") as g:
        body = {"model": u.models[0], "messages": [{"role": "user", "content": "a"}]}
        assert g.post(CHAT, body).status == 200
        assert g.post(CHAT, body, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}).status == 200
        assert g.post(CHAT, body, headers={"traceparent": f"00-{TRACE.upper()}-{PARENT}-01", "tracestate": "x=1"}).status == 200
        assert g.post(CHAT, body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "x=1"}).status == 200
        spans = until("the one that is kept", c.spans)
        top = only(spans, "kvblend", "chat " + body["model"])
        assert {s.trace for s in spans} == {TRACE} and top.parent == PARENT
        sent = [r for r in u.requests if r.body]
        parents = [r.header("traceparent").split("-") for r in sent]
        assert [p[3] for p in parents] == ["00", "00", "00", "01"], parents
        assert [p[1] == TRACE for p in parents] == [False, True, False, True] and len({p[2] for p in parents}) == 4
        assert parents[3][2] == top.id and [r.header("tracestate") for r in sent] == [None, None, None, "x=1"]
        lines = until("all lines", lambda: [x for x in g.access_log()] if len(g.access_log()) == 4 else None)
        assert ["parent_id" in x for x in lines] == [False, True, False, True]


def test_refusals_and_errors():
    hostile = "m\"},\\\n\u2028" + "x" * 600
    with Collector() as c, Upstream() as u, proxy([u], "--traces-endpoint", c.url, "--retries", "0") as g:
        body = {"model": u.models[0], "messages": [{"role": "user", "content": "a"}]}
        assert g.post(CHAT, dict(body, script={"status": 500, "body": "{}"})).status == 500
        assert g.post(CHAT, dict(body, model=hostile)).status in (400, 404)
        assert g.get("/v1/models").status == 200
        assert g.get("/health").status == 200 and g.admin_get("/admin/status")
        spans = until("all", lambda: c.spans() if sum(s.kind == SERVER for s in c.spans()) >= 3 else None)
        top = [s for s in spans if s.kind == SERVER]
        assert sorted(s.attributes["http.route"] for s in top) == ["/chat/completions"] * 2 + ["/models"], top
        broken = [s for s in top if s.attributes["http.response.status_code"] == 500]
        assert [s.status for s in broken] == [{"code": 2, "message": "500"}] and broken[0].attributes["error.type"] == "500"
        assert all(len(v) <= 260 for s in spans for v in [s.name, *s.attributes.values()] if isinstance(v, str))


def test_a_bad_collector_costs_spans_alone():
    """Down, silent, refusing for a while, for good, and lying: answers come as ever, what is lost is counted."""
    body = {"messages": [{"role": "user", "content": "a"}]}

    def dropped(g):
        return g.metric("kvblend_trace_spans_dropped_total")

    with Collector([(503, b""), (429, b"x" * 100000)]) as c, traced(c, stub=True) as g:  # it comes back
        assert g.post(CHAT, body).status == 200
        assert until("it takes them at last", c.spans) and c.refused == 2 and dropped(g) == 0
    lies = [(400, b"{}"), (200, b'{"partialSuccess":{"rejectedSpans":"1"}}'), (200, b'{"partialSuccess":[[[['),
            (200, b'{"partialSuccess":{"rejectedSpans":-1e99}}'), (302, b"")]
    with Collector(lies) as c, traced(c, stub=True) as g:
        for left in range(len(lies) - 1, -1, -1):
            assert g.post(CHAT, body).status == 200
            until("it has answered", lambda: len(c.plan) == left)
        until("the loss is counted", lambda: dropped(g) >= 2 + 1 + 2)
        until("and what was taken", lambda: g.metric("kvblend_trace_spans_sent_total") >= 5)
        assert "traces.lost" in g.log()
    with Collector(["silent"] * 9) as c, traced(c, stub=True) as g:
        assert g.post(CHAT, body).status == 200
        until("it is asked", lambda: c.refused)
        assert all(g.post(CHAT, body).status == 200 for _ in range(20))
        begun = time.monotonic()
        assert g.stop() == 0 and time.monotonic() - begun < 30
    with gateway("--traces-endpoint", "http://127.0.0.1:9", stub=True) as g:
        assert all(g.post(CHAT, body).status == 200 for _ in range(20))
        assert g.stop() == 0


def test_the_end_sends_what_is_left():
    with Collector() as c, traced(c, stub=True) as g:
        for _ in range(5):
            assert g.post(CHAT, {"messages": [{"role": "user", "content": "a"}]}).status == 200
        assert g.stop() == 0
        assert sum(s.kind == SERVER for s in c.spans()) == 5


def test_off_by_default_and_checked():
    with gateway(stub=True) as g:
        assert "kvblend_trace_spans" not in g.metrics()
    for args, why in ((["--traces-endpoint", "localhost:4318"], "traces-endpoint"),
                      (["--traces-headers", "no value"], "traces-headers"), (["--traces-sample", "2"], "traces-sample")):
        r = subprocess.run([KVBLEND, "--check", "--upstream", "http://127.0.0.1:9", *args], capture_output=True, text=True)
        assert r.returncode == 2 and why in r.stderr, r


def test_the_published_protobuf_reads_it():
    try:
        from google.protobuf import json_format
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise Missing("opentelemetry-proto is not installed") from None

    def to_base64(x):
        """OTLP's JSON has ids in hex, where protobuf's own has base64: the one difference."""
        if isinstance(x, list):
            return [to_base64(y) for y in x]
        if not isinstance(x, dict):
            return x
        return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ("traceId", "spanId", "parentSpanId")
                else to_base64(v) for k, v in x.items()}

    with Collector() as c, traced(c) as g:
        assert g.post(CHAT, chat(range(3))).status == 200
        mine = {s.id: s for s in with_steps(c)}
        read = 0
        for b in c.bodies:
            m = json_format.ParseDict(to_base64(b), ExportTraceServiceRequest())
            for s in (s for r in m.resource_spans for x in r.scope_spans for s in x.spans):
                assert mine[s.span_id.hex()].trace == s.trace_id.hex() and s.end_time_unix_nano >= s.start_time_unix_nano
                read += 1
        assert read == len(mine) >= 8


if __name__ == "__main__":
    other_python("KVBLEND_CLIENTS_PYTHON")
    main(globals())
