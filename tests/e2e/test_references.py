#!/usr/bin/env python3
"""docs/configuration.md and docs/metrics.md against the programs: their tables of options, and what a gateway with every
kind of worker, tier, key and backend shows at /metrics. KVBLEND_WRITE=1 writes both pages anew.
"""
import contextlib
import os
import sys

from harness import BUILD, KVBLEND, MODELS, ROOT, WORKER, Missing, gateway, main, need, parse_metrics, tiny_model, until
from test_tiers import Redis
from test_upstreams import Upstream

sys.path.insert(0, os.path.join(ROOT, "tools"))
import describe  # noqa: E402

need(KVBLEND, WORKER)
HOSTCUDA = os.path.join(BUILD, "tests", "doubles", "libkn_hostcuda.so")
HEAD = """# Metrics

Every family of `GET /metrics`, by what a running gateway shows (`tests/e2e/test_references.py` makes this page and compares it).
On a gateway's page its own families and those of its workers stand together; a worker's have the label `worker`, too, and what is of
its model the label `model` (on the worker's own page `kvblend_model_info` says it of all). `/metrics` is served on the admin
address (`metrics.public`: on the public one as well) and by each worker. Alert rules and a dashboard that use them:
[etc/prometheus](../etc/prometheus/kvblend.rules.yml), [etc/grafana](../etc/grafana/kvblend.json).
"""
SECTIONS = (("Gateway", "kvblend_gateway_"), ("Requests, engine and quality", "kvblend_"), ("Store", "kvblend_store_"),
            ("Tiers", "kvblend_tier_"), ("GPU", "kvblend_device_"), ("Process", "process_"))


def compare(name, text):
    path = os.path.join(ROOT, "docs", name)
    if os.environ.get("KVBLEND_WRITE"):
        with open(path, "w") as f:
            f.write(text)
    with open(path) as f:
        there = f.read()
    new = sorted(set(text.split("\n")) ^ set(there.split("\n")))
    assert text == there, f"docs/{name} is not what the programs say (KVBLEND_WRITE=1 writes it):\n" + "\n".join(new[:20])


def test_the_page_of_settings():
    compare("configuration.md", describe.reference(describe.Program(KVBLEND), describe.Program(WORKER)))


def scrape(g, path="/v1/completions", body=None):
    body = body or {"prompt": "a", "max_tokens": 2, "model": "m"}
    until("it answers", lambda: g.post(path, body, headers={"Authorization": "Bearer sesame"}).status == 200)
    return g.metrics()


def pages():
    """Of gateways that have, together, all that there is."""
    with contextlib.ExitStack() as stack:
        redis, upstream = stack.enter_context(Redis()), stack.enter_context(Upstream())
        yield scrape(stack.enter_context(gateway(
            "--nvme", "{dir}/nvme:64MiB", "--redis", redis.url, "--api-key", "sesame id=one", "--served-model-name", "m",
            "--upstream", upstream.entry() + " name=up models=other", model=tiny_model())))
    with gateway("--api-key", "sesame", "--served-model-name", "m", model=os.path.join(MODELS, "..", "encoders", "bert-mean")) as g:
        yield scrape(g, "/v1/embeddings", {"input": "a"})
    with gateway("--device", "hostcuda", "--api-key", "sesame", "--served-model-name", "m", model=tiny_model(),
                 env={"KVBLEND_KERNELS_DIR": os.path.dirname(HOSTCUDA)}) as g:
        yield scrape(g)


def families():
    """{name: (type, labels, help)}."""
    found = {}
    for page in pages():
        help_of = dict(line[7:].split(" ", 1) for line in page.split("\n") if line.startswith("# HELP "))
        for name, (kind, samples) in parse_metrics(page).items():
            everywhere = {"worker", "le"} if name == "kvblend_model_info" else {"worker", "model", "le"}
            labels = {x for _, of, _ in samples for x in of} - everywhere
            found[name] = (kind, labels | found.get(name, (kind, set()))[1], help_of[name])
    return found


def test_the_page_of_metrics():
    if not os.path.exists(HOSTCUDA):
        raise Missing("the emulation of a GPU is not built: families of a GPU are not shown")
    found, text = families(), HEAD
    assert len(found) > 100, len(found)
    of = {name: max((p for _, p in SECTIONS if name.startswith(p)), key=len) for name in found}
    for title, prefix in SECTIONS:
        text += f"\n## {title}\n\n| family | type | labels | meaning |\n|---|---|---|---|\n"
        for name in sorted(n for n in found if of[n] == prefix):
            kind, labels, about = found[name]
            text += f"| `{name}` | {kind} | {', '.join(f'`{x}`' for x in sorted(labels))} | {describe.cell(about)} |\n"
    compare("metrics.md", text)


if __name__ == "__main__":
    main(globals())
