#!/usr/bin/env python3
"""By hand: texts a CPU second of an own worker beside sentence-transformers, a thread each, in turn.

Usage: embeddings_speed.py [--rounds N] [--shape minilm|base] [--batch N,…] [--tokens N,…]

Makes a BERT of random weights in a published shape (MiniLM-L6: 6 layers of 384; base: 12 of 768), f32, and has both
embed the same batches of texts, round after round, one after the other; prints the median rate of each and the median
ratio. CPU time, since others may use the machine: of the worker's process, which is asked over HTTP for base64, and of
this one. Small batches are repeated, so that a round is not over too soon to be timed. Needs torch, transformers,
sentence-transformers; KVBLEND_BUILD names the build.
"""
import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from harness import ROOT, WORKER, Program, worker_listening

SHAPES = {"minilm": dict(num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536),
          "base": dict(num_hidden_layers=12, hidden_size=768, num_attention_heads=12, intermediate_size=3072)}
ROUND_TOKENS = 1024  # at least


def make(folder, shape):
    tok = (pathlib.Path(ROOT) / "tests/data/tokenizers/hf/wordpiece/tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(tok)
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names}))
    config = transformers.BertConfig(vocab_size=900, max_position_embeddings=512, **SHAPES[shape])
    transformers.BertModel(config).eval().save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(config.hidden_size, pooling_mode="mean"), Normalize()]
    return SentenceTransformer(modules=modules, device="cpu")


def numbers(text):
    return [int(x) for x in text.split(",")]


def rate(fn, used, batch, tokens):
    """Texts a second of used(), asked for again and again until ROUND_TOKENS are through."""
    times = -(-ROUND_TOKENS // (batch * tokens))
    begin = used()
    for _ in range(times):
        fn()
    return batch * times / (used() - begin)


def compare(w, st, batch, n, rounds):
    # a word of one token each; both add [CLS] and [SEP]
    texts = [" ".join("abcdefghijklmnop"[(i + k) % 16] for k in range(n - 2)) for i in range(batch)]
    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()

    def ours():
        r = w.post("/v1/embeddings", body, timeout=600)
        assert r.status == 200 and r.json()["usage"]["prompt_tokens"] == n * batch, r.body[:300]

    def used():
        fields = pathlib.Path(f"/proc/{w.proc.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def theirs():
        st.encode(texts, batch_size=batch, show_progress_bar=False)
    pairs = [(rate(ours, used, batch, n), rate(theirs, time.process_time, batch, n)) for _ in range(rounds + 1)]
    pairs = pairs[1:]  # the first warms both
    mine, other = (statistics.median(x) for x in zip(*pairs))
    return mine, other, statistics.median(a / b for a, b in pairs)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--rounds", type=int, default=9)
    args.add_argument("--shape", choices=SHAPES, default="minilm")
    args.add_argument("--batch", type=numbers, default=[1, 32])
    args.add_argument("--tokens", type=numbers, default=[128, 256])
    args = args.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as d:
        st = make(pathlib.Path(d), args.shape)
        w = worker_listening(Program([WORKER, "--model", d, "--listen", "127.0.0.1:0", "--dtype", "f32",
                                      "--threads", "1"]))
        with w:
            for batch in args.batch:
                for n in args.tokens:
                    mine, theirs, ratio = compare(w, st, batch, n, args.rounds)
                    print(f"{args.shape} batch {batch} tokens {n}: kvblend {mine:.1f}/s, "
                          f"sentence-transformers {theirs:.1f}/s, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
