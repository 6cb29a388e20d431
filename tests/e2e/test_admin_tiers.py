#!/usr/bin/env python3
"""kvblendctl's commands for tiers, from the gateway's admin socket down to an NVMe file."""
import json
import os
import subprocess

from harness import (KVBLEND, KVBLENDCTL, WORKER, TieredSite, document, main, need, unix_request,
                     until)

need(KVBLEND, WORKER, KVBLENDCTL)
MIB = 1 << 20


class Site(TieredSite):
    """With kvblendctl pointed at it."""

    def __init__(self, *args):
        super().__init__(*args, env={"KVBLEND_TIER_WAIT": "4s"})

    def ctl(self, *args, status=0):
        r = subprocess.run([KVBLENDCTL, "--admin", self.g.admin, *args], capture_output=True,
                           text=True, timeout=60)
        assert r.returncode == status, (args, r)
        assert (r.stderr == "") == (status == 0), (args, r)
        assert len(r.stderr.splitlines()) <= 1, (args, r)
        return r.stdout if status == 0 else r.stderr

    def json(self, *args, status=0):
        r = subprocess.run([KVBLENDCTL, "--admin", self.g.admin, "--json", *args],
                           capture_output=True, text=True, timeout=60)
        assert r.returncode == status, (args, r)
        return json.loads(r.stdout)

    def build(self, numbers, **body):
        r = self.g.post("/v1/segments", dict({"texts": [document(i) for i in numbers]}, **body))
        assert r.status == 200, r.body
        assert {x["status"] for x in r.json()["data"]} == {"ready"}, r.body
        self.ctl("flush")
        return [x["id"] for x in r.json()["data"]]

    def tier(self, name):
        return next(t for t in self.json("tiers")["data"] if t["tier"] == name)

    def listed(self, name):
        return {x["id"]: x for x in self.json("ls", "--tier", name)["data"]}


def test_listing_and_figures():
    with Site("--namespace", "*=ttl:1h") as s:
        ids = s.build(range(4))
        assert s.json("flush") == {"flushed": True}
        both = s.json("tiers")["data"]
        assert [t["tier"] for t in both] == ["ram", "nvme"]
        shared = {"tier", "persistent", "shared", "capacity_bytes", "used_bytes", "pinned_bytes",
                  "records", "hits", "misses", "evictions", "expired", "corrupt"}
        assert shared | {"lost", "dirty", "loading"} <= set(both[0]), both[0]
        assert shared | {"rejected", "load_bytes_per_s", "first_ms", "errors", "timeouts",
                         "breaker", "endpoints", "write_budget_ratio", "degraded"} <= set(both[1])
        assert both[0]["records"] == both[1]["records"] == 4
        assert (both[0]["persistent"], both[1]["persistent"]) == (False, True)
        assert both[1]["breaker"] == "closed" and both[1]["capacity_bytes"] == 64 * MIB
        for name in ("ram", "nvme"):
            assert set(s.listed(name)) == set(ids)
        # What the tier counts is what it lists.
        there = s.listed("nvme")
        assert s.tier("nvme")["used_bytes"] == sum(x["bytes"] for x in there.values())
        assert "No tier" in s.ctl("ls", "--tier", "tape", status=1)
        assert "No tier" in s.ctl("evict", ids[0], "--tier", "tape", status=1)
        s.ctl("clear", "--tier", "ram", "--yes")
        assert not s.listed("ram")
        assert {x: y["bytes"] for x, y in s.listed("nvme").items()} == {
            x: y["bytes"] for x, y in there.items()}
        one = s.json("show", ids[0][:12])
        assert one["id"] == ids[0] and one["tiers"] == "nvme" and 3000 < one["expires_s"] <= 3600
        text = s.ctl("tiers")
        assert "nvme" in text and "breaker   closed" in text, text
        assert "60 s" not in s.ctl("show", ids[0])


def test_verify():
    with Site() as s:
        ids = s.build(range(5))
        assert s.json("verify") == {"ok": 10, "bad": 0, "gone": 0}
        assert s.json("verify", "--tier", "nvme") == {"ok": 5, "bad": 0, "gone": 0}
        assert s.json("verify", ids[1]) == {"ok": 2, "bad": 0, "gone": 0}
        s.ctl("clear", "--tier", "ram", "--yes")
        # A bit flips in the middle of one record.
        with open(s.file, "r+b") as f:
            at = f.read().rindex(b"KVBSLOT\n") + 100000
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 8]))
            f.flush()
            os.fsync(f.fileno())
        assert s.json("verify", "--tier", "nvme", status=1) == {"ok": 4, "bad": 1, "gone": 0}
        assert s.json("verify") == {"ok": 4, "bad": 0, "gone": 0}
        assert len(s.listed("nvme")) == 4
        assert "No segment" in s.ctl("verify", "0" * 32, status=1)
        assert "No tier" in s.ctl("verify", "--tier", "tape", status=1)


def test_evict_clear_preload():
    with Site() as s:
        ids = s.build(range(4))
        s.ctl("evict", ids[0], "--tier", "ram")
        assert s.json("show", ids[0])["tiers"] == "nvme"
        s.ctl("evict", ids[1])
        s.ctl("show", ids[1], status=1)
        s.ctl("pin", ids[2])
        assert "pinned" in s.ctl("evict", ids[2], status=1)
        s.ctl("unpin", ids[2])
        assert s.json("clear", "--tier", "ram", "--yes") == {"cleared": 2}
        assert not s.listed("ram") and len(s.listed("nvme")) == 3
        assert s.json("preload", "nvme", "2") == {"loaded": 2}
        assert len(s.listed("ram")) == 2
        assert s.json("preload", "nvme") == {"loaded": 1}
        assert "below RAM" in s.ctl("preload", "ram", status=1)
        assert "no number" in s.ctl("preload", "nvme", "0", status=2)
        assert s.json("clear", "--yes") == {"cleared": 3}
        assert not s.json("ls")["data"]
        assert s.tier("nvme")["used_bytes"] == s.tier("nvme")["records"] == 0


def test_records_move_and_namespaces_hold():
    with Site() as s:
        mine, theirs = s.build(range(3), namespace="mine"), s.build(range(3, 5), namespace="<b>theirs</b>")
        one = mine[0]

        def tiers_of(id_):
            return next(x["tiers"] for x in s.json("ls")["data"] if x["id"] == id_)
        assert s.ctl("move", one[:10], "nvme") == f"{one} is in nvme\n" and tiers_of(one) == "nvme"
        assert s.json("move", one, "nvme")["tiers"] == "nvme"
        assert s.json("move", one, "ram")["tiers"] == "ram,nvme" and tiers_of(one) == "ram,nvme"
        s.ctl("evict", one, "--tier", "nvme")
        assert tiers_of(one) == "ram" and s.json("move", one, "nvme")["tiers"] == "nvme"
        s.ctl("pin", theirs[0])
        assert "pinned or in use" in s.ctl("move", theirs[0], "nvme", status=1) and tiers_of(theirs[0]) == "ram,nvme"
        for bad, why in ((("move", one, "redis"), "No tier 'redis'"), (("move", "0" * 32, "ram"), "No segment"),
                         (("move", "x", "ram"), "is no id"), (("move", one, ""), "tier")):
            assert why in s.ctl(*bad, status=2 if why == "is no id" else 1), bad
        r = unix_request(s.g.admin[5:], "POST", f"/admin/chunks/{one}/move")
        assert r.status == 400 and r.error()["param"] == "tier", r.body
        s.ctl("quota", "ram", "1MiB", "--namespace", "/mine")
        s.ctl("quota", "nvme", "3MiB", "--namespace", "/none")
        got = {x["namespace"]: {t["tier"]: t for t in x["tiers"]} for x in s.json("namespaces")["workers"][0]["namespaces"]["data"]}
        assert set(got) == {"/mine", "/<b>theirs</b>", "/none"}, got
        assert [(t, x["records"], x["cap_bytes"]) for t, x in got["/mine"].items()] == [("ram", 2, MIB), ("nvme", 3, 0)]
        assert [(t, x["records"], x["cap_bytes"]) for t, x in got["/<b>theirs</b>"].items()] == [("ram", 2, 0), ("nvme", 2, 0)]
        assert got["/none"] == {"nvme": {"tier": "nvme", "records": 0, "bytes": 0, "cap_bytes": 3 * MIB}}, got
        held = s.json("ls", "--tier", "nvme", "--namespace", "/mine")["data"]
        assert got["/mine"]["nvme"]["bytes"] == sum(x["bytes"] for x in held), (got, held)
        shown = s.ctl("namespaces")
        assert "/mine" in shown and "1.0 MiB" in shown and shown.splitlines()[0].split() == \
            ["WORKER", "NAMESPACE", "TIER", "RECORDS", "SIZE", "OF"], shown


def test_sizes_policies_and_quotas():
    with Site() as s:
        others = set(s.build(range(6)))
        one = max(x["bytes"] for x in s.listed("nvme").values())
        s.ctl("resize", "ram", "8MiB")
        assert s.tier("ram")["capacity_bytes"] == 8 * MIB >= s.tier("ram")["used_bytes"]
        for size in (128, 32):
            s.ctl("resize", "nvme", f"{size}MiB")
            assert s.tier("nvme")["capacity_bytes"] == os.path.getsize(s.file) == size * MIB
        assert len(s.listed("nvme")) == 6
        for tier, size, why in (("nvme", "1", "below the least"), ("ram", "0", "below the least"),
                                ("ram", "1GiB", "four times"), ("ram", "many", "Invalid 'bytes'"),
                                ("redis", "1GiB", "No tier"), ("nvme", "800TiB", "the most")):
            assert why in s.ctl("resize", tier, size, "--yes", status=1), (tier, size)
        assert "SIZE is missing" in s.ctl("resize", "ram", status=2)
        for name in ("arc", "lru"):
            for tier in ("ram", "nvme"):
                assert s.json("policy", tier, name) == {"tier": tier, "policy": name}
        assert "expected lru or arc" in s.ctl("policy", "ram", "mru", status=1)
        assert "removed; expected lru or arc" in s.ctl("policy", "ram", "gdsf", status=1)
        assert len(s.listed("ram")) == len(s.listed("nvme")) == 6
        # A namespace of its own: capped hard, while others stay.
        cap = 3 * one + 4096
        assert s.json("quota", "nvme", str(cap), "--namespace", "/acme") == {
            "tier": "nvme", "quota_bytes": cap}
        assert "--namespace is missing" in s.ctl("quota", "nvme", "1GiB", status=2)
        for i in range(10, 16):
            s.build([i], namespace="acme")
        mine = set(s.listed("nvme")) - others
        assert 0 < sum(s.listed("nvme")[x]["bytes"] for x in mine) <= cap
        assert s.json("clear", "--tier", "nvme", "--namespace", "/acme", "--yes")["cleared"] == len(mine)
        assert set(s.listed("nvme")) == others


def test_what_more_room_would_find():
    """Thirty documents in turns, of which RAM holds a few: nothing is found there, and all with room for all of them."""
    with Site() as s:
        assert s.json("mrc")["workers"][0]["mrc"]["points"] == [] and "nothing was looked up" in s.ctl("mrc")
        for i in range(60):
            parts = [{"type": "text", "text": document(i % 30)}, {"type": "text", "text": "Which?"}]
            r = s.g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 1,
                                                  "kvblend": {"mode": "full" if i == 0 else "auto", "store": i != 1}})
            assert r.status == 200, r.body
        m = s.json("mrc")["workers"][0]["mrc"]
        found = [p["found"] for p in m["points"]]
        assert m["look_ups"] >= 58 and m["rate"] == 1 and m["ram_bytes"] == 16 * MIB, m
        assert found == sorted(found) and m["points"][-1]["bytes"] >= m["distinct_bytes"], m
        # 28 of the 58 documents, and whatever stands in front of them, come a second time.
        assert found[0] < 0.3 and 0.45 < found[-1] < 0.7, m
        assert "(now)" in s.ctl("mrc")


def test_nobody_there():
    r = subprocess.run([KVBLENDCTL, "--admin", "unix:/nonexistent/x", "tiers"],
                       capture_output=True, text=True)
    assert r.returncode == 3 and len(r.stderr.splitlines()) == 1, r


def test_a_reload_keeps_what_the_command_line_said():
    with Site("--redis", "redis://u:mellon@127.0.0.1:1", "--api-key", "open-sesame") as s:
        for _ in range(2):
            with open(f"/proc/{s.g.proc.pid}/cmdline", "rb") as f:
                text = f.read()
            assert b"mellon" not in text and b"open-sesame" not in text, text
            assert s.g.get("/v1/models").status == 401
            r = s.g.get("/v1/models", headers={"Authorization": "Bearer open-sesame"})
            assert r.status == 200, r.body
            assert [t["tier"] for t in s.json("tiers")["data"]] == ["ram", "nvme", "redis"]
            os.kill(s.g.proc.pid, 1)
            until("the configuration is read again", lambda: "reload" in s.g.log())
        status = unix_request(s.g.admin[5:], "GET", "/admin/status").body
        assert b"mellon" not in status + s.g.log().encode()


if __name__ == "__main__":
    main(globals())
