#!/usr/bin/env python3
"""The Debian package under systemd, in a container that boots: the README's five commands as they stand there, the unit's
start, crashes, reload, drain and watchdog, and what its sandbox leaves of the disk.

tools/test --packages runs it, as root (mmdebstrap, systemd-nspawn); KVBLEND_DEB names the package. Skipped where no
container boots. Its root is a folder, its network its own; what the package depends on is there before.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from harness import HERE, ROOT, document, main, skip, tiny_model, until

DEB = os.environ["KVBLEND_DEB"]
SERVED = "http://127.0.0.1:8010/v1/chat/completions"
MODELS, ENVIRONMENT = "var/lib/kvblend/models", "etc/kvblend/environment"
base = pathlib.Path(tempfile.mkdtemp(prefix="kvb-systemd-"))
root = base / "root"
machine = leader = None


# ---- the container ----

def run(*args, ok=(0,), **kw):
    r = subprocess.run(args, capture_output=True, text=True, timeout=900, **kw)
    assert r.returncode in ok, (args, r.returncode, r.stdout[-2000:], r.stderr[-4000:])
    return r.stdout


def nsenter(*namespaces):
    return ["nsenter", "-t", leader, *namespaces]


def inside(script, ok=(0,)):
    """A line of a shell as root, there."""
    return run(*nsenter("-m", "-u", "-i", "-n", "-p", "-r", "-w"), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "bash", "-c",
               script, ok=ok)


def make_root():
    depends = run("dpkg-deb", "-f", DEB, "Depends")
    wanted = [x.split("|")[0].split("(")[0].strip() for x in depends.split(",")] + ["systemd-sysv", "dbus", "curl", "sudo"]
    suite = re.search(r"^VERSION_CODENAME=(.*)$", pathlib.Path("/etc/os-release").read_text(), re.M).group(1)
    base.chmod(0o755)
    run("mmdebstrap", "--variant=minbase", "--include=" + ",".join(wanted), suite, str(root))
    shutil.copy(DEB, root / "root")


def boot():
    global machine, leader
    log = base / "boot.log"
    with open(log, "wb") as out:
        machine = subprocess.Popen(["systemd-nspawn", "--quiet", "-D", str(root), "--boot", "--private-network", "--register=no", "--keep-unit",
                                    "--console=pipe"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def up():
        """Its first process is a child of systemd-nspawn, whose other children soon end."""
        global leader
        leader = next(iter(pathlib.Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()), None)
        return leader and "running" in inside("systemctl is-system-running", ok=range(256))
    until("it is up, or has ended", lambda: machine.poll() is not None or up())
    if machine.poll() is not None:
        skip("no container boots here: " + log.read_text(errors="replace")[-300:])


def halt():
    if machine and machine.poll() is None:
        subprocess.run([*nsenter("-m", "-u", "-i", "-n", "-p", "-r"), "systemctl", "poweroff"], capture_output=True)
        try:
            machine.wait(60)
        except subprocess.TimeoutExpired:
            machine.kill()
            machine.wait()
    subprocess.run(["rm", "-rf", "--one-file-system", str(base)], check=False)


# ---- the service ----

def show(what, unit="kvblend.service"):
    return inside(f"systemctl show --value -p {what} {unit}").strip()


def logged(pattern, unit="kvblend"):
    """Wait until the journal has it: the match."""
    return until(f"{pattern} in the journal", lambda: re.search(pattern, inside(f"journalctl -u {unit} --no-pager -o cat")))


def ask(**more):
    body = dict({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, **more)
    r = json.loads(inside(f"curl -sS {SERVED} -d '{json.dumps(body)}'"))
    assert r["usage"]["completion_tokens"] > 0, r
    return r


def workers():
    return re.findall(r"/proc/(\d+)/", inside("grep -lx kvblend-worker /proc/[0-9]*/comm", ok=range(3)))


def started_anew(pid):
    until("systemd has started it again", lambda: show("MainPID") not in ("0", pid) and show("ActiveState") == "active")


# ---- a newcomer ----

def five_commands():
    """Those of README.md, with a hub, a model and a package of the test's own."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        lines = [x.split("   #")[0].strip() for x in re.search(r"```sh\n(.*?)```", f.read(), re.S).group(1).splitlines()]
    lines = lines[1:]  # the first is a checkout's
    assert len(lines) == 5 and lines[0].startswith("sudo apt install ./kvblend_"), lines
    name = re.search(r"kvblend pull (\S+)", lines[1]).group(1)
    return lines, name


def test_installing_starts_nothing_and_a_start_without_a_model_says_what_to_do():
    lines, _ = five_commands()
    inside("cd /root && " + re.sub(r"kvblend_\S+\.deb", os.path.basename(DEB), lines[0]) + " -y")
    assert show("ActiveState") == "inactive" and show("ActiveState", "kvblend.socket") == "inactive"
    inside("systemctl start kvblend", ok=(1,))
    logged(f"/{MODELS} has none: `kvblend pull NAME` gets one, KVBLEND_MODEL=NAME")
    until("it has given up", lambda: show("ActiveState") == "failed")


def test_the_other_four_commands_and_it_serves():
    lines, name = five_commands()
    model = pathlib.Path(tiny_model())
    # The hub is a process in the container's network.
    hub = subprocess.Popen([*nsenter("-n"), sys.executable, "-c", "import sys, test_pull as t; h = t.Hub({'tiny-Q4_K_M.gguf': open(sys.argv[1], 'rb').read()});"
                            " print(h.url.replace('localhost', '127.0.0.1'), flush=True); sys.stdin.read()", str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)
    took = []
    try:
        url = hub.stdout.readline().strip()
        for line in lines[1:]:
            begin = time.monotonic()
            said = inside(line.replace(name, "acme/tiny:Q4_K_M").replace("env ", f"env HF_ENDPOINT={url} "))
            took.append(f"{time.monotonic() - begin:.2f}")
    finally:
        hub.communicate()
    assert json.loads(said)["usage"]["completion_tokens"] > 0, said  # at once: the unit has started when it serves
    print(f"     pull, name, start, ask: {', '.join(took)} s")
    assert show("UnitFileState") == "enabled"
    assert "ready" in inside("kvblendctl status")


# ---- systemd ----

def test_units_are_sound():
    assert inside("systemd-analyze verify --man=no kvblend.service kvblend.socket") == ""
    exposure = re.search(r"Overall exposure level for kvblend.service: ([\d.]+)", inside("systemd-analyze security --no-pager kvblend.service"))
    assert float(exposure.group(1)) < 2, exposure.group(0)
    status = inside("cat " + " ".join(f"/proc/{pid}/status" for pid in (show("MainPID"), *workers())))
    assert re.findall(r"CapEff:\s*(\d+)\n", status) == ["0" * 16] * 2 and re.findall(r"NoNewPrivs:\s*(\d)", status) == ["1"] * 2
    assert re.findall(r"Seccomp:\s*(\d)", status) == ["2"] * 2, status
    uid = inside("id -u kvblend").strip()
    assert re.findall(r"Uid:\s*(\d+)", status) == [uid] * 2, status


def test_crashes():
    pid = show("MainPID")
    inside(f"kill -KILL {pid}")
    started_anew(pid)
    ask()
    assert int(show("NRestarts")) >= 1
    worker, = workers()
    inside(f"kill -KILL {worker}")
    until("its gateway has another", lambda: workers() not in ([], [worker]))
    ask()  # it waits for the model


def test_a_gateway_that_hangs_is_restarted():
    inside("mkdir -p /run/systemd/system/kvblend.service.d && printf '[Service]\\nWatchdogSec=2\\nTimeoutAbortSec=1\\n' "
           "> /run/systemd/system/kvblend.service.d/test.conf && systemctl daemon-reload && systemctl restart kvblend")
    pid = show("MainPID")
    inside(f"kill -STOP {pid}")
    started_anew(pid)
    logged("Watchdog timeout")
    inside("rm -r /run/systemd/system/kvblend.service.d && systemctl daemon-reload && systemctl restart kvblend")
    ask()


def test_reload():
    before = show("MainPID")
    inside("systemctl reload kvblend")
    logged("config.reloaded")
    assert show("MainPID") == before
    ask()


def test_stopping_lets_a_request_end():
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with subprocess.Popen([*nsenter("-n"), "curl", "-sSN", SERVED, "-d", json.dumps(body)], stdout=subprocess.PIPE) as stream:
        assert stream.stdout.readline().startswith(b"data: ")
        inside("systemctl stop --no-block kvblend")
        rest = stream.stdout.read().strip().split(b"\n\n")
    assert rest[-1] == b"data: [DONE]" and b"error" not in rest[-2], rest[-3:]
    until("it has ended", lambda: show("ActiveState") == "inactive")
    logged("gateway.drained")
    assert show("Result") == "success" and not workers()
    inside("systemctl start kvblend")


def test_the_sandbox_leaves_the_disk():
    """Tier files below /var/cache, by io_uring and O_DIRECT as outside, and records outlive a restart."""
    with open(root / ENVIRONMENT, "a") as f:
        f.write("KVBLEND_WORKER_NVME=/var/cache/kvblend/tier:64MiB\nKVBLEND_WORKER_STRATEGY=always\nKVBLEND_WORKER_ACCESS_LOG=/var/log/kvblend/records.jsonl\n")
    inside("systemctl restart kvblend")
    texts = [document(i) for i in range(3)]
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in texts + ["What does the note say?"]]}],
            "max_tokens": 2, "kvblend": {"mode": "reuse"}}
    inside(f"curl -sSf http://127.0.0.1:8010/v1/segments -d '{json.dumps({'texts': texts})}'")
    inside("systemctl restart kvblend")
    assert {c["source"] for c in ask(**body)["kvblend"]["chunks"]} == {"nvme"}
    degraded = logged(r'name=nvme .*degraded="([^"]*)"').group(1)
    assert "io_uring" not in degraded, degraded
    print("     the NVMe tier:", degraded or "as asked for")
    assert inside("stat -c '%U %a' /var/cache/kvblend/tier /var/log/kvblend/records.jsonl").split("\n")[0] == "kvblend 600"


def test_what_it_may_not():
    """By the unit's own sandbox, with a shell in the place of the program."""
    inside("systemctl cat kvblend.service | sed -e 's/^Exec.*//; s/^Type=.*/Type=oneshot/; s/^Restart=.*//; s/^Requires=.*//; s/^WatchdogSec=.*//' "
           "-e 's|^\\[Install\\].*||; s|^WantedBy.*||' > /run/systemd/system/probe.service && "
           "printf '[Service]\\nRuntimeDirectoryPreserve=yes\\nExecStart=/bin/sh -c \"for f in /etc/x /usr/x /home/x /root/x /var/lib/x /dev/shm/../x; do touch $f && "
           "echo wrote $f; done; echo > /proc/sys/kernel/hostname && echo wrote hostname; cat /etc/shadow; mknod /tmp/d c 1 1 && echo made; "
           "touch /var/lib/kvblend/may /var/cache/kvblend/may /var/log/kvblend/may; exit 0\"\\n' >> /run/systemd/system/probe.service && systemctl daemon-reload")
    inside("systemctl start probe")
    said = logged("(?s).*Finished", "probe").group()
    assert "wrote" not in said and "made" not in said and "root:" not in said, said
    for folder in ("lib", "cache", "log"):
        assert (root / f"var/{folder}/kvblend/may").exists(), said


if __name__ == "__main__":
    try:
        make_root()
        boot()
        main(globals())
    finally:
        halt()
