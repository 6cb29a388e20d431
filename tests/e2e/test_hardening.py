#!/usr/bin/env python3
"""How the programs are built, what a worker may do, and how it ends when its model's file is cut."""
import os
import platform
import shutil
import struct
import subprocess

from harness import (BUILD, KVBLEND, KVBLENDCTL, WORKER, gateway, main, need, tiny_model,
                     until)
from test_tiers import (Folder, Redis, ask, build, parts, same, sources, worker,
                        written_behind)

BENCH = os.path.join(BUILD, "tools", "bench", "kvblend-bench")
need(KVBLENDCTL, BENCH)
PROGRAMS = (KVBLEND, WORKER, KVBLENDCTL, BENCH)

ET_DYN, PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO, PF_X = 3, 2, 0x6474e551, 0x6474e552, 1
DT_FLAGS, DT_FLAGS_1, DF_BIND_NOW, DF_1_NOW, DF_1_PIE = 30, 0x6ffffffb, 8, 1, 0x08000000
SHT_SYMTAB, SHT_DYNSYM = 2, 11


class Elf:
    """As much of a 64-bit little-endian file as is asked here."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.b = f.read()
        assert self.b[:6] == b"\x7fELF\x02\x01", path
        self.type = struct.unpack_from("<H", self.b, 16)[0]
        phoff, shoff = struct.unpack_from("<QQ", self.b, 32)
        phsize, phn, shsize, shn = struct.unpack_from("<HHHH", self.b, 54)
        self.segments = [struct.unpack_from("<IIQQQQQQ", self.b, phoff + i * phsize)
                         for i in range(phn)]
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.b, shoff + i * shsize)
                         for i in range(shn)]

    def segment(self, kind):
        return next((s for s in self.segments if s[0] == kind), None)

    def dynamic(self):
        at, n = self.segment(PT_DYNAMIC)[2], self.segment(PT_DYNAMIC)[5]
        return dict(struct.unpack_from("<QQ", self.b, at + i) for i in range(0, n, 16))

    def symbols(self, kind):
        for s in self.sections:
            if s[1] != kind:
                continue
            names = self.sections[s[6]][4]
            for i in range(0, s[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", self.b, s[4] + i)
                end = self.b.index(b"\0", names + name)
                yield self.b[names + name:end].decode().split("@")[0], value

    def at(self, address, n):
        for s in self.segments:
            if s[0] == 1 and s[3] <= address < s[3] + s[5]:
                return self.b[s[2] + address - s[3]:][:n]
        return b""


def plain_build():
    """Sanitizers see more, and replace what is asked for here."""
    return b"__asan_init" not in open(WORKER, "rb").read() and \
        b"__tsan_init" not in open(WORKER, "rb").read()


def test_programs_are_built_hardened():
    if not plain_build():
        print("a build with sanitizers has other marks")
        return
    for path in PROGRAMS:
        e = Elf(path)
        d = e.dynamic()
        assert e.type == ET_DYN and d.get(DT_FLAGS_1, 0) & DF_1_PIE, (path, "not PIE")
        assert e.segment(PT_GNU_RELRO), (path, "no RELRO")
        assert d.get(DT_FLAGS, 0) & DF_BIND_NOW or d.get(DT_FLAGS_1, 0) & DF_1_NOW, (path, "lazy")
        stack = e.segment(PT_GNU_STACK)
        assert stack and not stack[1] & PF_X, (path, "executable stack")
        assert not any(s[0] == 1 and s[1] & 3 == 3 for s in e.segments), (path, "W and X")
        asked = {name for name, _ in e.symbols(SHT_DYNSYM)}
        assert "__stack_chk_fail" in asked, (path, "no stack protector")
        assert any(n.startswith("__") and n.endswith("_chk") for n in asked), (path, "no fortify")
        if platform.machine() == "x86_64":
            at = dict(e.symbols(SHT_SYMTAB))["main"]
            assert e.at(at, 4) == b"\xf3\x0f\x1e\xfa", (path, "no control-flow protection")


def status_of(pid):
    """Of each thread: a filter that holds for some is none."""
    for t in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{t}/status") as f:
            yield dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def test_no_new_privileges():
    with worker() as p:
        assert {s["NoNewPrivs"] for s in status_of(p.proc.pid)} == {"1"}
        assert {s["Seccomp"] for s in status_of(p.proc.pid)} == {"0"}


def test_a_sandboxed_worker_serves():
    """With every tier, over a restart; its calls are filtered (tests/unit/base/test_sandbox.c)."""
    with worker("--ram", "64MiB") as p:
        want = ask(p, parts([0, 1, 2], mode="full"))
    with Folder() as d, Redis() as r:
        flags = ("--ram", "64MiB", "--nvme", d.nvme(), "--redis", r.url, "--sandbox",
                 "--access-log", d.path + "/access")
        with worker(*flags) as p:
            build(p, [0, 1, 2])
            written_behind(p)
            assert {s["Seccomp"] for s in status_of(p.proc.pid)} == {"2"}
            assert {s["NoNewPrivs"] for s in status_of(p.proc.pid)} == {"1"}
            same(ask(p, parts([0, 1, 2], mode="full")), want)
            r.proc.kill()
            r.proc.wait()
            os.unlink(r.path)
            r.start()  # it connects again
            assert p.post("/admin/flush", {}).status == 200
        with worker(*flags) as p:
            assert set(sources(ask(p, parts([0, 1, 2])))) == {"nvme"}
        os.unlink(d.path + "/tier")
        with worker(*flags) as p:
            build(p, [0, 1, 2])
            written_behind(p)
        os.unlink(d.path + "/tier")
        with worker(*flags) as p:
            assert set(sources(ask(p, parts([0, 1, 2])))) == {"redis"}


def test_a_gateways_worker_is_sandboxed():
    with gateway("--sandbox", "on") as g:
        pid = g.admin_get("/admin/status")["workers"][0]["pid"]
        assert {s["Seccomp"] for s in status_of(pid)} == {"2"}
        assert {s["NoNewPrivs"] for s in status_of(g.proc.pid)} == {"1"}
        r = g.post("/v1/completions", {"prompt": "Name three colours.", "max_tokens": 4})
        assert r.status == 200, r.body


def test_a_sandbox_and_a_gpu_exclude_each_other():
    r = subprocess.run([WORKER, "--model", tiny_model(), "--sandbox", "--device", "cuda"],
                       capture_output=True, text=True)
    assert r.returncode == 2 and "--sandbox and --device cuda" in r.stderr, r


def cut_while_asked(p, path, log, ended):
    """The file shrinks to a page; what is still asked of it must not come as SIGBUS."""
    os.truncate(path, 4096)
    for i in range(20):
        if ended():
            break
        try:
            p.post("/v1/completions", {"prompt": f"{i} words that nobody has read", "max_tokens": 4})
        except OSError:
            pass
    until("the worker has ended", ended)
    assert "became shorter, or unreadable, while it was in use" in log(), log()


def test_a_model_file_that_shrinks_ends_the_worker():
    with Folder() as d:
        path = d.path + "/model.gguf"
        shutil.copy(tiny_model(), path)
        with worker("--model", path) as p:
            cut_while_asked(p, path, p.log, lambda: p.proc.poll() is not None)
            assert p.proc.returncode == 4, p.proc.returncode


def test_the_gateway_says_why_its_worker_ended():
    with Folder() as d:
        path = d.path + "/model.gguf"
        shutil.copy(tiny_model(), path)
        with gateway(model=path) as g:
            cut_while_asked(g, path, g.log, lambda: "worker.ended" in g.log())
            assert "exit=4 signal=0 reason=model_file" in g.log(), g.log()


if __name__ == "__main__":
    main(globals())
