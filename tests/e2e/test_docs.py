#!/usr/bin/env python3
"""Links of the project's pages lead somewhere: files that are there, headings that are there, by the names that the
repository's reader and the site (docs/site/hooks.py) give them. Pages of the site are all in its navigation."""
import os
import re
import subprocess

from harness import ROOT, main

PART = "docs/quality/notes.md"  # of docs/quality.md, which has its text: links are that page's
LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
CODE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def slug(heading):
    text = re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(path):
    with open(path, encoding="utf-8") as f:
        text = CODE.sub("", f.read())
    return {slug(x) for x in re.findall(r"^#+ (.*)$", text, re.M)} | set(re.findall(r'<a id="([^"]+)">', text))


def pages():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], capture_output=True, text=True, timeout=60, check=False)
    found = listed.stdout.split() if listed.returncode == 0 else []
    found = found or [os.path.relpath(os.path.join(d, f), ROOT) for d, _, fs in os.walk(ROOT) for f in fs if f.endswith(".md")]
    return [p for p in found if p != PART]


def broken(page, text):
    for link in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = os.path.normpath(os.path.join(ROOT, os.path.dirname(page), target)) if target else os.path.join(ROOT, page)
        if not os.path.exists(path):
            yield f"{page}: {link} is not there"
        elif anchor and path.endswith(".md") and anchor not in anchors(path):
            yield f"{page}: {link} has no such heading"


def test_links_lead_somewhere():
    found, n = [], 0
    for page in pages():
        with open(os.path.join(ROOT, page), encoding="utf-8") as f:
            text = f.read()
        n += len(LINK.findall(text))
        found += broken(page, text)
    assert n > 100, n
    assert not found, "\n".join(found)


def test_a_broken_link_is_seen():
    there = "docs/tiers.md"
    assert list(broken("README.md", f"[a]({there}) [b]({there}#sizing) `x` [c](https://example.org/none)")) == []
    assert len(list(broken("README.md", f"[a](docs/none.md) [b]({there}#none)"))) == 2


def test_the_site_has_every_page():
    with open(os.path.join(ROOT, "mkdocs.yml"), encoding="utf-8") as f:
        listed = sorted(re.findall(r"[\w/.-]+\.md\b", f.read().split("\nnav:")[1]))
    assert listed == sorted(p[len("docs/"):] for p in pages() if p.startswith("docs/")), listed


if __name__ == "__main__":
    main(globals())
