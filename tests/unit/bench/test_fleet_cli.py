"""kvblend-bench throughput fleet --verify: which queue comes of a measured curve's work."""
import json
import pathlib
import subprocess
import tempfile

from bench_cli import BENCH, report

COST = {"cost": dict.fromkeys(("fixed_s", "layer_s", "row_s", "kv_row_s", "pair_s", "place_s", "mass_s", "head_s"), 1e-5)}
N = 5


def verify(folder, rows, meta):
    cost, measured = folder / "cost.json", folder / "measured.json"
    cost.write_text(json.dumps(COST))
    measured.write_text(json.dumps({"rows": rows, "meta": meta}))
    return ["throughput", "fleet", "--verify", str(measured), "--cost", str(cost), "--pool", "24", "--answer-tokens", "4"]


def row(rate, **more):
    return dict({"strategy": "blend", "rate": rate, "ttft_ms_p50": 1000, "ttft_ms_p95": 2000, "n": N}, **more)


def close(a, b):
    assert abs(a - b) < 0.01, (a, b)


def check_times(folder):
    meta = {"ttft_ms_unloaded": {"blend": 800}, "outside_ms_unloaded": {"blend": 100}, "streams": 0}
    busy = {"busy_ms": {"prefill": 900, "decode": 90}}
    # Nobody waits; all come at once (the median is the third one).
    got = report(*verify(folder, [row(1e-6, **busy), row(1e9, **busy)], meta))
    close(got["rows"][0]["simulated_ms_p50"], 100 + 900)
    close(got["rows"][0]["off_p50"], 0)
    close(got["rows"][1]["simulated_ms_p50"], 100 + 3 * 900 + 2 * 90)
    close(got["rows"][1]["simulated_ms_p95"], 100 + 4.8 * 900 + 3.8 * 90)
    close(got["meta"]["off_worst"], 1.98)
    # Each its own work, when it came; one of unknown work counts as the mean.
    each = [{"at_s": at, "engine_ms": ms} for at, ms in ((1, 500), (2, 1500), (2.5, None), (9, 700), (9, 300))]
    got = report(*verify(folder, [row(1, requests=each, **busy), row(1, requests=each[:2], **busy)], meta))
    ttft = [500, 1500, (3.5 + 0.09 - 2.5) * 1e3 + 900, 700, 700 + 90 + 300]
    close(got["rows"][0]["simulated_ms_p50"], 100 + sorted(ttft)[2])
    close(got["rows"][0]["simulated_ms_p95"], 100 + sorted(ttft)[3] + 0.8 * (max(ttft) - sorted(ttft)[3]))
    close(got["rows"][0]["mean_ms_p50"], 100 + 900)
    assert got["rows"][0]["each"] and not got["rows"][1]["each"], got["rows"]
    close(got["rows"][1]["simulated_ms_p95"], got["rows"][1]["mean_ms_p95"])
    other = row(2, **{**busy, "strategy": "full"})
    both = {key: {**of, "full": of["blend"]} for key, of in meta.items() if key != "streams"}
    got = report(*verify(folder, [row(1, **busy), row(2, **busy), other], both))
    assert [r["strategy"] for r in got["rows"]] == ["blend", "blend", "full"], got["rows"]


def check_refusals(folder):
    alone, busy = {"ttft_ms_unloaded": {"blend": 800}}, {"busy_ms": {"prefill": 900, "decode": 90}}
    told = {**alone, "outside_ms_unloaded": {"blend": 100}}
    unsaid = {"busy_ms": {"prefill": None, "decode": None}}
    for rows, meta, why in (([], told, "not a report"), ([row(1, **busy)], {}, "not a report"),
                            ([row(0, **busy)], told, "without rate"), ([row(1, strategy="else", **busy)], told, "without rate"),
                            ([row(1, **unsaid)], told, "or busy_ms"), ([row(1, **busy)], alone, "or busy_ms"),
                            ([row(1, **busy)], {**told, "streams": 2}, "beside streams")):
        r = subprocess.run([BENCH, *verify(folder, rows, meta)], capture_output=True, text=True, timeout=60)
        assert r.returncode != 0 and why in r.stderr, (r.returncode, r.stderr)


with tempfile.TemporaryDirectory() as name:
    check_times(pathlib.Path(name))
    check_refusals(pathlib.Path(name))
