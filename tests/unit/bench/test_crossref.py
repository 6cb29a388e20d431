"""Cross-chunk dependence by the engine's own numbers: the trained model of tests/data/crossref answers
questions whose facts hang on earlier chunks. Full is right, reuse is not; what a request without settings
gets (`default`) loses at most a quarter of what hkvd loses at the ratio that the paper recommends, and at half
of those tokens still less than hkvd. How far it stays below full is asserted as measured, not as wished.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BENCH = os.environ["KVBLEND_BENCH"]
DATA = pathlib.Path(__file__).resolve().parents[2] / "data" / "crossref"
LINES = 520  # of 640, all kinds alike
DEPENDENT = ("coref", "ellipsis", "alias", "update")  # whose own chunk does not say whom they are about
EXACT_LINES = 20  # at ratio 1
TUNED = "qs:layers=3-3"  # the layer in which this model's questions read
# Right answers that a blend at 0.15 may fall short of full: measured 0.056 and 0.019 (0.005 is the aim).
SHORT = {"default": 0.075, TUNED: 0.035}


def quality(folder, strategies, ratios, lines):
    report = pathlib.Path(folder) / "report.json"
    # f32: the same numbers on every machine, whatever it has for 16-bit arithmetic.
    out = subprocess.run([BENCH, "quality", "--model", DATA, "--data", DATA / "questions.jsonl",
                          "--dtype", "f32", "--strategies", strategies, "--ratios", ratios,
                          "--max-new", "8", "--limit", str(lines), "--json", report],
                         capture_output=True, text=True, timeout=600, check=False)
    assert out.returncode == 0, out.stderr
    print(out.stdout)
    rows = {}
    for row in json.loads(report.read_text())["rows"]:
        rows[row["strategy"], round(row["ratio"], 3), row["kind"]] = row
    return rows


def check_ends(rows):
    full, reuse = rows["full", 1, "all"], rows["reuse", 0, "all"]
    assert full["n"] == LINES >= 500, full
    assert full["exact_match"] >= 0.985, full
    assert reuse["exact_match"] <= 0.6, reuse
    for kind in DEPENDENT:
        lost = rows["full", 1, kind]["exact_match"] - rows["reuse", 0, kind]["exact_match"]
        assert lost >= 0.3, (kind, lost)
    lost = rows["full", 1, "single"]["exact_match"] - rows["reuse", 0, "single"]["exact_match"]
    assert abs(lost) <= 0.1, ("a fact that its chunk tells whole", lost)


def check_blend(rows):
    full, hkvd = rows["full", 1, "all"], rows["hkvd", 0.15, "all"]
    default, half = rows["default", 0.15, "all"], rows["default", 0.075, "all"]
    for strategy, most in SHORT.items():
        blend = rows[strategy, 0.15, "all"]
        assert full["exact_match"] - blend["exact_match"] <= most, (strategy, blend, full)
        assert blend["n"] == LINES, blend
    assert default["kl_forced"] <= 0.25 * hkvd["kl_forced"], (default, hkvd)
    assert rows[TUNED, 0.15, "all"]["kl_forced"] <= 0.12 * hkvd["kl_forced"], hkvd
    assert half["kl_forced"] < hkvd["kl_forced"], (half, hkvd)
    assert half["exact_match"] > hkvd["exact_match"], (half, hkvd)
    assert half["tokens_recomputed"] < 0.6 * hkvd["tokens_recomputed"], (half, hkvd)
    assert default["tokens_recomputed"] <= hkvd["tokens_recomputed"], (default, hkvd)


def check_exact(rows):
    for strategy in ("hkvd", "default"):
        whole = rows[strategy, 1, "all"]
        assert whole["n"] == EXACT_LINES, whole
        assert whole["kl_forced"] < 1e-9, whole


def main():
    with tempfile.TemporaryDirectory() as folder:
        rows = quality(folder, f"full,reuse,hkvd,default,{TUNED}", "0.075,0.15", LINES)
        exact = quality(folder, "hkvd,default", "1", EXACT_LINES)
    check_ends(rows)
    check_blend(rows)
    check_exact(exact)
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
