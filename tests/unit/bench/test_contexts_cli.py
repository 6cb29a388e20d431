"""kvblend-bench quality --contexts: records that are built behind other lines' chunks are other records, the same
every time, and recomputing all of them is the full prefill to the bit."""
import pathlib

from bench_cli import report

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "crossref"


def rows(*more):
    made = report("quality", "--model", str(DATA), "--data", str(DATA / "questions.jsonl"), "--dtype", "f32",
                  "--threads", "1", "--strategies", "reuse,hkvd,qs", "--ratios", "1", "--limit", "6", "--max-new", "8",
                  *more)
    return {(r["strategy"], round(r["ratio"], 2)): r["kl_lines"] for r in made["rows"] if r["kind"] == "all"}


behind = ("--contexts", "2", "--context-tokens", "40")
alone, together = rows(), rows(*behind)
assert alone["reuse", 0] != together["reuse", 0] and min(together["reuse", 0]) > 0, together
assert together == rows(*behind)
for every in (alone, together):
    assert max(every["hkvd", 1]) == max(every["qs", 1]) == 0, every
