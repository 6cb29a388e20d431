"""tools/quality-report: the page of docs/quality.md from the JSON of runs."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
REPORT = ROOT / "tools" / "quality-report"


def row(strategy, ratio, kind, a, b):
    """Its lines have these divergences; full's, reuse's and hkvd's come from the same lines."""
    mean = (a + b) / 2
    return {"strategy": strategy, "ratio": ratio, "kind": kind, "n": 2, "kl_forced": mean,
            "kl_forced_vs_reuse": mean / 0.4, "kl_forced_vs_reuse_hi": mean / 0.3, "kl_forced_vs_baseline": mean / 0.2,
            "kl_forced_vs_baseline_lo": mean / 0.25, "kl_forced_vs_baseline_hi": mean / 0.15, "cost": 0.25,
            "speedup": 2.5 - ratio, "kl_lines": [a, b]}


def run_of(sink, rows):
    return {"meta": {"data": "/somewhere/texts.jsonl", "model": "Tiny", "command": "kvblend-bench quality",
                     "date": "2026-01-02", "sink": sink}, "rows": rows}


def plain_run():
    rows = []
    for kind, ratio in (("coref", 0.05), ("all", 0.15)):
        rows += [row("full", 1, kind, 0, 0), row("reuse", 0, kind, 0.3, 0.5)]
        for ratio in (0.05, 0.15):
            rows += [row("hkvd", ratio, kind, 0.2, 0.2), row("hkvd:check=2", ratio, kind, 0.1, 0.1),
                     row("hkvd:tensor=V", ratio, kind, 0.4, 0.3), row("hkvd:tensor=KV", ratio, kind, 0.1, 0.4),
                     row("default", ratio, kind, 0.05, 0.05)]
    run = run_of(True, rows)
    run["meta"].update(contexts=2, context_tokens=1200, fastest=[
        {"strategy": "qs", "loss": loss, "ratio": ratio, "cost": 0.2, "speedup": speed}
        for loss, ratio, speed in ((0.6, 0.05, 6.2), (0.2, 0.15, 3.1))])
    return run


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def write(self, *runs, notes="", path=None):
        files = []
        for i, run in enumerate(runs):
            files.append(self.dir / f"{i}.json")
            files[-1].write_text(run if isinstance(run, str) else json.dumps(run))
        if notes:
            (self.dir / "notes.md").write_text(notes)
            notes = self.dir / "notes.md"
        path = path or self.dir / "q.md"
        r = subprocess.run([sys.executable, REPORT, "--page", path, notes, *files], capture_output=True, text=True, timeout=60)
        return r, path.read_text() if path.exists() else ""

    def has(self, text, *parts):
        for part in parts:
            self.assertIn(part, text)

    def test_a_page_from_runs(self):
        r, text = self.write(plain_run(), run_of(False, [row("reuse", 0, "all", 0.6, 1.0)]), notes="## Said by hand\n")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.has(text, "| texts.jsonl | 2 | 0.05 | 0.250 [0.200, 0.333] | **better** |",  # the claim
                 "```\nkvblend-bench quality\n```", "**all**, n = 2", "<details>",
                 "| reuse | 0.00 | 0.40000 | 1.000 | 2.000 [1.600, 2.667] | – | – | 0.250 | 2.50 |",
                 # settings against the same without them, line by line
                 "| `hkvd:check=2` | all | 0.05 | 0.250 | 0.500 | 0.250 | **better** |",
                 "| `hkvd:tensor=V` | all | 0.05 | 0.875 | 1.750 [1.500, 2.000] | 0.250 | worse |",
                 "| `hkvd:tensor=KV` | all | 0.05 | 0.625 | 1.250 [0.500, 2.000] | 0.250 | level |",
                 "## texts.jsonl, without the sink", "| reuse | all | 0.00 | 0.80000 | 2.000 | worse |",
                 "| strategy | 0.6 | 0.4 | 0.2 | 0.1 |", "| qs | 6.20x at 0.050 | – | 3.10x at 0.150 | – |",
                 "Records: behind the sink and 2 x at most 1200 tokens of other lines.",
                 "\n## Said by hand\n")
        self.assertNotIn("/somewhere", text)
        self.assertEqual({p.suffix for p in self.dir.iterdir()}, {".json", ".md"})  # and no other file

    def test_choices_stand_where_lines_have_candidates(self):
        chosen = {"answer_agreement": 0.875, "same_choice": 0.5, "same_choice_lo": 0.25, "same_choice_hi": 0.75}
        rows = [{**row("qcfuse", 0.15, "all", 0.1, 0.3), **chosen}]
        r, text = self.write(run_of(True, rows), plain_run())
        self.assertEqual(r.returncode, 0, r.stderr)
        papers, plain = text.split("\n## texts.jsonl\n")
        self.has(papers, "## texts.jsonl, baselines of papers", "| answer's tokens | same choice [95 %] |", "| 0.88 | 0.500 [0.250, 0.750] |")
        self.assertNotIn("same choice", plain)

    def test_a_calibration_says_what_was_looked_at(self):
        knob = {"knob": "check layer", "strategy": "hkvd"}
        r, text = self.write({
            "meta": {"model": "Tiny", "seconds": 12.0,
                     "profile": {"measured": "today", "strategy": "qs", "ratio": 0.12, "loss": 0.25}},
            "rows": [{**knob, "value": "1", "chosen": False, "vs_default": 1, "vs_default_lo": 1, "vs_default_hi": 1},
                     {**knob, "value": "2", "chosen": True, "vs_default": 0.8, "vs_default_lo": 0.7,
                      "vs_default_hi": 0.9},
                     {"strategy": "qs", "ratio": 0.1, "loss": 0.3, "loss_lo": 0.2, "loss_hi": 0.4}]})
        self.assertEqual(r.returncode, 0, r.stderr)
        self.has(text, "## Calibration: Tiny", "| check layer | hkvd | 2 | 1 | 2 | 0.800 [0.700, 0.900] |",
                 "- `qs`: 0.10: 0.300 [0.200, 0.400];", "Chosen: `qs` at 0.120 for a loss of 0.25.")

    def test_the_page_in_docs_is_what_its_runs_say(self):
        names = "calibration continuation no-sink musique musique-whole papers ruler crossref-calibration crossref " \
                "crossref-calibrated crossref-schedules map"
        runs = [(ROOT / "docs/quality" / f"{name}.json").read_text() for name in names.split()]
        r, text = self.write(*runs, notes=(ROOT / "docs/quality/notes.md").read_text())
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(text, (ROOT / "docs/quality.md").read_text())

    def test_bad_input_is_said(self):
        for run, path, word in (("{}", None, "0.json"), ("hello", None, "0.json"),
                                (plain_run(), pathlib.Path("/nonexistent/q.md"), "/nonexistent/q.md")):
            r, _ = self.write(run, path=path)
            self.assertEqual(r.returncode, 1)
            self.assertIn(word, r.stderr)


if __name__ == "__main__":
    unittest.main()
