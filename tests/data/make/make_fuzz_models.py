#!/usr/bin/env python3
"""Seeds of tests/fuzz/fuzz_gguf.c and fuzz_encoder.c: the smallest files that open, one for each way through them,
and of fuzz_tokenizer.c those of encoders.

Writes tests/fuzz/corpus/gguf/: llama (divisors of frequencies), gemma3 (layers of two kinds), phi3 (packed tensors,
longrope), and split, whose two parts stand one behind the other; tests/fuzz/corpus/encoder/: bert, nomic, gte,
modernbert, cross_bert, cross_modernbert (settings, modules and weights, divided by NUL bytes).

Run: python3 tests/data/make/make_fuzz_models.py   (needs numpy, gguf)
"""
import json
import os
import struct

import gguf
import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "fuzz", "corpus", "gguf")
D = 2  # of everything: heads, feed-forward, vocabulary


def write(path, arch, tensors, more=(), split=None):
    w = gguf.GGUFWriter(path, arch)
    if not split or split[0] == 0:
        for key, v in (("block_count", 1), ("context_length", 64), ("embedding_length", D),
                       ("feed_forward_length", D), ("attention.head_count", 1), ("attention.key_length", D),
                       ("attention.value_length", D)):
            w.add_uint32(f"{arch}.{key}", v)
        w.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
        for key, v in more:
            (w.add_string if isinstance(v, str) else w.add_uint32)(f"{arch}.{key}", v)
    if split:
        w.add_uint16("split.no", split[0])
        w.add_uint16("split.count", split[1])
    for name, shape in tensors:
        w.add_tensor(name, np.ones(shape, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def tensors(*names):
    norms = [f"blk.0.{n}.weight" for n in names if n.endswith("norm")] + ["output_norm.weight"]
    matrices = [f"blk.0.{n}.weight" for n in names if not n.endswith("norm")] + ["token_embd.weight"]
    return [(n, (D,)) for n in norms] + [(n, (D, D)) for n in matrices]


# Encoders: width 4, two heads, feed-forward 4, 8 tokens, 8 positions, one layer; ModernBERT two, one with a window.
NORM, SQUARE = ("weight", "bias"), (4, 4)
SETTINGS = dict(hidden_size=4, num_attention_heads=2, intermediate_size=4, vocab_size=8, max_position_embeddings=8,
                num_hidden_layers=1, pad_token_id=0, type_vocab_size=1)
MODULES = [{"path": "", "type": "models.Transformer"}, {"path": ".", "type": "models.Pooling"},
           {"path": "", "type": "models.Normalize"}]


def norm(name, parts=NORM):
    return {f"{name}.{p}": (4,) for p in parts}


def linear(name, rows, bias):
    return {f"{name}.weight": (rows, 4)} | ({f"{name}.bias": (rows,)} if bias else {})


def encoder(path, arch, more, weights, modules=MODULES):
    table, data = {}, b""
    for name, shape in weights.items():
        n = 4 * int(np.prod(shape))
        table[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + n]}
        data += (np.arange(n // 4, dtype=np.float32) / 8 - 1).tobytes()
    head = json.dumps(table, separators=(",", ":")).encode()
    config = dict(SETTINGS, architectures=[arch], pooling_mode="mean", **more)
    with open(path, "wb") as f:
        f.write(b"\0".join([json.dumps(config).encode(), json.dumps(modules).encode(),
                            struct.pack("<Q", len(head)) + head + data]))


def encoders(out):
    at = lambda name: os.path.join(out, name)
    words, types = {"embeddings.word_embeddings.weight": (8, 4)}, {"embeddings.token_type_embeddings.weight": (1, 4)}
    layer = "encoder.layer.0."
    bert = (words | types | {"embeddings.position_embeddings.weight": (8, 4)} | norm("embeddings.LayerNorm") |
            norm(layer + "attention.output.LayerNorm") | norm(layer + "output.LayerNorm") |
            {k: v for x in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
                            "intermediate.dense", "output.dense") for k, v in linear(layer + x, 4, True).items()})
    encoder(at("bert"), "BertModel", {}, bert)
    one, alone = {"id2label": {"0": ""}}, [{"type": "Transformer", "path": ""}]
    encoder(at("cross_bert"), "BertForSequenceClassification", one | {"type_vocab_size": 2}, bert |
            {k: (2, 4) for k in types} | linear("pooler.dense", 4, True) | linear("classifier", 1, True), alone)
    encoder(at("gte"), "NewModel", {"rope_theta": 100}, words | types | norm("embeddings.LayerNorm") |
            norm(layer + "attn_ln") | norm(layer + "mlp_ln") | linear(layer + "attention.qkv_proj", 12, True) |
            linear(layer + "attention.o_proj", 4, True) | linear(layer + "mlp.up_gate_proj", 8, False) |
            linear(layer + "mlp.down_proj", 4, True))
    layer = "encoder.layers.0."
    encoder(at("nomic"), "NomicBertModel", {"rotary_emb_base": 100}, words | types | norm("emb_ln") |
            norm(layer + "norm1") | norm(layer + "norm2") | linear(layer + "attn.Wqkv", 12, False) |
            {k: v for x in ("attn.out_proj", "mlp.fc11", "mlp.fc12", "mlp.fc2")
             for k, v in linear(layer + x, 4, False).items()})
    weights = {"embeddings.tok_embeddings.weight": (8, 4), "final_norm.weight": (4,), "embeddings.norm.weight": (4,)}
    for i in range(2):
        layer = f"layers.{i}."
        weights |= norm(layer + "mlp_norm", ("weight",)) | (norm(layer + "attn_norm", ("weight",)) if i else {})
        weights |= linear(layer + "attn.Wqkv", 12, False) | linear(layer + "attn.Wo", 4, False)
        weights |= linear(layer + "mlp.Wi", 8, False) | linear(layer + "mlp.Wo", 4, False)
    encoder(at("modernbert"), "ModernBertModel", {"num_hidden_layers": 2, "local_attention": 2, "global_rope_theta": 100},
            weights)
    encoder(at("cross_modernbert"), "ModernBertForSequenceClassification",
            one | {"num_hidden_layers": 2, "local_attention": 2, "global_rope_theta": 100, "classifier_pooling": "mean",
                   "sentence_transformers": {"activation_fn": "Identity"}}, weights | linear("head.dense", 4, False) |
            norm("head.norm", ("weight",)) | linear("classifier", 1, True), alone)


def tokenizers(out):
    """The tests' own, with as much of their vocabularies as a seed may hold."""
    made = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tokenizers", "hf")
    for name, most in (("wordpiece", 90), ("unigram", 50)):
        with open(os.path.join(made, name, "tokenizer.json"), encoding="utf-8") as f:
            d = json.load(f)
        v = d["model"]["vocab"]
        if isinstance(v, list):
            d["model"]["vocab"] = v[:most]
        else:
            keep = [k for k, i in v.items() if i < 5 or len(k) == 1 or (k.startswith("##") and len(k) <= 4)]
            d["model"]["vocab"] = {k: i for i, k in enumerate(keep[:most])}
        d["added_tokens"] = [t for t in d["added_tokens"] if t["id"] < 5]
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(d, f, ensure_ascii=False, separators=(",", ":"))


def main():
    os.makedirs(OUT, exist_ok=True)
    at = lambda name: os.path.join(OUT, name)
    common = ("attn_norm", "ffn_norm", "attn_output", "ffn_down")
    apart = common + ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
    write(at("llama"), "llama", tensors(*apart) + [("rope_freqs.weight", (1,))])
    write(at("gemma3"), "gemma3",
          tensors(*apart, "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"),
          [("attention.sliding_window", 8), ("attention.sliding_window_pattern", 2)])
    write(at("phi3"), "phi3", tensors(*common) + [
        ("blk.0.attn_qkv.weight", (3 * D, D)), ("blk.0.ffn_up.weight", (2 * D, D)),
        ("rope_factors_long.weight", (1,)), ("rope_factors_short.weight", (1,))],
        [("rope.scaling.type", "longrope"), ("rope.scaling.original_context_length", 32)])
    whole, parts = tensors(*apart), []
    for no in range(2):
        part = at(f"part{no}")
        write(part, "llama", whole[no::2], split=(no, 2))
        parts.append(open(part, "rb").read())
        os.remove(part)
    with open(at("split"), "wb") as f:
        f.write(b"".join(parts))
    for name in os.listdir(OUT):
        assert os.path.getsize(at(name)) <= 4096, name  # as long as an input of the fuzzer may be
    to = os.path.join(OUT, "..", "encoder")
    os.makedirs(to, exist_ok=True)
    encoders(to)
    tokenizers(os.path.join(OUT, "..", "tokenizer"))


if __name__ == "__main__":
    main()
