"""kvblend-bench mrc: a sampled curve beside the exact one; tests/unit/tiers/test_mrc.c has a plain list beside both."""
import pathlib
import subprocess
import tempfile

from bench_cli import BENCH, report

TRACES = pathlib.Path(__file__).resolve().parents[3] / "tests" / "data" / "traces"


def refused(why, *args):
    r = subprocess.run([BENCH, "mrc", *args], capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 1 and why in r.stderr, (args, r.returncode, r.stderr)


for name, sample in (("mooncake_300.jsonl", 1500), ("ragpulse_90", 250)):
    whole = report("mrc", "--trace", str(TRACES / name), "--seeds", "2")["rows"]
    assert len(whole) == 2 and all(r["rate"] == 1 and r["error_max"] < 0.03 and r["distinct_error"] == 0 for r in whole), whole
    # (What is left: a short trace's curve has steps, and is a line within a bucket of sizes here.)
    part = report("mrc", "--trace", str(TRACES / name), "--seeds", "8", "--sample", str(sample))["rows"]
    assert len({r["rate"] for r in part}) > 1 and all(r["rate"] < 0.9 for r in part), part
    # Some hundred records: five points in the mean, as the square root of their number says.
    assert sum(r["error_mean"] for r in part) / 8 < 0.05 and all(abs(r["distinct_error"]) < 0.3 for r in part), part

refused("--trace PATH is needed")
refused("cannot be opened", "--trace", "/nonexistent")
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "trace"
    for text, why in (("", "the trace is empty"), ('{"hash_ids": [1]}\n{}\n', "trace:2:"), ("[\n", "trace:1:"),
                      ('{"hash_ids": ["a"]}', "trace:1:")):
        path.write_text(text)
        refused(why, "--trace", str(path))
