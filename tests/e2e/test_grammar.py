#!/usr/bin/env python3
"""Grammars of JSON schemas against an independent validator (the `jsonschema` package).

More than a thousand schemas are made at random, and from each texts, token by token at random among those that are
allowed (tests/unit/fusor/grammar_driver.c, the first argument): every text that ended is JSON and meets its schema.
Run by a Python that has the package: $KVBLEND_PYTHON, else this one; skipped when neither has it.
"""
import json
import random
import subprocess
import sys

from harness import main, other_python, skip

try:
    import jsonschema
except ImportError:
    other_python("KVBLEND_PYTHON")
    skip("the jsonschema package is not installed")

DRIVER = sys.argv.pop(1)
SCHEMAS = 1200
FORMATS = ["date", "ipv4", "ipv6", "uuid", "email", "time", "date-time", "hostname", "uri", "duration"]
PATTERNS = ["^[a-c]+$", "x", "^(ab|cd){1,3}", "[0-9]{2}$", "^\\w+-\\d$", "^$|^a", "\\\\|\"", "^[^a-z]*$", "é+"]
NAMES = ["a", "b", "name", "naïve", "x\"y", "", "long name of a member", "aa", "item/1"]


class Maker:
    """Random schemas of every keyword that is supported."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}

    def maybe(self, schema, word, value, chance=0.4):
        if self.r.random() < chance:
            schema[word] = value()

    def value(self, depth=2):
        r = self.r
        kind = r.randrange(7 if depth else 5)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(r.randrange(3))]
        if kind == 6:
            return {r.choice(NAMES): self.value(depth - 1) for _ in range(r.randrange(3))}
        return [None, r.random() < 0.5, r.randrange(-50, 50), r.choice(["a", "ab\n", "é\"", ""]), r.choice([0.5, -2.25, 1e3])][kind]

    def string(self, depth):
        s = {"type": "string"}
        low = self.r.randrange(4)
        self.maybe(s, "minLength", lambda: low)
        self.maybe(s, "maxLength", lambda: low + self.r.randrange(3, 12))
        if self.r.random() < 0.3:
            self.maybe(s, "pattern", lambda: self.r.choice(PATTERNS))
        elif self.r.random() < 0.3:
            s = {"type": "string", "format": self.r.choice(FORMATS)}
        return s

    def number(self, depth):
        r, s = self.r, {"type": self.r.choice(["number", "integer"])}
        low = r.choice([-120, -7, -0.5, 0, 1, 3.25, 99])
        high = low + r.choice([0, 1, 2.5, 10, 1000])
        if s["type"] == "integer":
            high += 1
        self.maybe(s, r.choice(["minimum", "exclusiveMinimum"]), lambda: low)
        self.maybe(s, r.choice(["maximum", "exclusiveMaximum"]), lambda: high + 1)
        if r.random() < 0.15:
            s = {"type": s["type"], "multipleOf": r.choice([1, 2, 3, 7, 10, 0.5, 0.25]), "minimum": r.choice([-20, 0, 5])}
        return s

    def array(self, depth):
        r, s = self.r, {"type": "array"}
        low = r.randrange(3)
        self.maybe(s, "items", lambda: self.schema(depth - 1), 0.8)
        self.maybe(s, "minItems", lambda: low)
        self.maybe(s, "maxItems", lambda: low + r.randrange(3))
        if r.random() < 0.2:
            s["prefixItems"] = [self.schema(depth - 1) for _ in range(r.randrange(1, 3))]
        return s

    def object(self, depth):
        r, s = self.r, {"type": "object"}
        names = r.sample(NAMES, r.randrange(5))
        s["properties"] = {n: self.schema(depth - 1) for n in names}
        self.maybe(s, "required", lambda: [n for n in names if r.random() < 0.5] + (["more"] if r.random() < 0.1 else []))
        self.maybe(s, "additionalProperties", lambda: r.choice([False, True, self.schema(0)]))
        if r.random() < 0.15:
            s["patternProperties"] = {r.choice(["^a", "x$", "^[0-9]+$"]): self.schema(0)}
        if r.random() < 0.15:
            s["minProperties"] = r.randrange(2)
        if r.random() < 0.15:
            s["maxProperties"] = len(s.get("required", [])) + r.randrange(1, 3)
        if r.random() < 0.08:
            s["propertyNames"] = {"maxLength": 24}
        return s

    def combined(self, depth):
        r = self.r
        kind = r.randrange(6)
        if kind == 0:
            return {"anyOf": [self.schema(depth - 1) for _ in range(r.randrange(1, 4))]}
        if kind == 1:
            return {"oneOf": [self.string(0), self.number(0), {"type": "null"}][:r.randrange(1, 4)]}
        if kind == 2:
            return {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "v": self.schema(depth - 1)},
                               "required": ["kind"]} for k in ("x", "y", "z")[:r.randrange(1, 4)]]}
        if kind == 3:
            return {"allOf": [self.object(depth - 1), {"type": "object", "required": [r.choice(NAMES)]}]}
        if kind == 4:
            return {"allOf": [{"type": ["string", "number"]}, {"minLength": 1}, {"anyOf": [{"maxLength": 3}, {"minimum": 2}]}]}
        name = f"d{len(self.defs)}"
        self.defs[name] = {"type": "object", "properties": {"v": self.schema(0), "more": {"anyOf": [
            {"$ref": f"#/$defs/{name}"}, {"type": "null"}]}}, "required": ["v"], "additionalProperties": False}
        return {"$ref": f"#/$defs/{name}"}

    def schema(self, depth):
        r = self.r
        kind = r.randrange(11 if depth > 0 else 7)
        if kind < 2:
            return self.string(depth)
        if kind < 4:
            return self.number(depth)
        if kind == 4:
            return r.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "integer"]}, {}, True])
        if kind == 5:
            return {"enum": [self.value() for _ in range(r.randrange(1, 5))]}
        if kind == 6:
            return {"const": self.value()}
        return [self.array, self.object, self.object, self.combined][kind - 7](depth)

    def root(self):
        s = self.schema(3)
        if s is True:
            return s
        return dict(s, **({"$defs": self.defs} if self.defs else {}))


def ask(driver, **question):
    driver.stdin.write(json.dumps(question) + "\n")
    driver.stdin.flush()
    return json.loads(driver.stdout.readline())


def start():
    return subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def stop(driver):
    driver.stdin.close()
    rest = driver.stdout.read()
    assert driver.wait() == 0, rest


def multiple_is_rounded(e):
    """The validator divides doubles: what it says of multiples that are no whole numbers is not exact."""
    return e.validator == "multipleOf" and isinstance(e.instance, float)


def test_what_is_made_meets_its_schema():
    driver = start()
    made = refused = never = cut = 0
    for seed in range(SCHEMAS):
        schema = Maker(seed).root()
        a = ask(driver, schema=schema, seed=seed, make=3)
        if "error" in a:
            never += "can meet" in a["error"]
            refused += "can meet" not in a["error"]
            assert "can meet" in a["error"] or a["code"] == -95, (seed, schema, a)
            continue
        assert "failed" not in a, (seed, schema, a)
        cut += a["cut"]
        check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for text in a["made"]:
            try:
                errors = [e for e in check.iter_errors(json.loads(text)) if not multiple_is_rounded(e)]
            except ValueError as e:
                raise AssertionError((seed, schema, text, e))
            assert not errors, (seed, schema, text, errors[0].message)
            made += 1
    stop(driver)
    print(f"{SCHEMAS} schemas: {made} texts meet theirs, {cut} did not end; {never} that nothing can meet, {refused} refused")
    assert made > 2 * SCHEMAS and cut < made / 20 and refused < SCHEMAS / 20 and never < SCHEMAS / 5


if __name__ == "__main__":
    main(globals())
