#!/usr/bin/env python3
"""The Debian package in a root of its own: installed, serving, upgraded, removed, purged; lintian has nothing to say.

tools/test --packages runs it, as root (mmdebstrap, chroot); KVBLEND_DEB names the package. Nothing starts by itself, so
the test runs the command line of the unit, as the unit's user and with its variables.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

from harness import Program, free_port, listening, main, runs_in, tiny_model, until

DEB = os.environ["KVBLEND_DEB"]
root = None


def run(*args, ok=(0,), **kw):
    r = subprocess.run(args, capture_output=True, text=True, timeout=900, **kw)
    assert r.returncode in ok, (args, r.returncode, r.stdout[-2000:], r.stderr[-4000:])
    return r.stdout


def inside(*args, **kw):
    return run("chroot", str(root), *args, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, **kw)


def field(name):
    return run("dpkg-deb", "-f", DEB, name).strip()


def make_root():
    """Debian's smallest, of the release that this machine has, with what the package depends on and not the package."""
    global root
    root = pathlib.Path(tempfile.mkdtemp(prefix="kvb-root-"))
    root.chmod(0o755)
    with open("/etc/os-release") as f:
        suite = re.search(r"^VERSION_CODENAME=(.*)$", f.read(), re.M).group(1)
    wanted = [x.split("|")[0].split("(")[0].strip() for x in field("Depends").split(",")]
    run("mmdebstrap", "--variant=minbase", "--include=" + ",".join(wanted), suite, str(root))
    run("mount", "--bind", "/proc", str(root / "proc"))  # programs find their folder by it


def install(deb):
    shutil.copy(deb, root / "kvblend.deb")
    inside("dpkg", "--install", "/kvblend.deb")
    (root / "kvblend.deb").unlink()


def traces():
    """What is there of it, but for dpkg's own notes."""
    found = run("find", *(str(root / x) for x in ("etc", "usr", "lib", "var")), "-name", "*kvblend*", "-not", "-path", "*/var/lib/dpkg/*",
                "-not", "-path", "*/var/log/*.log")
    return sorted("/" + os.path.relpath(x, root) for x in found.splitlines())


def settings(unit):
    """The command, the variables and the user of a unit's service."""
    of = dict(re.findall(r"^(ExecStart|User|Environment)=(.*)$", unit, re.M))
    variables = re.findall(r"^Environment=(.*)$", unit, re.M)
    return of["ExecStart"].split(), dict(x.split("=", 1) for line in variables for x in line.split()), of["User"]


@contextlib.contextmanager
def served():
    """The unit's service in the root; its listen address is a free port, as no systemd hands one over."""
    unit = next(p for p in (root / "lib/systemd/system/kvblend.service", root / "usr/lib/systemd/system/kvblend.service") if p.exists())
    command, variables, user = settings(unit.read_text())
    command = [x if x != "systemd" else f"127.0.0.1:{free_port()}" for x in command]
    run_dir = variables["XDG_RUNTIME_DIR"]
    inside("install", "-d", "-o", user, "-g", user, run_dir)
    p = Program(["chroot", str(root), "setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs",
                 "env", "-i", *(f"{k}={v}" for k, v in variables.items()), *command])
    with listening(p) as g:
        yield g
        status = inside("kvblendctl", "status")  # finds the service's socket
        assert "ready" in status, status
        g.proc.send_signal(signal.SIGTERM)
        assert g.proc.wait(60) == 0
    until("nothing runs there", lambda: not runs_in(root))


def chat(g):
    r = g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
    assert r.status == 200 and r.json()["usage"]["completion_tokens"] > 0, r.body


def newer(folder):
    """The same package with a later version."""
    run("dpkg-deb", "-R", DEB, folder + "/x")
    control = pathlib.Path(folder, "x/DEBIAN/control")
    control.write_text(re.sub(r"(?m)^Version: .*", f"Version: {field('Version')}+next", control.read_text()))
    run("dpkg-deb", "--root-owner-group", "-b", folder + "/x", folder + "/next.deb")
    return folder + "/next.deb"


def test_lintian_has_nothing_to_say():
    changes, = pathlib.Path(DEB).parent.glob(f"kvblend_{field('Version')}_*.changes")
    assert run("lintian", "--fail-on", "error,warning,info", "--display-info", str(changes)).strip() == ""


def test_its_programs_are_optimized_as_everywhere():
    symbols, = pathlib.Path(DEB).parent.glob(f"kvblend-dbgsym_{field('Version')}_*deb")
    with tempfile.TemporaryDirectory() as d:
        run("dpkg-deb", "-x", str(symbols), d)
        shared, = pathlib.Path(d).glob("usr/lib/debug/.dwz/*/kvblend.debug")
        flags = re.findall(r"GNU C.*", run("readelf", "--decompress", "--string-dump=.debug_str", str(shared)))
    assert flags and all(re.findall(r" -O\S*", x) == [" -O3"] for x in flags), flags


def test_installing_starts_nothing():
    before = traces()
    assert before == [], before
    install(DEB)
    assert inside("systemctl", "is-enabled", "kvblend.service", ok=(1,)).strip() == "disabled"
    assert inside("systemctl", "is-enabled", "kvblend.socket", ok=(1,)).strip() == "disabled"
    passwd = inside("getent", "passwd", "kvblend").split(":")
    assert int(passwd[2]) < 1000 and passwd[6].strip().endswith("nologin"), passwd
    assert inside("stat", "-c", "%a %U %G", "/etc/kvblend", "/etc/kvblend/kvblend.yaml").split("\n")[:2] == ["750 root kvblend", "640 root kvblend"]
    for name in ("kvblend", "kvblend-worker", "kvblendctl", "kvblend-bench"):
        assert inside(name, "--help"), name
        assert (root / f"usr/share/man/man1/{name}.1.gz").exists(), name


def test_the_unit_serves_a_model():
    shutil.copy(tiny_model(), root / "var/lib/kvblend/models/tiny.gguf")
    with served() as g:
        chat(g)


def test_an_upgrade_keeps_the_configuration():
    config = root / "etc/kvblend/kvblend.yaml"
    config.write_text(config.read_text() + "\n# ours\n")
    with tempfile.TemporaryDirectory() as d:
        install(newer(d))
    assert inside("dpkg-query", "-W", "-f", "${Version} ${db:Status-Status}", "kvblend") == f"{field('Version')}+next installed"
    assert config.read_text().endswith("# ours\n") and (root / "var/lib/kvblend/models/tiny.gguf").exists()
    with served() as g:
        chat(g)


def test_removing_keeps_what_is_ours_and_purging_nothing():
    inside("dpkg", "--remove", "kvblend")
    assert (root / "etc/kvblend/kvblend.yaml").exists() and (root / "var/lib/kvblend/models/tiny.gguf").exists()
    assert not (root / "usr/bin/kvblend").exists()
    inside("dpkg", "--purge", "kvblend")
    after = traces()
    assert after == [], after
    install(DEB)  # and once more, over what purging left
    inside("dpkg", "--purge", "kvblend")


if __name__ == "__main__":
    try:
        make_root()
        main(globals())
    finally:
        if root:
            subprocess.run(["umount", str(root / "proc")], check=False)
            shutil.rmtree(root, ignore_errors=True)
