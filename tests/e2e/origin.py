#!/usr/bin/env python3
"""A fast, plain OpenAI-compatible server in a process of its own, for tests with many connections.

`origin.py [PORT]` prints "port N" and serves until its standard input ends. What it does with a request is
said by the body's field "origin", {"kind": …}:
  answer   "bytes" of JSON with Content-Length (default 200), with the request body's length in it
  stream   "n" events, "every_s" between them, [DONE]
  hold     one event, then silence until the command `event`
  flood    a stream of "bytes" as fast as the peer takes it, [DONE]
  stall    no byte ever
  die      half of an answer, then a reset; "sse": half of a stream
Commands, one a line: `event` sends an event to all held streams and prints their number, `count` prints the
number of open connections, `stop` ends held streams with [DONE].
"""
import asyncio
import json
import socket
import struct
import sys

FLOOD = b"data: " + json.dumps({"choices": [{"delta": {"content": "x" * 1000}}]}).encode() + b"\n\n"


def event(text):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Conn(asyncio.Protocol):
    all, held = set(), set()

    def __init__(self):
        self.data, self.task, self.room = bytearray(), None, asyncio.Event()

    def connection_made(self, transport):
        self.out = transport
        self.room.set()
        Conn.all.add(self)

    def connection_lost(self, exc):
        Conn.all.discard(self)
        Conn.held.discard(self)
        if self.task:
            self.task.cancel()

    def pause_writing(self):
        self.room.clear()

    def resume_writing(self):
        self.room.set()

    def data_received(self, data):
        self.data += data
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.data[:end]).decode("latin-1").split("\r\n")
        length = next((int(x[15:]) for x in head if x.lower().startswith("content-length:")), 0)
        if len(self.data) < end + 4 + length:
            return
        body = bytes(self.data[end + 4:end + 4 + length])
        del self.data[:end + 4 + length]
        self.request(head[0].split(" ")[:2], body)

    def send(self, obj, pad=0):
        text = json.dumps(obj).encode()
        text += b" " * (pad - len(text))
        self.out.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
                       "\r\n\r\n".encode() + text)

    def sse(self):
        self.out.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                       b"Transfer-Encoding: chunked\r\n\r\n")

    def done(self):
        self.out.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def request(self, line, body):
        if line[0] == "GET":
            model = {"id": "m", "object": "model", "created": 1, "owned_by": "origin"}
            self.send({"object": "list", "data": [model]} if line[1].endswith("/models") else {"status": "ok"})
            return
        want = json.loads(body).get("origin", {})
        kind = want.get("kind", "answer")
        if kind == "answer":
            self.send({"object": "chat.completion", "received": len(body)}, want.get("bytes", 200))
        elif kind == "hold":
            self.sse()
            self.out.write(chunk(event("first")))
            Conn.held.add(self)
        elif kind == "die":
            self.die(want)
        elif kind in ("stream", "flood"):
            self.task = asyncio.ensure_future(getattr(self, kind)(want))

    def die(self, want):
        if want.get("sse"):
            self.sse()
            self.out.write(chunk(event("half")))
        else:
            self.out.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"half\":")
        asyncio.get_running_loop().call_later(0.01, self.reset)

    def reset(self):
        s = self.out.get_extra_info("socket")
        if s and s.fileno() >= 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.out.abort()

    async def stream(self, want):
        self.sse()
        for i in range(want.get("n", 5)):
            await asyncio.sleep(want.get("every_s", 0))
            self.out.write(chunk(event(f"t{i}")))
        self.done()

    async def flood(self, want):
        self.sse()
        left = want["bytes"]
        while left > 0 and not self.out.is_closing():
            await self.room.wait()
            await asyncio.sleep(0)  # a set event does not yield
            self.out.write(chunk(FLOOD) * 16)
            left -= 16 * len(FLOOD)
        self.done()


async def commands(reader):
    while line := (await reader.readline()).decode().strip():
        if line in ("event", "stop"):
            held = list(Conn.held)
            for c in held:
                c.out.write(chunk(event("second"))) if line == "event" else c.done()
            if line == "stop":
                Conn.held.clear()
            print(len(held), flush=True)
        elif line == "count":
            print(len(Conn.all), flush=True)


async def main():
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    await loop.create_server(Conn, sock=s, backlog=4096)
    print("port", s.getsockname()[1], flush=True)
    await commands(reader)


if __name__ == "__main__":
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main())
