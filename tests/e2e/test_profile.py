#!/usr/bin/env python3
"""Profiles of models: where the worker finds one, what it does with it, what people see of it."""
import json
import os
import re
import subprocess

from harness import (ADMIN, BUILD, KVBLEND, KVBLENDCTL, WORKER, Program, gateway, main, need, tiny_model,
                     until, worker_listening)

need(KVBLEND, WORKER, KVBLENDCTL)


def write(folder, name, **fields):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        json.dump(fields, f)
    return path


def ctl(g, *args):
    r = subprocess.run([KVBLENDCTL, "--admin", g.admin, *args], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode == 0, (args, r.stdout, r.stderr)
    return r.stdout


def worker(*args, env=None):
    return Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", *ADMIN, *args], env)


def ready(p):
    return worker_listening(p)


def text(i):
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(64))


def blended(g):
    """The report of a request that names no strategy, about chunks that are all there."""
    assert g.post("/v1/segments", {"texts": [text(i) for i in range(3)]}).status == 200
    body = {"messages": [{"role": "user", "content":
            [{"type": "text", "text": text(i)} for i in (2, 0, 1)] +
            [{"type": "text", "text": "What does the note say?"}]}], "max_tokens": 1}
    r = g.post("/v1/chat/completions", body).json()["kvblend"]
    assert {c["source"] for c in r["chunks"]} == {"ram"}, r
    return r


def test_without_a_file_it_is_the_default():
    with worker() as p:
        shown = ready(p).get("/admin/profile").json()
    assert shown["source"] == "default" and re.fullmatch("[0-9a-f]{32}", shown["fingerprint"])
    profile = shown["profile"]
    assert profile["fingerprint"] == "" and profile["strategy"] == "qs", profile
    assert profile["losses"]["query"][1] > profile["losses"]["query"][-1] > 0, profile


def test_a_file_decides_what_no_option_and_no_request_does():
    mine = {"check_layer": 1, "strategy": "hkvd", "ratio": 0.4, "loss": 0.3, "measured": "by hand",
            "ratios": [0.1, 0.4], "losses": {"hkvd": [0.5, 0.3], "qs": [None, 0.25]}}
    with Program(["true"]) as folder:
        path = write(folder.dir, "mine.json", **mine)
        with gateway("--profile", path) as g:
            until("the worker is ready", lambda: g.get("/ready").status == 200)
            assert g.admin_get("/admin/profile")["source"] == path
            r = blended(g)
            n = r["tokens"]["reused"] + r["tokens"]["recomputed"]
            assert r["strategy"] == "hkvd" and r["tokens"]["recomputed"] == round(0.4 * n), r
            said = ctl(g, "profile")
            for part in (path, "by hand", "hkvd, 40.0 %", "R=0.1", "0.500", "0.250"):
                assert part in said, (part, said)
            assert json.loads(ctl(g, "profile", "--json"))["profile"]["loss"] == 0.3
        with gateway("--profile", path, "--ratio", "0.2", "--strategy", "always:sink") as g:
            until("the worker is ready", lambda: g.get("/ready").status == 200)
            r = blended(g)
            assert r["strategy"] == "sink" and r["ratio"] == 0.2, r


def test_a_named_file_that_cannot_be_used_ends_the_start():
    with Program(["true"]) as folder:
        for fields, says in (({"score_lo": 400}, "score_lo"),
                             ({"fingerprint": "0" * 32}, "another model")):
            path = write(folder.dir, "bad.json", **fields)
            with worker("--profile", path) as p:
                assert p.proc.wait(60) != 0
                assert says in p.log() and path in p.log(), p.log()
        with worker("--profile", folder.dir + "/absent.json") as p:
            assert p.proc.wait(60) != 0 and "absent.json" in p.log()


def test_what_calibrate_left_in_the_cache_is_taken_and_a_bad_one_is_not():
    with Program(["true"]) as folder:
        env = {"XDG_CACHE_HOME": folder.dir}
        with worker(env=env) as p:
            own = ready(p).get("/admin/profile").json()["fingerprint"]
        path = write(folder.dir, f"kvblend/profiles/{own}.json", fingerprint=own, ratio=0.25)
        with worker(env=env) as p:
            shown = ready(p).get("/admin/profile").json()
            assert shown["source"] == path and shown["profile"]["ratio"] == 0.25, shown
        write(folder.dir, f"kvblend/profiles/{own}.json", fingerprint=own, ratio=25)
        with worker(env=env) as p:
            assert ready(p).get("/admin/profile").json()["source"] == "default"
            assert "state=refused" in p.log() and '"ratio"' in p.log().replace('\\"', '"'), p.log()


def test_calibrate_writes_what_the_worker_then_takes():
    bench = os.path.join(BUILD, "tools", "bench", "kvblend-bench")
    need(bench)
    with Program(["true"]) as folder:
        env = dict(os.environ, XDG_CACHE_HOME=folder.dir)
        lines = [{"chunks": [text(i), text(i + 1), text(i + 2)], "question": "What does it say?"}
                 for i in range(6)]
        data = folder.write("words.jsonl", "\n".join(json.dumps(x) for x in lines))
        run = [bench, "quality", "calibrate", "--model", tiny_model(), "--data", data, "--limit", "4"]
        made = []
        for _ in range(2):  # and twice the same
            r = subprocess.run(run, env=env, capture_output=True, text=True, timeout=600)
            assert r.returncode == 0, (r.stdout, r.stderr)
            path = re.search(r"written to (.*)", r.stdout).group(1)
            with open(path) as f:
                made.append(f.read())
        assert made[0] == made[1]
        mine = json.loads(made[0])
        assert "words.jsonl" in mine["measured"] and set(mine["losses"]) >= {"hkvd", "query", "qs", "side"}
        with worker(env={"XDG_CACHE_HOME": folder.dir}) as p:
            shown = ready(p).get("/admin/profile").json()
            assert shown["source"] == path and shown["profile"] == mine, (shown, mine)
        bad = subprocess.run(run[:-1] + ["3"], env=env, capture_output=True, text=True, timeout=60)
        assert bad.returncode != 0 and "too few" in bad.stderr, bad.stderr


if __name__ == "__main__":
    main(globals())
