#!/usr/bin/env python3
"""The full prefill of a Llama-like model in plain PyTorch: what kvblend's own is compared with on the same machine.

Random bf16 weights, one prompt, eager mode, the operations and their order as in transformers: RMSNorm, separate
projections, rotate-half RoPE, scaled_dot_product_attention (causal, grouped heads), SwiGLU; keys and values are kept
as a cache would, logits are computed for the last token. Timed until the device is idle; median of --reps. A model
that does not fit repeats as many different layers as do, which streams the same bytes.

  tools/gpu-torch.py --dims L=32,D=4096,H=32,G=8,K=128,F=14336,V=32000 --tokens 3105 [--vllm] [--json FILE]
With --vllm: the time to the first token in vLLM, of random weights in a Llama of these dims, without its prefix cache.
Exit code 77: no PyTorch, or it sees no GPU; no vLLM, or it does not come up with such a model.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time


def skip(why):
    print("gpu-torch: %s, nothing was measured" % why, file=sys.stderr)
    sys.exit(77)


def dims_of(text):
    """L=…,D=… as numbers; all seven must be there."""
    try:
        dims = {k: int(v) for k, v in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError("expected L=…,D=…,H=…,G=…,K=…,F=…,V=…")
    if sorted(dims) != sorted("LDHGKFV") or min(dims.values()) < 1:
        raise argparse.ArgumentTypeError("expected L, D, H, G, K, F and V, each 1 or more")
    return dims


def layer_parameters(d):
    return d["D"] * (2 * d["H"] * d["K"] + 2 * d["G"] * d["K"] + 3 * d["F"])


class Model:
    def __init__(self, torch, d, device, tokens, held):
        self.t, self.d, self.device = torch, d, device
        torch.manual_seed(1)
        H, G, K, D, F = d["H"], d["G"], d["K"], d["D"], d["F"]
        shapes = {"q": (H * K, D), "k": (G * K, D), "v": (G * K, D), "o": (D, H * K), "gate": (F, D), "up": (F, D),
                  "down": (D, F)}
        self.layers = [{name: self.matrix(*shape) for name, shape in shapes.items()} for _ in range(held)]
        self.embed, self.head = self.matrix(d["V"], D), self.matrix(d["V"], D)
        self.norm = torch.ones(D, device=device, dtype=torch.bfloat16)
        turn = torch.arange(tokens, device=device)[:, None] * 1e6 ** (-torch.arange(0, K, 2, device=device) / K)
        turn = torch.cat((turn, turn), -1)
        self.cos, self.sin = turn.cos().to(torch.bfloat16), turn.sin().to(torch.bfloat16)

    def matrix(self, n, k):
        return self.t.randn(n, k, device=self.device, dtype=self.t.bfloat16) / k ** 0.5

    def rope(self, x):
        half = x.shape[-1] // 2
        return x * self.cos + self.t.cat((-x[..., half:], x[..., :half]), -1) * self.sin

    def prefill(self, ids):
        f, d, n = self.t.nn.functional, self.d, ids.shape[0]
        x, cache = f.embedding(ids, self.embed), []
        for i in range(d["L"]):
            w = self.layers[i % len(self.layers)]
            h = f.rms_norm(x, (d["D"],), self.norm, 1e-5)
            q, k, v = (f.linear(h, w[name]).view(n, -1, d["K"]).transpose(0, 1)[None] for name in "qkv")
            q, k = self.rope(q), self.rope(k)
            cache.append((k, v))
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + f.linear(a[0].transpose(0, 1).reshape(n, -1), w["o"])
            h = f.rms_norm(x, (d["D"],), self.norm, 1e-5)
            x = x + f.linear(f.silu(f.linear(h, w["gate"])) * f.linear(h, w["up"]), w["down"])
        return f.linear(f.rms_norm(x[-1:], (d["D"],), self.norm, 1e-5), self.head), cache


def times_ms(torch, device, fn, reps):
    """Of fn, after two runs that warm up."""
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    ms = []
    for _ in range(reps + 2):
        settle()
        begin = time.perf_counter()
        fn()
        settle()
        ms.append((time.perf_counter() - begin) * 1e3)
    return sorted(ms[2:])


def run_vllm(o):
    """Its times and what they are of; no two prompts begin alike."""
    try:
        import vllm
    except ImportError:
        skip("vLLM is not installed")
    d, n = o.dims, o.tokens
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": d["D"], "num_hidden_layers": d["L"],
              "num_attention_heads": d["H"], "num_key_value_heads": d["G"], "head_dim": d["K"], "intermediate_size": d["F"],
              "vocab_size": d["V"], "max_position_embeddings": n + 64, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
              "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        try:
            llm = vllm.LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=n + 64,
                           max_num_batched_tokens=n + 64, enable_prefix_caching=False)
        except Exception as e:  # pylint: disable=broad-except; it does not fit, or this version wants something else
            skip("vLLM: %s" % (str(e).splitlines() or [type(e).__name__])[0][:120])
    one, firsts = vllm.SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False), iter(range(1, d["V"]))

    def ask():
        first = next(firsts)
        ids = [(first + i * i) % d["V"] for i in range(n)]
        llm.generate([{"prompt_token_ids": ids}], one, use_tqdm=False)
    return times_ms(None, "cpu", ask, o.reps), {"vllm": vllm.__version__}  # generate() itself waits


def held_layers(torch, d, device):
    """All of them if they and the rest leave a tenth of the memory free, else as many as do; 2 at least."""
    if device == "cpu":
        return d["L"]
    free = torch.cuda.mem_get_info()[0] * 0.9 - 4 * d["V"] * d["D"] - (2 << 30)
    return max(2, min(d["L"], int(free / (2 * layer_parameters(d)))))


def report(o, ms, meta):
    """Of all times, sorted; 0, or 1 where the logits are no numbers."""
    d, full = o.dims, statistics.median(ms)
    flops = 2 * layer_parameters(d) * d["L"] * o.tokens + 2 * d["L"] * d["H"] * d["K"] * o.tokens ** 2
    row = {"ttft_ms_median": full, "ttft_ms_least": ms[0], "ttft_ms_most": ms[-1], "tokens_total": o.tokens,
           "tflops": flops / full / 1e9}
    beside = ""
    if "gemm_tflops" in meta:
        row["share_of_gemm"] = row["tflops"] / meta["gemm_tflops"]
        beside = ", %.2f of a GEMM at %.0f TFLOP/s; %d of %d layers held" % (row["share_of_gemm"], meta["gemm_tflops"],
                                                                           meta["layers_held"], d["L"])
    print("full prefill %.1f ms%s" % (full, beside))
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"meta": {"shape": d, **meta}, "rows": [row]}, f, indent=1)
    return 0 if meta.get("finite", True) else 1


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--dims", type=dims_of, required=True)
    p.add_argument("--tokens", type=int, default=3105)
    p.add_argument("--reps", type=int, default=7)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--vllm", action="store_true")
    p.add_argument("--json")
    o = p.parse_args()
    if o.vllm:
        return report(o, *run_vllm(o))
    try:
        import torch
    except ImportError:
        skip("PyTorch is not installed")
    if o.device == "cuda" and not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    d = o.dims
    held = held_layers(torch, d, o.device)
    with torch.inference_mode():
        side = 8192 if o.device == "cuda" else 256
        a, b = (torch.randn(side, side, device=o.device, dtype=torch.bfloat16) for _ in range(2))
        ms = times_ms(torch, o.device, lambda: [a @ b for _ in range(8)], o.reps)  # for the way there not to count
        ceiling = 8 * 2 * side ** 3 / statistics.median(ms) / 1e9
        del a, b
        m = Model(torch, d, o.device, o.tokens, held)
        ids = torch.randint(0, d["V"], (o.tokens,), device=o.device)
        finite = bool(torch.isfinite(m.prefill(ids)[0]).all())
        ms = times_ms(torch, o.device, lambda: m.prefill(ids), o.reps)
    meta = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if o.device == "cuda" else "cpu",
            "layers_held": held, "gemm_tflops": ceiling, "finite": finite}
    return report(o, ms, meta)


if __name__ == "__main__":
    sys.exit(main())
