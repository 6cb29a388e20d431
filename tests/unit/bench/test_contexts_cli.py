"""kvblend-bench quality: records that are merged with encodings behind other lines' chunks are other records, the same
every time, and recomputing all of them is the full prefill to the bit. A line's own chunks are never its context."""
import json
import pathlib
import tempfile

from bench_cli import report

DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "crossref"
LINES = [json.loads(line) for line in (DATA / "questions.jsonl").read_text().splitlines()[:6]]


def run(lines, *more):
    """Each line's divergence by method and ratio, and the report's meta."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
        data.write("".join(json.dumps({**line, "kind": "all"}) + "\n" for line in lines))
        data.flush()
        made = report("quality", "--model", str(DATA), "--data", data.name, "--dtype", "f32", "--threads", "1",
                      "--strategies", "reuse,hkvd,qs", "--ratios", "0.1,1", "--max-new", "8", *more)
    return {(r["strategy"], round(r["ratio"], 2)): r["kl_lines"] for r in made["rows"]}, made["meta"]


alone, said = run(LINES, "--isolated")
assert said["contexts"] == 0, said
assert alone["isolated", 0] == alone["reuse", 0] and min(alone["reuse", 0]) > 0, alone

together, said = run(LINES)
assert (said["contexts"], said["context_tokens"]) == (2, 2000), said
assert together["isolated", 0] == alone["isolated", 0]  # the baseline is of the same records
assert together["reuse", 0] != alone["reuse", 0] and min(together["reuse", 0]) > 0, together
assert together == run(LINES)[0]
assert run(LINES, "--contexts", "1", "--context-tokens", "40")[0]["reuse", 0] not in (alone["reuse", 0], together["reuse", 0])
for every in (alone, together):
    assert max(every["hkvd", 1]) == max(every["qs", 1]) == 0, every

# The fastest setting for a loss: at ratio 1 nothing is lost, so each of the strategies that ask for a ratio has one.
for loss in (0.6, 0.4, 0.2, 0.1):
    kept = {at["strategy"]: at for at in said["fastest"] if at["loss"] == loss}
    base = sum(together["isolated", 0])
    for strategy in ("hkvd", "qs"):
        measured, ratio = sum(together[strategy, 0.1]) / base, kept[strategy]["ratio"]
        want = 0.1 if measured <= loss else 0.1 + 0.9 * (measured - loss) / measured
        assert abs(ratio - want) < 1e-4 and kept[strategy]["speedup"] > 0, (strategy, loss, measured, kept[strategy])
    assert ("reuse" in kept) == (sum(together["reuse", 0]) / base <= loss), kept

# One line has no other's chunks for a context, and two lines that are the same have no other chunks.
assert run(LINES[:1])[1]["contexts"] == 0
same = run([LINES[0], {**LINES[0], "question": LINES[5]["question"]}])[0]
assert same["reuse", 0] == same["isolated", 0], same
