#!/usr/bin/env python3
"""A host that vanishes without a word: no reset, no end, only packets that do not arrive. Wants root (network.py)."""
import os
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import network  # noqa: E402
from harness import KVBLEND, Missing, Program, listening, main, need, parse_events, read_until, skip, until  # noqa: E402
from upstream import Upstream  # noqa: E402

CHAT = "/v1/chat/completions"
GONE_S = 20  # PEER_GONE_MS of base/net/http_exchange.c; timeouts.first_byte is 600 s, timeouts.idle 180 s


def ask(model="both", **kw):
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], **kw}


class Asked(threading.Thread):
    """A request that somebody waits for."""

    def __init__(self, g, body):
        super().__init__(daemon=True)
        self.g, self.body, self.reply = g, body, None
        self.start()

    def run(self):
        self.reply = self.g.post(CHAT, self.body, timeout=120)


def upstream(name, host):
    with host.inside():
        return Upstream(name, sock=socket.create_server((host.address, 0)))


def started(far, near, host):
    args = ["--listen", f"{host.address}:0", "--api-key", "sesame", "--client-timeout", "4s", "--upstream",
            far.entry("models=both health=off priority=0"), "--upstream", near.entry("models=* health=off priority=1")]
    g = Program(host.prefix + [KVBLEND] + args)
    g.host, g.key = host.address, "sesame"
    return listening(g, ready=False)


def test_a_vanished_host():
    net = network.Network(3)
    here, there, elsewhere = net.hosts
    with upstream("far", there) as far, upstream("near", elsewhere) as near, started(far, near, here) as g:
        assert g.post(CHAT, ask()).status == 200 and len(far.requests) == 1
        far.script = {"n": 2, "stop_at": 600, "end": "hold"}
        stream = g.open(CHAT, ask(stream=True))
        begun = read_until(stream, b"w0")
        far.script = {"wait_s": 3600}
        waits = Asked(g, ask())
        until("both are there", lambda: len(far.requests) == 3)
        far.script = {}
        assert g.post(CHAT, ask()).status == 200 and len(far.requests) == 4  # its connection is kept
        slow = Asked(g, ask("slow", script={"wait_s": GONE_S + 5}))
        with there.inside():
            leaver = g.open(CHAT, ask("slow", stream=True, script={"token_s": 0.1, "n": 36000}))
        read_until(leaver, b"w0")
        leaves = next(r for r in near.requests if r.json().get("stream"))  # `slow` asks meanwhile
        net.cut(here, there)
        sent = Asked(g, ask())
        until("a client that vanished is left", lambda: leaves.left_at)
        for asked in (waits, sent):
            until("another upstream answered", lambda: asked.reply)
            assert asked.reply.status == 200, asked.reply.body
        assert len(far.requests) == 4 and len(near.requests) == 4, "each once"
        events = parse_events(begun + read_until(stream, b"[DONE]"))
        assert b"error" in events[-2] and events[-1] == b"[DONE]", events
        until("who is only slow is waited for", lambda: slow.reply)
        assert slow.reply.status == 200, slow.reply.body
        stream.close()
        leaver.close()


if __name__ == "__main__":
    need(KVBLEND)
    try:
        network.enter()
    except Missing as e:
        skip(e)
    main(dict(globals()))
