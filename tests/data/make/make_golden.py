#!/usr/bin/env python3
"""Golden vectors of tests/data/: what reference implementations make of our test models.

Writes
  quant/<type>.bin     random blocks of every quantised type and what the gguf package makes of them:
                       u32 n_blocks, u32 block bytes, u32 block values, the blocks, then f32 values
  golden/<model>.json  for every model folder of tests/data/models/: prompt token ids, logits of the
                       last positions, a greedy continuation and the rope frequencies, by
                       transformers on the CPU in f32

  golden/smollm2-135m.q4_1.json  the same of the real model that tools/get-model fetches, with only
                       the largest logits of each position

Run: python3 tests/data/make/make_golden.py [quant] [real PATH.gguf] [models [NAME …]]
Needs numpy, gguf, torch, transformers. Without arguments: quant models.
The files are committed; the tests read them and need no Python.
"""
import json
import os
import struct
import sys

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
N_PROMPT, N_ROWS, N_GREEDY = 40, 8, 64


def make_quant():
    import gguf
    import numpy as np

    rng = np.random.default_rng(20240607)
    # Where each type keeps its f16 scales, so that random blocks stay finite.
    scales = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
              "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
              "F16": [0], "BF16": [], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
    os.makedirs(os.path.join(DATA, "quant"), exist_ok=True)
    for name, at in scales.items():
        qtype = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[qtype]
        n = 8 if values == 256 else 24 if values == 32 else 256
        blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
        if name == "BF16":
            blocks[:, 1] = rng.integers(0x30, 0x48, n)
        if name == "MXFP4":
            blocks[:5, 0] = 0, 1, 2, 254, 255
        for offset in at:
            f16 = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 2, n)).astype(np.float16)
            blocks[:, offset:offset + 2] = f16.view(np.uint8).reshape(n, 2)
        if name == "F16":
            out = blocks.reshape(-1).view(np.float16).astype(np.float32)
        else:
            out = gguf.quants.dequantize(blocks.reshape(1, -1), qtype).astype(np.float32)
        with open(os.path.join(DATA, "quant", name + ".bin"), "wb") as f:
            f.write(struct.pack("<III", n, size, values))
            f.write(blocks.tobytes())
            f.write(out.reshape(-1).astype("<f4").tobytes())
        print("quant", name, n, "blocks")


def versions():
    from importlib.metadata import version

    return {name: version(name) for name in ("transformers", "torch", "gguf")}


def load_model(name):
    """A model of tests/data/models: a folder, or a GGUF twin whose values replace the folder's."""
    import make_tiny_models as tiny

    model = tiny.load(os.path.join(DATA, "models", name.split(".")[0]))
    if not name.endswith(".gguf"):
        return model
    import gguf
    import numpy as np
    import torch

    tensors = {t.name: t for t in gguf.GGUFReader(os.path.join(DATA, "models", name)).tensors}
    c = model.config
    with torch.no_grad():
        for key, p in model.named_parameters():
            parts = [tensors[n] for n in tiny.gguf_names(key, "llama")]
            parts = [gguf.quants.dequantize(t.data, t.tensor_type) for t in parts]
            x = np.concatenate(parts, axis=1) if parts[0].ndim > 2 else parts[0]
            heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
            part = key.split(".")[-2]
            if c.model_type in ("llama", "mixtral") and part in heads:
                h = heads[part]  # back from interleaved pairs
                x = x.reshape(h, x.shape[0] // h // 2, 2, *x.shape[1:]).swapaxes(1, 2)
            p.copy_(torch.from_numpy(x.copy()).reshape(p.shape))
    return model


def load_gguf(path):
    """A Llama GGUF file as a transformers model, values dequantised by the gguf package."""
    import gguf
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import make_tiny_models as tiny

    reader = gguf.GGUFReader(path)
    get = lambda key: reader.fields["llama." + key].contents()
    heads = {"q_proj": get("attention.head_count"), "k_proj": get("attention.head_count_kv")}
    tensors = {t.name: t for t in reader.tensors}
    config = LlamaConfig(
        hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"),
        num_hidden_layers=get("block_count"), num_attention_heads=heads["q_proj"],
        num_key_value_heads=heads["k_proj"], max_position_embeddings=get("context_length"),
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_parameters=dict(rope_type="default", rope_theta=get("rope.freq_base")),
        tie_word_embeddings="output.weight" not in tensors, attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            t = tensors[tiny.gguf_name(key)]
            x = gguf.quants.dequantize(t.data, t.tensor_type)
            h = heads.get(key.split(".")[-2])
            if h:
                x = x.reshape(h, x.shape[0] // h // 2, 2, -1).swapaxes(1, 2)
            p.copy_(torch.from_numpy(x.copy()).reshape(p.shape))
    return model


def make_real(path):
    """Random token ids: text would need the tokenizer, and the arithmetic does not care."""
    import numpy as np
    import torch

    model = load_gguf(path)
    tok = np.random.default_rng(11).integers(300, 20000, N_PROMPT).tolist()
    with torch.no_grad():
        rows = model(torch.tensor([tok])).logits[0, -N_ROWS:]
        top = rows.topk(16)
        ids, margin = list(tok), float("inf")
        for _ in range(32):
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            ids.append(int(best.indices[0]))
    out = {"model": "SmolLM2-135M-Instruct.Q4_1.gguf", "made_with": versions(), "greedy_margin": round(margin, 4),
           "prompt": tok, "greedy": ids[N_PROMPT:], "top_ids": top.indices.tolist(),
           "top_logits": [[float(f"{x:.7g}") for x in row] for row in top.values.tolist()]}
    with open(os.path.join(DATA, "golden", "smollm2-135m.q4_1.json"), "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")
    print(f"real: margin {margin:.3f}, {len(set(ids[N_PROMPT:]))} distinct greedy tokens")


def frequencies(rope):
    """Those of layers that see all; of local ones where they have their own."""
    kinds = {"": ""} if hasattr(rope, "inv_freq") else {"": "full_attention_", "local_": "sliding_attention_"}
    out = {}
    for to, kind in kinds.items():
        out[to + "inv_freq"] = [float(f"{x:.9g}") for x in getattr(rope, kind + "inv_freq").tolist()]
        scaling = getattr(rope, kind + "attention_scaling")
        out["rope_mscale" if not to else "local_mscale"] = float(f"{scaling:.9g}")
    return out


def make_model(name):
    import numpy as np
    import torch

    torch.set_num_threads(1)
    model = load_model(name)
    vocab = model.config.vocab_size
    tok = np.random.default_rng(7).integers(3, vocab, N_PROMPT).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([tok])).logits[0]
        rows = logits[-N_ROWS:].double().numpy()
        ids, margin = list(tok), float("inf")
        for _ in range(N_GREEDY):
            last = model(torch.tensor([ids])).logits[0, -1]
            top = last.topk(2)
            margin = min(margin, float(top.values[0] - top.values[1]))
            ids.append(int(top.indices[0]))
    if margin < 0.01:
        raise SystemExit(f"{name}: greedy margin {margin:.4f} is too small, choose another seed")
    out = {"model": name, "made_with": versions(),
           "greedy_margin": round(margin, 4), "prompt": tok, "greedy": ids[N_PROMPT:],
           **frequencies(model.model.rotary_emb),
           "logits": [[float(f"{x:.7g}") for x in row] for row in rows]}
    os.makedirs(os.path.join(DATA, "golden"), exist_ok=True)
    with open(os.path.join(DATA, "golden", name + ".json"), "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")
    print(f"{name}: margin {margin:.3f}, logits {rows.min():.1f}…{rows.max():.1f}, "
          f"std {rows.std():.2f}, {len(set(ids[N_PROMPT:]))} distinct greedy tokens")


def main():
    what = sys.argv[1:] or ["quant", "models"]
    if "quant" in what:
        make_quant()
    if "real" in what:
        make_real(what[what.index("real") + 1])
    if "models" in what:
        models = os.path.join(DATA, "models")
        # These twins have the logits of their folder; test_golden.c compares them with those.
        twins = (".F32.gguf", "gpt-oss-mxfp4.MXFP4.gguf")
        names = what[what.index("models") + 1:]
        for name in names or sorted(os.listdir(models)):
            if os.path.exists(os.path.join(models, name, "config.json")) or (
                    name.endswith(".gguf") and not name.endswith(twins)):
                make_model(name)


if __name__ == "__main__":
    main()
