#!/usr/bin/env python3
"""A GGUF file with the layers of a published model and random 4-bit weights, for measurements of what its shape costs.

Run: python3 tests/data/make/make_shape.py SHAPE OUT.gguf [--tokenizer FILE.gguf]   (needs numpy, gguf)

Q4_0, but for norms. Vocabulary and chat template are those of the GGUF file named (else SmolLM2's that tools/get-model
fetches), so the embedding has its number of rows, and the output is tied to it. Values spread as in
fusor/model/shape.c: nothing comes near a format's end, and attention rests on few keys.
"""
import argparse
import os

import gguf
import numpy as np

# Source: config.json of mistralai/Mistral-7B-Instruct-v0.2, Qwen/Qwen3-8B, meta-llama/Llama-3.2-3B-Instruct.
SHAPES = {"mistral-7b": dict(arch="llama", L=32, D=4096, H=32, G=8, K=128, F=14336, eps=1e-5, base=1e6),
          "qwen3-8b": dict(arch="qwen3", L=36, D=4096, H=32, G=8, K=128, F=12288, eps=1e-6, base=1e6),
          "llama-3.2-3b": dict(arch="llama", L=28, D=3072, H=24, G=8, K=128, F=8192, eps=1e-5, base=5e5)}
Q4_0 = gguf.GGMLQuantizationType.Q4_0
CODE_SPREAD = 85 ** 0.5 / 2  # of codes -8 … 7, all as likely, about their mean


def random_q4(rng, rows, cols, spread):
    """rows x cols / 32 blocks of Q4_0: an f16 scale and 16 bytes of codes."""
    blocks = rng.integers(0, 256, (rows, cols // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(spread / CODE_SPREAD).tobytes(), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def tensors(s, vocabulary):
    """(name, rows (0: a norm), columns, spread) in the order of the file."""
    D, F, q, kv = s["D"], s["F"], s["H"] * s["K"], s["G"] * s["K"]
    logit = 3 / D ** 0.5
    added = logit / (2 * s["L"]) ** 0.5  # what a layer adds
    yield "token_embd.weight", vocabulary, D, logit
    yield "output_norm.weight", 0, D, 1
    for i in range(s["L"]):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", 0, D, 1
        yield b + "attn_q.weight", q, D, (2 / D) ** 0.5
        yield b + "attn_k.weight", kv, D, (2 / D) ** 0.5
        yield b + "attn_v.weight", kv, D, D ** -0.5
        yield b + "attn_output.weight", D, q, added * q ** -0.5
        if s["arch"] == "qwen3":
            yield b + "attn_q_norm.weight", 0, s["K"], 2 ** 0.5
            yield b + "attn_k_norm.weight", 0, s["K"], 2 ** 0.5
        yield b + "ffn_norm.weight", 0, D, 1
        yield b + "ffn_gate.weight", F, D, D ** -0.5
        yield b + "ffn_up.weight", F, D, D ** -0.5
        yield b + "ffn_down.weight", D, F, added * F ** -0.5


def make(shape, out, tokenizer):
    s = SHAPES[shape]
    source = gguf.GGUFReader(tokenizer)
    w = gguf.GGUFWriter(out, s["arch"])
    w.add_name(f"{shape}, random")
    w.add_block_count(s["L"])
    w.add_context_length(32768)
    w.add_embedding_length(s["D"])
    w.add_feed_forward_length(s["F"])
    w.add_head_count(s["H"])
    w.add_head_count_kv(s["G"])
    w.add_key_length(s["K"])
    w.add_value_length(s["K"])
    w.add_layer_norm_rms_eps(s["eps"])
    w.add_rope_freq_base(s["base"])
    w.add_rope_dimension_count(s["K"])
    for name, f in source.fields.items():
        if name.startswith("tokenizer."):
            kind = f.types[0]
            w.add_key_value(name, f.contents(), kind, sub_type=f.types[1] if kind == gguf.GGUFValueType.ARRAY else None)
    vocabulary = len(source.fields["tokenizer.ggml.tokens"].data)
    for name, rows, cols, _ in tensors(s, vocabulary):
        if rows:
            w.add_tensor_info(name, (rows, cols // 32 * 18), np.dtype(np.uint8), rows * cols // 32 * 18, Q4_0)
        else:
            w.add_tensor_info(name, (cols,), np.dtype(np.float32), 4 * cols)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for _, rows, cols, spread in tensors(s, vocabulary):
        w.write_tensor_data(random_q4(rng, rows, cols, spread) if rows else np.full(cols, spread, dtype=np.float32))
    w.close()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("shape", choices=SHAPES)
    args.add_argument("out")
    args.add_argument("--tokenizer", default=os.path.expanduser("~/.cache/kvblend/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    args = args.parse_args()
    make(args.shape, args.out, args.tokenizer)


if __name__ == "__main__":
    main()
