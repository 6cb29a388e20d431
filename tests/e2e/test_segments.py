#!/usr/bin/env python3
"""Chunks without a worker: the LMCache bridge, their explanation, what was learned and outlives a restart."""
import json
import os
import subprocess
import tempfile

from harness import KVBLEND, KVBLENDCTL, main, need, proxy
from upstream import SCRIPT, Upstream

need(KVBLEND, KVBLENDCTL)
CHAT = "/v1/chat/completions"
ANY = "models=* health=off"
TOWNS = ["Arden", "Brill", "Corby", "Dunmow", "Esher"]


def passage(town):
    return (f"{town} has a mill that stands by the river {town}water. It was built by the miller of {town} "
            f"after the flood, and the people of {town} still tell how the wheel turned all night.")


def prompt():
    docs = "\n\n".join(f"[Document {i + 1}]\n{passage(t)}" for i, t in enumerate(TOWNS))
    return f"{docs}\n\nQuestion: Which river has the mill of Corby?"


def ask(**kw):
    body = {"model": "m", "messages": [{"role": "system", "content": "Be brief."},
                                       {"role": "user", "content": prompt()}]}
    body.update(kw)
    return body


def texts_of(body):
    return "\n".join(m["content"] for m in body["messages"])


class Recorded(Upstream):
    """Keeps the body of each completion."""

    def __init__(self, **kw):
        super().__init__(**kw)
        self.bodies = []

    def script_of(self, r):
        self.bodies.append(r.json())
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        return dict(SCRIPT, body=json.dumps({"id": "c1", "created": 1, "object": "chat.completion",
                                             "model": "m", "choices": [choice]}))


# ---- what is gone ----

def test_removed_strategies():
    """MapReduce and MapRerank were the gateway's once: a request for them learns where they are now."""
    with Recorded() as up, proxy([up.entry(ANY)]) as g:
        for kind in ("map_reduce", "map_rerank"):
            for body, headers in ((dict(ask(), kvblend={"strategy": kind}), {}),
                                  (ask(), {"X-KVBlend-Strategy": kind})):
                r = g.post(CHAT, body, headers=headers)
                assert r.status == 400 and r.error()["param"] == "kvblend.strategy", r.body
                assert "removed" in r.error()["message"] and "kvblend-bench" in r.error()["message"]
        r = g.post("/v1/completions", {"model": "m", "prompt": prompt(), "kvblend": {"strategy": "map_reduce"}})
        assert r.status == 400 and not up.bodies, r.body
        assert g.post(CHAT, ask(), headers={"X-KVBlend-Strategy": "none"}).status == 200


# ---- LMCache ----

def test_lmcache_separators():
    with Recorded() as up, proxy([up.entry(ANY + " lmcache=true")]) as g:
        body = ask()
        assert g.post(CHAT, body).status == 200
        sent = texts_of(up.bodies[-1])
        assert sent.replace(" # # ", "") == texts_of(body)
        for t in TOWNS:
            assert f" # # {passage(t)} # # " in sent, sent
        assert sent.count(" # # ") == 10
        g.post(CHAT, up.bodies[-1])  # its own work is recognised
        assert texts_of(up.bodies[-1]) == sent
        small = ask(messages=[{"role": "user", "content": "Hello \u00e4"}])
        g.post(CHAT, small)
        assert up.requests[-1].body == json.dumps(small).encode()
    with Recorded() as up, proxy([up.entry(ANY)]) as g:
        g.post(CHAT, body)
        assert up.requests[-1].body == json.dumps(body).encode()


def segment(g, body, *args):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(body, f)
        f.flush()
        return subprocess.run([KVBLENDCTL, "--admin", g.admin, *args, "segment", f.name],
                              capture_output=True, text=True, timeout=60)


def test_segment_explains_without_a_worker():
    with Recorded() as up, proxy([up.entry(ANY)]) as g:
        r = segment(g, ask())
        assert r.returncode == 0, r.stderr
        assert "no worker answered" in r.stdout and "document-bracket" in r.stdout, r.stdout
        assert "Corby has a mill" in r.stdout and "a framework's marker" in r.stdout, r.stdout
        r = segment(g, ask(), "--json")
        told = json.loads(r.stdout)
        text = prompt().encode()
        assert [text[s["begin"]:s["end"]].decode() for s in told["segments"]] == \
            [passage(t) for t in TOWNS] and told["boundaries"], told
        plain = {"model": "m", "messages": [{"role": "user", "content": plain_prompt(TOWNS)}]}
        r = segment(g, plain)
        assert "a short typed text, for the first time" in r.stdout, r.stdout
        plain["messages"][0]["content"] = plain_prompt(TOWNS + TOWNS[::-1])
        r = segment(g, plain)
        assert "nothing is known yet" in r.stdout and "the question begins here" in r.stdout, r.stdout
        assert segment(g, []).returncode == 1


# ---- what was learned ----

def plain_prompt(towns):
    return "\n\n".join(passage(t) for t in towns) + "\n\nWhich river has the mill of Corby?"


def cuts_of(g, up, towns):
    """Are exactly the passages enclosed?"""
    g.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": plain_prompt(towns)}]})
    sent = texts_of(up.bodies[-1])
    return (all(f" # # {passage(t)} # # " in sent for t in towns)
            and sent.count(" # # ") == 2 * len(towns))


def test_learning_survives_a_restart():
    orders = [[TOWNS[(a * i + b) % 5] for i in range(5)] for a in (1, 2, 3, 4) for b in range(5)]
    with tempfile.TemporaryDirectory() as d, Recorded() as up:
        memory = os.path.join(d, "memory")
        args = [up.entry(ANY + " lmcache=true")], "--segment-memory", memory
        with proxy(*args) as g:
            assert not cuts_of(g, up, orders[0])
            for o in orders[1:8]:
                g.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": plain_prompt(o)}]})
            assert cuts_of(g, up, orders[8])
            assert g.stop() == 0
        with open(memory, "rb") as f:
            data = f.read()
        assert b"miller" not in data and len(data) < 100000, len(data)
        with proxy(*args) as g:
            assert cuts_of(g, up, orders[9])
        with open(memory, "wb") as f:
            f.write(data[:200] + b"!" + data[201:])
        with proxy(*args) as g:  # damaged: as if it were not there, and replaced
            assert "ignoring" in g.log() and not cuts_of(g, up, orders[9])
            assert g.stop() == 0
        with proxy(*args) as g:
            assert "ignoring" not in g.log()
        with proxy([up.entry(ANY + " lmcache=true")], "--segment-memory", "off") as g:
            assert not cuts_of(g, up, orders[9])


if __name__ == "__main__":
    main(globals())
