#!/usr/bin/env python3
"""Grammars' speed beside llguidance's and xgrammar's: grammar_speed.py BENCH TOKENS [NAME]

BENCH: the build's tests/unit/fusor/bench_grammar. TOKENS: Mistral's tekken JSON (131 072 tokens), as the Python package
mistral-common brings it. Same schemas, same texts, same tokens (longest match); the others run where they are installed.
For each token: the set of those that may come next, and the step to the next state; one text after the other, each from
nothing, compiled anew. Prints Markdown tables; NAME: one engine alone.
"""
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 9
TEXT = ("The quick brown fox jumps over the lazy dog; café, naïve, 東京. It said: \\\"never\\\" — and went on for a while, "
        "as answers of language models do when nobody stops them.")
PLAIN = TEXT.replace('\\"', "")


def obj(**members):
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


STR, INT = {"type": "string"}, {"type": "integer"}
CASES = {
    "person": (obj(name=STR, age={"type": "integer", "minimum": 0, "maximum": 150}, email=STR, tags={"type": "array", "items": STR}),
               {"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["mathematics", "computing", "poetry"]}),
    "long text": (obj(title=STR, summary=STR), {"title": "An answer", "summary": TEXT + " " + TEXT}),
    "bounded text": (obj(title={"type": "string", "maxLength": 80}, summary={"type": "string", "maxLength": 500}),
                     {"title": "An answer", "summary": PLAIN + " " + PLAIN}),  # xgrammar lets no escape into a bounded text
    "order": (obj(id={"type": "string", "format": "uuid"}, created={"type": "string", "format": "date-time"},
                  lines={"type": "array", "minItems": 1, "maxItems": 20, "items": obj(
                      sku={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, quantity={"type": "integer", "minimum": 1},
                      price={"type": "number", "minimum": 0}, state={"enum": ["open", "sent", "returned"]})},
                  note={"anyOf": [STR, {"type": "null"}]}),
              {"id": "123e4567-e89b-12d3-a456-426614174000", "created": "2026-11-26T10:00:00Z", "lines": [
                  {"sku": "ABC-1234", "quantity": 2, "price": 19.95, "state": "open"},
                  {"sku": "XYZ-0001", "quantity": 10, "price": 0.5, "state": "sent"}], "note": None}),
    "tree": ({"$ref": "#/$defs/node", "$defs": {"node": obj(name=STR, children={"type": "array", "items": {"$ref": "#/$defs/node"}})}},
             {"name": "root", "children": [{"name": "left", "children": []}, {"name": "right", "children": [
                 {"name": "leaf", "children": []}]}]}),
    "any object": ({"type": "object"}, {"a": [1, 2.5, {"b": None}], "text": TEXT, "flag": True}),
}


def tokens_of(path):
    """The vocabulary's texts, and a token that ends."""
    with open(path) as f:
        d = json.load(f)
    n = d["config"]["default_vocab_size"] - d["config"]["default_num_special_tokens"]
    return [base64.b64decode(t["token_bytes"]) for t in d["vocab"][:n]] + [b"<end>"]


def cut(text, ids, longest):
    data, out, at = text.encode(), [], 0
    while at < len(data):
        n = next(n for n in range(longest, 0, -1) if data[at:at + n] in ids)
        out.append(ids[data[at:at + n]])
        at += n
    return out


def own(cases, tokens, bench):
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/vocabulary", "w") as f:
            f.writelines(t.hex() + "\n" for t in tokens)
        with open(d + "/cases", "w") as f:
            f.writelines(json.dumps(c) + "\n" for c in cases)
        lines = subprocess.run([bench, d + "/vocabulary", d + "/cases"], capture_output=True, text=True, check=True).stdout
    rows = [json.loads(x) for x in lines.splitlines()]
    print(f"kvblend: {rows[0]['tokens']} tokens, the vocabulary takes {rows[0]['vocabulary_ms']} ms\n", file=sys.stderr)
    return {r["name"]: (r["compile_us"]["p50"], r["token_us"]) for r in rows[1:]}


def summary(times):
    times = sorted(times)
    return {"p50": statistics.median(times), "p90": times[len(times) * 9 // 10], "p99": times[len(times) * 99 // 100],
            "max": times[-1], "mean": statistics.mean(times)}


class Wrapped:
    """A tokenizer as llguidance wants one."""

    def __init__(self, tokens):
        self.tokens, self.eos_token_id, self.bos_token_id = tokens, len(tokens) - 1, None
        self.special_token_ids = [len(tokens) - 1]
        self.ids = {t: i for i, t in enumerate(tokens[:-1])}

    def __call__(self, data):
        return cut(data if isinstance(data, str) else bytes(data).decode(), self.ids, 60)


def timed(cases, compile_case, follow):
    out = {}
    for c in cases:
        compiles, steps = [], []
        for _ in range(ROUNDS):
            t0 = time.perf_counter_ns()
            g = compile_case(json.dumps(c["schema"]))
            compiles.append((time.perf_counter_ns() - t0) / 1e3)
            follow(g, c["tokens"], steps)
        out[c["name"]] = (statistics.median(compiles), summary(steps))
    return out


def llguidance(cases, tokens, _):
    import llguidance as llg
    import llguidance.numpy as lln
    tok = llg.LLTokenizer(llg.TokenizerWrapper(Wrapped(tokens)), n_vocab=len(tokens))
    mask = lln.allocate_token_bitmask(1, len(tokens))

    def compile_case(schema):
        m = llg.LLMatcher(tok, llg.LLMatcher.grammar_from_json_schema(schema))
        assert not m.get_error(), m.get_error()
        return m

    def follow(m, ids, steps):
        for i in ids:
            t0 = time.perf_counter_ns()
            lln.fill_next_token_bitmask(m, mask, 0)
            assert mask[0, i // 32] >> (i % 32) & 1, m.get_error()
            m.consume_token(i)
            steps.append((time.perf_counter_ns() - t0) / 1e3)

    return timed(cases, compile_case, follow)


def xgrammar(cases, tokens, _):
    import numpy
    import xgrammar as xgr
    info = xgr.TokenizerInfo(tokens, vocab_type=xgr.VocabType.RAW, stop_token_ids=[len(tokens) - 1])
    mask = numpy.full((1, (len(tokens) + 31) // 32), -1, dtype=numpy.int32)
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile_case(schema):
        return xgr.GrammarMatcher(compiler.compile_json_schema(schema))

    def follow(m, ids, steps):
        for i in ids:
            t0 = time.perf_counter_ns()
            m.fill_next_token_bitmask(mask)
            assert m.accept_token(i), i
            steps.append((time.perf_counter_ns() - t0) / 1e3)

    return timed(cases, compile_case, follow)


def main(bench, path, only=None):
    tokens = tokens_of(path)
    ids = {t: i for i, t in enumerate(tokens[:-1])}
    longest = max(map(len, ids))
    cases = [{"name": n, "schema": s, "tokens": cut(json.dumps(v, ensure_ascii=False), ids, longest)} for n, (s, v) in CASES.items()]
    results = {}
    for run in (own, llguidance, xgrammar):
        if only and run.__name__ != only:
            continue
        try:
            results[run.__name__] = run(cases, tokens, bench)
        except ImportError as e:
            print(f"{run.__name__}: not installed ({e})", file=sys.stderr)
    print("| schema | tokens | engine | compile | a token: median | mean | p90 | p99 | largest |")
    print("|---|---|---|---|---|---|---|---|---|")
    for c in cases:
        for engine, rows in results.items():
            compile_us, t = rows[c["name"]]
            print(f"| {c['name']} | {len(c['tokens'])} | {'kvblend' if engine == 'own' else engine} | {compile_us:.0f} µs | "
                  + " | ".join(f"{t[k]:.1f}" for k in ("p50", "mean", "p90", "p99", "max")) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
