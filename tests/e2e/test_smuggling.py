#!/usr/bin/env python3
"""Requests that parsers read differently, sent raw to kvblend and to a real nginx, each in front of a
recording upstream; and upstreams that try the same on the gateway.

The rule: what nginx refuses kvblend refuses, too; whatever kvblend lets through reaches its upstream as
exactly the requests the case calls legitimate, each well-formed, and read as nginx reads it where nginx
lets it through. Where kvblend alone refuses it is stricter, which is allowed. The table of both answers
is printed.
"""
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from harness import KVBLEND, Missing, free_port, main, need, proxy, until
from upstream import Upstream

need(KVBLEND)
BODY = b'{"model":"up-model","x":"hello"}'
N = len(BODY)
TARGET = b"/v1/echo"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
QUIET_S = 0.06  # nothing more came for that long: the server said all it will say


def post(*headers, body=BODY, line=b"POST " + TARGET + b" HTTP/1.1", host=b"Host: x\r\n"):
    """A request of header lines without their ends; no framing is added."""
    return line + b"\r\n" + host + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body


def cl(*headers, n=N, **kw):
    return post(b"Content-Length: %d" % n, *headers, **kw)


def te(*headers, chunks=None, **kw):
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (N, BODY) if chunks is None else chunks
    return post(b"Transfer-Encoding: chunked", *headers, body=body, **kw)


def get(target, line=None, host=b"Host: x\r\n", headers=b""):
    return (line or b"GET " + target + b" HTTP/1.1") + b"\r\n" + host + headers + b"\r\n"


X = b"%x" % N
CHUNK0 = b"0\r\n\r\n"

# name: bytes, number of requests that are legitimate (None: at most one, as nginx reads it)
CASES = {
    # what must work, or the rest proves nothing
    "plain length": (cl(), 1),
    "plain chunked": (te(), 1),
    "several chunks": (te(chunks=b"3\r\n" + BODY[:3] + b"\r\n%x\r\n" % (N - 3) + BODY[3:] +
                          b"\r\n" + CHUNK0), 1),
    "lower-case names": (post(b"content-length: %d" % N), 1),
    "blanks around a value": (post(b"Content-Length:   %d  " % N), 1),
    "empty value": (cl(b"X-Empty:"), 1),
    "two pipelined": (cl() + cl(), 2),
    "8-bit value": (cl(b"X-Name: caf\xc3\xa9"), 1),
    "coding in capitals": (post(b"Transfer-Encoding: CHUNKED",
                                body=X + b"\r\n" + BODY + b"\r\n" + CHUNK0), 1),
    # two framings
    "CL then TE": (cl(b"Transfer-Encoding: chunked", n=6, body=CHUNK0 + b"G"), 0),
    "TE then CL": (te(b"Content-Length: 4", chunks=b"5\r\nhello\r\n" + CHUNK0), 0),
    "CL.TE smuggles": (cl(b"Transfer-Encoding: chunked", n=len(CHUNK0 + SMUGGLED),
                          body=CHUNK0 + SMUGGLED), 0),
    "TE.CL smuggles": (te(b"Content-Length: 4", chunks=b"%x\r\n%s\r\n0\r\n\r\n" %
                          (len(SMUGGLED), SMUGGLED)), 0),
    "CL + TE identity": (cl(b"Transfer-Encoding: identity"), None),
    "CL 0 + TE": (te(b"Content-Length: 0"), 0),
    # Content-Length
    "two CL alike": (cl(b"Content-Length: %d" % N), 0),
    "two CL": (cl(b"Content-Length: 0"), 0),
    "CL list": (post(b"Content-Length: %d, %d" % (N, N)), 0),
    "CL list differs": (post(b"Content-Length: %d, 0" % N), 0),
    "CL plus": (post(b"Content-Length: +%d" % N), 0),
    "CL minus": (post(b"Content-Length: -1"), 0),
    "CL hex": (post(b"Content-Length: 0x%x" % N), 0),
    "CL exponent": (post(b"Content-Length: 3e1"), 0),
    "CL fraction": (post(b"Content-Length: %d.0" % N), 0),
    "CL leading zeros": (post(b"Content-Length: 000%d" % N), None),
    "CL inner blank": (post(b"Content-Length: 3 2"), 0),
    "CL empty": (post(b"Content-Length:"), 0),
    "CL letters": (post(b"Content-Length: %dabc" % N), 0),
    "CL parameter": (post(b"Content-Length: %d;x" % N), 0),
    "CL quoted": (post(b'Content-Length: "%d"' % N), 0),
    "CL 2^64 + n": (post(b"Content-Length: %d" % ((1 << 64) + N)), 0),
    "CL 2^63": (post(b"Content-Length: %d" % (1 << 63)), 0),
    "CL 40 digits": (post(b"Content-Length: " + b"9" * 40), 0),
    "CL blank before colon": (post(b"Content-Length : %d" % N), 0),
    "CL tab before colon": (post(b"Content-Length\t: %d" % N), 0),
    "CL NUL before colon": (post(b"Content-Length\0: %d" % N), 0),
    "CL vertical tab": (post(b"Content-Length: \x0b%d" % N), 0),
    "CL behind a tab": (post(b"Content-Length:\t%d" % N), 0),
    "CL before a tab": (post(b"Content-Length: %d\t" % N), 0),
    "TE behind a tab": (post(b"Transfer-Encoding:\tchunked", body=CHUNK0), 0),
    "CL with underscore": (cl(b"Content_Length: 3"), None),
    "CL folded": (post(b"Content-Length:\r\n %d" % N), 0),
    "CL then folded": (cl(b" 0"), 0),
    # Transfer-Encoding
    "TE twice": (te(b"Transfer-Encoding: chunked"), 0),
    "TE chunked and identity": (te(b"Transfer-Encoding: identity"), 0),
    "TE identity and chunked": (post(b"Transfer-Encoding: identity",
                                     b"Transfer-Encoding: chunked", body=CHUNK0), 0),
    "TE identity": (post(b"Transfer-Encoding: identity", body=b""), 0),
    "TE identity, chunked": (post(b"Transfer-Encoding: identity, chunked", body=CHUNK0), 0),
    "TE chunked, identity": (post(b"Transfer-Encoding: chunked, identity", body=CHUNK0), 0),
    "TE gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked", body=CHUNK0), 0),
    "TE xchunked": (post(b"Transfer-Encoding: xchunked", body=CHUNK0), 0),
    "TE parameter": (post(b"Transfer-Encoding: chunked;q=1", body=CHUNK0), 0),
    "TE quoted": (post(b'Transfer-Encoding: "chunked"', body=CHUNK0), 0),
    "TE vertical tab": (post(b"Transfer-Encoding: \x0bchunked", body=CHUNK0), 0),
    "TE form feed": (post(b"Transfer-Encoding: chunked\x0c", body=CHUNK0), 0),
    "TE NUL": (post(b"Transfer-Encoding: chunked\0", body=CHUNK0), 0),
    "TE no-break space": (post(b"Transfer-Encoding: \xa0chunked", body=CHUNK0), 0),
    "TE blank before colon": (post(b"Transfer-Encoding : chunked", body=CHUNK0), 0),
    "TE folded": (post(b"Transfer-Encoding:\r\n chunked", body=CHUNK0), 0),
    "TE behind bare CR": (post(b"X: y\rTransfer-Encoding: chunked", body=CHUNK0), 0),
    "TE behind bare LF": (post(b"X: y\nTransfer-Encoding: chunked", body=CHUNK0), 0),
    "TE empty": (post(b"Transfer-Encoding:", body=CHUNK0), 0),
    "TE comma": (post(b"Transfer-Encoding: chunked,", body=CHUNK0), 0),
    "TE with underscore": (cl(b"Transfer_Encoding: chunked"), None),
    "TE in HTTP/1.0": (te(line=b"POST " + TARGET + b" HTTP/1.0"), 0),
    "GET with a body": (get(TARGET, headers=b"Content-Length: %d\r\n" % len(SMUGGLED)) + SMUGGLED,
                        1),
    "GET chunked": (get(TARGET, headers=b"Transfer-Encoding: chunked\r\n") + CHUNK0, 1),
    # ends of lines
    "bare LF throughout": (cl().replace(b"\r\n", b"\n"), 0),
    "bare LF after request line": (cl().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"), 0),
    "bare LF in the head": (cl(b"A: b").replace(b"A: b\r\n", b"A: b\n"), 0),
    "bare LF ends the head": (cl(b"A: b\n", body=b"\r\n" + BODY), 0),
    "LF CR LF": (cl().replace(b"\r\n\r\n", b"\n\r\n"), 0),
    "bare CR in a value": (cl(b"A: b\rc"), 0),
    "CR CR LF": (cl(b"A: b\r"), 0),
    "bare CR for a line end": (cl(b"A: b\rC: d"), 0),
    "CR in the request line": (cl(line=b"POST " + TARGET + b"\r HTTP/1.1"), 0),
    "obs-fold blank": (cl(b"A: b\r\n c"), 0),
    "obs-fold tab": (cl(b"A: b\r\n\tc"), 0),
    "fold of the first line": (cl(host=b" A: b\r\nHost: x\r\n"), 0),
    "empty lines first": (b"\r\n\r\n" + cl(), 1),
    "LF first": (b"\n" + cl(), None),
    # header lines
    "no colon": (cl(b"JustAName"), 0),
    "no name": (cl(b": value"), 0),
    "blank in a name": (cl(b"A B: c"), 0),
    "blank before colon": (cl(b"A : c"), 0),
    "NUL in a name": (cl(b"A\0B: c"), 0),
    "NUL in a value": (cl(b"A: b\0c"), 0),
    "control in a value": (cl(b"A: b\x01c"), 0),
    "DEL in a value": (cl(b"A: b\x7fc"), 0),
    "8-bit name": (cl(b"caf\xc3\xa9: x"), 0),
    "brackets in a name": (cl(b"A[0]: x"), 0),
    "colon in a name": (cl(b"A:B: x"), 1),
    # chunks
    "chunk extension": (te(chunks=X + b";a=b\r\n" + BODY + b"\r\n" + CHUNK0), None),
    "chunk extension quoted": (te(chunks=X + b';a="b;c"\r\n' + BODY + b"\r\n" + CHUNK0), None),
    "chunk extension with CR": (te(chunks=X + b";a\rb\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk extension with LF": (te(chunks=X + b";a\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk extension smuggles": (te(chunks=X + b";\n" + BODY + b"\r\n" + CHUNK0 + SMUGGLED), 0),
    "chunk extension NUL": (te(chunks=X + b";a\0b\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk extension 64 KiB": (te(chunks=X + b";" + b"a" * 65536 + b"\r\n" + BODY + b"\r\n" +
                                  CHUNK0), 0),
    "chunk size zeros": (te(chunks=b"000" + X + b"\r\n" + BODY + b"\r\n" + CHUNK0), None),
    "chunk size 0x": (te(chunks=b"0x" + X + b"\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size plus": (te(chunks=b"+" + X + b"\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size minus": (te(chunks=b"-1\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size blank first": (te(chunks=b" " + X + b"\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size blank behind": (te(chunks=X + b" \r\n" + BODY + b"\r\n" + CHUNK0), None),
    "chunk size empty": (te(chunks=b"\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size letters": (te(chunks=b"5g\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size underscore": (te(chunks=b"2_0\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size 2^64 + n": (te(chunks=b"1" + X.rjust(16, b"0") + b"\r\n" + BODY + b"\r\n" +
                               CHUNK0), 0),
    "chunk size 2^64 - 1": (te(chunks=b"f" * 16 + b"\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size 2^63 - 1": (te(chunks=b"7" + b"f" * 15 + b"\r\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size, bare LF": (te(chunks=X + b"\n" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk size, CR only": (te(chunks=X + b"\r" + BODY + b"\r\n" + CHUNK0), 0),
    "chunk data, bare LF": (te(chunks=X + b"\r\n" + BODY + b"\n" + CHUNK0), 0),
    "chunk data, no end": (te(chunks=X + b"\r\n" + BODY + CHUNK0), 0),
    "chunk data too long": (te(chunks=X + b"\r\n" + BODY + b"XX\r\n" + CHUNK0), 0),
    "chunk data too short": (te(chunks=b"%x\r\n" % (N + 2) + BODY + b"\r\n" + CHUNK0), 0),
    "last chunk 00": (te(chunks=X + b"\r\n" + BODY + b"\r\n00\r\n\r\n"), None),
    "last chunk, bare LF": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\n\n"), 0),
    "last chunk, mixed ends": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\n\n"), 0),
    "trailer": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\nX-Sum: 1\r\n\r\n"), None),
    "trailer with framing": (te(chunks=X + b"\r\n" + BODY +
                                b"\r\n0\r\nContent-Length: 3\r\nTransfer-Encoding: x\r\n\r\n"),
                             None),
    "trailer with Host": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\nHost: evil\r\n\r\n"), None),
    "trailer without colon": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\nGET / HTTP/1.1\r\n\r\n"),
                              None),
    "trailer, bare LF": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\nA: b\n\r\n"), 0),
    "trailer NUL": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\nA: \0\r\n\r\n"), None),
    "trailers 64 KiB": (te(chunks=X + b"\r\n" + BODY + b"\r\n0\r\n" + b"A: b\r\n" * 11000 +
                           b"\r\n"), 0),
    # request line
    "absolute form": (cl(line=b"POST http://x" + TARGET + b" HTTP/1.1"), None),
    "absolute form, other host": (cl(line=b"POST http://evil" + TARGET + b" HTTP/1.1"), None),
    "absolute form, odd scheme": (cl(line=b"POST file://x" + TARGET + b" HTTP/1.1"), None),
    "CONNECT": (get(b"", line=b"CONNECT x:443 HTTP/1.1"), 0),
    "TRACE": (get(b"", line=b"TRACE " + TARGET + b" HTTP/1.1"), 0),
    "OPTIONS *": (get(b"", line=b"OPTIONS * HTTP/1.1"), None),
    "GET *": (get(b"*"), 0),
    "no slash": (get(b"v1/echo"), 0),
    "two blanks": (cl(line=b"POST  " + TARGET + b" HTTP/1.1"), 0),
    "tab for blank": (cl(line=b"POST\t" + TARGET + b" HTTP/1.1"), 0),
    "two blanks behind": (cl(line=b"POST " + TARGET + b"  HTTP/1.1"), 0),
    "blank at the end": (cl(line=b"POST " + TARGET + b" HTTP/1.1 "), 0),
    "blank in the target": (cl(line=b"POST " + TARGET + b" x HTTP/1.1"), 0),
    "blank first": (b" " + cl(), 0),
    "no version": (b"GET " + TARGET + b"\r\n\r\n", 0),
    "HTTP/0.9": (cl(line=b"POST " + TARGET + b" HTTP/0.9"), 0),
    "HTTP/1.0": (cl(line=b"POST " + TARGET + b" HTTP/1.0"), 1),
    "HTTP/1.2": (cl(line=b"POST " + TARGET + b" HTTP/1.2"), None),
    "HTTP/1.10": (cl(line=b"POST " + TARGET + b" HTTP/1.10"), 0),
    "HTTP/01.1": (cl(line=b"POST " + TARGET + b" HTTP/01.1"), 0),
    "HTTP/2.0": (cl(line=b"POST " + TARGET + b" HTTP/2.0"), 0),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
    "http/1.1": (cl(line=b"POST " + TARGET + b" http/1.1"), 0),
    "HTTP 1.1": (cl(line=b"POST " + TARGET + b" HTTP 1.1"), 0),
    "lower-case method": (cl(line=b"post " + TARGET + b" HTTP/1.1"), 0),
    "odd method": (cl(line=b"P()ST " + TARGET + b" HTTP/1.1"), 0),
    "no method": (cl(line=b" " + TARGET + b" HTTP/1.1"), 0),
    "NUL in the target": (get(TARGET + b"\0x"), 0),
    "8-bit target": (get(TARGET + b"/\xc3\xa9"), None),
    "fragment": (get(TARGET + b"#x"), None),
    "escaped NUL": (get(TARGET + b"/%00"), 0),
    "bad escape": (get(TARGET + b"/%zz"), 0),
    "escaped line ends": (get(TARGET + b"/%0d%0aX:%20y"), None),
    "escaped line ends in the query": (get(TARGET + b"?a=%0d%0aX:%20y"), 1),
    "bare line end in the query": (get(TARGET + b"?a=\rX: y"), 0),
    "escaped blank and HTTP": (get(TARGET + b"/%20HTTP/1.1%0d%0aX:y"), None),
    "target 16 KiB": (get(TARGET + b"/" + b"a" * 16384), None),
    "target 64 KiB": (get(TARGET + b"/" + b"a" * 65536), 0),
    # Host
    "no Host": (cl(host=b""), 0),
    "no Host, HTTP/1.0": (cl(host=b"", line=b"POST " + TARGET + b" HTTP/1.0"), 1),
    "two Hosts": (cl(b"Host: y"), 0),
    "two Hosts alike": (cl(b"Host: x"), 0),
    "Host empty": (cl(host=b"Host:\r\n"), None),
    "Host with a quote": (cl(host=b'Host: x"y\r\n'), None),
    "Host with a backslash": (cl(host=b"Host: x\\y\r\n"), None),
    "Host 8-bit": (cl(host=b"Host: \xc3\xa9\r\n"), None),
    "Host port letters": (cl(host=b"Host: x:port\r\n"), None),
    "Host two colons": (cl(host=b"Host: x:1:2\r\n"), None),
    "Host bracket": (cl(host=b"Host: [::1\r\n"), None),
    "Host dots": (cl(host=b"Host: x..y\r\n"), None),
    "Host list": (cl(host=b"Host: x, y\r\n"), None),
    "Host with a path": (cl(host=b"Host: x/y\r\n"), None),
    "Host with a blank": (cl(host=b"Host: x y\r\n"), None),
    "Host with NUL": (cl(host=b"Host: x\0y\r\n"), 0),
    "Host with user": (cl(host=b"Host: a@x\r\n"), None),
    "Host blank before colon": (cl(host=b"Host : x\r\n"), 0),
    # large heads
    "value 7 KiB": (cl(b"A: " + b"b" * 7000), 1),
    "value 9 KiB": (cl(b"A: " + b"b" * 9000), None),
    "name 9 KiB": (cl(b"A" * 9000 + b": b"), None),
    "90 headers": (cl(*[b"A%d: b" % i for i in range(90)]), 1),
    "value 31 KiB": (cl(b"A: " + b"b" * 31000), None),
    "value 64 KiB": (cl(b"A: " + b"b" * 65536), 0),
    "head 64 KiB": (cl(*[b"A%d: %s" % (i, b"b" * 1000) for i in range(64)]), 0),
    "1000 headers": (cl(*[b"A%d: b" % i for i in range(1000)]), None),
    "name 40 KiB": (cl(b"A" * 40960 + b": b"), 0),
    # hop-by-hop
    "Connection names Content-Length": (cl(b"Connection: close, Content-Length"), None),
    "Connection names Transfer-Encoding": (te(b"Connection: Transfer-Encoding"), None),
    "Connection names Host": (cl(b"Connection: Host"), None),
    "upgrade to h2c": (cl(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c",
                          b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"), None),
    "upgrade to websocket": (cl(b"Connection: Upgrade", b"Upgrade: websocket"), None),
    "Expect unknown": (cl(b"Expect: 200-ok"), None),
    "compressed body": (cl(b"Content-Encoding: gzip"), None),
    # behind the request
    "pipelined garbage": (cl() + b"GARBAGE\r\n\r\n", 1),
    "pipelined binary": (cl() + b"\x16\x03\x01\x02\x00\x01\x00" * 8, 1),
    "body longer than CL": (cl(n=N - 4), None),
    "CRLF between requests": (cl() + b"\r\n" + cl(), 2),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 80 + b"\r\n\r\n", 0),
}


class Answer:
    """What came back for one case, and what reached the upstream."""

    def __init__(self, up, send):
        up.requests.clear()
        up.malformed.clear()
        data, self.closed = send()
        self.statuses, self.rest = statuses(data)
        self.seen, self.malformed = list(up.requests), list(up.malformed)

    @property
    def refused(self):
        return not self.seen and not any(s < 400 for s in self.statuses)

    def __str__(self):
        out = ",".join(map(str, self.statuses)) or ("closed" if self.closed else "waits")
        return out + (f" ->{len(self.seen)}" if self.seen else "")


def statuses(data):
    """The final statuses of whole, strictly parsed answers, and what follows them."""
    out = []
    while b"\r\n\r\n" in data:
        head, rest = data.split(b"\r\n\r\n", 1)
        m = re.match(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n\0]*)?(?:\r\n|$)", head)
        assert m and b"\n" not in head.replace(b"\r\n", b""), head
        status = int(m.group(1))
        if status >= 200:
            length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
            chunked = re.search(rb"\r\ntransfer-encoding: *chunked", head, re.I)
            assert not (length and chunked), head
            if chunked:
                m = re.match(rb"(?s)((?!0\r\n)[0-9a-fA-F]+\r\n.*?\r\n)*0\r\n\r\n", rest)
                n = m.end() if m else len(rest)
            else:
                n = int(length.group(1)) if length else len(rest)
            rest = rest[n:]
            out.append(status)
        data = rest
    return out, data


def exchange(port, raw, wanted):
    """Send, read until the server closes or says no more: (bytes, closed)."""
    s = socket.create_connection(("127.0.0.1", port), timeout=20)
    data, end = b"", time.monotonic() + 0.4
    try:
        try:
            s.sendall(raw)
        except OSError:
            pass  # refused in the middle of it
        while True:
            enough = len(statuses(data)[0]) >= max(1, wanted)
            s.settimeout(QUIET_S if enough else max(0.01, end - time.monotonic()))
            got = s.recv(65536)
            if not got:
                return data, True
            data += got
    except socket.timeout:
        return data, False
    except ConnectionError:
        return data, True
    finally:
        s.close()


def nginx(up, folder):
    """A running nginx in front of the upstream: (process, port)."""
    port = free_port()
    conf = f"""daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;
events {{ worker_connections 256; }}
http {{ access_log off; client_max_body_size 32m; server_tokens off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream u {{ server 127.0.0.1:{up.port}; keepalive 8; }}
  server {{ listen 127.0.0.1:{port}; server_name x; location / {{ proxy_pass http://u; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_set_header Host $host; }} }} }}
"""
    with open(f"{folder}/nginx.conf", "w") as f:
        f.write(conf)
    p = subprocess.Popen([NGINX, "-c", f"{folder}/nginx.conf", "-p", folder, "-e", f"{folder}/log"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens():
        assert p.poll() is None, open(f"{folder}/log").read()
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    until("nginx listens", listens)
    return p, port


NGINX = shutil.which("nginx") or "/usr/sbin/nginx"


def run_cases(up, port, ret):
    for name, (raw, n) in CASES.items():
        try:
            ret[name] = Answer(up, lambda: exchange(port, raw, n or 0))
        except AssertionError as e:
            ret[name] = e


def judge(name, legitimate, nginx_said, kvblend_said):
    """A complaint, or None."""
    for who, a in (("nginx", nginx_said), ("kvblend", kvblend_said)):
        if isinstance(a, AssertionError):
            return f"the answer of {who} is malformed: {a}"
    if kvblend_said.malformed:
        return f"the upstream got {kvblend_said.malformed[0][:200]!r}"
    if any(r.path.endswith(b"smuggled".decode()) for r in kvblend_said.seen):
        return "a request was smuggled"
    n = len(kvblend_said.seen)
    if legitimate is None and n > 1:
        return "more than one request reached the upstream"
    if legitimate == 0 and not kvblend_said.refused:
        return "it has to be refused"
    if legitimate and n != legitimate:
        return f"{n} requests reached the upstream"
    if nginx_said.refused and not kvblend_said.refused:
        return "nginx refuses it"
    if legitimate != 0 and n and nginx_said.seen:
        read = [[(r.method, r.body) for r in a.seen] for a in (nginx_said, kvblend_said)]
        if read[0] != read[1]:
            return f"read differently: {read}"
    return None


def test_smuggling_against_nginx():
    if not os.path.exists(NGINX):
        raise Missing("nginx is not installed")
    folder = tempfile.mkdtemp(prefix="kvb-nginx-")
    behind = [Upstream("nginx-up"), Upstream("kvblend-up")]
    said = [{}, {}]
    process = None
    try:
        process, port = nginx(behind[0], folder)
        with proxy([behind[1].entry("models=* health=off paths=echo")]) as g:
            threads = [threading.Thread(target=run_cases, args=a) for a in
                       ((behind[0], port, said[0]), (behind[1], g.port, said[1]))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            r = g.post("/v1/echo", {"model": "up-model"})  # it is in good health
            assert r.status == 200, r.body
    finally:
        if process:
            process.kill()
            process.wait()
        for up in behind:
            up.close()
        shutil.rmtree(folder, ignore_errors=True)
    bad = []
    print(f"{'case':36} {'nginx':16} {'kvblend':16}")
    for name, (_, legitimate) in CASES.items():
        a, b = said[0][name], said[1][name]
        why = judge(name, legitimate, a, b)
        verdict = why or ("stricter" if b.__class__ is Answer and b.refused and not a.refused else "")
        print(f"{name:36} {str(a):16} {str(b):16} {verdict}")
        if why:
            bad.append((name, why))
    assert not bad, f"{len(bad)} of {len(CASES)}: {bad}"


# ---- an upstream that attacks ----

OK = "HTTP/1.1 200 OK\r\n"
JSON = '{"answer":"evil"}'
LENGTH = f"Content-Length: {len(JSON)}\r\n"

# name: the raw bytes sent for an answer, and whether a whole 200 may reach the client
ANSWERS = {
    "two answers": (OK + LENGTH + "\r\n" + JSON + OK + LENGTH + "\r\n" + JSON, True),
    "body longer than its length": (OK + LENGTH + "\r\n" + JSON + "GARBAGE", True),
    "CL and TE": (OK + LENGTH + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False),
    "two CL": (OK + LENGTH + "Content-Length: 3\r\n\r\n" + JSON, False),
    "CL list": (OK + "Content-Length: 3, 3\r\n\r\nabc", False),
    "CL plus": (OK + "Content-Length: +3\r\n\r\nabc", False),
    "CL 2^64 + 3": (OK + f"Content-Length: {(1 << 64) + 3}\r\n\r\nabc", False),
    "TE gzip": (OK + "Transfer-Encoding: gzip\r\n\r\nabc", False),
    "TE twice": (OK + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                 False),
    "chunk size letters": (OK + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", False),
    "chunk size overflow": (OK + "Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n"
                            "0\r\n\r\n", False),
    "chunk without end": (OK + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", False),
    "chunk extension endless": (OK + "Transfer-Encoding: chunked\r\n\r\n3;" + "a" * 100000 +
                                "\r\nabc\r\n0\r\n\r\n", False),
    "trailer names a length": (OK + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
                               "Content-Length: 99\r\n\r\n", True),
    "bare LF head": ("HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", False),
    "obs-fold": (OK + "X-A: b\r\n c\r\nContent-Length: 3\r\n\r\nabc", False),
    "bare CR in a value": (OK + "X-A: b\rSet-Cookie: evil\r\nContent-Length: 3\r\n\r\nabc", False),
    "NUL in a value": (OK + "X-A: b\0c\r\nContent-Length: 3\r\n\r\nabc", False),
    "blank before colon": (OK + "Content-Length : 3\r\n\r\nabc", False),
    "no colon": (OK + "Evil\r\nContent-Length: 3\r\n\r\nabc", False),
    "head of 1 MiB": (OK + "".join(f"X-{i}: {'a' * 1000}\r\n" for i in range(1000)) + "\r\n", False),
    "head without end": (OK + "X-A: " + "a" * (1 << 20), False),
    "status of two digits": ("HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", False),
    "status of four digits": ("HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", False),
    "status 099": ("HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n", False),
    "status with letters": ("HTTP/1.1 2xx OK\r\nContent-Length: 0\r\n\r\n", False),
    "HTTP/2": ("HTTP/2 200\r\n\r\n", False),
    "HTTP/0.9": (JSON, False),
    "no HTTP": ("\x15\x03\x03\x00\x02\x02\x28", False),
    "101 unasked": ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
                    "\x81\x05hello", False),
    "100 without end": ("HTTP/1.1 100 Continue\r\n\r\n" * 50000, False),
    "interim answers": ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
                        + OK + LENGTH + "\r\n" + JSON, True),
    "204 with a body": ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", True),
    "304 with a body": ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", True),
    "no framing": (OK + "\r\n" + JSON, True),
    "empty": ("", False),
    "half a head": ("HTTP/1.1 200 OK\r\nConte", False),
    "half a body": (OK + "Content-Length: 100\r\n\r\n" + JSON, False),
}


LEFT_OVER = ("two answers", "body longer than its length", "204 with a body", "304 with a body")


def test_malicious_upstream():
    """One request gets one well-formed answer at most, and the next one its own."""
    bad = []
    with Upstream() as up:
        with proxy([up.entry("models=* health=off paths=echo")], "--retries", "0", "--breaker-failures", "255",
                   "--first-byte-timeout", "5s", "--idle-timeout", "5s") as g:
            for name, (raw, whole) in ANSWERS.items():
                for end in ("close", "hold") if name in LEFT_OVER else ("close",):
                    why = attack(g, up, raw, end, whole)
                    print(f"{name:32} {end:6} {why or 'ok'}", flush=True)
                    if why:
                        bad.append((name, end, why))
            assert g.proc.poll() is None
    assert not bad, bad


def attack(g, up, raw, end, whole):
    """A complaint, or None."""
    up.script = {"raw": raw, "end": end}
    request = post(b"Content-Length: %d" % N, line=b"POST /v1/echo HTTP/1.1")
    try:
        got, closed = exchange_patiently(g.port, request)
        found, rest = statuses(got)
    except AssertionError as e:
        return f"malformed: {e}"
    if len(found) > 1 or (rest and found):
        return f"answers: {found} and {rest[:80]!r}"
    if b"evil" in got and not whole:
        return f"let through: {got[:200]!r}"
    if whole and (not found or found[0] >= 400):
        return f"refused: {found}"
    if not whole and found and found[0] < 400 and not closed:
        return f"let through as whole: {got[:200]!r}"
    if not whole and not found and not closed:
        return "no answer"
    up.script = {}
    r = g.post("/v1/echo", {"model": "up-model", "next": 1})
    if r.status != 200 or b"evil" in r.body or r.json()["upstream"] != up.name:
        return f"the next request got {r.status} {r.body[:100]!r}"
    return None


def exchange_patiently(port, raw):
    s = socket.create_connection(("127.0.0.1", port), timeout=20)
    data = b""
    s.sendall(raw)
    try:
        while True:
            got = s.recv(65536)
            if not got:
                return data, True
            data += got
            if b"\r\n\r\n" in data and statuses(data)[0]:
                s.settimeout(0.1)
    except socket.timeout:
        return data, False
    except ConnectionError:
        return data, True
    finally:
        s.close()


def test_unsolicited_answers_are_nobodys():
    """An answer sent on an idle connection must not become the next request's."""
    with Upstream() as up, proxy([up.entry("models=* health=off paths=echo")]) as g:
        assert g.post("/v1/echo", {"model": "m"}).status == 200
        evil = (OK + LENGTH + "\r\n" + JSON).encode()

        def send():
            for c in list(up.conns):
                c.transport.write(evil)

        for _ in range(5):
            up.loop.call_soon_threadsafe(send)
            until("the connection is given up", lambda: not up.conns)
            r = g.post("/v1/echo", {"model": "m"})
            assert r.status == 200 and b"evil" not in r.body, r.body


if __name__ == "__main__":
    main(globals())
