#!/usr/bin/env python3
"""A GGUF file with the layers of a published model and random 4-bit weights, for measurements of what its shape costs.

Run: python3 tests/data/make/make_shape.py SHAPE OUT.gguf [--k-quants] [--tokenizer FILE.gguf]   (needs numpy, gguf)
     python3 tests/data/make/make_shape.py SHAPE FOLDER --awq                       (needs numpy)

With --awq a folder as AutoAWQ writes it: groups of 128 with zeros, embedding and head in F16, no tokenizer; for
`kvblend-bench start`. Else Q4_0, but for norms; with --k-quants Q4_K and Q6_K, where llama.cpp's Q4_K_M has them. Vocabulary and chat template are those of the GGUF file named (else
SmolLM2's that tools/get-model fetches), so the embedding has its number of rows, and the output is tied to it. Values
spread as in fusor/model/shape.c: nothing comes near a format's end, and attention rests on few keys.
"""
import argparse
import json
import os

import numpy as np

# Source: config.json of mistralai/Mistral-7B-Instruct-v0.2, Qwen/Qwen3-8B, meta-llama/Llama-3.2-3B-Instruct.
SHAPES = {"mistral-7b": dict(arch="llama", L=32, D=4096, H=32, G=8, K=128, F=14336, V=32000, eps=1e-5, base=1e6),
          "qwen3-8b": dict(arch="qwen3", L=36, D=4096, H=32, G=8, K=128, F=12288, V=151936, eps=1e-6, base=1e6),
          "llama-3.2-3b": dict(arch="llama", L=28, D=3072, H=24, G=8, K=128, F=8192, V=128256, eps=1e-5, base=5e5)}
GROUP = 128
CODE_SPREAD = 85 ** 0.5 / 2  # of codes -8 … 7, all as likely, about their mean


def random_q4(rng, rows, cols, spread):
    """rows x cols / 32 blocks of Q4_0: an f16 scale and 16 bytes of codes."""
    blocks = rng.integers(0, 256, (rows, cols // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(spread / CODE_SPREAD).tobytes(), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def random_q4_k(rng, rows, cols, spread):
    """rows x cols / 256 blocks of Q4_K: f16 of scales and of minima, 12 bytes of both, 128 bytes of codes."""
    blocks = rng.integers(0, 256, (rows, cols // 256, 144), dtype=np.uint8)
    d = spread / 258  # of scale * code - 7.5 * minimum, both of 6 bits
    blocks[..., :4] = np.frombuffer(np.float16([d, 7.5 * d]).tobytes(), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def random_q6_k(rng, rows, cols, spread):
    """rows x cols / 256 blocks of Q6_K: 192 bytes of codes, 16 of scales, an f16."""
    blocks = rng.integers(0, 256, (rows, cols // 256, 210), dtype=np.uint8)
    blocks[..., 208:] = np.frombuffer(np.float16(spread / 1369).tobytes(), dtype=np.uint8)  # of scale * (code - 32)
    return blocks.reshape(rows, -1)


def form_of(name, layers, k_quants):
    """(type's name, values of a block, its bytes, a maker) of a weight."""
    if not k_quants:
        return "Q4_0", 32, 18, random_q4
    finer = name == "token_embd.weight"
    if name.endswith(("attn_v.weight", "ffn_down.weight")):
        i = int(name.split(".")[1])
        finer = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
    return ("Q6_K", 256, 210, random_q6_k) if finer else ("Q4_K", 256, 144, random_q4_k)


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


def hub_name(name):
    """A tensor's name in a folder, without ".weight"."""
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm", "output.weight": "lm_head"}[name]
    _, layer, part, _ = name.split(".")
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
             "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    return f"model.layers.{layer}.{parts[part]}"


def awq_tensors(rng, name, rows, cols, spread):
    """(name, type, array) of one tensor, or of the three of a linear layer. Codes are all as likely, zeros 7 or 8."""
    name = hub_name(name)
    if not rows:
        yield name + ".weight", "F16", np.full(cols, spread, dtype=np.float16)
    elif "layers" not in name:
        yield name + ".weight", "F16", (rng.standard_normal((rows, cols), dtype=np.float32) * spread).astype(np.float16)
    else:
        groups = cols // GROUP
        yield name + ".qweight", "I32", rng.integers(0, 1 << 32, (cols, rows // 8), dtype=np.uint32)
        yield name + ".qzeros", "I32", rng.integers(0, 1 << 32, (groups, rows // 8), dtype=np.uint32) & 0x11111111 | 0x66666666
        yield name + ".scales", "F16", np.full((groups, rows), spread / CODE_SPREAD, dtype=np.float16)


def make_awq(shape, out):
    s = SHAPES[shape]
    classes = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    config = dict(architectures=[classes[s["arch"]]], hidden_size=s["D"], intermediate_size=s["F"], num_hidden_layers=s["L"],
                  num_attention_heads=s["H"], num_key_value_heads=s["G"], head_dim=s["K"], vocab_size=s["V"],
                  max_position_embeddings=32768, rms_norm_eps=s["eps"], rope_theta=s["base"], tie_word_embeddings=False,
                  quantization_config=dict(quant_method="awq", bits=4, group_size=GROUP, zero_point=True, version="gemm"))
    os.makedirs(out)
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    specs = list(tensors(s, s["V"])) + [("output.weight", s["V"], s["D"], 3 / s["D"] ** 0.5)]
    header, at = {}, 0
    for spec in specs:  # places first: sizes do not depend on the numbers
        name, rows, cols, _ = spec
        layer = rows and name.startswith("blk.")
        parts = ([(".qweight", "I32", [cols, rows // 8]), (".qzeros", "I32", [cols // GROUP, rows // 8]),
                  (".scales", "F16", [cols // GROUP, rows])] if layer else [(".weight", "F16", [rows, cols] if rows else [cols])])
        for end, kind, dims in parts:
            size = int(np.prod(dims)) * (4 if kind == "I32" else 2)
            header[hub_name(name) + end] = dict(dtype=kind, shape=dims, data_offsets=[at, at + size])
            at += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(1)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for spec in specs:
            for _, _, array in awq_tensors(rng, *spec):
                array.tofile(f)


def make(shape, out, tokenizer, k_quants):
    import gguf
    s = SHAPES[shape]
    source = gguf.GGUFReader(tokenizer)
    w = gguf.GGUFWriter(out, s["arch"])
    w.add_name(f"{shape}, random")
    w.add_block_count(s["L"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M if k_quants else gguf.LlamaFileType.MOSTLY_Q4_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
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
            kind, values, size, _ = form_of(name, s["L"], k_quants)
            size *= cols // values
            w.add_tensor_info(name, (rows, size), np.dtype(np.uint8), rows * size, gguf.GGMLQuantizationType[kind])
        else:
            w.add_tensor_info(name, (cols,), np.dtype(np.float32), 4 * cols)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for name, rows, cols, spread in tensors(s, vocabulary):
        random = form_of(name, s["L"], k_quants)[3] if rows else None
        w.write_tensor_data(random(rng, rows, cols, spread) if rows else np.full(cols, spread, dtype=np.float32))
    w.close()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("shape", choices=SHAPES)
    args.add_argument("out")
    args.add_argument("--tokenizer", default=os.path.expanduser("~/.cache/kvblend/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    args.add_argument("--awq", action="store_true")
    args.add_argument("--k-quants", action="store_true")
    args = args.parse_args()
    if args.awq:
        return make_awq(args.shape, args.out)
    make(args.shape, args.out, args.tokenizer, args.k_quants)


if __name__ == "__main__":
    main()
