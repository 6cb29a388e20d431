#!/usr/bin/env python3
"""Records that are merged with encodings behind other chunks of their namespace, in idle time."""
import json
import os
import re
import struct
import subprocess
import tempfile

from harness import KVBLEND, KVBLENDCTL, WORKER, gateway, main, need, parse_metrics, until

need(KVBLEND, WORKER, KVBLENDCTL)
CHAT = "/v1/chat/completions"
SHORT = {"contexts": 2, "context_tokens": 500}


def document(i, words=40):
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(words // 2))


def parts(order, salt, **kw):
    return dict({"messages": [{"role": "user", "content":
                 [{"type": "text", "text": document(i)} for i in order] +
                 [{"type": "text", "text": "What does the note say?"}]}],
                 "max_tokens": 3, "temperature": 0, "cache_salt": salt}, **kw)


class Served:
    """A gateway whose worker has this profile."""

    def __init__(self, *args, env=None, **profile):
        self.dir = tempfile.TemporaryDirectory()
        path = os.path.join(self.dir.name, "profile.json")
        with open(path, "w") as f:
            json.dump(profile or SHORT, f)
        self.gateway = gateway("--profile", path, *args, env=env)

    def __enter__(self):
        return self.gateway.__enter__()

    def __exit__(self, *what):
        with self.dir:
            return self.gateway.__exit__(*what)


def metric(g, name):
    return sum(value for _, _, value in parse_metrics(g.metrics())["kvblend_" + name][1])


def ask(g, order, salt, **kw):
    r = g.post(CHAT, parts(order, salt, **kw))
    assert r.status == 200, (r.status, r.body)
    return r.json()["kvblend"]


def record(g, chunk, salt):
    return g.get(f"/v1/segments/{chunk['id']}?namespace={salt}").json()


def built(g, order, salt):
    """The chunks of a collection, when their records are there."""
    chunks = ask(g, order, salt)["chunks"]
    for c in chunks:
        until("the chunk is built", lambda: record(g, c, salt).get("status") == "ready")
    return chunks


def merged(g, order, salt):
    """The same, when the middle ones have stood behind others twice."""
    chunks = built(g, order, salt)
    until("they are merged", lambda: all(record(g, c, salt)["contexts"] for c in chunks))
    return chunks


def test_a_collection_is_encoded_in_company():
    with Served() as g:
        chunks = merged(g, [1, 2, 3], "a")
        records = [record(g, c, "a") for c in chunks]
        # Forwards and backwards: each behind all others once, the outer ones in one of the two.
        assert [r["contexts"] for r in records] == [1, 2, 1], records
        everything = sum(c["tokens"] for c in chunks)
        assert [r["context_tokens"] for r in records] == [everything - c["tokens"] for c in chunks], records
        shown = subprocess.run([KVBLENDCTL, "--admin", g.admin, "show", chunks[1]["id"]],
                               capture_output=True, text=True, timeout=60).stdout
        assert f"contexts 2 of {records[1]['context_tokens']} tokens" in shown, shown
        k = ask(g, [3, 1, 2], "a")
        assert k["strategy"] == "qs" and k["sensed"] == everything, k
        plain = ask(g, [3, 1, 2], "a", kvblend={"strategy": "query"})
        assert plain["strategy"] == "query" and "sensed" not in plain, plain
        assert plain["tokens"]["recomputed"] == k["tokens"]["recomputed"] and plain["cost"] == k["cost"]
        assert metric(g, "contexts_total") == 3 and metric(g, "contexts_pending") == 0
        check_invariants(g)


def test_the_same_history_gives_the_same_bytes():
    def histories():
        for _ in range(2):
            with tempfile.TemporaryDirectory() as d:
                with Served("--nvme", f"{d}/tier:64MiB") as g:
                    merged(g, [1, 2, 3], "a")
                    ask(g, [3, 1, 2], "a")
                    merged(g, [4, 5, 6], "b")
                    until("all is written", lambda: metric(g, "store_dirty_records") == 0)
                yield newest_records(f"{d}/tier")
    one, other = histories()
    assert sorted(n for n, _ in one.values()) == [1, 1, 1, 1, 2, 2], one
    assert one == other


def newest_records(path):
    """By key: the number of contexts, and ids, scores and sums of all KV of that version (tiers/record.h)."""
    with open(path, "rb") as f:
        data = f.read()
    newest = {}
    for m in re.finditer(rb"KVBREC\r\n", data):
        head = data[m.start():m.start() + struct.unpack_from("<I", data, m.start() + 12)[0]]
        version = struct.unpack_from("<I", head, 112)[0], head[144:]
        newest[head[24:40]] = max(version, newest.get(head[24:40], version))
    return newest


def check_invariants(g):
    """Ratio 1 is the full prefill whatever the records hold, and a merged chunk is exact nowhere."""
    answers = [g.post(CHAT, parts([2, 3, 1], "a", logprobs=True, kvblend=kv)).json()["choices"]
               for kv in ({"mode": "full"}, {"ratio": 1.0})]
    assert answers[0] == answers[1], answers
    first = ask(g, [2], "a", kvblend={"ratio": 0.5})
    assert first["tokens"]["recomputed"] > 0, first


def test_what_stays_alone_stays_behind_the_sink():
    with Served() as g:
        alone = built(g, [1], "one")
        other = built(g, [2], "two")  # another namespace is no company
        ask(g, [3, 4], "one", kvblend={"store": False})  # nor is what was not to be kept
        merged(g, [5, 6, 7], "three")
        assert record(g, alone[0], "one")["contexts"] == 0
        assert record(g, other[0], "two")["contexts"] == 0
        assert metric(g, "contexts_pending") == 2
        built(g, [8], "one")
        until("it has company", lambda: record(g, alone[0], "one")["contexts"] == 1)


def test_contexts_can_be_off():
    with Served("--namespace", "/closed=contexts:off") as g:
        closed = built(g, [1, 2, 3], "closed")
        merged(g, [1, 2, 3], "open")
        assert [record(g, c, "closed")["contexts"] for c in closed] == [0, 0, 0]
        assert metric(g, "contexts_pending") == 0
    with Served(contexts=0) as g:
        built(g, [1, 2, 3], "a")
        assert metric(g, "contexts_pending") == 0


def test_a_growing_collection_is_merged_again():
    with Served(contexts=2, context_tokens=1200) as g:
        few = merged(g, [1, 2], "a")
        short = record(g, few[0], "a")["context_tokens"]
        assert metric(g, "contexts_pending") == 2  # for want of others
        ask(g, [3, 4, 5, 6], "a")
        until("it stands behind more", lambda: record(g, few[0], "a")["context_tokens"] > 2 * short)


def test_the_controller_knows_both_kinds_of_records():
    """Where merged records may be reused as they are, those behind the sink need a ratio."""
    with Served("--strategy", "auto", contexts=2, context_tokens=500, loss=0.5, isolated=2.5, ratios=[0, 0.1, 0.5],
                losses={"reuse": [0.4, None, None], "qs": [None, 0.3, 0.1]}) as g:
        def decided(order):
            rid = g.post(CHAT, parts(order, "a")).headers["x-request-id"]
            one, = g.admin_get("/admin/decisions/" + rid)["data"]
            return one["in"]
        built(g, [1, 2, 3], "a")
        before = decided([2, 1])
        merged(g, [1, 2, 3], "a")
        after = decided([2, 1])
        assert [c["merged"] for c in before["chunks"]] == [False, False], before
        assert [c["merged"] for c in after["chunks"]] == [True, True], after
        assert not before["strategies"]["reuse"]["allowed"] and after["strategies"]["reuse"]["allowed"]
        assert abs(before["strategies"]["qs"]["floor"] - 0.3) < 1e-9, before  # keeps 0.5 / 2.5
        assert abs(after["strategies"]["qs"]["floor"] - 0.1) < 1e-9, after


def test_the_same_history_gives_the_same_answer():
    answers = []
    for _ in range(2):
        with Served() as g:
            merged(g, [1, 2, 3], "a")
            body = parts([3, 2, 1], "a", logprobs=True, top_logprobs=5, kvblend={"mode": "reuse"})
            answers.append(g.post(CHAT, body).json()["choices"][0]["logprobs"])
    assert answers[0] == answers[1], answers


def test_contexts_survive_a_restart():
    with tempfile.TemporaryDirectory() as folder:
        nvme = ("--nvme", f"{folder}/records:64MiB")
        with Served(*nvme) as g:
            chunks = merged(g, [1, 2, 3], "a")
            ctl = subprocess.run([KVBLENDCTL, "--admin", g.admin, "flush"], capture_output=True, text=True, timeout=60)
            assert ctl.returncode == 0, ctl
            want = [record(g, c, "a")["contexts"] for c in chunks]
        with Served(*nvme, env={"KVBLEND_TIER_WAIT": "4s"}) as g:
            k = ask(g, [3, 1, 2], "a", kvblend={"mode": "blend"})
            assert {c["source"] for c in k["chunks"]} <= {"nvme", "ram"}, k
            assert k["sensed"] == sum(c["tokens"] for c in k["chunks"]), k
            assert [record(g, c, "a")["contexts"] for c in chunks] == want
            assert metric(g, "contexts_total") == 0


if __name__ == "__main__":
    main(globals())
