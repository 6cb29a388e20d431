"""The rules of the house as a whole, for tidy.py: circles of files, contracts, layers in meson.build, sizes.

tidy_limits.json has each room's budget of lines. Raising a number there is a commit of its own that says what was
deleted instead.
"""
import json
import pathlib
import re

LINES = json.loads((pathlib.Path(__file__).with_name("tidy_limits.json")).read_text())
MAX_CIRCLE, MAX_HEADER, MAX_PROTOTYPES, MAX_FIELDS, MAX_PARAMETERS, MAX_NAMESAKES = 3, 200, 25, 40, 6, 3
MAX_README, MAX_README_COLUMNS = 150, 120
ROOMS = tuple(LINES)
PUBLIC = ("kernels/kn.h", "tiers/tier.h")  # one table of operations each: as long as it is
# Libraries of a room, as its neighbours name them in `dependencies:`.
LIBRARY = {"net_dep": "base/net", "redis_dep": "base/redis", "hub_dep": "base/hub", "otlp_dep": "base/otlp", "base_dep": "base", "policy_dep": "policy",
           "segment_dep": "segment", "codes_dep": "kernels", "kernels_dep": "kernels", "gpu_dep": "kernels",
           "module_dep": "kernels", "tiers_dep": "tiers", "model_dep": "fusor/model", "text_dep": "fusor/text", "grammar_dep": "fusor/grammar",
           "fusor_core_dep": "fusor", "fusor_dep": "fusor", "records_dep": "worker", "control_dep": "worker",
           "worker_dep": "worker", "worker_table_dep": "worker", "gateway_dep": "gateway", "gpu_host_dep": "tests/doubles", "fault_dep": "tests/doubles"}
FUNCTION = re.compile(r"^(?!static\b|typedef\b|#)[a-z][\w \t*]*?\b(\w+)\s*\(([^;{}]*)\)\n\{", re.M)
STATIC = re.compile(r"^static\b[\w \t*]*?\b(\w+)\s*\(([^;{}]*)\)\n\{", re.M)
PROTOTYPE = re.compile(r"^(?!static\b|typedef\b|#)[a-z][\w \t*]*?\b(\w+)\s*\(([^;{}]*)\)[^;{}]*;", re.M)
STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\}", re.M | re.S)


def over(name, size, limit, findings, what):
    if size > limit:
        findings.append(f"{name}: {size} {what}, the limit is {limit}")


def count_parameters(text):
    text, depth, n = text.strip(), 0, 1
    if text in ("", "void"):
        return 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        n += c == "," and depth == 0
    return n


def reach(graph, start):
    """What can be come to from there; itself only by a circle."""
    seen, todo = set(), [start]
    while todo:
        new = graph.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def circles(calls):
    """The sets of files that call each other in a circle."""
    reached = {v: reach(calls, v) for v in calls}
    return {frozenset(w for w in reached[v] if v in reached[w]) for v in calls if v in reached[v]}


def check_circles(code, findings):
    home = {}
    for f, text in code.items():
        if f.endswith(".c"):
            for m in FUNCTION.finditer(text):
                home.setdefault(m.group(1), set()).add(f)
    calls = {f: set() for f in code if f.endswith(".c")}
    for f in calls:
        own = {m.group(1) for m in STATIC.finditer(code[f])}
        for name in set(re.findall(r"\b[a-z]\w+\b", code[f])) - own:
            if len(home.get(name, ())) == 1 and f not in home[name]:
                calls[f] |= home[name]
    for ring in sorted(circles(calls), key=min):
        room = min(ring).split("/")[0]
        if len(ring) > MAX_CIRCLE:
            findings.append(f"{room}/: a circle of {len(ring)} files, the limit is {MAX_CIRCLE}: "
                            + " ".join(sorted(ring)))


def check_contracts(code, findings):
    statics = {}
    for f, text in sorted(code.items()):
        kernels = f.startswith("kernels/")
        if f.endswith(".h") and f not in PUBLIC:
            over(f, text.count("\n"), MAX_HEADER, findings, "lines")
            over(f, len(PROTOTYPE.findall(text)), MAX_PROTOTYPES, findings, "prototypes")
        for m in STRUCT.finditer(text):
            fields = sum(line.count(",") + 1 for line in m.group(2).split("\n") if line.rstrip().endswith(";"))
            over(f"{f}: struct {m.group(1)}", fields, MAX_FIELDS, findings, "fields")
        if f.endswith(".c") and not kernels:
            for m in list(FUNCTION.finditer(text)) + list(STATIC.finditer(text)):
                over(f"{f}: {m.group(1)}", count_parameters(m.group(2)), MAX_PARAMETERS, findings, "parameters")
        if f.endswith(".c"):
            for m in STATIC.finditer(text):
                statics.setdefault(m.group(1), set()).add(f)
    for name, where in sorted(statics.items()):
        over(name, len(where), MAX_NAMESAKES, findings, "files have a static function of that name")


def check_layers(root, layers, findings):
    """What a room's meson.build links is what the table lets it include, and no more."""
    layers = {room: {r.split("/")[0] if r.endswith(".h") else r for r in may} for room, may in layers.items()}
    for room in layers:
        path = root / room / "meson.build"
        if not path.exists() or room.startswith("tests/"):
            continue
        linked = {LIBRARY[d] for d in re.findall(r"\b\w+_dep\b", path.read_text()) if d in LIBRARY}
        linked -= {r for r in linked if r == room or r.startswith(room + "/")}
        for r in sorted(linked - reach(layers, room)):
            findings.append(f"{room}/meson.build: links {r}, which {room} may not use")
        full = set(linked).union(*(reach(layers, r) for r in linked)) if linked else set()
        for r in sorted(set(layers[room]) - full):
            if not r.startswith(room + "/"):
                findings.append(f"{room}/: may use {r}, but its meson.build does not link it")


def check_sizes(root, files, findings):
    lines = dict.fromkeys(ROOMS, 0)
    for f in files:
        rel = str(f.relative_to(root))
        room = rel.split("/")[0]
        if room in lines and f.suffix in (".c", ".h", ".cu", ".cuh", ".py", "") and f.is_file():
            lines[room] += f.read_text(errors="replace").count("\n")
        if f.name == "README.md":
            text = f.read_text().split("\n")
            over(rel, len(text) - 1, MAX_README, findings, "lines")
            wide = sum(len(line) > MAX_README_COLUMNS for line in text)
            over(rel, wide, 0, findings, f"lines of more than {MAX_README_COLUMNS} columns")
    for room, n in lines.items():
        over(room + "/", n, LINES[room], findings, "lines")


def check(root, files, layers, strip_comments, findings):
    code = {}
    for f in files:
        rel = str(f.relative_to(root))
        if f.suffix in (".c", ".h") and rel.split("/")[0] in ROOMS:
            code[rel] = strip_comments(f.read_text(errors="replace"))
    check_circles(code, findings)
    check_contracts(code, findings)
    check_layers(root, layers, findings)
    check_sizes(root, files, findings)
