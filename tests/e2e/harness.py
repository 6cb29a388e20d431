"""What the end-to-end tests share: starting programs, plain HTTP, waiting for conditions.

Programs come from $KVBLEND_BUILD (a build folder); tests exit with 77 (skipped) when what they need is
not there. Nothing here sleeps for a fixed time: conditions are polled until a generous deadline.
"""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("KVBLEND_BUILD", os.path.join(ROOT, "build"))
KVBLEND = os.path.join(BUILD, "gateway", "kvblend")
WORKER = os.path.join(BUILD, "worker", "kvblend-worker")
KVBLENDCTL = os.path.join(BUILD, "tools", "ctl", "kvblendctl")
STUB = os.path.join(HERE, "stub_worker.py")
MODELS = os.path.join(ROOT, "tests", "data", "models")
ADMIN = ["--api-key", "sesame", "--admin-tcp"]  # of a worker on TCP whose admin routes a test asks for
DEADLINE_S = int(os.environ.get("E2E_DEADLINE_S", "60"))


class Missing(Exception):
    """What this machine lacks: ends one test; main() exits with 77 then, however many others passed."""


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def other_python(variable):
    """Go on in the Python that the variable names, which has packages that this one lacks; returns where there is none."""
    python = os.environ.get(variable)
    if python and os.path.exists(python) and not os.environ.get("KVBLEND_REEXEC"):
        os.environ["KVBLEND_REEXEC"] = "1"
        os.execv(python, [python, os.path.abspath(sys.argv[0])] + sys.argv[1:])


def need(*paths):
    """Skips what this machine lacks; what the build should have made is an error."""
    for p in paths:
        if not os.path.exists(p):
            if p.startswith(BUILD + os.sep):
                sys.exit(f"{p} was not built")
            skip(f"{p} is missing")


def tiny_model():
    """A tiny random model with a tokenizer and a chat template: chat needs both."""
    for name in ("smollm2.F32.gguf", "llama3.F32.gguf", "qwen2.F32.gguf"):
        path = os.path.join(MODELS, name)
        if os.path.exists(path):
            return path
    skip("no tiny model in tests/data/models")


def redis_server():
    """The program's path."""
    path = shutil.which("redis-server")
    if not path:
        raise Missing("redis-server is not installed")
    return path


def real_model():
    """$KVBLEND_TEST_MODEL or $KVBLEND_MODEL, else what tools/get-model left."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("KVBLEND_MODELS") or os.path.join(cache, "kvblend", "models")
    path = (os.environ.get("KVBLEND_TEST_MODEL") or os.environ.get("KVBLEND_MODEL") or
            os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not os.path.exists(path):
        raise Missing("no real model (KVBLEND_MODEL, tools/get-model)")
    return path


def until(what, fn, deadline_s=DEADLINE_S):
    """Poll fn until it is true; its value is returned."""
    end = time.monotonic() + deadline_s
    while True:
        v = fn()
        if v:
            return v
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.002)


def runs_in(root):
    """Does a process have that folder as its root (chroot)?"""
    def there(pid):
        try:
            return os.readlink(f"/proc/{pid}/root") == str(root)
        except OSError:  # it has ended, or is nobody's of ours
            return False
    return any(there(p) for p in os.listdir("/proc") if p.isdigit())


def clean_env():
    """The environment without settings of kvblend: the caller's must not reach the programs. The
    controller is off unless a test is about it: what it decides depends on how fast the machine is."""
    return dict({k: v for k, v in os.environ.items() if not k.startswith("KVBLEND_")},
                KVBLEND_WORKER_STRATEGY="always")


class Reply:
    def __init__(self, status, headers, body, pairs=()):
        self.status, self.headers, self.body, self.pairs = status, headers, body, list(pairs)

    def json(self):
        return json.loads(self.body)

    def error(self):
        e = self.json()["error"]
        assert set(e) == {"message", "type", "param", "code"}, e
        assert isinstance(e["message"], str) and isinstance(e["type"], str), e
        assert e["code"] is None or isinstance(e["code"], str), e
        return e

    def events(self):
        return parse_events(self.body)


def parse_events(data):
    """The data of each event of a stream; comments are left out."""
    out = []
    for block in data.split(b"\n\n"):
        lines = [x[6:] for x in block.split(b"\n") if x.startswith(b"data: ")]
        if lines:
            out.append(b"\n".join(lines))
    return out


def parse_metrics(text):
    """Strict Prometheus text format: {family: (type, [(sample, labels, value), …])}, or an assertion.

    Every family has one HELP and one TYPE before its samples, its lines stay together, no series
    comes twice, and histograms are complete and cumulative.
    """
    families, current, seen = {}, None, set()
    assert text.endswith("\n"), "no newline at the end"
    for line in text[:-1].split("\n"):
        m = re.fullmatch(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)", line)
        if m:
            kind, name, rest = m.groups()
            if kind == "HELP":
                assert name not in families, f"a second HELP, or an interleaved family: {line}"
                families[name] = [None, []]
                current = name
            else:
                assert name == current and families[name] == [None, []], f"stray TYPE: {line}"
                assert rest in ("counter", "gauge", "histogram"), line
                families[name][0] = rest
            continue
        m = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", line)
        assert m, f"no sample: {line!r}"
        name, inner, value = m.group(1), m.group(2) or "", float(m.group(3))
        label = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
        assert not inner or re.fullmatch(f"{label}(,{label})*", inner), f"bad labels: {line}"
        labels = dict(x for x in re.findall(label, inner))
        kind = families[current][0] if current else None
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert kind and name in [current + e for e in ends], f"not of family {current}: {line}"
        key = (name, tuple(sorted(labels.items())))
        assert key not in seen, f"twice: {line}"
        seen.add(key)
        families[current][1].append((name, labels, value))
    for name, (kind, samples) in families.items():
        assert samples, f"{name} has no samples"
        if kind == "histogram":
            check_histogram(name, samples)
    return families


def check_histogram(name, samples):
    groups = {}
    for sample, labels, value in samples:
        rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        g = groups.setdefault(rest, {"le": []})
        if sample.endswith("_bucket"):
            g["le"].append((float(labels["le"]), value))
        else:
            g[sample[len(name):]] = value
    for rest, g in groups.items():
        bounds, counts = [b for b, _ in g["le"]], [c for _, c in g["le"]]
        assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf"), (name, rest, bounds)
        assert counts == sorted(counts) and counts[-1] == g["_count"] and "_sum" in g, (name, rest)


class Program:
    """A server process with its log in a file. files: {name: text} in its folder, "{dir}" in args."""

    def __init__(self, args, env=None, files=None, fds=()):
        self.dir = tempfile.mkdtemp(prefix="kvb-e2e-")
        for name, text in (files or {}).items():
            self.write(name, text)
        args = [a.replace("{dir}", self.dir) for a in args]
        self.log_path = os.path.join(self.dir, "log")
        self.out_path = os.path.join(self.dir, "out")
        own = {k: v.replace("{dir}", self.dir) for k, v in (env or {}).items()}
        full = dict(clean_env(), XDG_RUNTIME_DIR=self.dir, **own)
        self.admin = f"unix:{self.dir}/kvblend/admin.sock"
        with open(self.log_path, "wb") as err, open(self.out_path, "wb") as out:
            self.proc = subprocess.Popen(args, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                         env=full, pass_fds=fds)
        self.env = full
        self.host, self.port = "127.0.0.1", None
        self.key = args[args.index("--api-key") + 1] if "--admin-tcp" in args else None  # ADMIN

    def write(self, name, text):
        """A file of its folder, replaced whole."""
        path = os.path.join(self.dir, name)
        with open(path + ".new", "w") as f:
            f.write(text.replace("{dir}", self.dir))
        os.rename(path + ".new", path)
        return path

    def rss_mib(self):
        with open(f"/proc/{self.proc.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def access_log(self):
        with open(self.out_path) as f:
            return [json.loads(line) for line in f if line.startswith("{")]

    def request(self, method, path, body=None, headers=None, timeout=DEADLINE_S):
        sock = socket.create_connection((self.host, self.port), timeout=timeout)
        if self.key:
            headers = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        return ask_on(sock, method, path, body, headers)

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def open(self, path, body, method="POST", headers=""):
        """A raw socket with the request sent: the caller reads or leaves."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        s = socket.create_connection((self.host, self.port), timeout=DEADLINE_S)
        if self.key:
            headers += f"Authorization: Bearer {self.key}\r\n"
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
                  f"{headers}\r\n".encode() + data)
        return s

    def metrics(self):
        """The page: of a gateway where it is served, on the admin address; of a worker itself."""
        path = self.admin[5:]
        r = unix_request(path, "GET", "/metrics") if os.path.exists(path) else self.get("/metrics")
        assert r.status == 200, (r.status, r.body)
        return r.body.decode()

    def metric(self, name):
        """Value of an unlabelled or labelled sample, by its exact name with labels, but for the model's."""
        for line in re.sub(r',model="(?:[^"\\]|\\.)*"', "", self.metrics()).split("\n"):
            if line.startswith(name + " "):
                return float(line[len(name) + 1:])
        return None

    def admin_get(self, path):
        until("the admin socket is there", lambda: os.path.exists(self.admin[5:]))  # the last to listen
        return unix_request(self.admin[5:], "GET", path).json()

    def stop(self, sig=signal.SIGTERM):
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        return self.proc.wait(DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, *_):
        """End it the short way (two signals, not alike: two of one kind may arrive as one), which shows leaks under
        a sanitizer."""
        for sig in (signal.SIGTERM, signal.SIGINT):
            if self.proc.poll() is None:
                self.proc.send_signal(sig)
        try:
            self.proc.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            kind = kind or AssertionError
        log = self.log()
        reports = [x for x in ("Sanitizer", "runtime error:", "assertion failed") if x in log]
        if reports or (kind and not (kind is SystemExit and not value.code)):
            print(f"--- log of {self.proc.args[0]}\n{log[-6000:]}---", file=sys.stderr)
        shutil.rmtree(self.dir, ignore_errors=True)
        assert not reports, reports


def ask_on(sock, method, target, body=None, headers=None):
    """One request on a connected socket, which is closed then. body: bytes, or an object as JSON."""
    c = http.client.HTTPConnection("localhost")
    c.sock = sock
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    try:
        c.request(method, target, body, headers or {})
        r = c.getresponse()
        return Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read(), r.getheaders())
    finally:
        c.close()
        sock.close()


def unix_request(path, method, target, body=None, headers=None):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(DEADLINE_S)
    s.connect(path)
    return ask_on(s, method, target, body, headers)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def certificates(folder):
    """A CA, a server and a client signed by it, and a stranger: {name: (certificate, key)}."""
    def run(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for ca in ("ca", "stranger"):
        run(*new, "-x509", "-days", "2", "-subj", f"/CN=kvblend test {ca}", "-keyout", f"{ca}.key",
            "-out", f"{ca}.pem")
    with open(os.path.join(folder, "san"), "w") as f:
        f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        run(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-CAcreateserial", "-extfile", "san", "-out", f"{name}.pem")
    return {n: (os.path.join(folder, n + ".pem"), os.path.join(folder, n + ".key"))
            for n in ("ca", "stranger", "server", "client")}


def gateway(*args, stub=False, model=None, env=None, ready=True):
    """Start kvblend on a free port. stub: with the stand-in worker, else with the real one."""
    cmd = [KVBLEND, "--listen", "127.0.0.1:0", "--model", model or (STUB if stub else tiny_model())]
    if stub:
        cmd += ["--worker-bin", STUB]
    return listening(Program(cmd + list(args), env), ready)


def proxy(upstreams, *args, ready=True, env=None, files=None):
    """Start kvblend without an own worker. upstreams: entries as text, or objects with entry()."""
    cmd = [KVBLEND]
    if not any(a.startswith(("--listen", "--config")) for a in args):
        cmd += ["--listen", "127.0.0.1:0"]
    for u in upstreams:
        cmd += ["--upstream", u if isinstance(u, str) else u.entry()]
    return listening(Program(cmd + list(args), env, files), ready)


class TieredSite:
    """A gateway with its own worker, 16 MiB of RAM and an NVMe file of 64 MiB in a folder of its own."""

    def __init__(self, *args, **kw):
        self.dir = tempfile.mkdtemp(prefix="kvb-site-")
        self.file = self.dir + "/tier"
        try:
            self.g = gateway("--ram", "16MiB", "--nvme", self.file + ":64MiB", *args, **kw)
        except BaseException:
            shutil.rmtree(self.dir, ignore_errors=True)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *why):
        try:
            self.g.__exit__(*why)
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)


def document(i):
    """Words that differ by document: nothing in common but single tokens."""
    return " ".join(f"item{i * 7919 % 997} note{(i * 31 + k * k) % 613}" for k in range(32))


def worker_listening(p, ready=True):
    return listening(p, ready, "kvblend-worker listening")


def listening(g, ready=True, event=r"gateway\.listening"):
    """Wait until the program serves (ready: requests, too) and learn its port; else end it."""
    try:
        port = until("it listens", lambda: g.proc.poll() is not None or re.search(
            event + r" .*port=(\d+)", g.log()))
        assert g.proc.poll() is None, g.log()
        g.port = int(port.group(1))
        if ready:
            until("it is ready", lambda: g.proc.poll() is not None or g.get("/ready").status == 200)
            assert g.proc.poll() is None, g.log()
    except BaseException:
        g.__exit__(Exception, None)
        raise
    return g


def read_until(sock, marker, limit=1 << 20):
    data = b""
    while marker not in data and len(data) < limit:
        got = sock.recv(65536)
        if not got:
            break
        data += got
    return data


def main(namespace):
    """Run the test_* functions of a module; arguments select by part of the name."""
    tests = [(n, f) for n, f in namespace.items() if n.startswith("test_") and callable(f)]
    wanted = sys.argv[1:]
    passed = failed = missing = 0
    for name, fn in tests:
        if wanted and not any(w in name for w in wanted):
            continue
        try:
            fn()
            passed += 1
            print("ok  ", name, flush=True)
        except Missing as e:
            missing += 1
            print("SKIP", name, e, flush=True)
        except Exception:
            failed += 1
            print("FAIL", name, flush=True)
            traceback.print_exc()
    print(f"{passed} passed, {failed} failed, {missing} skipped")
    sys.exit(1 if failed else 77 if missing else 0)
