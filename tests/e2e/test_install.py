#!/usr/bin/env python3
"""`meson install` into a folder: what it leaves is complete, agrees with itself, and runs from there."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

from harness import BUILD, KVBLEND, ROOT, Missing, Program, listening, main, need, tiny_model

need(KVBLEND)


def run(*args, **kw):
    r = subprocess.run(args, capture_output=True, text=True, timeout=120, **kw)
    assert r.returncode == 0, (args, r.stdout, r.stderr)
    return r.stdout + r.stderr


class Stage:
    """What was installed: path(name) below DESTDIR, name below the prefix."""
    root = None

    def __init__(self):
        if Stage.root is None:
            Stage.root = tempfile.mkdtemp(prefix="kvb-install-")
            run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", Stage.root)
        options = json.loads(run("meson", "introspect", BUILD, "--buildoptions"))
        of = {o["name"]: o["value"] for o in options}
        self.prefix, self.etc = of["prefix"], os.path.join(of["prefix"], of["sysconfdir"])

    def path(self, name):
        return os.path.join(Stage.root + self.prefix, name)

    def program(self, name):
        return self.path("bin/" + name)


def names(folder, pattern="*"):
    return sorted(os.path.basename(p) for p in glob.glob(os.path.join(folder, pattern)))


def test_everything_is_there():
    s = Stage()
    programs = ["kvblend", "kvblend-bench", "kvblend-worker", "kvblendctl"]
    assert names(s.path("bin")) == programs
    assert names(s.path("share/man/man1")) == sorted(p + ".1" for p in programs)
    assert names(s.path("share/man/man5")) == ["kvblend.yaml.5"]
    for folder, suffix in (("bash-completion/completions", ".bash"), ("fish/vendor_completions.d", ".fish")):
        assert names(s.path("share/" + folder)) == sorted(p + suffix for p in programs)
    assert names(s.path("share/zsh/site-functions")) == ["_kvblend"]
    assert names(s.path("lib/systemd/system")) == ["kvblend.service", "kvblend.socket"]
    assert names(s.path("share/kvblend/presets"), "*.json") == names(os.path.join(ROOT, "etc", "presets"))
    for name in ("kvblend.yaml", "redis.conf", "openapi.json", "openapi-admin.json", "prometheus/kvblend.rules.yml", "grafana/kvblend.json"):
        with open(s.path("share/kvblend/" + name)) as there, open(os.path.join(ROOT, "etc", name)) as ours:
            assert there.read() == ours.read(), name


def test_units_name_what_is_installed():
    s = Stage()
    with open(s.path("lib/systemd/system/kvblend.service")) as f:
        unit = f.read()
    lines = re.findall(r"^Exec(?:Start|StartPre)=(\S+) .*--config (\S+)", unit, re.M)
    assert lines == [(s.prefix + "/bin/kvblend", s.etc + "/kvblend/kvblend.yaml")] * 2, lines
    with open(s.path("lib/sysusers.d/kvblend.conf")) as f:
        user = re.search(r"^u (\S+)", f.read(), re.M).group(1)
    assert re.findall(r"^(?:User|Group)=(.*)", unit, re.M) == [user, user]
    with open(s.path("lib/tmpfiles.d/kvblend.conf")) as f:
        folders = re.findall(r"^d (\S+)", f.read(), re.M)
    assert set(re.findall(r"KVBLEND_MODELS=(\S+)", unit)) < set(folders), folders


def test_systemd_reads_them():
    s = Stage()
    if not shutil.which("systemd-analyze"):
        raise Missing("systemd is not installed")
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", s.path("lib/systemd/system/kvblend.service")],
                          capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ, SYSTEMD_LOG_LEVEL="warning"))
    complaints = [x for x in said.stderr.splitlines() if "kvblend" in x and "is not executable" not in x]  # not at its place yet
    assert not complaints, complaints


def test_it_runs_from_there():
    s = Stage()
    sample = s.path("share/kvblend/kvblend.yaml")
    assert "ok" in run(s.program("kvblend"), "--check", "--config", sample, "--model", tiny_model())
    with listening(Program([s.program("kvblend"), "--config", sample, "--model", tiny_model(), "--listen", "127.0.0.1:0",
                            "--worker-bin", s.program("kvblend-worker")])) as g:
        assert os.path.samefile(f"/proc/{g.proc.pid}/exe", s.program("kvblend"))
        r = g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
        assert r.status == 200 and r.json()["usage"]["completion_tokens"] > 0, r.body
        status = json.loads(run(s.program("kvblendctl"), "--admin", g.admin, "status", "--json"))
        worker, = status["workers"]
        assert worker["own"] and os.path.samefile(f"/proc/{worker['pid']}/exe", s.program("kvblend-worker"))
    version = run(s.program("kvblend"), "--version")
    assert version == run(KVBLEND, "--version") and version.startswith("kvblend ")


def test_the_bench_reads_the_installed_samples():
    s = Stage()
    ask = [s.program("kvblend-bench"), "quality", "calibrate", "--model", tiny_model(), "--limit", "4", "--out", Stage.root + "/profile"]
    run(*ask, cwd="/")
    assert os.path.exists(Stage.root + "/profile")
    with open(s.path("share/kvblend/calibration/pages.jsonl"), "w"):
        pass  # empty: those of the source tree are not what it reads
    r = subprocess.run(ask, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    assert r.returncode != 0 and "share/kvblend/calibration/pages.jsonl" in r.stderr, (r.returncode, r.stderr)


if __name__ == "__main__":
    try:
        main(globals())
    finally:
        if Stage.root:
            shutil.rmtree(Stage.root)
