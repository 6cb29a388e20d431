#!/usr/bin/env python3
"""kvblend pull against a hub of the test's own, and models by name: what is downloaded, where it lies, what is refused."""
import contextlib
import hashlib
import http.server
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading

from harness import KVBLEND, MODELS, Missing, certificates, clean_env, gateway, main, need, other_python, tiny_model

TOKEN = "hf_SECRETsecretSECRET"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Site(contextlib.AbstractContextManager):
    """A server on loopback; answer(handler) makes each reply. seen: (path, headers) of all requests."""

    def __init__(self, answer, context=None):
        self.seen = seen = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                seen.append((self.path, dict(self.headers)))
                answer(self)

            def log_message(self, *args):
                pass

            def say(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *connection: None  # clients leave in the midst of answers
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *why):
        self.server.shutdown()
        self.server.server_close()


class Hub(Site):
    """files: {path: bytes} of the one repository acme/tiny. What a test changes: cuts (lengths after which
    the next replies break off), spoil (path: bytes that come instead), listing, redirect (of large files:
    to where), ranges, token (None: anybody may), status (of all large files)."""

    def __init__(self, files, context=None):
        self.files, self.spoil, self.cuts = files, {}, []
        self.redirect = self.token = self.status = None
        self.ranges = True
        self.listing = {"sha": COMMIT, "siblings": [self.entry(p, d) for p, d in files.items()]}
        super().__init__(self.answer, context)

    @staticmethod
    def entry(path, data):
        e = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
        if path.endswith(LARGE):
            e["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
        return e

    def answer(self, h):
        if self.token and h.headers["Authorization"] != f"Bearer {self.token}":
            return h.say(401, b"{}", X_Error_Message="Access to model acme/tiny is restricted")
        if h.path == "/api/models/acme/tiny/revision/main?blobs=true":
            return h.say(200, json.dumps(self.listing).encode())
        lead = f"/acme/tiny/resolve/{COMMIT}/"
        path = h.path[len(lead):].replace("%20", " ")
        if not h.path.startswith(lead) or path not in self.files:
            return h.say(404, b"{}", X_Error_Message="Entry not found")
        if path.endswith(LARGE) and self.status:
            return h.say(self.status)
        if path.endswith(LARGE) and self.redirect:
            return h.say(302, Location=self.redirect + h.path, X_Linked_Etag=sha256(self.files[path]))
        return self.send(h, path)

    def send(self, h, path):
        data = self.spoil.get(path, self.files[path])
        at = int(h.headers["Range"][6:-1]) if self.ranges and "Range" in h.headers else 0
        h.send_response(206 if at else 200)
        if at:
            h.send_header("Content-Range", f"bytes {at}-{len(data) - 1}/{len(data)}")
        h.send_header("Content-Length", str(len(data) - at))
        h.end_headers()
        n = self.cuts.pop(0) if self.cuts and path.endswith(LARGE) else len(data)
        h.wfile.write(data[at:at + n])
        if at + n < len(data):
            h.wfile.flush()
            h.connection.shutdown(socket.SHUT_RDWR)
            h.close_connection = True

    def asked(self, end):
        """The ranges of the requests for files of that end, "" for the whole."""
        return [h.get("Range", "") for p, h in self.seen if p.endswith(end)]


@contextlib.contextmanager
def home():
    path = tempfile.mkdtemp(prefix="kvb-pull-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


def environment(folder, hub=None, **more):
    own = {k: v for k, v in clean_env().items() if not k.startswith(("HF_", "HUGGINGFACE_"))}
    own.update(HF_HOME=folder, **more)
    if hub:
        own["HF_ENDPOINT"] = hub.url
    return own


def pull(folder, hub, name="acme/tiny", limit=None, **more):
    def limits():
        if limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run([KVBLEND, "pull", name], env=environment(folder, hub, **more), capture_output=True,
                          text=True, timeout=120, preexec_fn=limits, check=False)


def refused(result, *words):
    assert result.returncode == 1 and not result.stdout, result
    for w in words:
        assert w in result.stderr, (w, result.stderr)
    assert TOKEN not in result.stderr, result.stderr


def cached(folder):
    return os.path.join(folder, "hub", "models--acme--tiny")


def blobs(folder):
    where = os.path.join(cached(folder), "blobs")
    return sorted(os.listdir(where)) if os.path.isdir(where) else []


def tiny_folder():
    where = os.path.join(MODELS, "smollm2")
    files = {}
    for name in os.listdir(where):
        with open(os.path.join(where, name), "rb") as f:
            files[name] = f.read()
    return files


def noise(n, seed=1):
    return hashlib.shake_256(bytes([seed])).digest(n)


def ggufs():
    return {"README.md": b"# tiny", "tiny-Q4_K_M.gguf": noise(9000), "tiny-Q8_0.gguf": noise(5000, 2),
            "tiny-UD-Q4_K_XL.gguf": noise(77, 3), "mmproj-F16.gguf": noise(10, 4),
            "F32/tiny-F32-00001-of-00002.gguf": noise(300, 5), "F32/tiny-F32-00002-of-00002.gguf": noise(200, 6)}


def test_a_folder_is_pulled_as_the_hubs_library_lays_it_out():
    files = dict(tiny_folder(), **{"README.md": b"# tiny", "pytorch_model.bin": noise(100), "onnx/model.onnx": b"x",
                                   "1_Pooling/config.json": b"{}", "consolidated.safetensors": noise(60)})
    left_out = {"README.md", "pytorch_model.bin", "onnx/model.onnx", "consolidated.safetensors"}
    with home() as folder, Hub(files) as hub:
        r = pull(folder, hub)
        assert r.returncode == 0, r
        snapshot = os.path.join(cached(folder), "snapshots", COMMIT)
        assert r.stdout == snapshot + "\n", r
        there = {os.path.relpath(os.path.join(d, f), snapshot) for d, _, fs in os.walk(snapshot) for f in fs}
        assert there == set(files) - left_out, there
        for name in there:
            link = os.readlink(os.path.join(snapshot, name))
            hashed = sha256(files[name]) if name.endswith(LARGE) else git_sha1(files[name])
            assert link == "../" * name.count("/") + "../../blobs/" + hashed, link
            with open(os.path.join(snapshot, name), "rb") as f:
                assert f.read() == files[name]
        with open(os.path.join(cached(folder), "refs", "main")) as f:
            assert f.read() == COMMIT
        assert not [b for b in blobs(folder) if b.endswith(".incomplete")]
        n = len(hub.seen)
        assert pull(folder, hub, "hf:acme/tiny").stdout == r.stdout and len(hub.seen) == n + 1  # the list alone
        with gateway(model="acme/tiny", env=environment(folder)) as g:
            assert g.get("/v1/models").json()["data"][0]["id"] == "acme/tiny"
            body = {"model": "acme/tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
            assert g.post("/v1/chat/completions", body).status == 200


def test_the_hubs_library_finds_what_was_pulled():
    try:
        import huggingface_hub
    except ImportError:
        raise Missing("the package huggingface_hub is not installed") from None
    files = tiny_folder()
    with home() as folder, Hub(files) as hub:
        assert pull(folder, hub).returncode == 0
        found = huggingface_hub.snapshot_download("acme/tiny", cache_dir=os.path.join(folder, "hub"),
                                                  local_files_only=True)
        assert set(os.listdir(found)) == set(files)
        for name in files:
            assert huggingface_hub.try_to_load_from_cache("acme/tiny", name, cache_dir=os.path.join(folder, "hub"))


def test_a_quant_is_one_file():
    with home() as folder, Hub(ggufs()) as hub:
        refused(pull(folder, hub), "acme/tiny:FILE", "tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf")
        refused(pull(folder, hub, "acme/tiny:Q4_K"), "no GGUF file Q4_K", "tiny-Q8_0.gguf")
        refused(pull(folder, hub, "acme/tiny:README.md"), "no GGUF file README.md")
        assert not blobs(folder)
        r = pull(folder, hub, "acme/tiny:q8_0")
        assert r.returncode == 0 and r.stdout.endswith(f"snapshots/{COMMIT}/tiny-Q8_0.gguf\n"), r
        assert len(blobs(folder)) == 1
        r = pull(folder, hub, "acme/tiny:F32")
        assert r.returncode == 0 and r.stdout.endswith("/F32/tiny-F32-00001-of-00002.gguf\n"), r
        assert len(blobs(folder)) == 3
        assert pull(folder, hub, "acme/tiny:tiny-UD-Q4_K_XL.gguf").returncode == 0
        hub.listing["siblings"] = [e for e in hub.listing["siblings"] if "00002-of" not in e["rfilename"]]
        refused(pull(folder, hub, "acme/tiny:F32"), "1 of the parts")


def test_a_cut_download_goes_on():
    files = {"tiny.gguf": noise(300000)}
    with home() as folder, Hub(files) as hub:
        hub.cuts = [100000, 50000]
        r = pull(folder, hub)
        assert r.returncode == 0, r
        assert hub.asked(".gguf") == ["", "bytes=100000-", "bytes=150000-"], hub.asked(".gguf")
    with home() as folder, Hub(files) as hub:  # and after the program has ended
        hub.cuts, hub.redirect = [120000], None
        first = hub.send

        def once(h, path):
            first(h, path)
            hub.status = 410

        hub.send = once
        refused(pull(folder, hub), "status 410")
        assert blobs(folder) == [sha256(files["tiny.gguf"]) + ".incomplete"]
        assert not os.path.exists(os.path.join(cached(folder), "refs"))
        hub.send, hub.status = first, None
        assert pull(folder, hub).returncode == 0
        assert hub.asked(".gguf")[-1] == "bytes=120000-", hub.asked(".gguf")
        assert blobs(folder) == [sha256(files["tiny.gguf"])]
    with home() as folder, Hub(files) as hub:  # a server that is busy
        first = hub.send

        def later(h, path):
            hub.send = first
            h.say(503)

        hub.send = later
        assert pull(folder, hub).returncode == 0 and len(hub.asked(".gguf")) == 2
    with home() as folder, Hub(files) as hub:  # a server that knows no ranges
        hub.cuts, hub.ranges = [100000], False
        assert pull(folder, hub).returncode == 0
        assert blobs(folder) == [sha256(files["tiny.gguf"])]
    with home() as folder, Hub(files) as hub:  # what lies there is another's
        os.makedirs(os.path.join(cached(folder), "blobs"))
        with open(os.path.join(cached(folder), "blobs", sha256(files["tiny.gguf"]) + ".incomplete"), "wb") as f:
            f.write(noise(300001, 9))
        assert pull(folder, hub).returncode == 0
        assert hub.asked(".gguf") == [""]


def test_what_is_not_the_file_does_not_stay():
    files = dict(tiny_folder())
    for name in ("model.safetensors", "config.json"):
        with home() as folder, Hub(files) as hub:
            hub.spoil[name] = bytes([files[name][0] ^ 1]) + files[name][1:]
            refused(pull(folder, hub), name, "is not what the hub says")
            hashed = sha256(files[name]) if name.endswith(LARGE) else git_sha1(files[name])
            assert not [b for b in blobs(folder) if b.startswith(hashed)]
            assert not os.path.exists(os.path.join(cached(folder), "refs"))
            hub.spoil = {}
            assert pull(folder, hub).returncode == 0
    with home() as folder, Hub(files) as hub:
        hub.spoil["model.safetensors"] = files["model.safetensors"] + b"more"
        refused(pull(folder, hub), "model.safetensors", "sends more than")


def test_the_token_goes_to_the_hub_alone():
    files = {"tiny.gguf": noise(100000)}
    with home() as folder, Hub(files) as hub, Hub(files) as store:
        hub.token = TOKEN
        hub.redirect = store.url
        refused(pull(folder, hub), "status 401", "restricted", "HF_TOKEN")
        refused(pull(folder, hub, HF_TOKEN="hf_wrong"), "status 401")
        refused(pull(folder, hub, HF_TOKEN=TOKEN + "\nX-Other: y"), "the token")
        store.cuts = [40000]
        r = pull(folder, hub, HF_TOKEN=TOKEN)
        assert r.returncode == 0 and TOKEN not in r.stdout + r.stderr, r
        assert [h.get("Range", "") for _, h in store.seen] == ["", "bytes=40000-"], store.seen
        assert all("Authorization" not in h for _, h in store.seen), store.seen
        assert hub.seen[-1][1]["Authorization"] == f"Bearer {TOKEN}"
    with home() as folder, Hub(files) as hub:  # to itself, forever
        hub.redirect = hub.url
        refused(pull(folder, hub), "redirects more than")
    for place in ("ftp://localhost", "file://", "http://user@localhost"):
        with home() as folder, Hub(files) as hub:
            hub.redirect = place
            refused(pull(folder, hub), "is not followed")


def test_https_is_kept():
    with home() as folder, tempfile.TemporaryDirectory(prefix="kvb-pull-") as keys:
        if not shutil.which("openssl"):
            raise Missing("openssl is not installed")
        made = certificates(keys)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*made["server"])
        files = {"tiny.gguf": noise(1000)}
        with Hub(files, context) as hub, Hub(files) as plain:
            refused(pull(folder, hub, SSL_CERT_FILE=made["stranger"][0], HF_TOKEN=TOKEN), "no TLS with")
            assert not hub.seen
            hub.redirect = plain.url
            refused(pull(folder, hub, SSL_CERT_FILE=made["ca"][0]), "redirect from https", "is not followed")
            assert not plain.seen
            hub.redirect = None
            assert pull(folder, hub, SSL_CERT_FILE=made["ca"][0]).returncode == 0


def test_a_hostile_list_is_refused():
    bad = ["../../../../evil", "/tmp/evil", "a/../../evil", "a//b", "a/./b", "..", ".", "", "a\\b", "a\nb", "x" * 300,
           "/".join(["d"] * 600)]
    for path in bad:
        with home() as folder, Hub({"tiny.gguf": noise(10)}) as hub:
            hub.listing["siblings"].append(Hub.entry(path, b"evil"))
            refused(pull(folder, hub), "no path within it")
            assert not blobs(folder) and len(hub.seen) == 1
    one = Hub.entry("tiny.gguf", noise(10))
    lists = [{}, {"sha": COMMIT}, {"sha": "../../../../tmp/evil-0123456789abcdef012", "siblings": [one]},
             {"sha": COMMIT, "siblings": []}, {"sha": COMMIT, "siblings": {"a": one}}, {"sha": COMMIT, "siblings": [7]},
             {"sha": COMMIT, "siblings": [dict(one, size=-1)]}, {"sha": COMMIT, "siblings": [dict(one, size="10")]},
             {"sha": COMMIT, "siblings": [dict(one, lfs={"sha256": "../../../evil"})]},
             {"sha": COMMIT, "siblings": [dict(one, rfilename=f"{i}.gguf") for i in range(20001)]}, [], "x"]
    for listing in lists:
        with home() as folder, Hub({"tiny.gguf": noise(10)}) as hub:
            hub.listing = listing
            refused(pull(folder, hub))
            assert not blobs(folder) and len(hub.seen) == 1, listing
    with home() as folder, Hub({"tiny.gguf": noise(10)}) as hub:  # a file where a folder should be
        hub.files = {"a.json": b"{}", "config.json": b"{}", "model.safetensors": b"", "0_x/config.json": b"{}"}
        hub.listing["siblings"] = [Hub.entry(p, d) for p, d in hub.files.items()]
        os.makedirs(os.path.join(cached(folder), "snapshots", COMMIT))
        with open(os.path.join(cached(folder), "snapshots", COMMIT, "0_x"), "w"):
            pass
        refused(pull(folder, hub), "cannot")


def test_a_full_disk_is_said():
    files = {"tiny.gguf": noise(200000)}
    with home() as folder, Hub(files) as hub:
        hub.listing["siblings"][0]["size"] = 1 << 60
        refused(pull(folder, hub), "MiB more", "has room for")
        assert not blobs(folder)
    with home() as folder, Hub(files) as hub:
        refused(pull(folder, hub, limit=65536), "cannot write", ".incomplete")
        assert pull(folder, hub).returncode == 0  # and there is room again
        assert hub.asked(".gguf")[1] == "bytes=65536-", hub.asked(".gguf")


def test_names_are_found_where_the_hubs_library_keeps_them():
    def check(args, folder, cwd=None, **more):
        e = dict(environment(folder), **more)
        return subprocess.run([KVBLEND, "--listen", "127.0.0.1:0", "--check", "--model", *args], env=e, cwd=cwd,
                              capture_output=True, text=True, timeout=60, check=False)

    with open(tiny_model(), "rb") as f:
        model = f.read()
    with home() as folder, Hub({"tiny-F32.gguf": model}) as hub:
        r = check(["acme/tiny"], folder)
        assert r.returncode == 2 and os.path.join(folder, "hub") in r.stderr, r
        assert "kvblend pull acme/tiny" in r.stderr, r
        assert pull(folder, hub).returncode == 0
        for name in ("acme/tiny", "hf:acme/tiny", "acme/tiny:F32", "acme/tiny:tiny-F32.gguf", f"acme/tiny@{COMMIT}"):
            assert check([name], folder).returncode == 0, name
        for name, word in (("acme/tiny:Q4_0", "no GGUF file Q4_0"), ("acme/tiny@v2", "no such model"),
                           ("hf:tiny", "no model's name"), ("hf:../tiny", "no model's name"),
                           ("hf:acme/tiny@../x", "no model's name"), ("tiny", "expected a readable GGUF file")):
            r = check([name], folder)
            assert r.returncode == 2 and word in r.stderr, (name, r)
        other = os.path.join(folder, "other")
        os.rename(os.path.join(folder, "hub"), other)
        assert check(["acme/tiny"], folder).returncode == 2
        assert check(["acme/tiny"], folder, HF_HUB_CACHE=other).returncode == 0
        os.makedirs(os.path.join(folder, "acme", "tiny"))  # a path is a path
        assert check(["acme/tiny"], folder, cwd=folder).returncode == 0
        with gateway(model="hf:acme/tiny:F32", env=dict(environment(folder), HF_HUB_CACHE=other)) as g:
            assert g.get("/v1/models").json()["data"][0]["id"] == "acme/tiny:F32"
            body = {"model": "hf:acme/tiny:F32", "prompt": "a", "max_tokens": 2}
            assert g.post("/v1/completions", body).status == 200
            assert g.post("/v1/completions", dict(body, model="acme/tiny:Q8_0")).status == 404


def test_the_command_says_how_it_is_used():
    for args, status in ((["--help"], 0), ([], 2), (["--what"], 2), (["acme/tiny", "more"], 2)):
        r = subprocess.run([KVBLEND, "pull", *args], capture_output=True, text=True, timeout=60, check=False)
        assert r.returncode == status and "usage: kvblend pull NAME" in (r.stderr if status else r.stdout), r
    with home() as folder:
        e = environment(folder, HF_ENDPOINT="ftp://localhost")
        for name, word in (("acme/tiny", "no address of a hub"), ("tiny", "no model's name")):
            r = subprocess.run([KVBLEND, "pull", name], env=e, capture_output=True, text=True, timeout=60, check=False)
            assert r.returncode == 1 and word in r.stderr, r


if __name__ == "__main__":
    other_python("KVBLEND_CLIENTS_PYTHON")  # whose packages bring huggingface_hub along
    need(KVBLEND)
    main(globals())
