#!/usr/bin/env python3
"""Seeds of tests/fuzz/fuzz_gguf.c: the smallest files that open, one for each way through the reader.

Writes tests/fuzz/corpus/gguf/: llama (divisors of frequencies), gemma3 (layers of two kinds), phi3 (packed tensors,
longrope), and split, whose two parts stand one behind the other.

Run: python3 tests/data/make/make_fuzz_models.py   (needs numpy, gguf)
"""
import os

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


if __name__ == "__main__":
    main()
