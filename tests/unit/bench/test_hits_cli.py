"""kvblend-bench tiers hits: its report, table and refusals, with hit rates computed here."""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

BENCH = os.environ["KVBLEND_BENCH"]
SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "traces" / "mooncake_300.jsonl"


def hits(*args):
    return subprocess.run([BENCH, "tiers", "hits", *map(str, args)], capture_output=True, text=True, timeout=120,
                          check=False)


def lru(requests, size, capacity):
    """Hits when every request is looked up as a whole and then touched from its end."""
    cache, used, hits = collections.OrderedDict(), 0, 0
    for ids in requests:
        hits += sum(i in cache for i in ids)
        for i in reversed(ids):
            if i in cache:
                cache.move_to_end(i)
            elif size(i) <= capacity:
                while used + size(i) > capacity:
                    used -= size(cache.popitem(last=False)[0])
                cache[i] = True
                used += size(i)
    return hits


def rows_of(path):
    report = json.loads(path.read_text())
    for row in report["rows"]:
        assert 0 <= row["hit_rate"] <= 1, row
        assert abs(row["hits"] / row["accesses"] - row["hit_rate"]) < 1e-6, row
    return report["meta"], {(r["policy"], r["capacity"]): r for r in report["rows"]}


def check_block_trace(folder):
    requests = [json.loads(line)["hash_ids"] for line in SAMPLE.open()]
    # ARC as its paper has it, from a simulation with dictionaries.
    arc = {10: 45, 100: 190, 1000: 3162, 2000: 4922, 3000: 5861}
    sizes = [1, 10, 100, 300, 1000, 2000, 3000, 5000, 5244]
    out = hits("--trace", SAMPLE, "--capacity", ",".join(map(str, [*sizes, "inf"])), "--json", folder / "a.json")
    assert out.returncode == 0, out.stderr
    meta, rows = rows_of(folder / "a.json")
    assert meta["trace_format"] == "blocks" and (meta["requests"], meta["records"]) == (300, 5244), meta
    assert all(row["accesses"] == sum(map(len, requests)) for row in rows.values())
    assert list(rows) == [(p, c) for c in [*sizes, "inf"] for p in ("lru", "arc")]
    for capacity in sizes:
        assert rows["lru", capacity]["hits"] == lru(requests, lambda i: 1, capacity)
    for capacity, expected in arc.items():
        assert rows["arc", capacity]["hits"] == expected, rows["arc", capacity]
    ceiling = sum(map(len, requests)) - len({i for ids in requests for i in ids})
    assert all(rows[p, c]["hits"] == ceiling for p, c in rows if c in (5244, "inf"))


def write_log(path, size, requests):
    with path.open("w") as f:
        for at, ids in enumerate(requests):
            f.write(json.dumps({"t": 1.7e9 + at, "ns": "acme", "records": [
                {"id": "%032x" % (i * 0x10001), "kind": "chunk", "tokens": max(size[i] >> 10, 1), "bytes": size[i],
                 "tier": "ram"} for i in ids]}) + "\n")


def check_small_log(folder):
    """What does not fit drives nothing out, and a request's head outlives its tail."""
    size = {1: 100 << 10, 2: 20 << 10, 3: 30 << 10, 4: 999 << 10}
    write_log(folder / "small.jsonl", size, [[1, 2], [3], [], [2], [1], [4], [1]])
    out = hits("--trace", folder / "small.jsonl", "--capacity", "120KiB,150KiB,inf", "--json", folder / "s.json")
    assert out.returncode == 0, out.stderr
    _, rows = rows_of(folder / "s.json")
    tight, roomy = rows["lru", 120 << 10], rows["lru", 150 << 10]
    assert tight["hits"] == 1 and abs(tight["hit_rate_tokens"] - 100 / 1369) < 1e-6, tight
    assert roomy["hits"] == 3 and roomy["evictions"] == 0, roomy
    assert abs(roomy["hit_rate_tokens"] - 220 / 1369) < 1e-6, roomy
    assert rows["arc", "inf"]["hits"] == 3


def check_access_log(folder):
    """Records of many sizes, as the worker writes them; the popular ones are drawn more often."""
    rng = random.Random(5)
    size = {i: rng.randrange(1, 40) << 16 for i in range(400)}
    requests = [[int(400 * rng.random() ** 3) for _ in range(rng.randrange(1, 8))] for _ in range(1500)]
    log = folder / "access.jsonl"
    write_log(log, size, requests)
    out = hits("--trace", log, "--capacity", "100,64MiB,inf", "--json", folder / "c.json")
    assert out.returncode == 0, out.stderr
    meta, rows = rows_of(folder / "c.json")
    assert meta["trace_format"] == "access-log"
    assert rows["lru", 64 << 20]["hits"] == lru(requests, size.get, 64 << 20)
    assert rows["lru", 100]["hits"] == lru(requests, lambda i: 1, 100)
    assert rows["lru", 64 << 20]["hit_rate_tokens"] < rows["lru", "inf"]["hit_rate_tokens"] < 1


def check_refusals(folder):
    bad = folder / "bad.jsonl"
    bad.write_text('{"hash_ids": [1]}\n{"hash_ids": oops}\n')
    for says, args in {
            "--trace": [], "bad.jsonl:2:": ["--trace", bad], "cannot be opened": ["--trace", folder / "none"],
            "not a number of records": ["--trace", SAMPLE, "--capacity", "100,-3"],
            "has no sizes": ["--trace", SAMPLE, "--capacity", "1GiB"],
            "--capacity is empty": ["--trace", SAMPLE, "--capacity", ""],
            "cannot be written": ["--trace", SAMPLE, "--json", folder / "none" / "a.json"]}.items():
        out = hits(*args)
        assert out.returncode == 1 and says in out.stderr, (args, out.stderr)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for check in (check_block_trace, check_small_log, check_access_log, check_refusals):
            check(folder)
            print(check.__name__, "passed")


if __name__ == "__main__":
    sys.exit(main())
