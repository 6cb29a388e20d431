#!/usr/bin/env python3
"""KV events (GET /admin/events/kv): what other routers learn of residency, in vLLM's form; resumed, bounded, closed."""
import json
import shutil
import socket
import tempfile

from harness import (ADMIN, DEADLINE_S, KVBLEND, WORKER, Program, document, gateway, main, need, tiny_model, until,
                     unix_request, worker_listening)

need(KVBLEND, WORKER)
PATH = "/admin/events/kv"
STORED = {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "namespace"}


def worker(*args, env=None):
    return worker_listening(Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", "--namespace",
                                     "*=contexts:off", *ADMIN, *args], env))


def warm(p, numbers, **headers):
    """Their ids, by number."""
    r = p.post("/v1/segments", {"texts": [document(i) for i in numbers]}, headers=headers)
    assert r.status == 200, r.body
    return {i: x["id"] for i, x in zip(numbers, r.json()["data"])}


class Reader:
    """A router: keeps what it is told of, {(id, medium): block}."""

    def __init__(self, p, last=None, path=None):
        if path:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(DEADLINE_S)
            self.sock.connect(path)
            self.sock.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        else:
            self.sock = p.open(PATH, b"", method="GET", headers=f"Last-Event-ID: {last}\r\n" if last else "")
        self.data, self.held, self.last, self.events, self.ended = b"", {}, None, [], False
        self.chunked = None

    def more(self):
        """Take what has come."""
        self.sock.settimeout(0.05)
        try:
            got = self.sock.recv(1 << 20)
            self.ended |= not got
            self.data += got
        except TimeoutError:
            pass
        except ConnectionResetError:
            self.ended = True
        *whole, self.data = self.data.split(b"\n\n")
        for block in whole:
            lines = block.replace(b"\r\n", b"\n").split(b"\n")
            for line in lines:
                if line.startswith(b"id: "):
                    self.last = line[4:].decode()
                if line.startswith(b"data: "):
                    self.take(json.loads(line[6:]))
        return self

    def take(self, batch):
        assert isinstance(batch["ts"], float), batch
        for e in batch["events"]:
            self.events.append(e)
            if e["type"] == "AllBlocksCleared":
                self.held.clear()
            elif e["type"] == "BlockStored":
                assert set(e) == STORED and e["token_ids"] == [] and e["block_size"] > 0, e
                for h in e["block_hashes"]:
                    self.held[h, e["medium"]] = e
            else:
                assert set(e) == {"type", "block_hashes", "medium"} and e["type"] == "BlockRemoved", e
                for h in e["block_hashes"]:
                    self.held.pop((h, e["medium"]), None)

    def knows(self, what, wanted):
        """Waits until it holds exactly these (id, medium)."""
        until(what, lambda: set(self.more().held) == set(wanted))
        return self

    def close(self):
        self.sock.close()


def test_what_comes_and_goes():
    with worker() as p:
        first = warm(p, range(3))
        r = Reader(p).knows("what was there before", {(x, "CPU") for x in first.values()})
        assert r.events[0] == {"type": "AllBlocksCleared"}
        sizes = {x["id"]: x["tokens"] for x in p.get("/admin/chunks").json()["data"]}
        assert all(e["block_size"] == sizes[h] for (h, _), e in r.held.items())
        until("its place", lambda: r.more().last)
        place = r.last
        with_name = warm(p, [3], **{"X-KVBlend-Namespace": "acme"})
        now = {(x, "CPU") for x in (*first.values(), *with_name.values())}
        r.knows("what is new", now)
        assert r.held[with_name[3], "CPU"]["namespace"] == "acme" and r.held[first[0], "CPU"]["namespace"] == "/"
        assert p.request("DELETE", f"/v1/segments/{first[0]}").status in (200, 204)
        left = now - {(first[0], "CPU")}
        r.knows("what has gone", left)
        other = Reader(p, last=place)  # missed both
        until("what it missed", lambda: len(other.more().events) >= 2)
        kinds = [(e["type"], e["block_hashes"]) for e in other.events]
        assert kinds == [("BlockStored", [with_name[3]]), ("BlockRemoved", [first[0]])], kinds
        assert other.last == r.last
        for strange in ("nonsense", place + "9" * 12, "ab-1", "-", place.split("-")[0] + "--1"):
            again = Reader(p, last=strange).knows("all of it: " + strange, left)
            assert again.events[0] == {"type": "AllBlocksCleared"}
            again.close()
        r.close(), other.close()
        assert not any(document(i)[:12] in json.dumps(r.events) for i in range(4)), "a text"


def test_tiers_are_media():
    folder = tempfile.mkdtemp(prefix="kvb-events-")
    try:
        with worker("--ram", "4MiB", "--nvme", folder + "/tier:64MiB") as p:
            def kept(i):
                """Its id, once a copy of it is on NVMe: RAM may drop what nobody has written yet."""
                got = warm(p, [i])
                until("it is written", lambda: p.metric('kvblend_tier_write_total{tier="nvme"}') == i + 1)
                return got

            ids = {}
            for i in range(16):  # more than RAM has room for
                ids.update(kept(i))
            r = Reader(p)
            until("both media", lambda: {m for _, m in r.more().held} == {"CPU", "NVME"})
            until("each somewhere", lambda: {h for h, _ in r.more().held} == set(ids.values()))
            more = [kept(i)[i] for i in range(16, 24)]
            until("others too", lambda: set(more) <= {h for h, _ in r.more().held})
            moved = [e for e in r.events if e["type"] == "BlockRemoved" and e["medium"] == "CPU"]
            assert moved, "none made room"
            r.close()
    finally:
        shutil.rmtree(folder)


def test_who_takes_nothing_is_cut_off():
    """On a unix socket, whose buffer is small: TCP's takes megabytes before anybody is slow."""
    with Program([WORKER, "--model", tiny_model(), "--listen", "unix:{dir}/w", "--ram", "64MiB"]) as p:
        path, n = p.dir + "/w", 0
        until("it listens", lambda: "kvblend-worker listening" in p.log())
        until("it is ready", lambda: unix_request(path, "GET", "/ready").status == 200)
        deaf, r = (Reader(p, path=path) for _ in range(2))
        until("it is told", lambda: r.more().last)

        def cut():
            nonlocal n
            n += 200
            texts = [" ".join(f"note{(i * 31 + k * k) % 613}" for k in range(4)) + f" {i}" for i in range(n - 200, n)]
            assert unix_request(path, "POST", "/v1/segments", {"texts": texts}).status == 200
            r.more()
            return b"kvblend_event_readers_cut_total 1\n" in unix_request(path, "GET", "/metrics").body
        until("the deaf one is cut off", cut)
        held = {x["id"] for x in unix_request(path, "GET", "/admin/chunks?limit=1000").json()["data"]}
        until("the other knows all", lambda: held <= {h for h, _ in r.more().held})
        until("it sees its end", lambda: deaf.more().ended)
        deaf.close(), r.close()


def test_many_readers_and_no_more():
    with worker() as p:
        readers = [Reader(p) for _ in range(16)]
        until("they are told", lambda: all(r.more().last for r in readers))
        assert p.get(PATH).status == 429
        gone = readers.pop()
        ids = warm(p, range(8))
        for r in readers:
            r.knows("what is new", {(x, "CPU") for x in ids.values()})
        gone.close()
        extra = []

        def let_in():
            extra.append(Reader(p))
            until("an answer", lambda: extra[-1].more().last or b"429" in extra[-1].data)
            return extra[-1].last
        until("the place is free", let_in)
        assert p.request("HEAD", PATH).status == 200
        for r in readers + extra:
            r.close()


def test_the_end_of_the_worker_ends_streams():
    with worker() as p:
        r = Reader(p)
        until("it is told", lambda: r.more().last)
        assert p.stop() == 0
        until("the end", lambda: r.more().ended)


def test_closed_by_default():
    """On TCP only where an operator asked for admin routes, and with the key; on a gateway at its admin address."""
    with worker_listening(Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", "--api-key", "sesame"])) as p:
        assert p.get(PATH, headers={"Authorization": "Bearer sesame"}).status == 403
    with worker() as p:
        assert p.get(PATH, headers={"Authorization": "Bearer wrong"}).status == 401
    with gateway() as g:
        assert g.get(PATH).status == 404
        ids = warm(g, range(2))
        r = Reader(g, path=g.admin[5:]).knows("by the gateway", {(x, "CPU") for x in ids.values()})
        assert g.stop() == 0
        until("the end", lambda: r.more().ended)


if __name__ == "__main__":
    main(globals())
