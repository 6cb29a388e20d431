#!/usr/bin/env python3
"""Whether the loss of reuse falls while records are merged, and never rises: tests/e2e/contexts_soak.py DATA [--svg FILE]

A worker with its default profile answers ever new orderings of a pool of passages that grows from round to round (cut
from the "chunks" of DATA's lines, in order); after each round it is left alone until it has merged what it will. Then
orderings of the first passages that no request had are asked, and keep nothing: KL(full || method) of the next token at
several places of a text of the same collection behind them, from 20 log-probabilities and the rest of the mass as one
more, for plain reuse and for the default. Round 0 are the same passages in a namespace with contexts:off. Exit status
1: a round's loss is above an earlier one's, or the last is not below round 0's, by two standard errors of the
differences over orderings.
"""
import argparse
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
import time

from harness import gateway, parse_metrics, real_model

LEAST, MOST = 250, 450  # characters of a passage
CORE, SUBSET, POOL = 5, 4, [5, 8, 12, 18, 28]  # passages: that are measured, of a request, by round
REQUESTS = 6  # of a round
PLACES, WORDS = 6, 8  # of a text that are judged, so many words apart
SETTLED_S = 3  # without a merge or a build: the worker waits for an idle second first
METHODS = {"reuse": ("plain reuse", "#d55e00"), "blend": ("the default", "#0072b2")}
HEAD = "Passages of a book:\n\n"  # a prompt's first token is its attention sink, and stands in no passage
TEXTS = 3  # that stand behind the passages


def passages(path):
    """Paragraphs of the chunks, joined up to a size; a chunk's outer ones are cut in their middle."""
    found, text = [], ""
    with open(path, encoding="utf-8") as f:
        for paragraph in itertools.chain.from_iterable(c.split("\n\n")[1:-1] for line in f for c in json.loads(line)["chunks"]):
            text = f"{text}\n\n{paragraph}".strip()
            if len(text) >= LEAST:
                found += [text] if len(text) <= MOST else []
                text = ""
    n = POOL[-1] + TEXTS
    if len(found) < n:
        sys.exit(f"contexts_soak: {path}: {len(found)} passages, {n} are needed")
    return found[:n]


def divergence(full, other):
    """KL over the tokens that both name; the rest of the mass is one more."""
    both = [t for t in full if t in other]
    p, q = ([math.exp(x[t]) for t in both] for x in (full, other))
    p, q = (x + [max(1 - sum(x), 1e-6)] for x in (p, q))
    return sum(a * math.log(a / b) for a, b in zip(p, q))


class Soak:
    def __init__(self, g, found):
        self.g, self.pool, self.texts = g, found[:POOL[-1]], found[POOL[-1]:]

    def ask(self, order, prompt, space, kvblend):
        text, segments = HEAD, []
        for i in order:
            begin = len(text.encode())
            text += self.pool[i] + "\n\n"
            segments.append({"message": 0, "begin": begin, "end": len(text.encode())})
        body = {"prompt": text + prompt, "cache_salt": space, "temperature": 0, "max_tokens": 1, "logprobs": 20,
                "kvblend": {**kvblend, "segments": segments}}
        r = self.g.post("/v1/completions", body, timeout=600)
        if r.status != 200:
            sys.exit(f"contexts_soak: {r.status} {r.body[:300]}")
        return r.json()

    def truth(self, order, text):
        """[(a beginning of the text, full's log-probabilities of what comes next)]"""
        words = text.split(" ")
        beginnings = [" ".join(words[:WORDS * k]) for k in range(1, PLACES + 1)]
        return [(b, self.next(order, b, "full", "full")) for b in beginnings]

    def next(self, order, prompt, space, method):
        r = self.ask(order, prompt, space, {"mode": method, "store": False})
        if method != "full" and r["kvblend"]["tokens"]["computed"] > r["usage"]["prompt_tokens"] / 2:
            sys.exit(f"contexts_soak: not reused: {r['kvblend']}")
        return r["choices"][0]["logprobs"]["top_logprobs"][0]

    def loss(self, order, space, method, truth):
        return statistics.fmean(divergence(top, self.next(order, prompt, space, method)) for prompt, top in truth)

    def merges(self):
        return int(parse_metrics(self.g.metrics())["kvblend_contexts_total"][1][0][2])

    def settle(self):
        n, since = self.merges(), time.monotonic()
        while time.monotonic() < since + SETTLED_S:
            busy = self.g.admin_get("/admin/status")["workers"][0]["status"]["engine"]["builds"]
            if busy or self.merges() != n:
                n, since = self.merges(), time.monotonic()
            time.sleep(0.2)

    def records(self, space):
        """Of the measured passages, in the mean: contexts, and the tokens of all of them."""
        chunks = self.ask(range(CORE), "?", space, {"mode": "reuse", "store": False, "explain": True})["kvblend"]["chunks"]
        shown = [self.g.get(f"/v1/segments/{c['id']}?namespace={space}").json() for c in chunks]
        return [statistics.fmean(x[field] for x in shown) for field in ("contexts", "context_tokens")]


def traffic(soak, n, used, rng):
    """New orderings of the first n passages; the newest ones come first."""
    order = list(range(n))[::-1]
    for k in range(REQUESTS):
        at = k * SUBSET % n
        some = (order * 2)[at:at + SUBSET]
        while tuple(some) in used:
            some = rng.sample(range(n), SUBSET)
        used.add(tuple(some))
        soak.ask(some, rng.choice(soak.texts), "pool", {})
        if n == CORE:
            soak.ask(some, rng.choice(soak.texts), "off", {})


def rises(before, after):
    """By more than two standard errors of the differences."""
    d = [b - a for a, b in zip(before, after)]
    return statistics.fmean(d) > 2 * statistics.stdev(d) / math.sqrt(len(d))


def svg(rows):
    """Loss by round, in two curves, with the contexts of a record below."""
    most = 1.1 * max(statistics.fmean(r[m]) for r in rows for m in METHODS)
    def x(i):
        return 70 + 560 * i / (len(rows) - 1)
    def y(v):
        return 340 - 300 * v / most
    yield ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 420" width="800" height="420" font-family="sans-serif" '
           'font-size="13" fill="#222">\n<rect width="100%" height="100%" fill="#fff"/>\n<path fill="none" stroke="#222" '
           'd="M70 40V340H630"/>\n<text x="70" y="24">KL to the full prefill, nats</text>\n'
           '<text x="350" y="400" text-anchor="middle">round: contexts of a record in the mean</text>\n')
    for k in range(5):
        v = most * k / 4
        yield f'<text x="62" y="{y(v) + 4:.1f}" text-anchor="end">{v:.3f}</text>\n'
    for i, r in enumerate(rows):
        yield f'<text x="{x(i):.1f}" y="362" text-anchor="middle">{i}: {r["contexts"]:.1f}</text>\n'
    for m, (name, colour) in METHODS.items():
        points = [(x(i), y(statistics.fmean(r[m]))) for i, r in enumerate(rows)]
        yield '<path fill="none" stroke="{}" stroke-width="2" d="M{}"/>\n'.format(colour, "L".join(f"{a:.1f} {b:.1f}" for a, b in points))
        yield f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 4:.1f}" fill="{colour}">{name}</text>\n'
    yield "</svg>\n"


def measure(soak, space, asked):
    row = {m: [soak.loss(order, space, m, truth) for order, truth in asked] for m in METHODS}
    row["contexts"], row["tokens"] = soak.records(space)
    return {**row, "merges": soak.merges() if space == "pool" else 0}


def say(i, n, r, first):
    print(f"| {i} | {n or 'contexts:off'} | {r['merges']} | {r['contexts']:.1f} | {r['tokens']:.0f} | " +
          " | ".join(f"{statistics.fmean(r[m]):.4f} | {sum(r[m]) / sum(first[m]):.3f}" for m in METHODS) + " |", flush=True)


def run(soak, n_held):
    rng, rows = random.Random(1), []
    held = rng.sample(list(itertools.permutations(range(CORE), SUBSET)), n_held)
    used, asked = set(held), [(order, soak.truth(order, soak.texts[i % TEXTS])) for i, order in enumerate(held)]
    print("| round | passages | merges | contexts of a record | of tokens | " +
          " | ".join(f"{name}: KL | / round 0's" for name, _ in METHODS.values()) + " |\n" + "|---" * 9 + "|")
    for n in POOL:
        traffic(soak, n, used, rng)
        soak.settle()
        for space in ("pool",) if rows else ("off", "pool"):
            rows.append(measure(soak, space, asked))
            say(len(rows) - 1, n if space == "pool" else 0, rows[-1], rows[0])
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("data")
    p.add_argument("--model", help="default: what KVBLEND_MODEL or tools/get-model names")
    p.add_argument("--orderings", type=int, default=12, help="that are asked after each round")
    p.add_argument("--svg", type=pathlib.Path)
    o = p.parse_args()
    found = passages(o.data)
    with gateway("--namespace", "/off=contexts:off", model=o.model or real_model()) as g:
        rows = run(Soak(g, found), o.orderings)
    if o.svg:
        o.svg.write_text("".join(svg(rows)), encoding="utf-8")
    bad = [f"{name} rises from round {i} to {j}" for m, (name, _) in METHODS.items()
           for i, j in itertools.combinations(range(len(rows)), 2) if rises(rows[i][m], rows[j][m])]
    bad += [f"{name} does not fall" for m, (name, _) in METHODS.items() if not rises(rows[-1][m], rows[0][m])]
    sys.exit("\n".join(bad) or 0)


if __name__ == "__main__":
    main()
