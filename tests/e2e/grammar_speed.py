#!/usr/bin/env python3
"""Grammars' speed beside llguidance's, xgrammar's and llama.cpp's: grammar_speed.py BENCH TOKENS [NAME]

BENCH: the build's tests/unit/fusor/bench_grammar. TOKENS: Mistral's tekken JSON (131 072 tokens), as the Python package
mistral-common brings it. Same schemas, same texts, same tokens (longest match); the others run where they are installed
(llguidance; xgrammar; llama-cpp-python and gguf).
For each token: the set of those that may come next, and the step to the next state; one text after the other, each from
nothing, compiled anew. Times are the processor's, so that what else the machine does is not in them. Prints a Markdown
table; NAME: one engine alone.
"""
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 5
NAMES = {"own": "kvblend", "llama_cpp": "llama.cpp"}
TEXT = ("The quick brown fox jumps over the lazy dog; café, naïve, 東京. It said: \\\"never\\\" — and went on for a while, "
        "as answers of language models do when nobody stops them.")
PLAIN = TEXT.replace('\\"', "")


def obj(**members):
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


STR = {"type": "string"}
NODE = obj(name=STR, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
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
    "tree": ({**NODE, "$defs": {"node": NODE}},  # llama.cpp follows no $ref at the root
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


def timed(cases, compile_case, follow, spell=json.dumps, rounds=ROUNDS):
    out = {}
    for c in cases:
        compiles, steps, schema = [], [], spell(c["schema"])
        for _ in range(rounds):
            t0 = time.process_time_ns()
            g = compile_case(schema)
            compiles.append((time.process_time_ns() - t0) / 1e3)
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
            t0 = time.process_time_ns()
            lln.fill_next_token_bitmask(m, mask, 0)
            assert mask[0, i // 32] >> (i % 32) & 1, m.get_error()
            m.consume_token(i)
            steps.append((time.process_time_ns() - t0) / 1e3)

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
            t0 = time.process_time_ns()
            m.fill_next_token_bitmask(mask)
            assert m.accept_token(i), i
            steps.append((time.process_time_ns() - t0) / 1e3)

    return timed(cases, compile_case, follow)


def vocabulary_file(gguf, tokens, path):
    """The tokens as a GGUF file without a model, byte by byte as GPT-2's tokenizer spells them."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in own)}
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("tekken")
    w.add_token_list(["".join(letters[b] for b in t) for t in tokens])
    w.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    w.add_token_merges([f"{letters[97]} {letters[98]}"])
    w.add_eos_token_id(len(tokens) - 1)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def llama_cpp(cases, tokens, _):
    """All tokens are candidates; a schema is made GBNF outside of the time. One round: a token takes milliseconds."""
    import ctypes

    import gguf
    import llama_cpp as lc
    import numpy
    from llama_cpp.llama_grammar import json_schema_to_gbnf
    lc.llama_log_set(silent := lc.llama_log_callback(lambda *_: None), None)
    params = lc.llama_model_default_params()
    params.vocab_only = True
    with tempfile.TemporaryDirectory() as d:
        vocabulary_file(gguf, tokens, d + "/vocabulary.gguf")
        model = lc.llama_model_load_from_file((d + "/vocabulary.gguf").encode(), params)
    vocab = lc.llama_model_get_vocab(model)
    fresh = numpy.zeros(len(tokens), dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
    fresh["id"] = range(len(tokens))
    now = fresh.copy()
    candidates = lc.llama_token_data_array(data=now.ctypes.data_as(ctypes.POINTER(lc.llama_token_data)), size=len(tokens),
                                           selected=-1, sorted=False)

    def compile_case(grammar):
        return lc.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")

    def follow(sampler, ids, steps):
        for i in ids:
            now[:] = fresh
            t0 = time.process_time_ns()
            lc.llama_sampler_apply(sampler, candidates)
            assert now["logit"][i] == 0, i
            lc.llama_sampler_accept(sampler, i)
            steps.append((time.process_time_ns() - t0) / 1e3)
        lc.llama_sampler_free(sampler)

    out = timed([dict(c, schema=json_schema_to_gbnf(json.dumps(c["schema"]))) for c in cases], compile_case, follow, str, 1)
    lc.llama_model_free(model)
    del silent
    return out


def main(bench, path, only=None):
    tokens = tokens_of(path)
    ids = {t: i for i, t in enumerate(tokens[:-1])}
    longest = max(map(len, ids))
    cases = [{"name": n, "schema": s, "tokens": cut(json.dumps(v, ensure_ascii=False), ids, longest)} for n, (s, v) in CASES.items()]
    results = {}
    for run in (own, llguidance, xgrammar, llama_cpp):
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
            print(f"| {c['name']} | {len(c['tokens'])} | {NAMES.get(engine, engine)} | {compile_us:.0f} µs | "
                  + " | ".join(f"{t[k]:.1f}" for k in ("p50", "mean", "p90", "p99", "max")) + " |")


if __name__ == "__main__":
    main(*sys.argv[1:])
