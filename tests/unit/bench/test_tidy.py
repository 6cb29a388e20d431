#!/usr/bin/env python3
"""Each rule of tools/tidy_house.py finds what it is for, and nothing else, in a small house made to break it."""
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))
import tidy
import tidy_house

LAYERS = {"base": set(), "policy": {"base"}, "tiers": {"base"}}


class House(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kvb-tidy-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.lines = tidy_house.LINES
        tidy_house.LINES = dict.fromkeys(tidy_house.ROOMS, 10000)

    def tearDown(self):
        tidy_house.LINES = self.lines

    def put(self, path, text):
        f = self.root / path
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_text(text)

    def found(self):
        findings = []
        files = sorted(p for p in self.root.rglob("*") if p.is_file())
        tidy_house.check(self.root, files, LAYERS, tidy.strip_comments, findings)
        return findings

    def ring(self, n):
        for i in range(n):
            self.put(f"base/f{i}.c", f"int base_f{i}(void)\n{{\n    return base_f{(i + 1) % n}();\n}}\n")

    def test_three_files_may_call_each_other_in_a_circle_four_may_not(self):
        self.ring(3)
        self.assertEqual(self.found(), [])
        self.ring(4)
        self.assertIn("a circle of 4 files", self.found()[0])

    def test_a_name_in_a_comment_or_of_its_own_is_no_call(self):
        self.ring(3)
        self.put("base/f3.c", "/* base_f0() */\nint base_f3(void)\n{\n    return 0;\n}\n")
        self.put("base/f0.c", "int base_f0(void)\n{\n    return base_f1() + base_f3();\n}\n")
        self.assertEqual(self.found(), [])

    def test_contracts_are_small(self):
        self.put("base/long.h", "/* */\n" * 201)
        self.put("base/many.h", "".join(f"int many_{i}(void);\n" for i in range(26)))
        self.put("base/wide.h", "struct wide {\n" + "    int a, b;\n" * 20 + "    int c;\n};\n")
        self.put("base/args.c", "int args_take(int a, int b, int c, int d, int e, int (*f)(int, int), int g)\n{\n}\n")
        self.assertEqual(self.found(), [
            "base/args.c: args_take: 7 parameters, the limit is 6", "base/long.h: 201 lines, the limit is 200",
            "base/many.h: 26 prototypes, the limit is 25", "base/wide.h: struct wide: 41 fields, the limit is 40"])
        self.put("kernels/args.c", "int args_six(int a, int b, int c, int d, int e, int f, int g)\n{\n}\n")
        self.assertEqual(len(self.found()), 4)  # kernels may

    def test_four_files_do_not_have_a_static_of_one_name(self):
        for i in range(4):
            self.put(f"tiers/s{i}.c", "static int take(void)\n{\n    return 0;\n}\n")
        self.assertEqual(self.found(), ["take: 4 files have a static function of that name, the limit is 3"])

    def test_what_meson_links_is_what_the_table_allows(self):
        self.put("tiers/meson.build", "x = static_library('x', dependencies: [base_dep, policy_dep])\n")
        self.put("policy/meson.build", "y = static_library('y')\n")
        self.assertEqual(self.found(), ["policy/: may use base, but its meson.build does not link it",
                                        "tiers/meson.build: links policy, which tiers may not use"])

    def test_readmes_and_rooms_have_an_end(self):
        self.put("base/README.md", "x" * 121 + "\n" + "line\n" * 150)
        self.put("policy/a.c", "\n" * 10001)
        self.assertEqual(self.found(), [
            "base/README.md: 151 lines, the limit is 150",
            "base/README.md: 1 lines of more than 120 columns, the limit is 0",
            "policy/: 10001 lines, the limit is 10000"])

    def test_errors_are_not_ored(self):
        self.put("base/or.c", "static int f(void)\n{\n    rc |= g();\n    flags |= 1;\n    return rc | h();\n}\n")
        findings = []
        tidy.check_file(self.root / "base/or.c", "base/or.c", findings, {"functions": 0, "long": []})
        self.assertEqual(findings, ["base/or.c:3: errors are ORed", "base/or.c:5: errors are ORed"])


if __name__ == "__main__":
    unittest.main()
