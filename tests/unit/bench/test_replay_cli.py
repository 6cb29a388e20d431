"""kvblend-bench replay from the outside: its report, chart, tables and refusals, with hit rates computed here."""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

BENCH = os.environ["KVBLEND_BENCH"]
SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "traces" / "mooncake_300.jsonl"


def replay(*args):
    return subprocess.run([BENCH, "replay", *map(str, args)], capture_output=True, text=True, timeout=120,
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
        assert 0 <= row["hit_rate"] <= 1 and abs(row["hit_rate"] * 100 - row["hit_pct"]) < 1e-4, row
        assert abs(row["hits"] / row["accesses"] - row["hit_rate"]) < 1e-6, row
    return report["meta"], {(r["policy"], r["capacity"]): r for r in report["rows"]}


def check_block_trace(folder):
    requests = [json.loads(line)["hash_ids"] for line in SAMPLE.open()]
    out = replay("--trace", SAMPLE, "--policy", "lru,arc", "--capacity", "500,2000,inf",
                 "--json", folder / "a.json")
    assert out.returncode == 0, out.stderr
    meta, rows = rows_of(folder / "a.json")
    assert "fraction" in meta["hit_rate_unit"] and meta["accesses"] == sum(map(len, requests)), meta
    assert "curve" not in meta
    assert list(rows) == [(p, c) for p in ("lru", "arc") for c in (500, 2000, "inf")]
    for capacity in (500, 2000):
        assert rows["lru", capacity]["hits"] == lru(requests, lambda i: 1, capacity)
    ceiling = sum(map(len, requests)) - len({i for ids in requests for i in ids})
    assert all(rows[p, "inf"]["hits"] == ceiling for p, c in rows)


def check_curve(folder):
    requests = [json.loads(line)["hash_ids"] for line in SAMPLE.open()]
    out = replay("--trace", SAMPLE, "--block-bytes", "64MiB", "--capacity", "64GiB", "--plot", folder / "b.svg",
                 "--json", folder / "b.json")
    assert out.returncode == 0, out.stderr
    meta, rows = rows_of(folder / "b.json")
    assert rows["lru", 64 << 30]["hits"] == lru(requests, lambda i: 1, 1024)
    assert "64 GiB" in out.stdout and meta["curve_unit"] == "bytes"
    accesses = sum(map(len, requests))
    points = {c["capacity"]: c["hit_rate"] for c in meta["curve"] if c["policy"] == "lru"}
    assert len(points) >= 8
    for capacity, rate in points.items():
        assert abs(rate - lru(requests, lambda i: 1, capacity >> 26) / accesses) < 1e-6, capacity
    texts = {t.text for t in xml.etree.ElementTree.parse(folder / "b.svg").iter() if t.text}
    assert {"lru", "arc", "64 GiB"} <= texts, texts


def check_access_log(folder):
    """Records of many sizes, as the worker writes them; the popular ones are drawn more often."""
    rng = random.Random(5)
    size = {i: rng.randrange(1, 40) << 16 for i in range(400)}
    requests = [[int(400 * rng.random() ** 3) for _ in range(rng.randrange(1, 8))] for _ in range(1500)]
    log = folder / "access.jsonl"
    with log.open("w") as f:
        for at, ids in enumerate(requests):
            f.write(json.dumps({"t": 1.7e9 + at, "ns": "acme", "records": [
                {"id": "%032x" % (i * 0x10001), "kind": "chunk", "tokens": size[i] >> 10, "bytes": size[i],
                 "tier": "ram"} for i in ids]}) + "\n")
    out = replay("--trace", log, "--capacity", "100,64MiB,inf", "--json", folder / "c.json")
    assert out.returncode == 0, out.stderr
    meta, rows = rows_of(folder / "c.json")
    assert meta["trace_format"] == "access-log"
    assert rows["lru", 64 << 20]["hits"] == lru(requests, size.get, 64 << 20)
    assert rows["lru", 100]["hits"] == lru(requests, lambda i: 1, 100)
    assert rows["lru", 64 << 20]["hit_rate_tokens"] < rows["lru", "inf"]["hit_rate_tokens"] < 1
    out = replay("--trace", log)  # no capacity: the curve
    assert out.returncode == 0 and "256 MiB" in out.stdout, out.stdout


def check_refusals(folder):
    bad = folder / "bad.jsonl"
    bad.write_text('{"hash_ids": [1]}\n{"hash_ids": oops}\n')
    for says, args in {
            "--trace": [], "bad.jsonl:2:": ["--trace", bad], "cannot be opened": ["--trace", folder / "none"],
            "\"belady\" is none of": ["--trace", SAMPLE, "--policy", "lru,belady"],
            "s3fifo was removed; lru is the default": ["--trace", SAMPLE, "--policy", "lru,s3fifo"],
            "is there twice": ["--trace", SAMPLE, "--policy", "lru,lru"],
            "not a number of records": ["--trace", SAMPLE, "--capacity", "100,-3"],
            "--block-bytes": ["--trace", SAMPLE, "--capacity", "1GiB"],
            "holds not one record": ["--trace", SAMPLE, "--capacity", "1KiB", "--block-bytes", "64MiB"],
            "cannot be written": ["--trace", SAMPLE, "--plot", folder / "none" / "a.svg"]}.items():
        out = replay(*args)
        assert out.returncode == 1 and says in out.stderr, (args, out.stderr)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for check in (check_block_trace, check_curve, check_access_log, check_refusals):
            check(folder)
            print(check.__name__, "passed")


if __name__ == "__main__":
    sys.exit(main())
