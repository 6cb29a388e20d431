#!/usr/bin/env python3
"""What a worker tells those who look on: what goes on now, decisions with what became of their chunks, records in
pages."""
import tempfile

from harness import KVBLEND, WORKER, document, gateway, main, need, unix_request

need(KVBLEND, WORKER)


def test_what_goes_on_and_what_became_of_a_prompt():
    texts = [document(i) for i in range(5)]
    with gateway() as g:
        assert g.post("/v1/segments", {"texts": texts}).status == 200
        assert g.admin_get("/admin/now")["tokens"]["reused"] == 0
        parts = [{"type": "text", "text": t} for t in texts + ["What is item 7?"]]
        r = g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 2,
                                            "kvblend": {"mode": "blend", "ratio": 0.3}})
        assert r.status == 200, r.body
        id_, report = r.headers["x-request-id"], r.json()["kvblend"]
        now = g.admin_get("/admin/now")
        assert now["tokens"] == report["tokens"] and now["tokens"]["reused"] > 0
        assert sum(now["ttft_s"]["n"]) == 1 and len(now["ttft_s"]["n"]) == len(now["ttft_s"]["le"]) + 1
        assert {t["tier"] for t in now["tiers"]} == {"ram"} and now["tiers"][0]["used_bytes"] > 0
        for line in (now["decisions"][0], g.admin_get("/admin/decisions")["data"][0]):
            assert line["id"] == id_ and line["tokens"] == report["tokens"], (line, report)
        one = g.admin_get(f"/admin/decisions/{id_}")["data"][0]
        assert [(c["id"], c["tokens"], c["source"]) for c in one["chunks"]] == \
            [(c["id"], c["tokens"], c["source"]) for c in report["chunks"]]
        assert one["measured"]["tokens"] == report["tokens"] and one["measured"]["queue_s"] >= 0
        check_times(one)
        assert one["measured"]["loads"] == []  # they were in RAM
        assert all(c["token_begin"] > 0 and c["detector"] == "parts" and "miss" not in c for c in one["chunks"])
        check_pages(lambda query: unix_request(g.admin[5:], "GET", f"/admin/chunks?{query}"))


def check_times(d):
    """The prefill's steps follow each other up to the first token, every layer among them, and are what it computed."""
    m, layers, at = d["measured"], [], 0
    for s in m["steps"]:
        assert at <= s["begin_s"] < s["end_s"] <= m["ttft_s"] and 0 < s["compute_s"] <= s["end_s"] - s["begin_s"] + 1e-9, m
        at = s["end_s"]
        first, last = s.get("layers", (0, -1))
        layers += range(first, last + 1)
    assert layers == list(range(d["in"]["L"])), m
    names = [s["name"] for s in m["steps"]]
    assert names[0] == "embed" and names[-1] == "head" and ("score" in names) == (m["tokens"]["recomputed"] > 0), names
    assert abs(sum(s["compute_s"] for s in m["steps"]) - m["compute_s"]) < 1e-6, m
    assert d["before_s"] <= m["steps"][0]["begin_s"], d


def test_what_came_from_which_tier():
    texts = [document(i) for i in range(5)]
    with tempfile.TemporaryDirectory(prefix="kvb-watch-") as folder:
        tiers, env = ("--ram", "16MiB", "--nvme", folder + "/tier:64MiB"), {"KVBLEND_TIER_WAIT": "4s"}
        with gateway(*tiers, env=env) as g:
            assert g.post("/v1/segments", {"texts": texts}).status == 200
            assert g.stop() == 0
        with gateway(*tiers, env=env) as g:
            parts = [{"type": "text", "text": t} for t in texts + ["What is item 7?"]]
            for left in (5, 0):  # then they are in RAM
                r = g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 1,
                                                    "kvblend": {"mode": "blend", "ratio": 0.3}})
                d = g.admin_get(f"/admin/decisions/{r.headers['x-request-id']}")["data"][0]
                loads = d["measured"]["loads"]
                assert sum(c["source"] == "nvme" for c in d["chunks"]) == left, d
                assert [(x["tier"], x["records"]) for x in loads] == [("nvme", left)] * bool(left), loads
                for x in loads:
                    assert 0 <= x["begin_s"] < x["end_s"] <= d["measured"]["ttft_s"], d
                    ids = {c["id"] for c in d["chunks"]}
                    held = [c for c in g.admin_get("/admin/chunks")["data"] if c["id"] in ids]
                    assert sum(c["tokens"] for c in held) < x["bytes"] <= sum(c["bytes"] for c in held), d


def check_pages(ask):
    """Records sorted, filtered and in pages; every record on one page of them."""
    def page(query=""):
        r = ask(query)
        assert r.status == 200, (query, r.body)
        return r.json()
    everything = page()
    assert everything["total"] == everything["count"] == len(everything["data"]) > 3
    assert sum(t["records"] for t in everything["tiers"]) == everything["total"]
    assert sum(t["bytes"] for t in everything["tiers"]) == sum(x["bytes"] for x in everything["data"])
    for sort in ("bytes", "tokens", "hits", "age_s", "idle_s", "contexts"):
        for order in ("asc", "desc"):
            got, at = [], 0
            while at < everything["total"]:
                part = page(f"sort={sort}&order={order}&offset={at}&limit=2")
                assert part["count"] == len(part["data"]) <= 2 and part["total"] == everything["total"]
                got += part["data"]
                at += 2
            assert {x["id"] for x in got} == {x["id"] for x in everything["data"]}
            assert len(got) == everything["total"]
            values = [x[sort] for x in got]
            if sort not in ("age_s", "idle_s"):  # which go on while pages are read
                assert values == sorted(values, reverse=order == "desc"), (sort, order, values)
    id_ = everything["data"][0]["id"]
    assert [x["id"] for x in page(f"prefix={id_[:12]}")["data"]] == [id_]
    assert page("prefix=" + "0" * 32)["total"] == 0
    assert page("limit=0")["data"] == [] and page("offset=99999")["data"] == []
    for bad in ("sort=name", "order=up", "limit=-1", "limit=1e9", "offset=x", "prefix=zz", "prefix=%22"):
        r = ask(bad)
        assert r.status == 400 and r.error()["param"] == bad.split("=")[0], (bad, r.status, r.body)


if __name__ == "__main__":
    main(globals())
