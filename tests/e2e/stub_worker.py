#!/usr/bin/env python3
"""A worker without a model: the same routes and shapes as kvblend-worker, with answers made of counters.

Used where a test wants to steer the worker's behaviour: slow tokens, a death in the middle of an answer,
a long load. Behaviour is chosen per request by fields of the body ("stub": {...}) or by flags.
Understands the gateway's way of starting a worker: --listen unix:/path or HOST:PORT; unknown flags are
accepted with their value. Where $STUB_LOAD names a file it reports that load to gateways.
"""
import asyncio
import json
import os
import signal
import sys
import time


def flag(name, default=None):
    for i, a in enumerate(sys.argv):
        if a == "--" + name and i + 1 < len(sys.argv):
            return sys.argv[i + 1]
        if a.startswith("--" + name + "="):
            return a.split("=", 1)[1]
    return default


MODEL = flag("served-model-name", "stub-model")
LOAD_S = float(os.environ.get("STUB_LOAD_S", "0"))
HOLD = os.environ.get("STUB_HOLD")  # a file: it loads while that is there
LOAD = os.environ.get("STUB_LOAD")  # a file: what it says of its load
STARTED = time.monotonic()
STATE = {"active": 0, "aborted": 0, "served": 0, "last_completion": None, "asked": {}}


def loading():
    return time.monotonic() - STARTED < LOAD_S or (HOLD and os.path.exists(HOLD))


class Abort(Exception):
    """The client is gone."""


class Conn:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def run(self):
        try:
            while await self.one():
                pass
        except (asyncio.IncompleteReadError, ConnectionError, Abort):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            self.writer.close()

    async def one(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            if line:
                k, v = line.split(":", 1)
                headers[k.strip().lower()] = v.strip()
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        if target.endswith("completions"):
            STATE["last_completion"] = {"headers": headers, "body": body.decode("utf-8", "replace")}
        path, _, query = target.partition("?")
        STATE["asked"][path] = STATE["asked"].get(path, 0) + 1
        if path == "/admin/residents" and LOAD:
            await self.feed(query)
        else:
            await self.route(method, path, headers, body)
        return True

    async def feed(self, query):
        """The file's load ("SEQ WAITING_MS …"), once its number is another than the asker's."""
        asked = query.split("load=")[1].split("&")[0]
        end = time.monotonic() + 20
        while True:
            with open(LOAD) as f:
                load = f.read().strip()
            if load.split(" ")[0] != asked or time.monotonic() > end:
                break
            await self.wait(0.02)
        await self.send(200, f"@1 0 full\n={load}\n".encode(), "text/plain")

    async def send(self, status, obj, kind="application/json", extra=""):
        data = obj if isinstance(obj, bytes) else json.dumps(obj).encode()
        self.writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
            f"X-KVBlend-Stub: yes\r\n{extra}\r\n".encode() + data)
        await self.writer.drain()

    async def chunk(self, data):
        if self.gone():
            raise Abort()
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    def gone(self):
        return self.reader.at_eof() or self.writer.is_closing()

    async def route(self, method, path, headers, body):
        if path == "/health":
            status = 503 if loading() else 200
            return await self.send(status, {"status": "loading" if status == 503 else "ok"})
        if path == "/v1/models":
            return await self.send(200, {"object": "list", "data": [
                {"id": MODEL, "object": "model", "created": 1, "owned_by": "stub",
                 "max_model_len": 2048}]})
        if path == "/metrics":
            text = ("# HELP kvblend_requests_active Requests.\n# TYPE kvblend_requests_active gauge\n"
                    f"kvblend_requests_active {STATE['active']}\n"
                    "# HELP kvblend_ttft_seconds T.\n# TYPE kvblend_ttft_seconds histogram\n"
                    'kvblend_ttft_seconds_bucket{le="+Inf"} 1\nkvblend_ttft_seconds_sum 0.1\n'
                    "kvblend_ttft_seconds_count 1\n")
            return await self.send(200, text.encode(), "text/plain")
        if path == "/admin/status":
            return await self.send(200, dict(STATE, state="ready"))
        if path.startswith("/admin/"):
            return await self.send(200, {"path": path, "method": method})
        if path in ("/tokenize", "/detokenize"):
            ask = json.loads(body)
            tokens = list(range(len(ask.get("content", ask.get("prompt", "")).split())))
            return await self.send(200, {"tokens": tokens, "count": len(tokens),
                                         "max_model_len": 2048})
        if path in ("/v1/chat/completions", "/v1/completions"):
            ask = json.loads(body)
            if ask.get("model", MODEL) != MODEL:
                return await self.send(404, {"error": {
                    "message": "no such model", "type": "invalid_request_error", "param": "model",
                    "code": "model_not_found"}})
            return await self.complete(path, ask)
        await self.send(404, {"error": {"message": "no such route", "type": "invalid_request_error",
                                        "param": None, "code": "unknown_url"}})

    async def complete(self, path, ask):
        stub = ask.get("stub", {})
        chat = path.endswith("chat/completions")
        STATE["active"] += 1
        try:
            if stub.get("die") == "before":
                os._exit(1)
            if "comment" in stub:  # a stream's headers and a comment, before the wait
                await self.stream_head()
                await self.chunk(b": working\n\n")
            await self.wait(stub.get("wait_s", 0))
            if "status" in stub:
                await self.send(stub["status"], {"error": {
                    "message": "as told", "type": "server_error", "param": None, "code": "told"}},
                    extra=self.further(stub))
                return
            n = stub.get("n", ask.get("max_tokens", 4))
            if ask.get("stream"):
                wanted = (ask.get("stream_options") or {}).get("include_usage")
                await self.stream(chat, n, stub, self.usage(n, stub) if wanted else None)
            else:
                await self.plain(chat, n, stub)
            STATE["served"] += 1
        except (Abort, ConnectionError):
            STATE["aborted"] += 1
            raise Abort()
        finally:
            STATE["active"] -= 1

    async def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.gone():
                raise Abort()
            await asyncio.sleep(0.005)

    async def plain(self, chat, n, stub):
        text = " ".join(f"w{i}" for i in range(n))
        choice = {"index": 0, "finish_reason": "length", "logprobs": None}
        if chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        await self.wait(n * stub.get("token_s", 0))
        if stub.get("die") == "middle":
            data = b'{"id":"half'
            self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                              b"Content-Length: 400\r\n\r\n" + data)
            await self.writer.drain()
            os._exit(1)
        await self.send(200, {
            "id": "chatcmpl-1", "object": "chat.completion" if chat else "text_completion",
            "created": 1, "model": MODEL, "choices": [choice],
            "usage": self.usage(n, stub)},
            extra=self.further(stub))

    @staticmethod
    def further(stub):
        return "".join(f"{k}: {v}\r\n" for k, v in stub.get("headers", {}).items())

    @staticmethod
    def usage(n, stub):
        prompt = stub.get("prompt_tokens", 3)
        return {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n,
                "prompt_tokens_details": {"cached_tokens": stub.get("cached_tokens", 0)}}

    async def stream_head(self):
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                          b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def stream(self, chat, n, stub, usage):
        if "comment" not in stub:
            await self.stream_head()
        frame = {"id": "chatcmpl-1", "created": 1, "model": MODEL,
                 "object": "chat.completion.chunk" if chat else "text_completion"}

        def event(choice):
            return b"data: " + json.dumps(dict(frame, choices=[choice])).encode() + b"\n\n"

        if chat:
            await self.chunk(event({"index": 0, "delta": {"role": "assistant", "content": ""},
                                    "finish_reason": None}))
        for i in range(n):
            await self.wait(stub.get("token_s", 0))
            while i == stub.get("hold_at") and os.path.exists(stub["hold"]):  # until the test lets go
                await self.wait(0.02)
            if stub.get("die") == "middle" and i == n // 2:
                self.writer.write(b"10\r\ndata: {\"id\":\"hal")
                await self.writer.drain()
                os._exit(1)
            word = f"w{i} " + "x" * stub.get("pad", 0)
            choice = {"index": 0, "finish_reason": None}
            choice.update({"delta": {"content": word}} if chat else {"text": word})
            data = event(choice)
            if stub.get("split"):  # an event in two pieces
                await self.chunk(data[:9])
                await asyncio.sleep(0)
                data = data[9:]
            await self.chunk(data)
        last = {"index": 0, "finish_reason": "length"}
        last.update({"delta": {}} if chat else {"text": ""})
        await self.chunk(event(last))
        if usage:
            await self.chunk(b"data: " + json.dumps(dict(frame, choices=[], usage=usage)).encode() +
                             b"\n\n")
        await self.chunk(b"data: [DONE]\n\n")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


async def main():
    if os.environ.get("STUB_REFUSE"):
        print("stub: the model cannot be read", file=sys.stderr)
        return 1
    listen = flag("listen", "127.0.0.1:0")

    async def on_conn(reader, writer):
        await Conn(reader, writer).run()

    if listen.startswith("unix:"):
        path = listen[5:]
        if os.path.exists(path):
            os.unlink(path)
        server = await asyncio.start_unix_server(on_conn, path, limit=1 << 20)
    else:
        host, port = listen.rsplit(":", 1)
        server = await asyncio.start_server(on_conn, host, int(port), limit=1 << 20)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
