"""kvblend-bench start: what it says of a small file, and which it refuses."""
import os
import pathlib
import subprocess

from bench_cli import BENCH, report

MODELS = pathlib.Path(__file__).parents[2] / "data/models"
FILE = MODELS / "llama3.Q8_0.gguf"

out = report("start", "--model", str(FILE), "--threads", "2", "--reps", "2")
assert out["meta"]["file_bytes"] == os.stat(FILE).st_size, out["meta"]
assert [r["state"] for r in out["rows"]] == ["cold", "cached"], out["rows"]
for row in out["rows"]:
    assert min(row[k] for k in ("read_s", "copy_s", "open_s", "open_share", "test_s", "own_mib", "file_mib")) > 0, row
    assert row["most_mib"] >= row["own_mib"], row

folder = MODELS / "llama2"
out = report("start", "--model", str(folder), "--threads", "2", "--reps", "1")
assert out["meta"]["file_bytes"] == os.stat(folder / "model.safetensors").st_size, out["meta"]

unnamed = {k: v for k, v in os.environ.items() if k != "KVBLEND_MODEL"}
for model in (["--model", str(MODELS)], ["--model", "/dev/null"], []):
    r = subprocess.run([BENCH, "start", *model], capture_output=True, text=True, timeout=60, env=unnamed)
    assert r.returncode == 1 and r.stderr == "kvblend-bench: --model has to be a file, or a folder with model.safetensors\n", r
broken = MODELS.parent / "make/make_shape.py"
r = subprocess.run([BENCH, "start", "--model", str(broken)], capture_output=True, text=True, timeout=60)
assert r.returncode == 1 and "the model could not be read or started" in r.stderr, r
