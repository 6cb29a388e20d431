"""tools/describe.py: pages that man and mandoc read without a complaint, completions that shells carry out."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

BUILT = pathlib.Path(os.environ["KVBLEND_DESCRIPTIONS"])
PROGRAMS = json.loads(os.environ["KVBLEND_PROGRAMS"])  # paths by name
PAGES = sorted([*BUILT.glob("*.1"), *BUILT.glob("*.5")])


def run(*args, **kw):
    return subprocess.run(args, capture_output=True, text=True, timeout=120, check=True, **kw)


def table(name):
    return json.loads(run(PROGRAMS[name], "--dump-options").stdout)


def check_pages():
    assert [p.name for p in PAGES] == ["kvblend-bench.1", "kvblend-worker.1", "kvblend.1", "kvblend.yaml.5", "kvblendctl.1"], PAGES
    texts = {}
    for page in PAGES:
        if shutil.which("man"):
            r = run("man", "--warnings", "-E", "UTF-8", "-l", str(page), env=dict(os.environ, MANWIDTH="400", MAN_KEEP_FORMATTING="", PAGER="cat"))
            assert r.stderr == "", (page, r.stderr)
            texts[page.name] = r.stdout
        if shutil.which("mandoc"):
            said = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", str(page)], capture_output=True, text=True, timeout=60, check=False).stdout
            assert not [x for x in said.splitlines() if "missing date" not in x], said  # a date would make no build like the one before
    for name, text in texts.items():
        flat = text.replace("‐", "-").replace("−", "-")
        if name.endswith(".5"):
            for o in table("kvblend")["options"]:
                assert o["key"] is None or o["key"] in flat, o
            assert "registry.url" in flat and "variable KVBLEND_REGISTRY" in flat and "needs a restart" in flat, flat[:2000]
            continue
        program = table(name[:-2])
        for o in program.get("options", []):
            assert "--" + o["flag"] in flat, (name, o)
        for c in program.get("commands", []):
            assert c["help"][1:] in flat, (name, c)
        for sub in program.get("subs", []):
            assert all("--" + o["flag"] in flat for o in sub["options"]), (name, sub["program"])


def complete(*words):
    """What bash offers for the last word."""
    script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); f=_${1//-/_}; $f; printf "%s\\n" "${COMPREPLY[@]}"')
    r = run("bash", "--norc", "-c", script, "bash", str(BUILT / f"{words[0]}.bash"), *words)
    assert r.stderr == "", r.stderr
    return {x for x in r.stdout.split("\n") if x}


def check_bash():
    for name in PROGRAMS:
        run("bash", "-n", str(BUILT / f"{name}.bash"))
    assert {"ls", "doctor", "top", "mrc"} <= complete("kvblendctl", "")
    assert complete("kvblendctl", "do") == {"doctor"}
    assert complete("kvblendctl", "ls", "--s") == {"--sort"} and complete("kvblendctl", "doctor", "--s") == set()
    assert "bytes" in complete("kvblendctl", "--admin", "unix:/x", "ls", "--sort", "") and complete("kvblendctl", "ls", "--sort", "to") == {"tokens"}
    assert complete("kvblendctl", "ls", "--limit", "") == set()
    assert {"--admin", "--json", "--help"} <= complete("kvblendctl", "status", "--")
    assert complete("kvblend", "--log-level", "w") == {"warn"} and complete("kvblend", "--worker-co") == {"--worker-count"}
    assert complete("kvblend-worker", "--policy", "") == {"lru", "arc"} and complete("kvblend-worker", "x", "--guard") == {"--guard"}
    assert complete("kvblend-bench", "qual") == {"quality"} and complete("kvblend-bench", "quality", "cal") == {"calibrate"}
    assert complete("kvblend-bench", "mrc", "--tr") == {"--trace"} and complete("kvblend-bench", "mrc", "--mod") == set()
    for name in PROGRAMS:  # every flag there is
        program = table(name)
        assert {"--" + o["flag"] for o in program.get("options", []) if o.get("global", True)} <= complete(name, "--"), name
        for c in program.get("commands", []):
            assert {"--" + o for o in c["options"]} <= complete(name, c["name"], "--"), c


def check_other_shells():
    if shutil.which("zsh"):
        run("zsh", "-n", str(BUILT / "_kvblend"))
    if shutil.which("fish"):
        ask = 'source $argv[1]; complete -C $argv[2]'
        for name, line, wanted in (("kvblendctl", "kvblendctl doc", "doctor"), ("kvblendctl", "kvblendctl ls --sor", "--sort"),
                                   ("kvblendctl", "kvblendctl ls --sort tok", "tokens"), ("kvblend", "kvblend --log-level war", "warn"),
                                   ("kvblend-bench", "kvblend-bench mrc --see", "--seeds")):
            with tempfile.TemporaryDirectory() as home:  # fish writes there, whatever it is asked
                kept = {f"XDG_{x}_HOME": home for x in ("CONFIG", "DATA", "CACHE", "STATE")}
                r = run("fish", "--no-config", "-c", ask, str(BUILT / f"{name}.fish"), line, env=dict(os.environ, HOME=home, **kept))
            assert [x.split("\t")[0] for x in r.stdout.splitlines()] == [wanted], (line, r)


check_pages()
check_bash()
check_other_shells()
