#!/usr/bin/env python3
"""packaging/container: the image is built as its head says, of a base made here, and serves as its user from a root that
it cannot write; every program, option and variable of compose.yaml is there.

tools/test --packages runs it, as root and in mounts of its own (buildah, mmdebstrap). Without a container runtime the root
is entered by chroot: what is tested is the image, not the runtime.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import tempfile

import yaml

from harness import ROOT, Program, free_port, listening, main, runs_in, tiny_model, until

HERE = os.path.join(ROOT, "packaging", "container")
KEY = "sesame-of-the-test"
store = tempfile.mkdtemp(prefix="kvb-image-")
IMAGE = "localhost/kvblend:test"


def run(*args, **kw):
    r = subprocess.run(args, capture_output=True, text=True, timeout=1800, **kw)
    assert r.returncode == 0, (args, r.returncode, r.stdout[-2000:], r.stderr[-4000:])
    return r.stdout.strip()


def buildah(*args):
    return run("buildah", "--root", store + "/root", "--runroot", store + "/run", "--storage-driver", "vfs", *args,
               env=dict(os.environ, BUILDAH_ISOLATION="chroot"))


def make_base():
    """Debian's smallest, of this machine's release, that asks the same mirrors."""
    suite = re.search(r"^VERSION_CODENAME=(.*)$", pathlib.Path("/etc/os-release").read_text(), re.M).group(1)
    run("mmdebstrap", "--variant=minbase", suite, store + "/base.tar")
    c = buildah("from", "scratch")
    buildah("add", c, store + "/base.tar", "/")
    os.remove(store + "/base.tar")
    for conf in pathlib.Path("/etc/apt/apt.conf.d").iterdir():
        if re.search("Acquire::", conf.read_text()):
            buildah("add", c, str(conf), "/etc/apt/apt.conf.d/")
    buildah("commit", "--rm", c, "localhost/base")


def test_the_image_is_built():
    """Of what is committed: without folders of builds."""
    make_base()
    run("git", "clone", "-q", ROOT, store + "/tree")
    buildah("build", "--pull-never", "--format", "docker", "--build-arg", "BASE=localhost/base", "-f",
            os.path.join(HERE, "Containerfile"), "-t", IMAGE, store + "/tree")
    of = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    assert of["User"] == "65532:65532" and of["Entrypoint"] == ["kvblend"] and "8010/tcp" in of["ExposedPorts"], of
    assert of["Healthcheck"]["Test"] == ["CMD", "kvblendctl", "status"], of
    assert not [x for x in of["Env"] if re.search("KEY|SECRET|PASSWORD|TOKEN", x)], of["Env"]


def test_it_serves_from_a_root_that_it_cannot_write():
    of = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    c = buildah("from", "--pull-never", IMAGE)
    root = pathlib.Path(buildah("mount", c))
    assert not list((root / "opt").iterdir()), "the package itself is not left there"
    models = root / "models"
    shutil.copy(tiny_model(), models / "tiny.gguf")
    pathlib.Path(store, "keys").write_text(KEY + "\n")
    os.chmod(store + "/keys", 0o644)
    (root / "run/keys").touch()
    (root / "run/kvblend").mkdir()
    run("mount", "--bind", str(root), str(root))
    try:
        serve(root, of)
    finally:
        run("umount", "-R", str(root))


def serve(root, of):
    run("mount", "-o", "remount,bind,ro", str(root))
    run("mount", "--bind", store + "/keys", str(root / "run/keys"))
    for folder in ("tmp", "run/kvblend"):
        run("mount", "-t", "tmpfs", "-o", "uid=65532,gid=65532,mode=0700", "tmpfs", str(root / folder))
    run("mount", "-t", "proc", "proc", str(root / "proc"))
    run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(root / "dev"))
    for name, minor in (("null", 3), ("urandom", 9)):
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        (root / "dev" / name).chmod(0o666)

    def inside(*command):
        return ["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups", "--no-new-privs", "--bounding-set=-all",
                "env", "-i", *of["Env"], *command]

    def chroot(*command):
        return ["chroot", str(root), *inside(*command)]
    assert subprocess.run(chroot("touch", "/models/x"), capture_output=True).returncode != 0, "its own folder"
    assert run(*chroot("id", "-u")) == "65532"
    args = [x.replace("0.0.0.0:8010", f"127.0.0.1:{free_port()}") for x in of["Cmd"]]
    with listening(Program(chroot(*of["Entrypoint"], *args, "--api-key-file", "/run/keys"))) as g:
        ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        assert g.post("/v1/chat/completions", ask).status == 401
        r = g.post("/v1/chat/completions", ask, headers={"Authorization": "Bearer " + KEY})
        assert r.status == 200 and r.json()["usage"]["completion_tokens"] > 0, r.body
        assert "ready" in run(*chroot(*of["Healthcheck"]["Test"][1:]))
        g.proc.send_signal(signal.SIGTERM)
        assert g.proc.wait(60) == 0
    dead = subprocess.run(chroot(*of["Healthcheck"]["Test"][1:]), capture_output=True)
    until("its worker has gone", lambda: not runs_in(root))
    assert dead.returncode == 3, dead


def test_compose_says_what_there_is():
    text = pathlib.Path(HERE, "compose.yaml").read_text()
    of = yaml.safe_load(text)
    asked = set(re.findall(r"\$\{(\w+)", text))
    assert asked == set(re.findall(r"\$\{(\w+):\?\}", text)), "each is asked for, none is guessed"
    assert asked <= set(re.findall(r"\b[A-Z_]{5,}\b", text.split("\nx-")[0])), "and named at the top"
    reference = pathlib.Path(ROOT, "docs", "configuration.md").read_text()
    for name in ("gateway", "worker"):
        service = of["services"][name]
        options = [x for x in service["command"] if x.startswith("--")]
        assert options and all(f"{x} " in reference or f"{x}<" in reference for x in options), options
        assert all(x in reference for x in service["environment"]), service["environment"]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and "tmpfs" in service
    assert of["services"]["gateway"]["ports"] == ["127.0.0.1:8010:8010"], "on this machine alone"
    assert all("ports" not in s for name, s in of["services"].items() if name != "gateway")


if __name__ == "__main__":
    try:
        main(globals())
    finally:  # nothing is removed below what is still mounted
        subprocess.run(["rm", "-rf", "--one-file-system", store], stderr=subprocess.DEVNULL)
