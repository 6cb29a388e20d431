#!/usr/bin/env python3
"""What kvblendctl promises: options that do what they say, records that go only when told, tiers and
writes that are not well."""
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import (KVBLEND, KVBLENDCTL, WORKER, TieredSite, document, free_port, main, need,  # noqa: E402
                     proxy, skip, unix_request, until)
from upstream import Upstream  # noqa: E402

need(KVBLEND, WORKER, KVBLENDCTL)
OPTIONS = {"--tier": "ram", "--namespace": "x", "--chunks": None, "--all": None, "--no-wait": None,
           "--yes": None, "--dry-run": None, "--rounds": "2", "--sort": "tokens", "--limit": "1", "--watch": None}
COMMANDS = {  # operands, and the options that go with it
    "status": ([], "--watch"), "quality": ([], "--watch"), "targets": ([], "--watch"), "keys": ([], "--watch"), "drain": (["a"], ""),
    "enable": (["a"], ""), "reload": ([], ""), "profile": ([], ""), "tiers": ([], "--watch"), "mrc": ([], "--watch"),
    "doctor": ([], "--watch"), "top": ([], "--sort --limit"), "history": ([], "--sort --limit --watch"),
    "ls": ([], "--chunks --tier --namespace --sort --limit --watch"), "show": (["ab"], ""), "pin": (["ab"], ""), "unpin": (["ab"], ""),
    "move": (["ab", "ram"], ""), "namespaces": ([], "--watch"),
    "evict": (["ab"], "--tier --yes --dry-run"), "clear": ([], "--all --tier --namespace --yes --dry-run"),
    "warm": ([__file__], "--namespace --no-wait"), "segment": ([__file__], "--namespace"), "export": ([], ""), "import": ([__file__], ""), "explain": (["r"], ""),
    "verify": ([], "--tier"), "preload": (["nvme"], ""), "flush": ([], ""),
    "resize": (["ram", "1GiB"], "--yes --dry-run"), "policy": (["ram", "lru"], ""),
    "quota": (["ram", "1GiB"], "--namespace"), "demo": ([], "--rounds"),
}


class Redis:
    def __init__(self, *args):
        if not shutil.which("redis-server"):
            skip("redis-server is missing")
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix="kvb-redis-")
        self.proc = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                                      "--dir", self.dir, *args], stdout=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.kill()
        self.proc.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


class Site(TieredSite):
    def run(self, *args, stdin=subprocess.DEVNULL):
        return subprocess.run([KVBLENDCTL, "--admin", self.g.admin, *args], capture_output=True, text=True,
                              stdin=stdin, timeout=120)

    def ctl(self, *args, status=0, **kw):
        r = self.run(*args, **kw)
        assert r.returncode == status, (args, r)
        return r.stdout + r.stderr

    def json(self, *args, status=0):
        r = self.run("--json", *args)
        assert r.returncode == status, (args, r)
        return json.loads(r.stdout)

    def build(self, numbers, key=None, **body):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        r = self.g.post("/v1/segments", dict({"texts": [document(i) for i in numbers]}, **body), headers=headers)
        assert r.status == 200, r.body
        return [x["id"] for x in r.json()["data"]]

    def ids(self, *args):
        return {x["id"] for x in self.json("ls", *args)["data"]}


def test_options_go_with_their_commands():
    nobody = ["--admin", "unix:/nonexistent/x"]
    for command, (operands, fine) in COMMANDS.items():
        for option, value in OPTIONS.items():
            given = [option] if value is None else [option, value]
            r = subprocess.run([KVBLENDCTL, *nobody, command, *operands, *given], capture_output=True, text=True,
                               stdin=subprocess.DEVNULL, timeout=30)
            if option in fine.split():
                assert "does not go with" not in r.stderr and r.returncode in (2, 3), (command, option, r)
            else:
                assert r.returncode == 2 and f'{option} does not go with "{command}"' in r.stderr, (command, option, r)
    told = subprocess.run([KVBLENDCTL, "--help"], capture_output=True, text=True, timeout=30).stdout
    assert all(x in told for x in [*COMMANDS, *OPTIONS, "--admin", "--json"]), told
    for command, (_, fine) in COMMANDS.items():
        for args in ([command, "--help"], ["--help", command]):
            r = subprocess.run([KVBLENDCTL, *args], capture_output=True, text=True, timeout=30)
            assert r.returncode == 0 and r.stdout.startswith(f"usage: kvblendctl {command}"), r
            assert {o for o in OPTIONS if f"  {o} " in r.stdout} == set(fine.split()), (command, r.stdout)


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, args, rows=12, **env):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 60, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.seen = ""
        env = {k: v for k, v in dict(os.environ, TERM="xterm", **env).items() if env.get(k, v) is not None}
        self.proc = subprocess.Popen(args, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        self.theirs = theirs

    def until(self, what):
        """Reads on until the text has come; what came, which is then forgotten."""
        while what not in self.seen:
            ready, _, _ = select.select([self.ours], [], [], 60)
            assert ready, (what, self.seen)
            self.seen += os.read(self.ours, 65536).decode(errors="replace")
        before, self.seen = self.seen.split(what, 1)
        return before + what

    def press(self, key):
        os.write(self.ours, key.encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()
        os.close(self.theirs)
        os.close(self.ours)


def test_lists_are_sorted_and_cut():
    with Site() as s:
        s.build(range(6))
        sizes = [x["tokens"] for x in s.json("ls", "--sort", "tokens")["data"]]
        assert len(sizes) == 6 and sizes == sorted(sizes, reverse=True), sizes
        assert [x["tokens"] for x in s.json("ls", "--sort", "-tokens", "--limit", "2")["data"]] == sorted(sizes)[:2]
        ids = [x["id"] for x in s.json("ls", "--sort", "id")["data"]]
        assert ids == sorted(ids) and len(ids) == 6
        shown = s.ctl("ls", "--sort", "-id", "--limit", "3").splitlines()
        assert [line.split()[0] for line in shown[1:-1]] == [i[:12] for i in sorted(ids, reverse=True)[:3]], shown
        assert shown[-1].startswith("3 records"), shown
        assert "none of bytes tokens" in s.ctl("ls", "--sort", "colour", status=2)
        for n in ("0", "-1", "many", "99999999999999999999"):
            assert "no number above 0" in s.ctl("ls", "--limit", n, status=2), n


def test_history_keeps_the_slowest_completions():
    with Site() as s:
        assert s.json("history") == {"requests": []} and "no completion ended" in s.ctl("history")
        for n in (1, 200, 20):
            r = s.g.post("/v1/completions", {"prompt": document(1), "max_tokens": n, "ignore_eos": True}, headers={"x-request-id": f"n-{n}"})
            assert r.status == 200, r.body
        s.g.get("/v1/models")  # no completion
        until("all have ended", lambda: len(s.json("history")["requests"]) == 3)
        kept = s.json("history")["requests"]
        assert [r["dur_ms"] for r in kept] == sorted((r["dur_ms"] for r in kept), reverse=True), kept
        assert {r["request_id"] for r in kept} == {"n-1", "n-200", "n-20"} and all(r["status"] == 200 for r in kept), kept
        shown = s.ctl("history", "--sort", "completion_tokens", "--limit", "2").splitlines()
        assert len(shown) == 3 and "n-200" in shown[1] and "n-20" in shown[2], shown


def test_top_on_a_terminal_and_elsewhere():
    with Site() as s:
        plain = s.ctl("top")
        assert "worker 0: ready" in plain and "REQUEST" in plain and "\033" not in plain, plain
        assert s.json("top") == {"requests": []} or s.json("top")["requests"][0]["stage"], plain
        assert "none of age_ms" in s.ctl("top", "--sort", "x", status=2)
        stream = s.g.open("/v1/completions", {"prompt": "a", "max_tokens": 8000, "stream": True, "ignore_eos": True}, headers="x-request-id: long-1\r\n")
        with stream, Terminal([KVBLENDCTL, "--admin", s.g.admin, "top"]) as t:
            first = t.until("long-1")
            assert "\033[?1049h" in first and "\033[1mREQUEST" in first, first
            t.press("s")  # it draws at once, sorted by the next field
            t.until("long-1")
            t.press("q")
            t.until("\033[?1049l")
            assert t.proc.wait(60) == 0
            assert termios.tcgetattr(t.theirs) == t.before
        with Terminal([KVBLENDCTL, "--admin", s.g.admin, "tiers", "--watch"]) as t:
            t.until("nvme")
            t.proc.terminate()
            t.until("\033[?1049l")
            assert t.proc.wait(60) == 0 and termios.tcgetattr(t.theirs) == t.before
        with Terminal([KVBLENDCTL, "--admin", s.g.admin, "status", "--watch"], NO_COLOR="1") as t:
            t.until("worker 0")
            t.press("\x03")
            assert "\033[1m" not in t.until("\033[?1049l") and t.proc.wait(60) == 0
        with Terminal([KVBLENDCTL, "--admin", s.g.admin, "ls"], NO_COLOR=None) as t:
            assert "\033[1m" in t.until("0 records") and t.proc.wait(60) == 0
        with Terminal([KVBLENDCTL, "--admin", "unix:/nonexistent", "top"]) as t:
            t.until("no answer at")
            t.press("q")
            assert t.proc.wait(60) == 3


def test_namespaces_are_shown_and_told_apart():
    with Site("--api-key", "one namespace=acme", "--api-key", "two namespace=globex") as s:
        mine = {"acme": s.build(range(2), "one"), "acme/a b&c": s.build([2], "one", namespace="a b&c"),
                "globex": s.build(range(2, 4), "two")}
        s.ctl("flush")
        all_ids = {x for ids in mine.values() for x in ids}
        assert len(all_ids) == 5 and s.ids() == all_ids
        for name, ids in mine.items():
            assert s.ids("--namespace", name) == set(ids), name
            assert s.ids("--namespace", name, "--tier", "nvme") == set(ids), name
            shown = s.json("show", ids[0])
            assert shown["namespace"] == name and len(shown["namespace_hash"]) == 16, shown
            assert name in s.ctl("show", ids[0]) and name in s.ctl("ls", "--namespace", name)
        assert s.ids("--namespace", "acm") == s.ids("--namespace", "/acme") == set()
        assert "too long" in s.ctl("ls", "--namespace", "x" * 600, status=1)
        # A worker that has just started knows the records' namespaces as numbers alone.
        worker, = s.json("status")["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        until("it is back", lambda: [w for w in s.json("status")["workers"]
                                     if w["pid"] != worker["pid"] and w["state"] == "ready"])
        listed = s.json("ls")["data"]
        assert {x["id"] for x in listed} == all_ids and {x["namespace"] for x in listed} == {None}, listed
        assert "#" + listed[0]["namespace_hash"] in s.ctl("ls")
        assert s.ids("--namespace", "globex") == set(mine["globex"])
        assert s.json("clear", "--namespace", "acme", "--yes") == {"cleared": 2}
        assert s.ids() == all_ids - set(mine["acme"])


def test_the_demonstration_leaves_nothing_behind():
    with Site() as s:
        s.build(range(2))
        before = s.ids()
        for rounds in (1, 2):
            d = s.json("demo", "--rounds", str(rounds))
            cold, warm = d["cold"], d["warm"]
            assert len(cold["ttft_ms_all"]) == len(warm["ttft_ms_all"]) == d["rounds"] == rounds, d
            assert cold["ttft_ms"] > 0 and d["left"] == 0, d
            assert d["documents"] == 5 and d["prompt_tokens"] < 8192, d  # of six: so many have room
            assert d["speedup"] == cold["ttft_ms"] / warm["ttft_ms"], d
            for side in (cold, warm):
                assert sum(side[k] for k in ("prefix", "reused", "recomputed", "computed")) == d["prompt_tokens"]
                assert side["answer"], d
            assert cold["strategy"] == "full" and cold["prefix"] == cold["reused"] == 0, d
            assert warm["reused"] + warm["recomputed"] > d["prompt_tokens"] / 2, d
            assert s.ids() == before
        text = s.ctl("demo")
        assert "cold " in text and "warm " in text and "NOT COLD" not in text and "stay" not in text, text
        ours, theirs = pty.openpty()
        subprocess.run([KVBLENDCTL, "--admin", s.g.admin, "demo"], stdout=theirs, stderr=subprocess.DEVNULL, timeout=60, check=True)
        shown = os.read(ours, 1 << 16).decode().replace("\r", "")  # less than what a terminal holds
        os.close(ours)
        os.close(theirs)
        assert "COLD: full prefill" in shown and "WARM: another order" in shown, shown
        rows = [x for x in shown.split("\n") if x.startswith(("ran ", "computed ", "answer "))]
        assert len({x.index(x.split()[1]) for x in rows[:2]}) == 1, rows  # columns stand below each other
        assert s.ids() == before
        for bad in ("0", "101", "x", "1x", "-1", ""):
            assert "--rounds" in s.ctl("demo", "--rounds", bad, status=2), bad
    with Upstream() as up, proxy([up.entry("models=* health=off")]) as g:
        r = subprocess.run([KVBLENDCTL, "--admin", g.admin, "demo"], capture_output=True, text=True, timeout=60)
        assert r.returncode == 1 and "no own worker" in r.stderr, r
    r = subprocess.run([KVBLENDCTL, "--admin", "unix:/nonexistent/x", "demo"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 3 and len(r.stderr.splitlines()) == 1, r


def answered(s, text, *args):
    """kvblendctl at a terminal where somebody types that."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, text)
        return s.run(*args, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)


def test_records_go_only_when_told():
    with Site() as s:
        ids = set(s.build(range(40)))
        pinned = sorted(ids)[0]
        s.ctl("pin", pinned)
        before = s.json("ls")["data"]
        first = max("0123456789abcdef", key=lambda c: sum(x[0] == c and x != pinned for x in ids))
        many = {x for x in ids if x[0] == first and x != pinned}
        assert len(many) > 1, "40 IDs begin with sixteen digits"
        said = s.ctl("clear", status=2)
        assert "would drop 39 records" in said and "--yes" in said and "--dry-run" in said, said
        assert f"drop {len({x for x in ids if x[0] == first})} records" in s.ctl("evict", first, status=2)
        assert "evict" in s.ctl("resize", "nvme", "1MiB", status=2)
        assert "nothing was changed" in s.ctl("clear", "--dry-run")
        assert {x["id"] for x in s.json("clear", "--dry-run")["data"]} == ids - {pinned}
        assert s.json("clear", "--dry-run", "--all", "--yes")["count"] == 40, "a dry run asks for nothing"
        assert s.json("clear", "--dry-run", "--namespace", "x")["count"] == 0
        assert {x["id"] for x in s.json("evict", first, "--dry-run")["data"]} == many
        assert s.json("resize", "nvme", "1MiB", "--dry-run")["evict_bytes"] > 0
        assert s.json("resize", "nvme", "1GiB", "--dry-run")["evict_bytes"] == 0
        r = answered(s, b"n\n", "clear")
        assert r.returncode == 1 and "drop 39 records" in r.stderr and "nothing was changed" in r.stderr, r
        assert answered(s, b"\n", "evict", first).returncode == 1
        after = s.json("ls")["data"]
        assert [x["id"] for x in after] == [x["id"] for x in before], "nothing went"
        assert s.json("tiers")["data"][1]["capacity_bytes"] == 64 << 20
        assert answered(s, b"y\n", "evict", first).returncode in (0, 1)  # 1: the pinned one stays
        assert not s.ids() & many
        one = next(iter(ids - many - {pinned}))
        s.ctl("evict", one)  # one record is asked for by name: no question
        s.ctl("resize", "nvme", "1GiB")  # nothing goes
        r = answered(s, b"y\n", "clear")
        assert r.returncode == 0 and "records dropped" in r.stdout, r
        assert s.ids() == {pinned}
        assert s.json("clear") == {"cleared": 0}, "nothing would go: no question"


def test_a_list_warms_another_worker():
    def written(site, lines):
        return site.g.write("list", "".join(json.dumps(x) + "\n" for x in lines))

    with Redis() as redis:
        args = ["--redis", f"redis://127.0.0.1:{redis.port}", "--namespace", "*=contexts:off"]
        with Site(*args) as old:
            ids = old.build(range(3))
            old.ctl("flush")
            lines = [json.loads(x) for x in old.ctl("export").splitlines()]
        assert {x["id"] for x in lines} == set(ids) and all(set(x) == {"id", "tokens", "bytes"} for x in lines), lines
        with Site(*args) as new:
            assert new.ids() == set()
            assert new.json("import", written(new, [dict(lines[0], id="0" * 32), *lines[:2]])) == {"loaded": 2, "records": 3}
            assert new.ids("--tier", "ram") == {x["id"] for x in lines[:2]}
            assert "1 of 3" in new.ctl("import", written(new, lines)), "what is there already is not loaded"
            assert new.ids("--tier", "ram") == set(ids)
            for bad in (["no record"], [{"id": "ab", "tokens": 3}], [dict(lines[0], tokens=0)]):
                assert "Invalid records" in new.ctl("import", written(new, bad), status=1), bad


def test_a_tier_that_refuses_is_shown():
    with Redis("--requirepass", "right") as redis, Site("--redis", f"redis://:wrong@127.0.0.1:{redis.port}") as s:
        until("it is noticed", lambda: "redis REFUSES: WRONGPASS" in s.ctl("status"))
        worker, = s.json("status")["workers"]
        assert [(t["tier"], t["state"]) for t in worker["status"]["tiers"]] == [("nvme", "ok"), ("redis", "refuses")]
        health = unix_request(worker["address"][5:], "GET", "/health")
        assert health.status == 200 and health.json()["tiers_refusing"] == ["redis"], health.body
        assert b"WRONGPASS" not in health.body and "wrong" not in s.ctl("status"), "reasons are the operator's"


def test_flush_says_what_was_lost():
    with Redis("--maxmemory", "1", "--maxmemory-policy", "noeviction") as redis:
        # no record gets a second version, which would be written, too
        with Site("--redis", f"redis://127.0.0.1:{redis.port}", "--namespace", "*=contexts:off") as s:
            s.build(range(3))
            assert s.json("flush", status=1) == {"flushed": False, "lost": 3}
            assert s.json("flush") == {"flushed": True}
            s.build([3])
            assert "1 writes were lost" in s.ctl("flush", status=1)
            assert s.ctl("flush") == "flushed\n"


if __name__ == "__main__":
    main(globals())
