#!/usr/bin/env python3
"""Checks of the house rules that a compiler does not make. Runs as a test; prints one line a finding.

Layers by include, file and function size, banned calls (with what to use instead), headers without a
contract comment, modules no test mentions, tabs, long lines, trailing space, unfinished marks, sources
that no meson.build names, stops of docs/tour.md that are not there. tidy_house.py adds the rules of the whole.
"""
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import tidy_house  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A folder may include itself and these, folders or single headers. Longest match first decides where a file belongs.
LAYERS = {
    "base": set(),
    "base/net": {"base"},
    "base/redis": {"base"},
    "base/hub": {"base", "base/net"},
    "base/otlp": {"base", "base/net"},
    "policy": {"base"},
    "segment": {"base"},
    "kernels": {"base"},
    "tiers": {"base", "base/redis", "kernels"},
    "fusor/model": {"base", "kernels"},
    "fusor/text": {"base", "kernels", "fusor/model"},
    "fusor/grammar": {"base", "fusor/text"},
    "fusor": {"base", "kernels", "fusor/model", "fusor/text", "policy/strategy.h"},
    "worker": {"base", "base/net", "base/otlp", "base/redis", "base/hub", "kernels", "tiers", "policy", "segment", "fusor", "fusor/model", "fusor/text",
               "fusor/grammar"},
    "gateway": {"base", "base/net", "base/otlp", "base/redis", "base/hub", "policy", "segment", "worker/opts_table.h"},  # what `worker:` may hold
    "tools/ctl": {"base", "base/net"},
    "tools/bench": {"base", "base/net", "base/redis", "base/hub", "kernels", "tiers", "policy", "segment", "fusor", "fusor/model", "fusor/text",
                    "worker", "tests/doubles"},
    "tests/doubles": {"base", "kernels", "tiers"},
}
BANNED = {
    r"\bstrcpy\s*\(": "memcpy or buf_adds",
    r"\bsprintf\s*\(": "snprintf or buf_addf",
    r"\bato[ifl]l?\s*\(": "strtoll with an end pointer",
    r"\bgets\s*\(": "fgets",
    r"\bsystem\s*\(": "fork and exec",
    r"\bu?sleep\s*\(": "an event or a condition variable",
    r"\brand\s*\(\s*\)": "a seeded generator",
    r"\btime\s*\(": "clock_ns or clock_wall_s",
    r"\bcudaDeviceSynchronize\b": "an event on the stream",
}
RAW_ALLOC = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|strdup|strndup|free)\s*\(")
EVENT_FOLDERS = ("base/net", "gateway", "worker", "tools")
# Modules that only a running process can show (tests/e2e drives them), or a neighbour's tests do.
END_TO_END = {"base/hub/fetch.c", "base/hub/pull.c", "gateway/process/pull.c", "gateway/front/admission.c", "gateway/front/front.c", "gateway/front/reply.c", "gateway/front/ui.c",
              "gateway/request/read.c", "gateway/request/request.c",
              "gateway/process/admin.c", "gateway/process/gather.c", "gateway/process/memory.c",
              "gateway/request/answer.c", "gateway/request/relay.c", "gateway/request/send.c", "gateway/request/spans.c", "gateway/process/own.c",
              "gateway/process/run.c", "gateway/process/stats.c", "gateway/process/watch.c",
              "worker/worker.c", "worker/request/gen.c", "tools/bench/contexts.c", "tools/bench/dataset.c", "tools/bench/served.c",
              "fusor/text/unicode.c"}
MADE = {"hostcuda.h", "version.h"}  # by the emulation's own folder; by the build
MAX_LINES, MAX_FUNCTION, MAX_COLUMNS = 1200, 70, 100
LONG_FUNCTION_SHARE = 0.02
# Two errnos in one word are a third; a writer of many pieces asks buf_status() once.
ORED_ERRORS = re.compile(r"\b(r|rc|ret|err|status)\s*\|=|\breturn (r|rc|ret|err|status) \| ")


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True,
                         text=True, check=False).stdout.split("\n")
    files = [ROOT / f for f in out if f]
    if not files:  # a tarball
        files = [p for p in ROOT.rglob("*") if p.is_file() and "build" not in p.parts[len(ROOT.parts)]]
    return [f for f in files if f.exists()]


def folder_of(rel):
    best = ""
    for name in LAYERS:
        if rel.startswith(name + "/") and len(name) > len(best):
            best = name
    return best


def strip_comments(text):
    """Blank out comments and string contents, keeping line structure."""
    def blank(m):
        s = m.group(0)
        if s[0] == "/":
            return re.sub(r"[^\n]", " ", s)
        return s[0] + re.sub(r"[^\n]", " ", s[1:-1]) + s[-1]
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)


def functions(code):
    """(name, first line, length) of every function body, by braces in column 0."""
    lines = code.split("\n")
    start = None
    for i, line in enumerate(lines):
        if line == "{" and start is None:
            start = i
        elif line.startswith("}") and start is not None:
            j = start - 1
            while j > 0 and lines[j].strip() and lines[j].startswith((" ", "\t")):
                j -= 1
            m = re.search(r"(\w+)\s*\(", lines[j]) if j >= 0 else None
            yield (m.group(1) if m else "?", j, i - start + 1)
            start = None


def check_file(path, rel, findings, stats):
    text = path.read_text(errors="replace")
    lines = text.split("\n")
    code = strip_comments(text)
    for n, line in enumerate(lines, 1):
        if "\t" in line:
            findings.append(f"{rel}:{n}: tab")
        if len(line) > MAX_COLUMNS:
            findings.append(f"{rel}:{n}: {len(line)} columns")
        if line != line.rstrip():
            findings.append(f"{rel}:{n}: trailing space")
        if re.search(r"\b(FIXME|XXX)\b|\bTODO\b(?!\(#\d+\))", line):
            findings.append(f"{rel}:{n}: unfinished mark without an issue number")
    for n, line in enumerate(code.split("\n"), 1):
        if re.search(r"(^|[^:\"'])//", line):
            findings.append(f"{rel}:{n}: // comment, use /* */")
        for pattern, instead in BANNED.items():
            if re.search(pattern, line) and not line.lstrip().startswith("#"):
                findings.append(f"{rel}:{n}: banned call, use {instead}")
        if ORED_ERRORS.search(line):
            findings.append(f"{rel}:{n}: errors are ORed")
        if rel != "base/mem.c" and not rel.startswith("tests/") and RAW_ALLOC.search(line):
            findings.append(f"{rel}:{n}: raw allocation, use base/mem.h")
    if len(lines) > MAX_LINES:
        findings.append(f"{rel}: {len(lines)} lines, the limit is {MAX_LINES}")
    if rel.endswith(".h") and not rel.startswith("tests/") and not text.startswith("/*"):
        findings.append(f"{rel}: header without a contract comment at its top")
    check_includes(rel, text, findings)
    if rel.endswith(".c") and not rel.startswith("tests/"):
        raw = text.split("\n")
        for name, first, length in functions(code):
            stats["functions"] += 1
            if length > MAX_FUNCTION and not any("long:" in l for l in raw[max(0, first - 8):first + 6]):
                stats["long"].append(f"{rel}:{first + 1}: {name} has {length} lines")


def check_includes(rel, text, findings):
    here = folder_of(rel)
    for inc in re.findall(r'^#include "([^"]+)"', text, flags=re.M):
        there = folder_of(inc)
        if not (ROOT / inc).exists() and inc not in MADE:
            findings.append(f"{rel}: includes {inc}, which is not there")
        if inc.startswith("tests/") and not rel.startswith(("tests/", "tools/bench/")):
            findings.append(f"{rel}: includes {inc}: tests and kvblend-bench alone see tests/")
        elif here and there and there != here and not LAYERS[here] & {there, inc}:
            findings.append(f"{rel}: includes {inc}: {here} may not use {there}")
    if here and not rel.startswith(EVENT_FOLDERS) and re.search(r"^#include <event2?/", text, flags=re.M):
        findings.append(f"{rel}: libevent outside {', '.join(EVENT_FOLDERS)}")
    if here and not here.startswith("kernels") and re.search(r"^#include <cu(da|blas)", text, flags=re.M):
        findings.append(f"{rel}: CUDA outside kernels/")


def check_built_and_tested(files, findings):
    meson = {f.parent: f.read_text() for f in files if f.name == "meson.build"}
    built = "\n".join(meson.values())
    tests = "\n".join(f.read_text(errors="replace") for f in files
                      if f.relative_to(ROOT).parts[0] == "tests" and f.suffix in (".c", ".h"))
    for f in files:
        rel = str(f.relative_to(ROOT))
        if f.suffix != ".c":
            continue
        listed_by_loop = f.stem.startswith("test_") and f"'{f.stem[5:]}'" in meson.get(f.parent, "")
        if f.name not in built and not listed_by_loop:
            findings.append(f"{rel}: no meson.build names it")
        header = f.with_suffix(".h")
        if rel.startswith("tests/") or f.stem == "main" or not header.exists() or rel in END_TO_END:
            continue
        module = f"{f.parent.relative_to(ROOT)}/{f.stem.split('_')[0]}"
        if f'#include "{module}' not in tests:
            findings.append(f"{rel}: no test includes {module}.h")


def check_tour(findings):
    """Every `file: function` of the tour is a function defined in that file."""
    page = (ROOT / "docs/tour.md").read_text()
    stops = re.findall(r"`([\w/]+\.c): (\w+)`", page)
    if len(stops) < 20 or len(stops) != len(re.findall(r"\.c:", page)):
        findings.append("docs/tour.md: stops are not written as `file.c: function`")
    for rel, name in stops:
        code = strip_comments((ROOT / rel).read_text()) if (ROOT / rel).exists() else ""
        if not re.search(rf"^(?!\s)[^;=\n]*\b{name}\([^;{{}}]*\)\n{{", code, flags=re.M):
            findings.append(f"docs/tour.md: {rel} defines no {name}")


def main():
    findings, stats = [], {"functions": 0, "long": []}
    files = tracked()
    for f in files:
        rel = str(f.relative_to(ROOT))
        if f.suffix in (".c", ".h", ".cu", ".cuh"):
            check_file(f, rel, findings, stats)
    check_built_and_tested(files, findings)
    check_tour(findings)
    tidy_house.check(ROOT, files, LAYERS, strip_comments, findings)
    for d in LAYERS:
        if (ROOT / d).is_dir() and not (ROOT / d / "README.md").exists():
            findings.append(f"{d}/: no README.md")
    if len(stats["long"]) > LONG_FUNCTION_SHARE * max(stats["functions"], 1):
        findings += [f"{l} (soft limit {MAX_FUNCTION}, more than 2 % of functions)" for l in stats["long"]]
    for line in findings:
        print(line)
    print(f"{len(files)} files, {stats['functions']} functions, {len(stats['long'])} long ones, "
          f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
