"""tools/hit-rates: its table and refusals, with hits computed here."""
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests" / "data" / "traces" / "mooncake_300.jsonl"


def hits(*args):
    return subprocess.run([sys.executable, ROOT / "tools" / "hit-rates", *map(str, args)], capture_output=True, text=True, timeout=120,
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


def rows_of(out):
    """(hits, share of look-ups, share of tokens) by policy and size."""
    assert out.returncode == 0, out.stderr
    rows = {}
    for line in out.stdout.splitlines()[2:]:
        policy, size, hits, *shares = line.split()
        rows[policy, size] = (int(hits), *(float(share.rstrip("%")) / 100 for share in shares))
    return rows


def check_block_trace(folder):
    requests = [json.loads(line)["hash_ids"] for line in SAMPLE.open()]
    # ARC as its paper has it, from a simulation with dictionaries.
    arc = {10: 45, 100: 190, 1000: 3162, 2000: 4922, 3000: 5861}
    sizes = [1, 10, 100, 300, 1000, 2000, 3000, 5000, 5244]
    rows = rows_of(hits(SAMPLE, *sizes, "inf"))
    assert list(rows) == [(p, str(c)) for c in [*sizes, "inf"] for p in ("lru", "arc")]
    n = sum(map(len, requests))
    assert all(abs(share - found / n) < 1e-4 for found, share in rows.values()), rows
    for capacity in sizes:
        assert rows["lru", str(capacity)][0] == lru(requests, lambda i: 1, capacity)
    for capacity, expected in arc.items():
        assert rows["arc", str(capacity)][0] == expected, (capacity, rows)
    ceiling = n - len({i for ids in requests for i in ids})
    assert all(rows[p, c][0] == ceiling for p, c in rows if c in ("5244", "inf"))


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
    rows = rows_of(hits(folder / "small.jsonl", "120KiB", "150KiB", "inf"))
    assert rows["lru", "120KiB"][0] == 1 and abs(rows["lru", "120KiB"][2] - 100 / 1369) < 1e-4, rows
    assert rows["lru", "150KiB"][0] == 3 and abs(rows["lru", "150KiB"][2] - 220 / 1369) < 1e-4, rows
    assert rows["arc", "inf"][0] == 3


def check_access_log(folder):
    """Records of many sizes, as the worker writes them; the popular ones are drawn more often."""
    rng = random.Random(5)
    size = {i: rng.randrange(1, 40) << 16 for i in range(400)}
    requests = [[int(400 * rng.random() ** 3) for _ in range(rng.randrange(1, 8))] for _ in range(1500)]
    log = folder / "access.jsonl"
    write_log(log, size, requests)
    rows = rows_of(hits(log, 100, "64MiB", "inf"))
    assert rows["lru", "64MiB"][0] == lru(requests, size.get, 64 << 20)
    assert rows["lru", "100"][0] == lru(requests, lambda i: 1, 100)
    assert rows["lru", "64MiB"][2] < rows["lru", "inf"][2] < 1


def check_refusals(folder):
    bad = folder / "bad.jsonl"
    bad.write_text('{"hash_ids": [1]}\n{"hash_ids": oops}\n')
    empty = folder / "empty.jsonl"
    empty.write_text('{"hash_ids": []}\n')
    mixed = folder / "mixed.jsonl"
    mixed.write_text('{"hash_ids": [1]}\n\n{"records": []}\n')
    for says, args in {
            "TRACE SIZE": [], "bad.jsonl:2:": [bad, "inf"], "No such file": [folder / "none", "inf"],
            "mixed.jsonl:3:": [mixed, "inf"], "no records in it": [empty, "inf"],
            "not a number of records": [SAMPLE, 100, "-3"], "has no sizes": [SAMPLE, "1GiB"]}.items():
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
