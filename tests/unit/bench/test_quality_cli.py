"""kvblend-bench quality: baselines of papers, the choice among candidates, and rows by fields of the lines."""
import json
import os
import pathlib
import tempfile

from bench_cli import report

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "crossref"
with open(DATA / "questions.jsonl", encoding="utf-8") as f:
    LINES = [json.loads(line) for line, _ in zip(f, range(20))]
ANSWERS = sorted({line["answer"] for line in LINES})


def run(lines, strategies, ratios, *more):
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "lines.jsonl")
        with open(data, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
        return report("quality", "--model", str(DATA), "--data", data, "--dtype", "f32", "--threads", "1",
                      "--strategies", strategies, "--ratios", ratios, "--max-new", "8", *more)["rows"]


def by_method(rows, kind="all"):
    return {(r["strategy"], round(r["ratio"], 2)): r for r in rows if r["kind"] == kind}


# ProphetKV is the question over all layers; QCFuse is neither the blind pass nor that of one layer, and at 1 it is full.
papers = by_method(run(LINES[:4], "query:layers=0-5,prophetkv,side:side=3,qcfuse:side=3,query:layers=3-3", "0.1,1"))
lines = {method: row["kl_lines"] for method, row in papers.items()}
assert lines["prophetkv", 0.1] == lines["query:layers=0-5", 0.1]
assert lines["qcfuse:side=3", 0.1] not in (lines["side:side=3", 0.1], lines["query:layers=3-3", 0.1]), lines
assert max(lines["prophetkv", 1]) == max(lines["qcfuse:side=3", 1]) == 0
assert papers["qcfuse:side=3", 0.1]["cost"] == papers["side:side=3", 0.1]["cost"]
assert lines == {m: r["kl_lines"] for m, r in by_method(run(
    LINES[:4], "query:layers=0-5,prophetkv,side:side=3,qcfuse:side=3,query:layers=3-3", "0.1,1")).items()}

# What equals full chooses as it does; reuse, which does not know who is meant, chooses others. Without candidates: nothing.
asked = [{**line, "candidates": ANSWERS, "half": i // 10, "set": "ab"[i % 2]} for i, line in enumerate(LINES)]
rows = run(asked, "reuse,hkvd", "1", "--by", "half,set,nothing")
chosen = by_method(rows)
assert chosen["full", 1]["same_choice"] == chosen["hkvd", 1]["same_choice"] == 1
assert 0 < chosen["reuse", 0]["same_choice"] < 0.9, chosen["reuse", 0]
assert chosen["full", 1]["answer_agreement"] == 1 > chosen["reuse", 0]["answer_agreement"] > 0
assert papers["full", 1]["same_choice"] is None
# The answer itself, not what stands first or is short: full knows it.
right = run([{**line, "candidates": [line["answer"]]} for line in LINES[:2]], "reuse", "1")
assert by_method(right)["reuse", 0]["same_choice"] == 1

# Rows by field have the lines that are alike in it, each once.
assert {r["kind"] for r in rows} >= {"half 0", "half 1", "set a", "set b", "single", "all"}
halves = [by_method(rows, f"half {i}")["reuse", 0] for i in (0, 1)]
assert [h["n"] for h in halves] == [10, 10]
assert halves[0]["kl_lines"] + halves[1]["kl_lines"] == chosen["reuse", 0]["kl_lines"]
assert by_method(rows, "set a")["reuse", 0]["kl_lines"] == chosen["reuse", 0]["kl_lines"][::2]
