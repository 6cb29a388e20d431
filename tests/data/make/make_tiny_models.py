#!/usr/bin/env python3
"""Tiny random models of every supported architecture, for tests/data/models/.

Each is a few hundred kilobytes, with weights spread widely enough that its logits are far apart and
greedy decoding is unambiguous. Norm weights and biases are random, so that forgetting one shows.
`smollm2` comes with a byte-level tokenizer and a chat template, so that it can serve requests.
GGUF twins are written with the same permutation and baked-in rope factors as llama.cpp's converter.

Run: python3 tests/data/make/make_tiny_models.py [name …]   (needs torch, transformers, safetensors, gguf)
Afterwards run tests/data/make/make_golden.py. Everything is seeded; the results are committed.
"""
import json
import math
import os
import shutil
import sys

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
SEEDS = os.path.join(OUT, "..", "..", "fuzz", "corpus", "gguf")

BASE = dict(vocab_size=128, num_hidden_layers=3, max_position_embeddings=2048, rms_norm_eps=1e-5,
            hidden_act="silu", bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)
SCOUT = {**LLAMA3, "factor": 16.0, "high_freq_factor": 1.0}  # a step without a ramp, as Llama 4 Scout has it

def longrope(n, original):
    return dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=original,
                short_factor=[1 + 0.1 * i for i in range(n)], long_factor=[1 + 2.5 * i for i in range(n)])


def gpt_oss(original):
    return dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=12,
                pad_token_id=0,
                rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=2048 / original,
                                     beta_fast=32.0, beta_slow=1.0, truncate=False,
                                     original_max_position_embeddings=original))


def llama4(**more):
    # Prompt and answer of make_golden.py cross borders of chunks, and temperatures change in them.
    return {**dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                   intermediate_size=24, intermediate_size_mlp=40, num_local_experts=4,
                   num_experts_per_tok=1, attention_chunk_size=24, floor_scale=16, attn_scale=0.6,
                   pad_token_id=0, num_hidden_layers=5), **more}


GELU = dict(hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh")

# name: (config class, settings, options). Seeds: the first whose greedy path has no near-ties.
MODELS = {
    "llama2": ("LlamaConfig", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=3,
                                   intermediate_size=64), dict(classic=True, seed=6)),
    "llama3": ("LlamaConfig", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                                   intermediate_size=64, rope_parameters=LLAMA3),
               dict(shard="200KB")),
    "llama-linear": ("LlamaConfig", dict(hidden_size=32, num_attention_heads=2,
                                         num_key_value_heads=2, intermediate_size=48,
                                         attention_bias=True,
                                         rope_parameters=dict(rope_type="linear", factor=4.0,
                                                              rope_theta=10000.0)),
                     dict(classic=True, seed=13)),
    "mistral": ("MistralConfig", dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
                                      head_dim=16, intermediate_size=64, sliding_window=None,
                                      rope_parameters=dict(rope_type="yarn", factor=8.0,
                                                           rope_theta=10000.0, beta_fast=4.0,
                                                           beta_slow=0.5, attention_factor=1.1,
                                                           original_max_position_embeddings=256)),
                dict(seed=4)),
    "yi": ("LlamaConfig", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=1,
                               intermediate_size=64,
                               rope_parameters=dict(rope_type="default", rope_theta=5000000.0)),
           dict(bf16=True)),
    "smollm2": ("LlamaConfig", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                                    intermediate_size=64, vocab_size=272,
                                    max_position_embeddings=8192, tie_word_embeddings=True,
                                    bos_token_id=0, eos_token_id=2,
                                    rope_parameters=dict(rope_type="default",
                                                         rope_theta=100000.0)),
                dict(classic=True, tokenizer=True, seed=5)),
    "qwen2": ("Qwen2Config", dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                                  intermediate_size=64, use_sliding_window=False,
                                  rope_parameters=dict(rope_type="yarn", factor=4.0,
                                                       rope_theta=1000000.0,
                                                       original_max_position_embeddings=512)),
              dict(seed=8)),
    "qwen3": ("Qwen3Config", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                  head_dim=32, intermediate_size=64, use_sliding_window=False,
                                  tie_word_embeddings=True,
                                  rope_parameters=dict(rope_type="default",
                                                       rope_theta=1000000.0)), dict(seed=3)),
    # Windows are shorter than the prompt of make_golden.py, so that it and the tokens behind it feel
    # them.
    "gemma2": ("Gemma2Config", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                    head_dim=32, intermediate_size=64, tie_word_embeddings=True,
                                    num_hidden_layers=4, sliding_window=12, query_pre_attn_scalar=24,
                                    attn_logit_softcapping=2.0, final_logit_softcapping=12.0,
                                    **GELU), dict(less_one=True, seed=2)),
    "gemma3": ("Gemma3TextConfig", dict(hidden_size=48, num_attention_heads=4,
                                        num_key_value_heads=2, head_dim=16, intermediate_size=64,
                                        tie_word_embeddings=True, num_hidden_layers=7,
                                        sliding_window=12, query_pre_attn_scalar=16,
                                        rope_parameters=dict(
                                            full_attention=dict(rope_type="linear", factor=8.0,
                                                                rope_theta=1000000.0),
                                            sliding_attention=dict(rope_type="default",
                                                                   rope_theta=10000.0)),
                                        **GELU), dict(less_one=True, classic=True, seed=3)),
    "mistral-window": ("MistralConfig", dict(hidden_size=32, num_attention_heads=4,
                                             num_key_value_heads=2, intermediate_size=48,
                                             sliding_window=17), dict(seed=2)),
    # Which factors hold is decided by the original length: here the short ones, then the long.
    "phi3": ("Phi3Config", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                intermediate_size=64, sliding_window=14, pad_token_id=0,
                                original_max_position_embeddings=512,
                                rope_parameters=longrope(8, 512)), dict()),
    "phi3-long": ("Phi3Config", dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                                     intermediate_size=48, sliding_window=None, pad_token_id=0,
                                     tie_word_embeddings=True, partial_rotary_factor=0.75,
                                     original_max_position_embeddings=32,
                                     rope_parameters=longrope(6, 32)), dict(seed=2)),
    "granite": ("GraniteConfig", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                      intermediate_size=64, tie_word_embeddings=True,
                                      embedding_multiplier=1.5, residual_multiplier=0.7,
                                      attention_multiplier=0.2, logits_scaling=2.5), dict()),
    "smollm3": ("SmolLM3Config", dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
                                      intermediate_size=64, num_hidden_layers=5, pad_token_id=0,
                                      no_rope_layer_interval=4, use_sliding_window=False),
                dict(bf16=True, seed=2)),
    "olmo2": ("Olmo2Config", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                  intermediate_size=64, pad_token_id=0), dict()),
    "glm4": ("Glm4Config", dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
                                head_dim=16, intermediate_size=64, attention_bias=True,
                                pad_token_id=0, partial_rotary_factor=0.5), dict()),
    "stablelm": ("StableLmConfig", dict(hidden_size=64, num_attention_heads=4,
                                        num_key_value_heads=2, intermediate_size=64,
                                        use_qkv_bias=True, pad_token_id=0), dict()),
    "stablelm-3b": ("StableLmConfig", dict(hidden_size=32, num_attention_heads=2,
                                           num_key_value_heads=2, intermediate_size=48,
                                           partial_rotary_factor=0.5, pad_token_id=0),
                    dict(classic=True, seed=2)),
    "qwen3-reranker": ("Qwen3Config", dict(hidden_size=48, num_attention_heads=3,
                                           num_key_value_heads=1, head_dim=32, vocab_size=280,
                                           intermediate_size=64, use_sliding_window=False,
                                           tie_word_embeddings=True, bos_token_id=0,
                                           eos_token_id=2,
                                           rope_parameters=dict(rope_type="default",
                                                                rope_theta=1000000.0)),
                       dict(tokenizer=True, thinks=True, seed=3)),
    "mixtral": ("MixtralConfig", dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                                      intermediate_size=32, num_local_experts=4,
                                      num_experts_per_tok=2, num_hidden_layers=2,
                                      rope_parameters=dict(rope_type="default",
                                                           rope_theta=1000000.0)), dict(seed=3)),
    "mixtral-window": ("MixtralConfig", dict(hidden_size=32, num_attention_heads=2,
                                             num_key_value_heads=1, intermediate_size=16,
                                             num_local_experts=3, num_experts_per_tok=2,
                                             num_hidden_layers=2, sliding_window=17,
                                             rope_parameters=dict(rope_type="default",
                                                                  rope_theta=10000.0)), dict(seed=6)),
    "qwen3moe": ("Qwen3MoeConfig", dict(hidden_size=48, num_attention_heads=3,
                                        num_key_value_heads=1, head_dim=32, intermediate_size=64,
                                        moe_intermediate_size=16, num_experts=8,
                                        num_experts_per_tok=3, norm_topk_prob=True,
                                        num_hidden_layers=2,
                                        rope_parameters=dict(rope_type="default",
                                                             rope_theta=1000000.0)), dict()),
    "qwen2moe": ("Qwen2MoeConfig", dict(hidden_size=32, num_attention_heads=2,
                                        num_key_value_heads=1, intermediate_size=64,
                                        moe_intermediate_size=24, num_experts=5,
                                        num_experts_per_tok=2, norm_topk_prob=False,
                                        shared_expert_intermediate_size=40, num_hidden_layers=2,
                                        rope_parameters=dict(rope_type="default",
                                                             rope_theta=1000000.0)),
                 dict(fused=True)),
    "olmoe": ("OlmoeConfig", dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                                  intermediate_size=16, num_experts=6, num_experts_per_tok=2,
                                  norm_topk_prob=False, num_hidden_layers=2,
                                  rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
              dict()),
    "gpt-oss": ("GptOssConfig", gpt_oss(64), dict(bf16=True)),
    "llama4": ("Llama4TextConfig", llama4(rope_parameters=SCOUT), dict(nested=True)),
    # GGUF knows by the 128 experts that there is no norm of Q and K.
    "llama4-dense": ("Llama4TextConfig", llama4(interleave_moe_layer_step=2, use_qk_norm=False,
                                                num_local_experts=128, intermediate_size=2),
                     dict(bf16=True, classic=True)),
    "gpt-oss-mxfp4": ("GptOssConfig", gpt_oss(128), dict(classic=True, bf16=True, mxfp4=True)),
}
GGUF = [("llama3", "Q8_0"), ("llama-linear", "F32"), ("qwen2", "F32"), ("qwen3", "F32"),
        ("smollm2", "F32"), ("gemma2", "F32"), ("gemma3", "F32"), ("phi3", "F32"),
        ("phi3-long", "F32"), ("granite", "F32"), ("smollm3", "F32"), ("olmo2", "F32"),
        ("glm4", "F32"), ("stablelm", "F32"), ("mixtral", "MXFP4"), ("qwen3moe", "F32"),
        ("qwen2moe", "F32"), ("olmoe", "F32"), ("gpt-oss", "F32"), ("gpt-oss-mxfp4", "MXFP4"),
        ("llama4", "F32"), ("llama4-dense", "F32")]


def randomize(model, seed, less_one=False):
    """Gains chosen so that attention is peaked, the residual stream grows and logits spread."""
    g = torch.Generator().manual_seed(seed)
    gain = {"q_proj": 1.6, "k_proj": 1.6, "v_proj": 1.2, "o_proj": 1.2, "gate_proj": 1.5,
            "up_proj": 1.5, "down_proj": 1.5, "lm_head": 3.0, "qkv_proj": 1.5, "gate_up_proj": 1.5,
            "experts": 1.5, "gate": 2.0, "shared_expert_gate": 1.5, "router": 2.0}
    if model.config.model_type == "gpt_oss":
        gain["experts"] = 4.0  # gates and ups reach their bounds
    with torch.no_grad():
        for name, p in model.named_parameters():
            part = name.split(".")[-2]
            r = torch.randn(p.shape, generator=g, dtype=torch.float32)
            if "norm" in part and not name.endswith("bias"):
                # Norms behind a block are larger, most where embeddings are, so that a token does not
                # answer with itself.
                behind = "post_" in part and ("feedforward" in part or less_one or "self_attn" in part)
                mean = (8.0 if less_one else 2.5) if behind else 1.0
                p.copy_(mean - (1.0 if less_one else 0.0) + 0.3 * r)
            elif name.endswith("bias"):
                p.copy_(0.5 * r)
            elif name.endswith("sinks"):
                p.copy_(1.0 + 1.5 * r)
            elif part == "embed_tokens":
                p.copy_(r * (3.0 / math.sqrt(p.shape[1])) if model.config.tie_word_embeddings else r)
            else:
                p.copy_(r * gain[part] / math.sqrt(p.shape[-1]))


def classic_config(path):
    """Rewrite config.json as versions of transformers before 5 did: rope_theta and rope_scaling."""
    with open(path) as f:
        c = json.load(f)
    rope = c.pop("rope_parameters")
    key = "type"
    if "sliding_attention" in rope:
        key = "rope_type"
        c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
        c.pop("layer_types")
        c["sliding_window_pattern"] = c.pop("_sliding_window_pattern")
    c["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if "partial_rotary_factor" in rope:
        c["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    c["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    c["torch_dtype"] = c.pop("dtype", "float32")
    with open(path, "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
        f.write("\n")


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "i n", "a n", "Ġ t", "Ġ a", "e r", "o n", "r e", "Ġt he", "an d", "Ġ s",
          "in g"]
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
            "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


# With the words that a reranker answers, and the marks of thoughts, which Qwen3's template writes empty.
THINKING = SPECIAL + ["<think>", "</think>"]
ANSWERING = ["t h", "th e", "i n", "a n", "Ġ t", "Ġt h", "Ġth e", "an d", "in g", "y e", "ye s", "n o"]
THINKING_TEMPLATE = TEMPLATE.replace(
    "assistant\n' }}", "assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}")


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = [], 0
    for b in range(256):
        if b in keep:
            out.append(chr(b))
        else:
            out.append(chr(256 + n))
            n += 1
    return out


def vocabulary(special, merges):
    return special + byte_alphabet() + [m.replace(" ", "") for m in merges]


def write_tokenizer(folder, thinks):
    special, merges = (THINKING, ANSWERING) if thinks else (SPECIAL, MERGES)
    added = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, s in enumerate(special)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    tok = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
           "normalizer": None,
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
               {"type": "Digits", "individual_digits": True}, byte_level]},
           "post_processor": None, "decoder": byte_level,
           "model": {"type": "BPE", "dropout": None, "unk_token": None,
                     "continuing_subword_prefix": None, "end_of_word_suffix": None,
                     "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                     "vocab": {t: i for i, t in enumerate(vocabulary(special, merges))},
                     "merges": merges}}
    config = {"add_bos_token": False, "add_prefix_space": False, "bos_token": SPECIAL[1],
              "eos_token": SPECIAL[2], "unk_token": SPECIAL[0], "pad_token": SPECIAL[2],
              "chat_template": THINKING_TEMPLATE if thinks else TEMPLATE, "model_max_length": 8192,
              "tokenizer_class": "GPT2Tokenizer",
              "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"}
                                       for a in added}}
    for name, data in (("tokenizer.json", tok), ("tokenizer_config.json", config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(data, f, ensure_ascii=False, indent=1)
            f.write("\n")


def in_mxfp4(folder):
    """The experts of a folder become MXFP4 as OpenAI stores it: rows for columns, codes and scales apart."""
    import gguf
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj")) and "experts" in n]:
        x = tensors.pop(name).float().numpy().transpose(0, 2, 1)
        raw = gguf.quants.quantize(np.ascontiguousarray(x), gguf.GGMLQuantizationType.MXFP4)
        raw = raw.reshape(*x.shape[:2], x.shape[2] // 32, 17)
        codes = np.concatenate([raw[..., 1:] & 15, raw[..., 1:] >> 4], axis=-1)  # [..., 32]
        tensors[name + "_blocks"] = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)
        tensors[name + "_scales"] = torch.from_numpy(raw[..., 0].copy())
    save_file(tensors, path, metadata={"format": "pt"})
    config = os.path.join(folder, "config.json")
    with open(config) as f:
        c = json.load(f)
    c["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    with open(config, "w") as f:
        json.dump(c, f, indent=2, sort_keys=True)
        f.write("\n")


def nest(folder):
    """A text model becomes the inner one of another that also sees, as Llama 4 is published."""
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    tensors = {"language_model." + n: x for n, x in load_file(path).items()}
    tensors["vision_model.class_embedding"] = torch.zeros(4)
    tensors["multi_modal_projector.linear_1.weight"] = torch.zeros(2, 2)
    save_file(tensors, path, metadata={"format": "pt"})
    config = os.path.join(folder, "config.json")
    with open(config) as f:
        text = json.load(f)
    text.pop("architectures")
    with open(config, "w") as f:
        json.dump({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
                   "text_config": text}, f, indent=2, sort_keys=True)
        f.write("\n")


def load_nested(folder, settings):
    from safetensors.torch import load_file

    with open(os.path.join(folder, "config.json")) as f:
        text = json.load(f)["text_config"]
    model = AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**text), **settings).eval()
    inner = "language_model."
    model.load_state_dict({n.removeprefix(inner): x.float() for n, x in
                           load_file(os.path.join(folder, "model.safetensors")).items() if n.startswith(inner)})
    return model


def load(folder):
    """A model of these folders in f32, MXFP4 decoded by transformers (which itself would want a GPU)."""
    from safetensors.torch import load_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = transformers.AutoConfig.from_pretrained(folder)
    settings = dict(dtype=torch.float32, attn_implementation="eager")
    if config.model_type == "llama4":
        return load_nested(folder, settings)
    if not hasattr(config, "quantization_config"):
        return AutoModelForCausalLM.from_pretrained(folder, **settings).eval()
    del config.quantization_config
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    for name in [n.removesuffix("_blocks") for n in tensors if n.endswith("_blocks")]:
        tensors[name] = convert_moe_packed_tensors(tensors.pop(name + "_blocks"), tensors.pop(name + "_scales"))
    model = AutoModelForCausalLM.from_config(config, **settings).eval()
    model.load_state_dict({n: x.float() for n, x in tensors.items()})
    return model


def make(name):
    cls, settings, opt = MODELS[name]
    config = getattr(transformers, cls)(**{**BASE, **settings})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomize(model, opt.get("seed", 1), opt.get("less_one"))
    if opt.get("bf16"):
        model = model.to(torch.bfloat16)
    folder = os.path.join(OUT, name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size=opt.get("shard", "10GB"),
                          save_original_format=not opt.get("fused"))
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    if opt.get("classic"):
        classic_config(os.path.join(folder, "config.json"))
    if opt.get("mxfp4"):
        in_mxfp4(folder)
    if opt.get("nested"):
        nest(folder)
    if opt.get("tokenizer"):
        write_tokenizer(folder, opt.get("thinks", False))


def permute(w, n_head):
    """Rows of Q and K as llama.cpp's converter stores them: pairs of a head interleaved."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_factors(rope, k):
    out = []
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for i in range(0, k, 2):
        wavelen = 2 * math.pi * rope["rope_theta"] ** (i / k)
        if wavelen < high:
            out.append(1.0)
        elif wavelen > low:
            out.append(rope["factor"])
        else:
            s = (rope["original_max_position_embeddings"] / wavelen - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append(1 / ((1 - s) / rope["factor"] + s))
    return np.array(out, dtype=np.float32)


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
EXPERTS = {"mlp.experts.gate_up_proj": ["ffn_gate_exps", "ffn_up_exps"],
           "mlp.experts.down_proj": ["ffn_down_exps"]}


def gguf_names(name, arch):
    """The tensors of a GGUF file that a parameter becomes: halves of its second dimension."""
    rest, kind = name.split(".", 3)[-1].removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
    rest = rest.replace("feed_forward.experts", "mlp.experts")
    if rest in EXPERTS:
        return [f"blk.{name.split('.')[2]}.{n}.{kind}" for n in EXPERTS[rest]]
    return [gguf_name(name, arch)]


def gguf_parts(x, n, turns, columns=False):
    """What those tensors hold of x; turns: rows of experts are columns, and the n take turns."""
    if columns:
        return np.split(np.swapaxes(x, 1, -1), n, axis=1)
    if turns:
        x = np.swapaxes(x, 1, -1)
        return [x[:, i::n] for i in range(n)]
    return np.split(x, n, axis=1) if x.ndim > 2 else [x]


PACKED = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
BEHIND = {"post_attention_layernorm": "post_attention_norm",
          "post_feedforward_layernorm": "post_ffw_norm"}
OWN = {"gemma2": {**BEHIND, "pre_feedforward_layernorm": "ffn_norm"}, "olmo2": BEHIND,
       "glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}}
OWN["gemma3"] = OWN["gemma2"]
OWN["gpt-oss"] = {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp",
                  "self_attn.sinks": "attn_sinks"}
OWN["llama4"] = {"feed_forward" + k.removeprefix("mlp"): v for k, v in NAMES.items() if k.startswith("mlp.")}
OWN["llama4"]["feed_forward.router"] = "ffn_gate_inp"
INTERLEAVED = ("llama", "granite", "smollm3")  # by the converter; GLM's rows are from the start


def gguf_name(name, arch="llama"):
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name.startswith("model.norm."):
        return "output_norm." + name.split(".")[-1]
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, rest = name.split(".", 3)
    stem, kind = (rest, "weight") if rest.endswith("sinks") else rest.rsplit(".", 1)
    names = {**NAMES, **PACKED, **OWN.get(arch, {})}
    return f"blk.{layer}.{names[stem]}.{kind}"


def make_gguf(name, qtype):
    import gguf

    model = load(os.path.join(OUT, name))
    c = model.config
    arch = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "qwen2_moe": "qwen2moe",
            "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "llama4_text": "llama4"}.get(c.model_type, c.model_type)
    k = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w = gguf.GGUFWriter(os.path.join(OUT, f"{name}.{qtype}.gguf"), arch)
    w.add_name(f"tiny {name}")
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(getattr(c, "intermediate_size_mlp", c.intermediate_size))
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    if arch == "stablelm":
        w.add_layer_norm_eps(c.layer_norm_eps)
        w.add_parallel_residual(True)  # as converters do, whatever the model is
    else:
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(k * rope.get("partial_rotary_factor", 1)))
    w.add_vocab_size(c.vocab_size)
    if arch.startswith("gemma") or arch == "gpt-oss":
        w.add_sliding_window(c.sliding_window)
    if arch == "gemma2":
        w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
        w.add_float32("gemma2.attention.scale", c.query_pre_attn_scalar ** -0.5)
    if arch == "phi3" and c.sliding_window:
        w.add_sliding_window(c.sliding_window)
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(c.max_position_embeddings / original) / math.log(original)))
        for kind in ("long", "short"):
            w.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[kind + "_factor"], dtype=np.float32))
    if arch == "granite":
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_attention_scale(c.attention_multiplier)
        w.add_logit_scale(c.logits_scaling)
    experts = getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None)
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c.num_experts_per_tok)
    if arch in ("gpt-oss", "llama4"):
        w.add_expert_feed_forward_length(c.intermediate_size)
    if arch == "llama4":
        w.add_interleave_moe_layer_step(c.interleave_moe_layer_step)
        w.add_sliding_window(c.attention_chunk_size)
        w.add_attn_temperature_length(c.floor_scale)
        w.add_attn_temperature_scale(c.attn_scale)
    if hasattr(c, "moe_intermediate_size"):
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if hasattr(c, "shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)
    if k * c.num_attention_heads != c.hidden_size:
        w.add_key_length(k)
        w.add_value_length(k)
    if rope["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(rope, k))
    if MODELS[name][2].get("tokenizer"):
        tokens = vocabulary(SPECIAL, MERGES)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("smollm")
        w.add_token_list(tokens)
        w.add_token_types([3 if t in SPECIAL else 1 for t in tokens])
        w.add_token_merges(MERGES)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)
        w.add_pad_token_id(2)
        w.add_add_bos_token(False)
        w.add_add_space_prefix(False)
        w.add_chat_template(TEMPLATE)
    for key, p in model.state_dict().items():
        if key == "lm_head.weight" and c.tie_word_embeddings:
            continue
        x = p.numpy()
        if MODELS[name][2].get("less_one") and "norm" in key:
            x = x + 1
        if arch in INTERLEAVED and ".q_proj." in key:
            x = permute(x, c.num_attention_heads)
        if arch in INTERLEAVED and ".k_proj." in key:
            x = permute(x, c.num_key_value_heads)
        if key.endswith("shared_expert_gate.weight"):
            x = x[0]
        names = gguf_names(key, arch)
        experts = "experts" in key
        for n, part in zip(names, gguf_parts(x, len(names), arch == "gpt-oss" and experts,
                                             arch == "llama4" and experts)):
            part = np.ascontiguousarray(part)
            if qtype == "F32" or x.ndim == 1 or "ffn_gate_inp" in n or n.endswith("bias"):
                w.add_tensor(n, part)
            else:
                t = gguf.GGMLQuantizationType[qtype if arch != "gpt-oss" or "exps" in n else "BF16"]
                w.add_tensor(n, gguf.quants.quantize(part, t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def split_gguf(name, n_parts):
    """models/split/: a twin cut as llama.cpp's gguf-split does, the metadata in the first part."""
    import gguf

    reader = gguf.GGUFReader(os.path.join(OUT, f"{name}.F32.gguf"))
    os.makedirs(os.path.join(OUT, "split"), exist_ok=True)
    each = -(-len(reader.tensors) // n_parts)
    for no in range(n_parts):
        path = os.path.join(OUT, "split", f"{name}-{no + 1:05}-of-{n_parts:05}.gguf")
        w = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items() if no == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                w.add_key_value(key, field.contents(), field.types[0])
        w.add_uint16("split.no", no)
        w.add_uint16("split.count", n_parts)
        w.add_int32("split.tensors.count", len(reader.tensors))
        for t in reader.tensors[no * each:(no + 1) * each]:
            w.add_tensor(t.name, t.data)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def make_seed(name, arch):
    """A mixture that is small enough to be a seed of fuzz_gguf (4096 bytes)."""
    import gguf

    d, f, n, vocab = 4, 2, 2, 4
    os.makedirs(SEEDS, exist_ok=True)
    w = gguf.GGUFWriter(os.path.join(SEEDS, name), arch)
    for add, value in ((w.add_block_count, 1), (w.add_context_length, 64), (w.add_embedding_length, d),
                       (w.add_feed_forward_length, f), (w.add_head_count, 2), (w.add_head_count_kv, 1),
                       (w.add_layer_norm_rms_eps, 1e-5), (w.add_expert_count, n),
                       (w.add_expert_used_count, 1), (w.add_expert_feed_forward_length, f)):
        add(value)
    shapes = {"attn_norm": (d,), "ffn_norm": (d,), "attn_q": (d, d), "attn_k": (d // 2, d),
              "attn_v": (d // 2, d), "attn_output": (d, d), "ffn_gate_inp": (n, d),
              "ffn_gate_exps": (n, f, d), "ffn_up_exps": (n, f, d), "ffn_down_exps": (n, d, f)}
    biases = {}
    if arch == "gpt-oss":
        w.add_sliding_window(16)
        shapes["post_attention_norm"] = shapes.pop("ffn_norm")
        biases = {k: shape[:1] if len(shape) == 2 else shape[:2] for k, shape in shapes.items() if len(shape) > 1}
        shapes["attn_sinks"] = (2,)
    else:
        shapes.update({"ffn_gate_shexp": (f, d), "ffn_up_shexp": (f, d), "ffn_down_shexp": (d, f)})
    if arch == "llama4":
        w.add_interleave_moe_layer_step(1)
        w.add_sliding_window(16)
    elif arch != "gpt-oss":
        shapes["ffn_gate_inp_shexp"] = (d,)
    shapes = {"token_embd.weight": (vocab, d), "output_norm.weight": (d,),
              **{f"blk.0.{k}.weight": v for k, v in shapes.items()},
              **{f"blk.0.{k}.bias": v for k, v in biases.items()}}
    for tensor, shape in shapes.items():
        w.add_tensor(tensor, np.ones(shape, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    names = sys.argv[1:] or list(MODELS)
    os.makedirs(OUT, exist_ok=True)
    for name in names:
        make(name)
        print("made", name)
    for name, qtype in GGUF:
        if name in names:
            make_gguf(name, qtype)
            print("made", name, qtype)
    if "qwen3" in names:
        split_gguf("qwen3", 3)
    make_seed("mixture", "qwen2moe")
    make_seed("gpt-oss", "gpt-oss")
    make_seed("llama4", "llama4")


if __name__ == "__main__":
    main()
