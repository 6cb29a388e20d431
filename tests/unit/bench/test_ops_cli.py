"""kvblend-bench ceil and kernels: every figure is there, and they agree with each other."""
import os
import subprocess

from bench_cli import BENCH, report

DEVICE = os.environ.get("KVBLEND_TEST_DEVICE", "cpu")
KERNELS = ["copy", "gather", "rmsnorm", "rmsnorm+operand", "rmsnorm_heads", "swiglu", "swiglu+operand",
           "rope", "kv_put", "kv_load_f16", "kv_load_q8", "encode_f16", "encode_q8", "deviation_f16"]
if DEVICE == "cpu":  # of a GPU with --weights file alone
    KERNELS += ["product", "codes"]


def run(sub, *args):
    return report(*sub.split(), "--shape", "smollm2", "--device", DEVICE, "--reps", "2", *args)


def close(a, b):
    return abs(a - b) <= 1e-3 * abs(b)


def check_kernels():
    out = run("kernels", "--at-rows", "3,70")
    copy = out["meta"]["ceilings"]["copy_gbps"]
    assert copy > 0
    assert [(r["kernel"], r["rows"]) for r in out["rows"]] == [(k, m) for m in (3, 70) for k in KERNELS]
    for r in out["rows"]:
        assert 0 < r["us_lo"] <= r["us"] <= r["us_hi"], r
        assert close(r["gbps"], r["bytes"] / r["us"] * 1e-3), r
        assert close(r["share"], r["gbps"] / copy), r
    rows = {(r["kernel"], r["rows"]): r["bytes"] for r in out["rows"]}
    assert rows["rmsnorm", 70] == 70 * 576 * 8
    assert rows["encode_q8", 3] == 3 * (192 * 4 + 3 * 66)


def check_experts():
    """On an emulation of a GPU, where they are small ones: 16 of [2 * 32, 2048] and [2048, 32] in bf16."""
    out = report("kernels", "--shape", "qwen3-30b-a3b", "--device", DEVICE, "--reps", "1", "--at-rows", "1,20")
    rows = {r["rows"]: r["bytes"] for r in out["rows"] if r["kernel"] == "experts"}
    one = 3 * 2048 * 32 * 2
    assert close(rows[1], 8 * 2048 + 8 * one), rows
    assert close(rows[20], 20 * 8 * 2048 + 16 * (1 - 0.5 ** 20) * one), rows


def check_ceil():
    out = run("kernels ceil", "--at-rows", "5,64")
    best = out["meta"]["ceilings"]["gemm_gflops"]
    gemm = [r for r in out["rows"] if r["kind"] == "gemm"]
    assert [(r["weight"], r["rows"]) for r in gemm] == [
        (w, m) for m in (5, 64) for w in ("kv", "q", "o", "gate_up", "down", "layer")]
    sizes = {"kv": 384 * 576, "q": 576 * 576, "o": 576 * 576, "gate_up": 3072 * 576, "down": 576 * 1536}
    sizes["layer"] = sum(sizes.values())
    for r in gemm:
        assert close(r["gflops"], 2 * r["rows"] * sizes[r["weight"]] / r["us"] * 1e-3), r
        assert close(r["share"], r["gflops"] / best), r
    assert max(r["share"] for r in gemm) == 1
    for kind in ("copy", "from_host", "to_host"):
        assert [r["gbps"] > 0 for r in out["rows"] if r["kind"] == kind] == [True], kind
    for kind in ("run", "launch"):
        assert len([r for r in out["rows"] if r["kind"] == kind]) == 1, kind


def check_scaling():
    """On more threads than there are cores, too: the model is of what is in the report."""
    rows = run("kernels scaling", "--threads", "3")["rows"]
    assert [r["threads"] for r in rows] == [1, 2, 3, 4, 8, 16, 32, 64]
    for r in rows:
        for key in ("barrier_us", "copy_gbps", "prefill_ms", "blend_ms", "decode_ms"):
            assert r[key] > 0 if r["threads"] <= 3 else r[key] is None, (key, r)
    for kind in ("prefill", "blend"):
        model = [r[f"{kind}_model_ms"] for r in rows]
        assert model[0] > 0 and min(model) > model[0] / 64, (kind, model)
    r = subprocess.run([BENCH, "kernels", "scaling", "--threads", "two"], capture_output=True, text=True)
    assert r.returncode == 1 and "threads" in r.stderr, r


def check_refusals():
    for args in (["--at-rows", "5,,6"], ["--at-rows", "0"], ["--at-rows", ""], ["--weights", "fp8", "--device", "cpu"]):
        r = subprocess.run([BENCH, "kernels", "--shape", "smollm2", *args], capture_output=True, text=True)
        assert r.returncode == 1 and r.stderr.startswith("kvblend-bench: "), (args, r)


check_kernels()
if DEVICE == "cpu":
    check_ceil()
    check_scaling()
else:
    check_experts()
    check_refusals()
