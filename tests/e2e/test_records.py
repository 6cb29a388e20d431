#!/usr/bin/env python3
"""Records that somebody else wrote to the NVMe file or to Redis: summed anew, or no numbers at all.

Who may write there can make every checksum agree. With a secret such a record is a miss; what is
no number is one always. The answer is then that of a full prefill, never another one and never a
500. Offsets are those of tiers/record.h, nvme_int.h and redis_frame.h.
"""
import ctypes
import re
import socket
import struct

from harness import main
from test_tiers import (Folder, Redis, ask, build, parts, same, sources, store,
                        tier_value, worker, written_behind)

TABLE, ENTRY, PAGE = 144, 40, 4096
NAN = struct.pack("<f", float("nan"))
HASH = ctypes.CDLL("libxxhash.so.0")
HASH.XXH3_64bits.restype = HASH.XXH3_64bits_withSeed.restype = ctypes.c_uint64


def sum_of(data, seed=None):
    data = bytes(data)
    if seed is None:
        return HASH.XXH3_64bits(data, ctypes.c_size_t(len(data)))
    return HASH.XXH3_64bits_withSeed(data, ctypes.c_size_t(len(data)), ctypes.c_uint64(seed))


def u32(b, at):
    return struct.unpack_from("<I", b, at)[0]


def u64(b, at):
    return struct.unpack_from("<Q", b, at)[0]


def size_of(b, at=0):
    return u64(b, at + 16)


def negate(v, dtype):
    """V of a layer against its sign; f32, f16 and bf16 keep it in a value's last byte."""
    step = 4 if dtype == 1 else 2
    v[step - 1::step] = bytes(x ^ 0x80 for x in v[step - 1::step])


def poison(v, dtype):
    """One value that is none."""
    v[:4] = NAN if dtype == 1 else b"\xff\x7f\xff\x7f"


def forge(b, change):
    """A whole record in place: V of each layer changed, and all sums made to agree."""
    assert b[:8] == b"KVBREC\r\n" and u32(b, 8) == 4
    dtype = u32(b, 56) >> 16
    assert dtype in (1, 2, 3)
    for g in range(u32(b, 80)):
        entry = TABLE + g * ENTRY
        at, n = u64(b, entry), u64(b, entry + 8)
        v = b[at + n // 2:at + n]
        change(v, dtype)
        b[at + n // 2:at + n] = v
        struct.pack_into("<Q", b, entry + 16, sum_of(b[at:at + n]))
    end = u32(b, 12)
    struct.pack_into("<Q", b, 120, sum_of(b[128:end], sum_of(b[:120])))


def forge_file(path, change):
    """Every record of an NVMe file that nobody has open."""
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        n = 0
        for m in re.finditer(rb"KVBREC\r\n", bytes(data)):
            at = m.start()
            if at % PAGE:
                continue
            b = data[at:at + size_of(data, at)]
            forge(b, change)
            data[at:at + len(b)] = b
            slot = at - PAGE
            data[slot + 96:slot + 104] = b[120:128]
            struct.pack_into("<Q", data, slot + 128, sum_of(data[slot:slot + 128]))
            n += 1
        f.seek(0)
        f.write(data)
    return n


class Hashes:
    """Enough of a Redis client: commands of bytes, replies as they come."""

    def __init__(self, server):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.connect(server.path)
        self.f = self.s.makefile("rb")

    def __call__(self, *args):
        args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
        self.s.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a)
                                                        for a in args))
        return self.reply()

    def reply(self):
        line = self.f.readline().rstrip()
        if line[:1] == b"$":
            return self.f.read(int(line[1:]) + 2)[:-2]
        if line[:1] == b"*":
            return [self.reply() for _ in range(int(line[1:]))]
        assert line[:1] != b"-", line
        return line[1:]


def forge_redis(server, change):
    """Every record of a server: header, then each part without its tail, tails behind the header."""
    ask_redis = Hashes(server)
    n = 0
    for key in ask_redis("KEYS", "kvblend:1:*"):
        flat = ask_redis("HGETALL", key)
        field = dict(zip(flat[::2], flat[1::2]))
        head = field[b"h"]
        front, tails = u32(head, 40), bytearray(head[64 + u32(head, 40):])
        names = sorted((k for k in field if b":" in k), key=lambda k: int(k.split(b":")[1]))
        record, cut = bytearray(head[64:64 + front]), []
        for i, name in enumerate(names):
            tail = tails[128 * i:128 * (i + 1)]
            record += field[name] + tail
            cut.append((name, len(field[name]), len(tail)))
        assert len(record) == size_of(record)
        forge(record, change)
        at, tails = front, b""
        for name, size, tail in cut:
            ask_redis("HSET", key, name, bytes(record[at:at + size]))
            tails += record[at + size:at + size + tail]
            at += size + tail
        ask_redis("HSET", key, b"h", head[:64] + bytes(record[:front]) + tails)
        n += 1
    ask_redis.f.close()
    ask_redis.s.close()
    return n


BODY = parts([0, 1, 2])


def exact():
    with worker("--ram", "64MiB") as p:
        return ask(p, parts([0, 1, 2], mode="full"))


def asked_again(p, want, dropped):
    """Exactly computed, at once and from then on: the records were dropped, and are built anew."""
    a = ask(p, BODY)
    assert set(sources(a)) == {"computed"}, a["kvblend"]
    same(a, want)
    assert dropped() >= 3, store(p)
    same(ask(p, parts([0, 1, 2], mode="full")), want)
    build(p, [0, 1, 2])
    written_behind(p)
    assert set(sources(ask(p, BODY))) == {"ram"}


def through_nvme(change, how_many, *args):
    want = exact()
    with Folder() as d:
        with worker("--ram", "64MiB", "--nvme", d.nvme(), *args) as p:
            build(p, [0, 1, 2])
            written_behind(p)
            assert tier_value(p, "records", "nvme") == 3
        assert forge_file(d.path + "/tier", change) == 3
        with worker("--ram", "64MiB", "--nvme", d.nvme(), *args) as p:
            assert tier_value(p, "records", "nvme") == 3
            asked_again(p, want, lambda: how_many(p))


def through_redis(change, how_many, *args):
    want = exact()
    with Redis() as r:
        with worker("--ram", "64MiB", "--redis", r.url, *args) as p:
            build(p, [0, 1, 2])
            written_behind(p)
        assert forge_redis(r, change) == 3
        with worker("--ram", "64MiB", "--redis", r.url, *args) as p:
            asked_again(p, want, lambda: how_many(p))


def forged(p):
    return store(p)["misses"]["forged"]


def corrupt(p):
    return store(p)["corrupt"]


SECRET = ("--secret", "correct horse battery staple")


def test_rewritten_records_on_nvme_are_no_answer():
    through_nvme(negate, forged, *SECRET)


def test_rewritten_records_in_redis_are_no_answer():
    through_redis(negate, forged, *SECRET)


def test_no_numbers_on_nvme_are_no_answer():
    through_nvme(poison, corrupt)


def test_no_numbers_in_redis_are_no_answer():
    through_redis(poison, corrupt)


def test_without_a_secret_rewritten_records_are_believed():
    """What docs/tiers.md says of installations without one."""
    want = exact()
    with Folder() as d:
        with worker("--ram", "64MiB", "--nvme", d.nvme()) as p:
            build(p, [0, 1, 2])
            written_behind(p)
        assert forge_file(d.path + "/tier", negate) == 3
        with worker("--ram", "64MiB", "--nvme", d.nvme()) as p:
            a = ask(p, BODY)
            assert set(sources(a)) == {"nvme"}, a["kvblend"]
            assert a["choices"] != want["choices"]


if __name__ == "__main__":
    main(globals())
