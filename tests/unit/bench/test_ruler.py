"""tools/ruler: the same bytes from the same seed, needles where its fields say, and one right candidate."""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


def ruler(*args):
    return subprocess.run([sys.executable, ROOT / "tools/ruler", *map(str, args)], capture_output=True, text=True,
                          timeout=60, check=False)


def lines(*args):
    r = ruler(*args)
    assert r.returncode == 0, r.stderr
    return [json.loads(line) for line in r.stdout.splitlines()]


def answer(line):
    """Read off the text, as somebody would who knows the task and not the generator."""
    text = " ".join(line["chunks"])
    facts = re.findall(r"A special number for (\w+ \w+) is (\d+)\.", text)
    if line["kind"] == "mv":
        key = re.search(r"for (.*) in the text", line["suffix"])[1]
        return [v for k, v in facts if k == key]
    if line["kind"] == "mq":
        asked = re.search(r"for (.*) in the text", line["suffix"])[1].split(", ")
        assert len(dict(facts)) == len(facts)
        return [dict(facts)[key] for key in asked]
    held = {}
    for name, source in re.findall(r"VAR ([A-Z]+) = (?:VAR )?(\w+)\.", text):
        held[name] = held.get(source, source)
    value = re.search(r"value (\d+)", line["suffix"])[1]
    return [name for name, v in held.items() if v == value]


def check(line, n_chunks, depth, spread):
    assert len(line["chunks"]) == n_chunks
    where = [needle["chunk"] for needle in line["needles"]]
    assert where == sorted(where) and where[-1] - where[0] + 1 == spread == len(set(where)), where
    assert line["distance"] == n_chunks - 1 - where[-1]
    assert line["depth"] == (where[0] / (n_chunks - spread) if n_chunks > spread else 0)
    assert abs(line["depth"] * (n_chunks - spread) - depth * (n_chunks - spread)) <= 0.5
    for needle in line["needles"]:
        assert [needle["text"] in c for c in line["chunks"]] == [i == needle["chunk"] for i in range(n_chunks)]
    # Borders are between sentences, so that chunks one behind the other are the text.
    assert all(c.endswith(".\n") and c == c.strip() + "\n" for c in line["chunks"])
    assert line["answer"] == ", ".join(answer(line)), (line["answer"], answer(line))
    assert line["candidates"][line["right"]] == f" {line['answer']}." and len(set(line["candidates"])) == 4
    if line["kind"] == "mv":  # there an order is no mistake
        sets = [frozenset(re.findall(r"\w+", c)) for c in line["candidates"]]
        assert len(set(sets)) == 4


ALL = ("mv", "mq", "vt", "--chunks", "4,8", "--depths", "0,0.3,1", "--lines", 2)
made = lines(*ALL)
assert ruler(*ALL).stdout == ruler(*ALL, "--seed", 1).stdout != ruler(*ALL, "--seed", 2).stdout
assert made == lines(*ALL) and len({json.dumps(line) for line in made}) == 36
assert lines("vt", *ALL[3:]) == [line for line in made if line["kind"] == "vt"]
places = [(kind, n, depth) for kind in ALL[:3] for n in (4, 8) for depth in (0, 0.3, 1) for _ in range(2)]
for one, (kind, n, depth) in zip(made, places, strict=True):
    assert one["kind"] == kind
    check(one, n, depth, 2)
assert {line["distance"] for line in made} == {0, 1, 2, 4, 6}
assert len({line["right"] for line in made}) == 4

for spread in (1, 3, 9):
    for one in lines("mv", "vt", "--chunks", 3, "--depths", 0.5, "--spread", spread):
        check(one, 3, 0.5, min(spread, 3))
for one in lines("mv", "mq", "--haystack", "needle", "--digits", 4):
    check(one, 8, one["depth"], 2)
    facts = sum(c.count("A special number") for c in one["chunks"])
    assert facts == sum(c.count(".") for c in one["chunks"]) > 50
    wrong = set(re.findall(r"\d+", " ".join(one["candidates"]))) - set(one["answer"].split(", "))
    assert all(f"is {number}." in " ".join(one["chunks"]) for number in wrong)  # of other needles

for bad in (["xx"], [], ["mv", "--values", 1], ["mq", "--candidates", 8], ["mv", "--depths", 2], ["vt", "--chunks", 0]):
    assert ruler(*bad).returncode == 2, bad
lost = ruler("mv", "--haystack", "needle", "--chunks", 100)
assert lost.returncode == 1 and "more keys" in lost.stderr and "Traceback" not in lost.stderr
