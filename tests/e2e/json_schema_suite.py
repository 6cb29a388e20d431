#!/usr/bin/env python3
"""How much of the JSON-Schema-Test-Suite holds: json_schema_suite.py DRIVER FOLDER

FOLDER: a checkout's tests/draft2020-12 (github.com/json-schema-org/JSON-Schema-Test-Suite, MIT; not in this
repository). DRIVER: the build's tests/unit/fusor/grammar_driver. A value counts as allowed when one of its texts is: members in
any order, whole numbers without a point. What a schema forbids must never be allowed (exit status 1); of what it
allows a part is not made on purpose (fusor/grammar/schema.h). Prints a line for each file, as a Markdown table.
"""
import itertools
import json
import pathlib
import subprocess
import sys

ORDERS_MAX = 200


def texts(v):
    """The value's texts: all orders of members, as long as there are few."""
    if isinstance(v, dict):
        parts = [[json.dumps(k, ensure_ascii=False) + ": " + t for t in texts(x)] for k, x in v.items()]
        out = ("{" + ", ".join(p) + "}" for order in itertools.permutations(parts) for p in itertools.product(*order))
        return list(itertools.islice(out, ORDERS_MAX))
    if isinstance(v, list):
        out = ("[" + ", ".join(p) + "]" for p in itertools.product(*map(texts, v)))
        return list(itertools.islice(out, ORDERS_MAX))
    if isinstance(v, float) and v == int(v) and abs(v) < 1e15:
        return [str(int(v))]
    return [json.dumps(v, ensure_ascii=False)]


def run(driver, schema, tests):
    """The refusal, or whether each test's value is allowed."""
    judge = [texts(t["data"]) for t in tests]
    driver.stdin.write(json.dumps({"schema": schema, "judge": [t for all_of in judge for t in all_of]}) + "\n")
    driver.stdin.flush()
    answer = json.loads(driver.stdout.readline())
    if "error" in answer:
        return answer["error"], []
    verdicts = iter(answer["judged"])
    return None, [max(next(verdicts) for _ in all_of) == 1 for all_of in judge]


def main(driver_path, folder):
    driver = subprocess.Popen([driver_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wrong, all_rows, refusals = [], [0] * 6, {}
    print("| keyword | schemas | refused by name | forbidden, kept out | allowed, made |")
    print("|---|---|---|---|---|")
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        row = [0] * 6  # schemas, refused, forbidden, of these kept out, allowed, of these made
        for group in json.loads(path.read_text()):
            if not isinstance(group["schema"], (dict, bool)):
                continue
            why, allowed = run(driver, group["schema"], group["tests"])
            row[0] += 1
            if why and "can meet" in why:  # then nothing is made at all
                allowed, why = [False] * len(group["tests"]), None
            if why:
                row[1] += 1
                refusals[why.split("'")[-2] if "'" in why else why] = why
                continue
            for test, is_allowed in zip(group["tests"], allowed):
                kind = 4 if test["valid"] else 2
                row[kind] += 1
                row[kind + 1] += is_allowed == test["valid"]
                if is_allowed and not test["valid"]:
                    wrong.append((path.name, group["description"], test["description"]))
        all_rows = [a + b for a, b in zip(all_rows, row)]
        print(f"| {path.stem} | {row[0]} | {row[1]} | {row[3]} of {row[2]} | {row[5]} of {row[4]} |")
    r = all_rows
    print(f"| all | {r[0]} | {r[1]} | {r[3]} of {r[2]} | {r[5]} of {r[4]} |")
    for w in wrong:
        print("allowed, but forbidden:", *w)
    driver.stdin.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
