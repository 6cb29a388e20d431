"""A scripted OpenAI-compatible upstream: runs in a thread of the test, records, misbehaves on demand.

It answers like a small OpenAI server until a script says otherwise. A script is a dict (fields: see
SCRIPT); the one used is, in this order: the request's header `x-script` (JSON), its body's field
`script`, the next one of `upstream.plan` (a list, used up), `upstream.script`. Health checks and model
lists follow `upstream.healthy` (true, false, or a status) and `upstream.models` only, so that a script
meets no probe by chance.

Every request is kept as it came (`upstream.requests`: head, wire, body); what is no well-formed
request goes to `upstream.malformed`. When the other side leaves before the answer is complete,
`request.left_at` is that moment (time.monotonic).
"""
import asyncio
import gzip
import json
import socket
import ssl
import struct
import threading
import time

SCRIPT = {
    "wait_s": 0,        # before the first byte
    "early": None,      # an interim status first: 100, 102, 103
    "status": 200,
    "headers": {},      # further headers; a list of pairs keeps order and repeats
    "body_wait_s": 0,   # between head and body
    "body": None,       # the whole body instead of the usual one: text, or bytes from Python
    "repeat": 1,        # the body so many times over
    "type": None,       # its Content-Type
    "gzip": False,
    "framing": None,    # length, chunked or close; default: chunked for streams, else length
    "n": None,          # events of a stream, words of an answer; default: as the request limits it, or 4
    "token_s": 0,       # before each event
    "pad": 0,           # bytes added to each event
    "split": 0,         # bytes a write at most, one TCP segment each
    "done": True,       # [DONE] at the end of a stream
    "stop_at": None,    # bytes of the body that are sent before `end`
    "end": None,        # then: "close", "reset", "hold" (silence); before the head with stop_at -1
    "close": None,      # after a whole answer: "announce" (Connection: close), "silent", "reset"
    "raw": None,        # these bytes instead of an answer (latin-1), then `end` (default close)
}


def to_bytes(x):
    return x if isinstance(x, bytes) else x.encode("latin-1")


class Malformed(Exception):
    pass


class Request:
    """One request as it was received."""

    def __init__(self, conn, head):
        self.link, self.conn, self.head, self.t = conn, conn.number, head, time.monotonic()
        self.wire = self.body = b""
        self.left_at = self.done_at = None
        lines = head[:-4].split(b"\r\n")
        if any(b"\n" in x or b"\r" in x or b"\0" in x for x in lines):
            raise Malformed("bare CR, LF or NUL")
        parts = lines[0].decode("latin-1").split(" ")
        if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0") or parts[1][:1] != "/":
            raise Malformed(f"request line {lines[0]!r}")
        self.method, self.target, self.version = parts
        self.headers = []
        for line in lines[1:]:
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon or not name or name != name.strip():
                raise Malformed(f"header line {line!r}")
            self.headers.append((name, value.strip()))
        if len(self.all("content-length")) + len(self.all("transfer-encoding")) > 1:
            raise Malformed("ambiguous framing")
        if len(self.all("host")) != 1:
            raise Malformed("not one Host")

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name]

    def header(self, name, default=None):
        return next(iter(self.all(name)), default)

    @property
    def path(self):
        return self.target.split("?")[0]

    def json(self):
        return json.loads(self.body)


class Conn(asyncio.Protocol):
    def __init__(self, up):
        self.up, self.data, self.closed_at, self.current = up, b"", None, None
        self.more, self.gone, self.writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.writable.set()

    def connection_made(self, transport):
        self.transport = transport
        self.number = self.up.n_accepted
        self.up.n_accepted += 1
        self.up.conns.add(self)
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.task = asyncio.get_running_loop().create_task(self.run())

    def data_received(self, data):
        self.data += data
        self.more.set()

    def eof_received(self):
        self.left()

    def connection_lost(self, exc):
        self.left()
        self.up.conns.discard(self)

    def left(self):
        if self.closed_at is None:
            self.closed_at = time.monotonic()
            if self.current and self.current.done_at is None:
                self.current.left_at = self.closed_at
        self.more.set()
        self.gone.set()
        self.writable.set()

    def pause_writing(self):
        self.writable.clear()

    def resume_writing(self):
        self.writable.set()

    async def sleep(self, seconds):
        """Until the time is over; ConnectionError as soon as the other side leaves."""
        try:
            await asyncio.wait_for(self.gone.wait(), seconds)
        except asyncio.TimeoutError:
            return
        raise ConnectionError

    async def write(self, data):
        if self.gone.is_set():
            raise ConnectionError
        self.transport.write(data)
        await asyncio.sleep(0)  # to hear of the other side's end, however fast it takes the bytes
        await self.writable.wait()

    async def take(self, n=None, marker=None):
        """n bytes, or all up to the marker."""
        while True:
            at = self.data.find(marker) + len(marker) if marker and marker in self.data else n
            if at is not None and len(self.data) >= at:
                out, self.data = self.data[:at], self.data[at:]
                return out
            if self.gone.is_set():
                if marker and self.data:
                    self.up.malformed.append(self.data)
                raise ConnectionError
            self.more.clear()
            await self.more.wait()

    async def read_body(self, r):
        length = r.header("content-length")
        if length is not None:
            if not (length.isascii() and length.isdigit()):
                raise Malformed(f"Content-Length {length!r}")
            r.wire = r.body = await self.take(int(length))
        elif r.header("transfer-encoding") is not None:
            if r.header("transfer-encoding").lower() != "chunked":
                raise Malformed("transfer coding")
            while True:
                line = await self.take(marker=b"\r\n")
                size = int(line, 16)
                data = await self.take(size + 2)
                r.wire += line + data
                if data[-2:] != b"\r\n":
                    raise Malformed("chunk")
                r.body += data[:-2]
                if size == 0:
                    return

    async def run(self):
        try:
            while not self.gone.is_set():
                head = await self.take(marker=b"\r\n\r\n")
                try:
                    r = Request(self, head)
                    self.current = r
                    await self.read_body(r)
                except (Malformed, ValueError):
                    self.up.malformed.append(head)
                    break
                probe = self.up.is_probe(r)
                (self.up.probes if probe else self.up.requests).append(r)
                while probe and self.up.held:
                    await asyncio.sleep(0.01)
                if not await self.answer(r, self.up.probe_script(r) if probe
                                         else self.up.script_of(r)):
                    break
                self.current = None
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.transport.close()

    async def end(self, how):
        """Part from the other side the way the script says."""
        if how == "hold":
            await self.sleep(3600)
        if how == "reset":
            self.reset()
        return False

    def reset(self):
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    async def answer(self, r, s):
        """True: the connection may be used again."""
        if s["wait_s"]:
            await self.sleep(s["wait_s"])
        if s["raw"] is not None:
            await self.pieces(to_bytes(s["raw"]), s["split"])
            return await self.end(s["end"] or "close")
        if s["end"] and s["stop_at"] == -1:
            r.done_at = time.monotonic()
            return await self.end(s["end"])
        if s["early"]:
            await self.write(f"HTTP/1.1 {s['early']} Early\r\n\r\n".encode())
        stream, body, kind = self.up.content(r, s)
        framing = s["framing"] or ("chunked" if stream else "length")
        await self.write(self.head(s, kind, framing, body if not stream else b""))
        if s["body_wait_s"]:
            await self.sleep(s["body_wait_s"])
        if r.method != "HEAD" and s["status"] not in (204, 304):
            if not await self.send_body(stream, body, framing, s):
                return await self.end(s["end"])
        r.done_at = time.monotonic()
        if s["close"] == "reset":
            self.reset()
        return not s["close"] and framing != "close"

    def head(self, s, kind, framing, body):
        pairs = s["headers"].items() if isinstance(s["headers"], dict) else s["headers"]
        lines = [f"HTTP/1.1 {s['status']} Scripted"] + [f"{k}: {v}" for k, v in pairs]
        if kind:
            lines.append(f"Content-Type: {kind}")
        if s["gzip"]:
            lines.append("Content-Encoding: gzip")
        if framing == "length":
            lines.append(f"Content-Length: {len(body)}")
        elif framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        if framing == "close" or s["close"] == "announce":
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def send_body(self, stream, body, framing, s):
        """False: the script cut it off."""
        left = s["stop_at"] if s["end"] else None
        async for data in stream if stream else once(body):
            if left is not None and len(data) >= left:
                if framing == "chunked":  # a chunk that is announced whole
                    await self.write(b"%x\r\n" % len(data))
                await self.pieces(data[:left], s["split"])
                return False
            if left is not None:
                left -= len(data)
            if framing == "chunked" and data:
                data = b"%x\r\n" % len(data) + data + b"\r\n"
            await self.pieces(data, s["split"])
        if s["end"]:
            return False
        if framing == "chunked":
            await self.pieces(b"0\r\n\r\n", s["split"])
        return True

    async def pieces(self, data, size):
        for i in range(0, len(data), size) if size else ():
            await self.write(data[i:i + size])
        if not size:
            await self.write(data)


async def once(body):
    yield body


class Upstream:
    """Listens at once; `with` stops it at the end. tls: (certificate, key[, CA of the clients]); sock: listens there."""

    def __init__(self, name="up", models=("up-model",), tls=None, unix=None, sock=None, **script):
        self.name, self.models, self.unix, self.sock, self.healthy = name, list(models), unix, sock, True
        self.script, self.plan, self.held = dict(script), [], False  # held: probes wait
        self.requests, self.probes, self.malformed = [], [], []
        self.n_accepted, self.conns, self.port, self.context = 0, set(), 0, None
        if tls:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(*tls[:2])
            if len(tls) > 2:
                self.context.verify_mode = ssl.CERT_REQUIRED
                self.context.load_verify_locations(tls[2])
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = None
        self.listen()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def listen(self):
        """Also: once more, at the same address, after stop_listening()."""
        async def start():
            loop = asyncio.get_running_loop()
            if self.unix:
                return await loop.create_unix_server(lambda: Conn(self), self.unix)
            if self.sock:
                return await loop.create_server(lambda: Conn(self), sock=self.sock)
            return await loop.create_server(lambda: Conn(self), "127.0.0.1", self.port,
                                            ssl=self.context, backlog=1024)
        self.server = self.call(start())
        if not self.unix:
            self.port = self.server.sockets[0].getsockname()[1]

    def stop_listening(self, cut=True):
        """Connections are refused from now on; cut: those that are open are reset."""
        async def stop():
            self.server.close()
            for c in list(self.conns) if cut else ():
                c.reset()
        self.call(stop())

    def close_idle(self):
        """The keep-alive connections without a request are closed."""
        async def close():
            for c in list(self.conns):
                if not c.current:
                    c.transport.close()
        self.call(close())

    def close(self):
        async def stop():
            self.server.close()
            for c in list(self.conns):
                c.task.cancel()
                c.transport.abort()
        self.call(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def url(self):
        if self.unix:
            return f"unix:{self.unix}"
        host = self.sock.getsockname()[0] if self.sock else "127.0.0.1"
        return f"http{'s' if self.context else ''}://{host}:{self.port}/v1"

    def entry(self, fields=""):
        """The text of --upstream."""
        return f"{self.url} name={self.name} {fields}".strip()

    # ---- what is answered ----

    def is_probe(self, r):
        return r.method == "GET" and (r.path in ("/health", "/v1/health") or
                                      r.path.endswith("/models"))

    def probe_script(self, r):
        code = {True: 200, False: 503}.get(self.healthy, self.healthy)
        s = dict(SCRIPT, status=code, type="application/json")
        if r.path.endswith("/models"):
            s["body"] = json.dumps({"object": "list", "data": [
                {"id": m, "object": "model", "created": 1, "owned_by": self.name}
                for m in self.models]})
        else:
            s["body"] = "{}"
        return s

    def script_of(self, r):
        if r.header("x-script"):
            s = json.loads(r.header("x-script"))
        else:
            try:
                s = r.json().get("script")
            except (ValueError, AttributeError):
                s = None
        if s is None:
            s = self.plan.pop(0) if self.plan else self.script
        assert set(s) <= set(SCRIPT), s
        return dict(SCRIPT, **s)

    def content(self, r, s):
        """(async iterator of a stream or None, whole body, its type)"""
        if s["body"] is not None:
            body = to_bytes(s["body"]) * s["repeat"]
            return None, gzip.compress(body) if s["gzip"] else body, s["type"] or "application/json"
        try:
            ask = r.json()
        except ValueError:
            ask = {}
        ask = ask if isinstance(ask, dict) else {}
        limit = ask.get("max_completion_tokens") or ask.get("max_tokens")
        n = s["n"] if s["n"] is not None else limit or 4
        if s["status"] >= 400:
            body = {"error": {"message": "as told", "type": "told", "param": None, "code": "told"}}
        elif r.path.endswith("completions"):
            if ask.get("stream"):
                return self.events(r, ask, n, s), b"", "text/event-stream"
            body = completion(r, ask, n)
        elif r.path.endswith("/embeddings"):
            body = embeddings(ask)
        else:
            body = {"upstream": self.name, "method": r.method, "target": r.target,
                    "bytes": len(r.body)}
        body = json.dumps(body).encode()
        return None, gzip.compress(body) if s["gzip"] else body, s["type"] or "application/json"

    async def events(self, r, ask, n, s):
        chat = r.path.endswith("chat/completions")
        frame = {"id": "chatcmpl-1", "created": 1, "model": ask.get("model"),
                 "object": "chat.completion.chunk" if chat else "text_completion"}
        wanted = (ask.get("stream_options") or {}).get("include_usage")
        if wanted:
            frame["usage"] = None

        def event(delta, finish=None):
            choice = {"index": 0, "finish_reason": finish, "logprobs": None}
            choice.update({"delta": delta} if chat else {"text": delta.get("content", "")})
            return b"data: " + json.dumps(dict(frame, choices=[choice])).encode() + b"\n\n"

        if chat:
            yield event({"role": "assistant", "content": ""})
        for i in range(n):
            if s["token_s"]:
                await r.link.sleep(s["token_s"])
            yield event({"content": f"w{i} " + "x" * s["pad"]})
        yield event({}, "stop")
        if wanted:
            yield b"data: " + json.dumps(dict(frame, choices=[], usage=usage(n))).encode() + b"\n\n"
        if s["done"]:
            yield b"data: [DONE]\n\n"


def usage(n):
    return {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n,
            "prompt_tokens_details": {"cached_tokens": 0}}


def completion(r, ask, n):
    chat = r.path.endswith("chat/completions")
    text = "".join(f"w{i} " for i in range(n))
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice.update({"message": {"role": "assistant", "content": text, "refusal": None}}
                  if chat else {"text": text})
    return {"id": "chatcmpl-1", "object": "chat.completion" if chat else "text_completion",
            "created": 1, "model": ask.get("model"), "choices": [choice], "usage": usage(n)}


def embeddings(ask):
    import base64
    texts = ask.get("input")
    texts = texts if isinstance(texts, list) else [texts]
    vector = [0.5, -1.0, 0.25]
    if ask.get("encoding_format") == "base64":
        vector = base64.b64encode(struct.pack("<3f", *vector)).decode()
    return {"object": "list", "model": ask.get("model"),
            "data": [{"object": "embedding", "index": i, "embedding": vector}
                     for i in range(len(texts))],
            "usage": {"prompt_tokens": 3, "total_tokens": 3}}
