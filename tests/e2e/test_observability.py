#!/usr/bin/env python3
"""etc/prometheus and etc/grafana: what rules and panels name is on the page of a gateway that runs, and each alert fires
on what it is about (tests/data/alerts.yml). Page and rules are checked by promtool (Debian: prometheus), too. The page as
OpenMetrics, by the parser of prometheus_client ($KVBLEND_CLIENTS_PYTHON). Logs as JSON.
"""
import json
import os
import re
import shutil
import subprocess

from harness import (KVBLEND, ROOT, WORKER, Missing, Program, gateway, main, need, other_python, parse_metrics,
                     tiny_model, unix_request, until)

need(KVBLEND, WORKER)
RULES = os.path.join(ROOT, "etc", "prometheus", "kvblend.rules.yml")
DASHBOARD = os.path.join(ROOT, "etc", "grafana", "kvblend.json")
SAMPLE = re.compile(r"\b(?:kvblend|process)_[a-z_]+\b")
page = None


def promtool(*args, given=None):
    """What it says, once it is content."""
    program = shutil.which("promtool")
    if not program:
        raise Missing("promtool is not installed")
    r = subprocess.run([program, *args], input=given, capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout + r.stderr


def samples():
    """Names of all samples that a gateway with a worker of two tiers shows."""
    global page
    if page is None:
        with gateway("--nvme", "{dir}/nvme:64MiB", model=tiny_model()) as g:
            assert g.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status == 200
            page = g.metrics()
    return {name for _, rows in parse_metrics(page).values() for name, _, _ in rows}


def expressions():
    """(where, PromQL) of every rule and every panel."""
    with open(RULES) as f:
        for alert, text in re.findall(r"- alert: (\w+)\n((?:.*\n)*?)        annotations:", f.read()):
            yield alert, text
    with open(DASHBOARD) as f:
        board = json.load(f)
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        yield variable["name"], variable.get("definition", "")


def test_every_name_is_on_the_page():
    there, n = samples(), 0
    for where, text in expressions():
        for name in SAMPLE.findall(text):
            assert name in there, f"{where}: {name}"
            n += 1
    assert n > 60, n


def test_the_page_is_clean():
    samples()
    assert promtool("check", "metrics", given=page) == ""


def test_the_alerts_fire():
    assert "SUCCESS" in promtool("check", "rules", RULES)
    with open(RULES) as f:
        alerts = set(re.findall(r"- alert: (\w+)", f.read()))
    with open(os.path.join(ROOT, "tests", "data", "alerts.yml")) as f:
        provoked = set(re.findall(r'alertname="(\w+)"', f.read()))
    assert alerts == provoked, alerts ^ provoked
    assert "SUCCESS" in promtool("test", "rules", os.path.join(ROOT, "tests", "data", "alerts.yml"))


def test_processes_and_versions():
    samples()
    families = parse_metrics(page)
    (_, labels, one), = [s for s in families["kvblend_build_info"][1] if "worker" not in s[1]]
    assert one == 1 and re.fullmatch(r"\d+\.\d+\.\d+", labels["version"]), labels
    (_, labels, one), = families["kvblend_model_info"][1]
    assert one == 1 and labels["model"], labels
    for name, (_, rows) in families.items():  # all that is of a worker's model says so, and what is of its process does not
        for _, of, _ in rows:
            told = labels["model"] if "worker" in of and name.startswith("kvblend_") and not name.endswith("_build_info") else None
            assert of.get("model") == told, (name, of)
    for name in ("resident_memory_bytes", "cpu_seconds_total", "open_fds", "max_fds", "start_time_seconds"):
        whose = {s[1].get("worker"): s[2] for s in families["process_" + name][1]}
        assert set(whose) == {None, "0"} and all(v > 0 for v in whose.values()), (name, whose)


OPEN = "application/openmetrics-text"
SCRAPE = OPEN + ";version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"  # as Prometheus asks


def test_openmetrics():
    """By negotiation, read by the parser of Prometheus' client: the same samples as in the text, and exemplars that
    name the trace of a request."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    with gateway("--nvme", "{dir}/nvme:64MiB", "--traces-endpoint", "http://127.0.0.1:9", model=tiny_model()) as g:
        def scrape(accept):
            r = unix_request(g.admin[5:], "GET", "/metrics", headers={"Accept": accept})
            assert r.status == 200, r.body
            return r.headers["content-type"], r.body.decode()

        r = g.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
        assert r.status == 200
        for accept in ("", "*/*", "text/plain, " + OPEN + ";q=0.1"):
            kind, text = scrape(accept)
            assert kind.startswith("text/plain; version=0.0.4") and "# EOF" not in text and " # {" not in text, kind
        parse_metrics(text)
        kind, page = scrape(SCRAPE)
        assert kind.startswith(OPEN + "; version=1.0.0") and page.endswith("\n# EOF\n") and page.count("# EOF") == 1
        lines = [x for x in page.split("\n") if x and x[0] != "#"]
        assert {x.split(" ")[0] for x in lines} == {x.split(" ")[0] for x in text.split("\n") if x and x[0] != "#"}
        told = [x for x in lines if " # " in x]
        assert told and all(x.startswith("kvblend_ttft_seconds_bucket{") and f'trace_id="{trace}"' in x for x in told), told
        try:
            from prometheus_client.openmetrics.parser import text_string_to_metric_families
        except ImportError:
            raise Missing("prometheus_client is not installed") from None
        families = {f.name: f for f in text_string_to_metric_families(page)}
        assert families["kvblend_gateway_retries"].type == "counter" and families["kvblend_ttft_seconds"].unit == "seconds"
        shown = [s.exemplar for s in families["kvblend_ttft_seconds"].samples if s.exemplar]
        assert [x.labels for x in shown] == [{"trace_id": trace}] * len(told) and 0 < shown[0].value < 60
        assert sum(len(f.samples) for f in families.values()) == len(lines) > 200


def one_object(pairs):
    assert len(dict(pairs)) == len(pairs), pairs  # no key twice
    return dict(pairs)


def test_logs_as_json():
    """One switch for gateway and own worker: every line is an object with the same beginnings, whatever clients send."""
    p = Program([KVBLEND, "--listen", "127.0.0.1:0", "--model", tiny_model()],
                {"KVBLEND_LOG_FORMAT": "json", "KVBLEND_NO_SUCH_OPTION": 'a"b'})

    def lines():
        return [json.loads(x, object_pairs_hook=one_object) for x in p.log().split("\n")[:-1]]  # the last may be half written

    def found(msg, **fields):
        return [x for x in lines() if x["msg"] == msg and fields.items() <= x.items()]

    with p:
        p.port = until("it listens", lambda: found("gateway.listening"))[0]["port"]
        until("it is ready", lambda: p.get("/ready").status == 200)
        ids = ['mine\\x41', "b'{}[]:,=9", "level=error"]
        for name in ids:
            r = p.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, headers={"x-request-id": name})
            assert r.status == 200, r.body
        for name in ids:
            line, = until("the worker's line", lambda: found("request", request_id=name))
            assert (line["component"], line["level"], line["status"]) == ("kvblend-worker", "info", 200) and line["completion"] > 0
        for line in lines():
            assert list(line)[:4] == ["ts", "level", "component", "msg"], line
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"]), line
        assert {x["component"] for x in lines()} == {"kvblend", "kvblend-worker"}
        assert "KVBLEND_NO_SUCH_OPTION" in found("config.warning", level="warn")[0]["text"]
        taken = subprocess.run([KVBLEND, "--listen", f"127.0.0.1:{p.port}", "--upstream", "http://127.0.0.1:9", "--log-format",
                                "json"], capture_output=True, text=True, env=p.env, timeout=60)
        assert taken.returncode == 1
        last = json.loads(taken.stderr.strip().split("\n")[-1])
        assert (last["level"], last["msg"]) == ("error", "start") and str(p.port) in last["error"], last


if __name__ == "__main__":
    other_python("KVBLEND_CLIENTS_PYTHON")
    main(globals())
