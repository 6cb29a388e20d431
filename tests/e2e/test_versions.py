#!/usr/bin/env python3
"""What another version wrote: NVMe files, records in Redis, learned boundaries, profiles, measured files, access logs and
configurations of each release (tests/data/formats), read by the programs of today.

A format of today's version is read, to the same answer. Another version, older or newer, is as if nothing were there: it
says so, nobody gets a wrong answer, and a file of another version stays. A format that changed while its version
stayed fails here. KVBLEND_WRITE=1 writes the fixtures of this release (tests/data/formats/README.md).
"""
import base64
import contextlib
import gzip
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

from harness import KVBLEND, ROOT, Program, clean_env, main, need, proxy
from test_records import PAGE, Hashes, forge_file, sum_of, u32
from test_segments import ANY, TOWNS, Recorded, cuts_of
from test_tiers import CHAT, Folder, Redis, document, store, tier_value, worker, written_behind

need(KVBLEND)
DATA = pathlib.Path(ROOT, "tests", "data", "formats")
PROFILE = {"check_layer": 1, "strategy": "hkvd", "ratio": 0.4, "loss": 0.3, "measured": "by hand", "ratios": [0.1, 0.4],
           "losses": {"hkvd": [0.5, 0.3], "qs": [None, 0.25]}}
ORDERS = [[TOWNS[(a * i + b) % 5] for i in range(5)] for a in (1, 2, 3, 4) for b in range(5)]
WORDS, SUPER_BYTES, NVME = 6, 256 << 10, "1MiB"
# Answers to the last digits but those that processors compute differently.
F32 = {"KVBLEND_GEMM": "own-f32"}


# ---- which versions there are ----

def number(path, name):
    return int(re.search(rf"\b{name}(?: =|,) (\d+)", pathlib.Path(ROOT, path).read_text()).group(1))


NOW = {"record": number("tiers/record.h", "RECORD_VERSION"), "nvme": number("tiers/nvme/nvme_format.h", "NVME_VERSION"),
       "redis": number("tiers/redis/redis_frame.h", "REDIS_FRAME_VERSION"), "memory": number("segment/memory.c", "M'"), "prints": number("segment/memory.c", "PRINTS_VERSION"),
       "profile": number("fusor/core/profile.c", "FILE_VERSION"), "cost": number("worker/reuse/calib.c", "CALIB_VERSION"),
       "gemm": number("kernels/cpu/tune.c", "TUNE_VERSION")}


def release():
    return re.search(r"version: '([^']+)'", pathlib.Path(ROOT, "meson.build").read_text()).group(1)


class Written:
    """What a release wrote."""

    def __init__(self, folder):
        self.folder = folder
        self.about = json.loads((folder / "about.json").read_text())

    def of_today(self, *formats):
        return all(self.about["versions"][f] == NOW[f] for f in formats)

    def bytes(self, name):
        data = (self.folder / name).read_bytes()
        return gzip.decompress(data) if name.endswith(".gz") else data


def releases():
    found = [Written(x.parent) for x in sorted(DATA.glob("*/about.json"))]
    assert [w for w in found if w.folder.name == release()], f"no fixtures of {release()}: KVBLEND_WRITE=1 {sys.argv[0]}"
    return found


# ---- a worker and its answer ----

def question():
    texts = [document(i, WORDS) for i in (0, 1)]
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in texts + ["What does the note say?"]]}],
            "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 5, "kvblend": {"mode": "reuse"}}


def asked(p):
    r = p.post(CHAT, question())
    assert r.status == 200, r.body
    answer = r.json()
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    chunks = answer["kvblend"]["chunks"]
    return {"ids": [c["id"] for c in chunks], "logprobs": {str(t["bytes"]): t["logprob"] for t in top}}, [c["source"] for c in chunks]


def alike(a, b):
    """The same records, and the same answer on any processor."""
    x, y = a["logprobs"], b["logprobs"]
    return a["ids"] == b["ids"] and x.keys() == y.keys() and all(abs(x[t] - y[t]) < 2e-3 for t in x)


def built(p):
    r = p.post("/v1/segments", {"texts": [document(i, WORDS) for i in (0, 1)]})
    assert r.status == 200 and {x["status"] for x in r.json()["data"]} == {"ready"}, r.body
    written_behind(p)


def reading(*args, **kw):
    return worker("--ram", "64MiB", "--kv-dtype", "f16", *args, env=F32, **kw)


def full():
    """The answer where no record is used; the ids are those that records would have."""
    with reading() as p:
        answer, sources = asked(p)
        assert set(sources) == {"computed"}
        return answer


def found(p, tier, want):
    """Is all read from there, to the answer of then?"""
    answer, sources = asked(p)
    return set(sources) == {tier} and alike(answer, want)


def passed_over(p, exact):
    """As if nothing were there, and new records take its place."""
    answer, sources = asked(p)
    assert set(sources) == {"computed"} and alike(answer, exact), (answer, sources)
    built(p)
    assert set(asked(p)[1]) == {"ram"}


# ---- NVMe ----

@contextlib.contextmanager
def on_file(data):
    """A worker on a file with these bytes; its path."""
    with Folder() as d:
        path = pathlib.Path(d.path, "tier")
        path.write_bytes(data)
        with reading("--nvme", d.nvme(NVME)) as p:
            yield p, path


def heads(data):
    """Where records begin; a page of the slot's own stands in front."""
    return [m.start() for m in re.finditer(rb"KVBREC\r\n", bytes(data)) if m.start() % PAGE == 0]


def with_super(data, version):
    b = bytearray(data)
    for at in (0, SUPER_BYTES):
        if b[at:at + 8] == b"KVBNVME\n":
            struct.pack_into("<I", b, at + 8, version)
    return bytes(b)


def with_slots(data, version):
    b = bytearray(data)
    for at in (x - PAGE for x in heads(b)):
        struct.pack_into("<I", b, at + 8, version)
        struct.pack_into("<Q", b, at + 128, sum_of(b[at:at + 128]))
    return bytes(b)


def with_records(data, version):
    b = bytearray(data)
    for at in heads(b):
        struct.pack_into("<I", b, at + 8, version)
    return bytes(b)


def test_nvme_files_of_releases_are_read():
    exact = full()
    for w in releases():
        data = w.bytes("nvme.gz")
        with on_file(data) as (p, path):
            if w.of_today("nvme", "record"):
                assert found(p, "nvme", w.about["answer"]), (w.folder, asked(p), w.about["answer"])
                assert store(p)["misses"]["stale"] == 0 and p.metric("kvblend_builds_total") == 0
            else:
                passed_over(p, exact)
            p.stop()
            if not w.of_today("nvme"):
                assert path.read_bytes() == data, "a file of another version stays"


def test_nvme_files_of_other_versions_stay_and_are_told_of():
    exact, data = full(), releases()[-1].bytes("nvme.gz")
    for version in (NOW["nvme"] - 1, NOW["nvme"] + 1):
        other = with_super(data, version)
        with on_file(other) as (p, path):
            assert re.search(rf'warn .*tier name=nvme state=off .*{path} is of another version: remove it', p.log()), p.log()
            passed_over(p, exact)
            assert p.stop() == 0
            assert path.read_bytes() == other


def test_slots_and_records_of_other_versions_are_misses():
    exact, data = full(), releases()[-1].bytes("nvme.gz")
    for d in (-1, 1):
        with on_file(with_slots(data, NOW["nvme"] + d)) as (p, _):
            assert tier_value(p, "records", "nvme") == 0
            passed_over(p, exact)
        with on_file(with_records(data, NOW["record"] + d)) as (p, _):
            passed_over(p, exact)
            assert store(p)["misses"]["stale"] == 2, store(p)["misses"]


def exchange(v, dtype):
    """V of the second half of the tokens first: another order of what stands in a group."""
    v[:] = v[len(v) // 2:] + v[:len(v) // 2]


def test_a_layout_that_changes_without_its_version_is_noticed():
    """The test of this test: sums agree, numbers stay, and what stands where does not."""
    want, data = releases()[-1].about["answer"], releases()[-1].bytes("nvme.gz")
    with Folder() as d:
        path = pathlib.Path(d.path, "tier")
        path.write_bytes(data)
        assert forge_file(path, exchange) == 2
        with reading("--nvme", d.nvme(NVME)) as p:
            answer, sources = asked(p)
            assert set(sources) == {"nvme"} and not alike(answer, want), (answer, want)
    moved = bytearray(data)
    for at in (x - PAGE for x in heads(moved)):  # a slot's generation and key in another order
        moved[at + 24:at + 48] = moved[at + 32:at + 48] + moved[at + 24:at + 32]
        struct.pack_into("<Q", moved, at + 128, sum_of(moved[at:at + 128]))
    with on_file(bytes(moved)) as (p, _):
        assert not found(p, "nvme", want)


# ---- Redis ----

def hashes(server):
    """{key: {field: value}} of all that is there."""
    redis = Hashes(server)
    out = {}
    for key in redis("KEYS", "*"):
        flat = redis("HGETALL", key)
        out[key] = dict(zip(flat[::2], flat[1::2]))
    redis.f.close()
    redis.s.close()
    return out


def put_hashes(server, of):
    redis = Hashes(server)
    for key, fields in of.items():
        redis("HSET", key, *(x for kv in fields.items() for x in kv))
    redis.f.close()
    redis.s.close()


def unpacked(data):
    return {k.encode(): {f.encode(): base64.b64decode(v) for f, v in h.items()} for k, h in json.loads(data).items()}


@contextlib.contextmanager
def on_redis(of):
    with Redis() as r:
        put_hashes(r, of)
        with reading("--redis", r.url) as p:
            yield p, r


def with_frame(head, version):
    b = bytearray(head)
    struct.pack_into("<I", b, 8, version)
    struct.pack_into("<Q", b, 56, sum_of(b[:56]))
    return bytes(b)


def with_record(head, version):
    b = bytearray(head)
    assert b[64:72] == b"KVBREC\r\n" and u32(b, 72) == NOW["record"]
    struct.pack_into("<I", b, 72, version)
    return bytes(b)


def test_records_of_releases_in_redis_are_read():
    exact = full()
    for w in releases():
        of = unpacked(w.bytes("redis.json.gz"))
        with on_redis(of) as (p, r):
            if w.of_today("redis", "record"):
                assert found(p, "redis", w.about["answer"]), (w.folder, asked(p))
                assert p.metric("kvblend_builds_total") == 0
            else:
                passed_over(p, exact)
                left = hashes(r)
                assert all(left.get(k) == h for k, h in of.items()), "workers of that version still use them"


def test_records_of_other_versions_in_redis_are_misses():
    exact, of = full(), unpacked(releases()[-1].bytes("redis.json.gz"))
    for change in (lambda h: with_frame(h, NOW["redis"] + 1), lambda h: with_frame(h, NOW["redis"] - 1),
                   lambda h: with_record(h, NOW["record"] + 1), lambda h: with_record(h, NOW["record"] - 1)):
        with on_redis({k: {**h, b"h": change(h[b"h"])} for k, h in of.items()}) as (p, _):
            passed_over(p, exact)


# ---- what a gateway has learned ----

def learned_of(data, fmt, version):
    """The same of another version, its sum made to agree."""
    b = bytearray(data)
    if fmt == "memory":
        b[7] = version
    else:
        struct.pack_into("<I", b, 8, version)
    struct.pack_into("<Q", b, len(b) - 8, sum_of(b[:-8]))
    return bytes(b)


def test_learned_boundaries_of_releases_are_read():
    """Those of another version stay beside the new ones."""
    with Folder() as d, Recorded() as up:
        memory, old = pathlib.Path(d.path, "memory"), pathlib.Path(d.path, "memory.old")

        def read(data, known):
            old.unlink(missing_ok=True)
            memory.write_bytes(data)
            with proxy([up.entry(ANY + " lmcache=true")], "--segment-memory", str(memory)) as g:
                assert cuts_of(g, up, ORDERS[9]) == known
                assert (f"of another version, now {old}" in g.log()) == (not known), g.log()
            assert known or old.read_bytes() == data
        for w in releases():
            read(w.bytes("segment.memory"), w.of_today("memory", "prints"))
        for fmt in ("memory", "prints"):
            for version in (NOW[fmt] - 1, NOW[fmt] + 1):
                read(learned_of(releases()[-1].bytes("segment.memory"), fmt, version), False)


# ---- profiles, and what was measured at a start ----

def test_profiles_of_releases_are_read():
    with Folder() as d:
        path = pathlib.Path(d.path, "profile.json")
        for w in releases():
            path.write_bytes(w.bytes("profile.json"))
            with reading("--profile", str(path), ready=w.of_today("profile")) as p:
                if not w.of_today("profile"):
                    assert p.proc.wait(60) != 0 and str(path) in p.log(), p.log()
                    continue
                shown = p.get("/admin/profile").json()
                fingerprint = shown["fingerprint"]
                assert {k: shown["profile"][k] for k in PROFILE} == PROFILE, shown
        for version in (NOW["profile"] - 1, NOW["profile"] + 1):
            text = json.dumps(dict(PROFILE, version=version))
            path.write_text(text)
            with reading("--profile", str(path), ready=False) as p:
                assert p.proc.wait(60) != 0 and re.search(r'profile\.json: "version"', p.log()), p.log()
            cached = pathlib.Path(d.path, "kvblend", "profiles", fingerprint + ".json")
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.write_text(text)
            with worker(env=dict(F32, XDG_CACHE_HOME=d.path)) as p:
                assert p.get("/admin/profile").json()["source"] == "default" and re.search('state=refused .*"version', p.log()), p.log()
                assert cached.read_text() == text


def measured(d):
    """Starts a worker that measures; the files that it leaves, and whether it took what was there."""
    with worker(env={"XDG_CACHE_HOME": d.path, "KVBLEND_WORKER_STRATEGY": "auto", "KVBLEND_GEMM": ""}) as p:
        source = re.search(r"calibration source=(\w+)", p.log()).group(1)
    return {x.name.split("-")[0]: x for x in pathlib.Path(d.path, "kvblend").glob("*-*.txt")}, source


def test_measured_files_of_releases_are_read():
    """The first line, the key, is the machine's; the others are the release's."""
    with Folder() as d:
        files, source = measured(d)
        assert source == "measured" and set(files) == {"cost", "gemm"}, (files, source)
        key = {name: path.read_text().split("\n", 1)[0] + "\n" for name, path in files.items()}
        for w in releases():
            lines = {name: w.bytes(name + ".txt").decode() for name in files}
            text = {name: key[name].replace(f"v{NOW[name]} ", f"v{w.about['versions'][name]} ") + lines[name] for name in files}
            for name, path in files.items():
                path.write_text(text[name])
            _, source = measured(d)
            for name, path in files.items():
                assert (path.read_text() == text[name]) == w.of_today(name), (name, path.read_text())
            assert (source == "cache") == w.of_today("cost"), source
        for name, path in files.items():
            path.write_text(key[name].replace(f"v{NOW[name]} ", f"v{NOW[name] + 1} ") + lines[name])
        _, source = measured(d)
        assert source == "measured"
        assert all(path.read_text().startswith(key[name]) for name, path in files.items())


# ---- logs and configurations ----

def test_access_logs_of_releases_are_counted():
    for w in releases():
        r = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "hit-rates"), str(w.folder / "access.jsonl"), "inf"],
                           capture_output=True, text=True, timeout=60)
        assert r.returncode == 0 and r.stdout == w.about["hit_rates"], (r.stdout, r.stderr)


def test_configurations_of_releases_are_read_or_say_what_to_write():
    """Each key that is gone is named with its line and with what there is in its place."""
    for path in sorted(DATA.glob("*/kvblend.yaml")):
        text = path.read_text()
        r = subprocess.run([KVBLEND, "--check", "--config", str(path)], capture_output=True, text=True, timeout=60, env=clean_env())
        told = r.stderr.splitlines()
        assert r.returncode == (2 if told else 0), (path, r)
        for line in told:
            m = re.fullmatch(re.escape(str(path)) + r":(\d+): (?:\w+\.)?(\w+)\b.* was removed; (.{10,})", line)
            assert m and m.group(2) in text.split("\n")[int(m.group(1)) - 1], line
        assert path.read_text() == text


# ---- making them ----

def write():
    folder = DATA / release()
    folder.mkdir(exist_ok=True)
    about = {"versions": NOW}
    with Folder() as d, Redis() as r:
        log = os.path.join(d.path, "log")
        with reading("--nvme", d.nvme(NVME), "--redis", r.url) as p:
            built(p)
            about["answer"], sources = asked(p)
            assert set(sources) == {"ram"}
            p.stop()
        (folder / "nvme.gz").write_bytes(gzip.compress(pathlib.Path(d.path, "tier").read_bytes(), mtime=0))
        of = {k.decode(): {f.decode(): base64.b64encode(v).decode() for f, v in h.items()} for k, h in hashes(r).items()}
        (folder / "redis.json.gz").write_bytes(gzip.compress(json.dumps(of, sort_keys=True).encode(), mtime=0))
        with reading("--access-log", log) as p:
            built(p)
            for _ in range(2):
                asked(p)
            p.stop()
        shutil.copy(log, folder / "access.jsonl")
        files, _ = measured(d)
        for name, path in files.items():
            (folder / (name + ".txt")).write_text(path.read_text().split("\n", 1)[1])
    with Folder() as d, Recorded() as up:
        memory = os.path.join(d.path, "memory")
        with proxy([up.entry(ANY + " lmcache=true")], "--segment-memory", memory) as g:
            for o in ORDERS[:9]:
                cuts_of(g, up, o)
            assert g.stop() == 0
        shutil.copy(memory, folder / "segment.memory")
    with Folder() as d:
        path = pathlib.Path(d.path, "profile.json")
        path.write_text(json.dumps(PROFILE))
        with reading("--profile", str(path)) as p:  # shows it as calibrate writes it
            (folder / "profile.json").write_text(json.dumps(p.get("/admin/profile").json()["profile"], indent=1) + "\n")
    about["hit_rates"] = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "hit-rates"), str(folder / "access.jsonl"), "inf"],
                                        check=True, capture_output=True, text=True).stdout
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    if os.environ.get("KVBLEND_WRITE"):
        write()
    else:
        main(globals())
