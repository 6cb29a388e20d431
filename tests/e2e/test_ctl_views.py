#!/usr/bin/env python3
"""What kvblendctl makes of the admin API's answers: each view over a made-up answer, letter by letter."""
import http.server
import json
import os
import socketserver
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import KVBLENDCTL, main, need  # noqa: E402

need(KVBLENDCTL)

MEANS = {"shadows": 170, "kl": 0.3414, "kl_low": 0.064, "kl_high": 0.6189, "limit": 0.9523, "reuse_kl": 2.1352, "loss": 0.16,
         "agreement": 0.952}
GUARD = {"state": "raised", "self_test": "ok", "sample": 0.02, "level": 2, "levels": 4, "strategy": "qs", "ratio": 0.5, "now": MEANS,
         "level_below": None, "last_change": dict(MEANS, loss=None), "alarms": 1, "returns": 0,
         "shadows": {"done": 1, "pending": 2, "dropped": 3, "failed": 4}}
RECORD = {"id": "ab" + "0" * 30, "kind": "chunk", "tokens": 512, "bytes": 2345678, "hits": 3, "tiers": "ram,nvme", "pinned": False,
          "building": False, "contexts": 2, "context_tokens": 800, "age_s": 100.5, "idle_s": 59.9, "expires_s": 3599.5, "namespace": "acme",
          "namespace_hash": "0123456789abcdef"}
TIER = {"shared": False, "records": 3, "hits": 4, "misses": {"never": 3, "gate": 1, "io": 0}, "evictions": 2, "expired": 1, "corrupt": 0,
        "capacity_bytes": 1 << 30, "used_bytes": 123456, "pinned_bytes": 0}
TEXT = "A text of its own.\n\n" + "äöü" * 20 + "\n\nWhy?"
REQUEST = {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in TEXT.split("\n", 1)]}]}
GAP = {"message": 0, "form": "\\n\\n", "neighbours_before": 1, "neighbours_behind": 2, "confidence": 0.567}

# By path: the answer, the command that asks for it and what it shows.
VIEWS = {
    "/admin/status": ({
        "gateway": {"version": "1.2", "pid": 7, "uptime_s": 125.2, "ready": True, "draining": False, "in_flight": 1, "in_flight_max": 8,
                    "waiting": 2, "waiting_max": 64, "shed": {"objective": 0, "share": 1, "full": 2}},
        "upstreams": [{"name": "far", "state": "down", "address": "http://b", "breaker": "open", "reason": "it\nanswers 500"}],
        "workers": [
            {"index": 0, "state": "ready", "address": "unix:/w", "own": True, "pid": 9, "restarts": 0, "status": {
                "progress": 1, "model": {"id": "m", "arch": "llama", "layers": 30, "max_model_len": 8192, "kv_dtype": "f32"},
                "compute": {"threads": 2, "isa": "avx2", "gemm": "tiles"}, "engine": {"running": 1, "waiting": 0},
                "builds": {"pending": 3}, "blend": {"enabled": True, "strategy": "qs", "ratio": 0.15},
                "store": {"ram_bytes": 12345678, "ram_budget_bytes": 1 << 30, "records": 12, "pinned": 1, "evictions": 0, "hits": 7,
                          "misses": {"never": 3, "gate": 0, "io": 2}},
                "tiers": [{"tier": "nvme", "state": "ok"}, {"tier": "redis", "state": "refuses", "reason": "WRONGPASS"}]}},
            {"index": 1, "state": "loading", "address": "http://h:1", "own": False, "status": {"progress": 0.42}},
            {"index": 2, "state": "down", "address": "http://h:2", "own": False, "reason": "no answer"}]}, ["status"]),
    "/admin/quality": ({"workers": [
        {"index": 0, "address": "unix:/a", "quality": GUARD}, {"index": 1, "address": "b", "quality": None},
        {"index": 2, "address": "c", "quality": dict(GUARD, state="off", sample=0, now=None, alarms=0)}]}, ["quality"]),
    "/admin/targets": ({"targets": [
        {"name": "a", "kind": "worker", "state": "ready", "breaker": "closed", "in_flight": 0, "in_flight_max": 8, "picked": 3, "failed": 1,
         "timeouts": 2, "busy": 0, "ttfb_ms": 12.34, "predicted_wait_ms": 0.0, "models": ["m"]},
        {"name": "größer", "kind": "upstream", "state": "down", "breaker": "open", "in_flight": 5, "in_flight_max": 0, "picked": 3,
         "failed": 0, "timeouts": 0, "busy": 0, "ttfb_ms": 0, "models": [f"gpt-{i}-with-a-name" for i in range(9)], "reason": "late"}]},
        ["targets"]),
    "/admin/keys": ({"keys": [
        {"id": "one", "weight": 2, "priority": 5, "max_ttft_ms": 0, "waiting": 1, "work_share": 0.25, "running": 1, "concurrency": 4,
         "rpm": 60, "requests_left": 59, "tpm": 0, "tokens_left": 0},
        {"id": "two", "weight": 0.5, "priority": 0, "max_ttft_ms": 800, "waiting": 0, "work_share": 0.75, "running": 1, "concurrency": 0,
         "rpm": 0, "requests_left": 0, "tpm": 1000, "tokens_left": 0}]}, ["keys"]),
    "/admin/profile": ({"source": "default", "profile": {
        "measured": "by hand", "strategy": "qs", "ratio": 0.15, "loss": 0.3, "score_lo": 5, "score_hi": 25, "sense_power": 0.5,
        "side_layer": 3, "check_layer": 1, "contexts": 2, "context_tokens": 1200, "sink_tokens": 1, "reuse_kl": 0.97,
        "ratios": [0.1, 0.4], "losses": {"hkvd": [0.5, 0.3], "qs": [None, 0.25]}}}, ["profile"]),
    "/admin/mrc": ({"workers": [
        {"index": 0, "address": "unix:/a", "mrc": {
            "look_ups": 5000, "tokens": 9e5, "followed": 900, "rate": 1, "distinct_bytes": 3 << 29, "ram_bytes": 700 << 20,
            "ram_found": 0.4, "points": [{"bytes": 512 << 20, "found": 0.3}, {"bytes": 1 << 30, "found": 0.7},
                                         {"bytes": 3 << 29, "found": 0.9}]}},
        {"index": 1, "address": "b", "mrc": None},
        {"index": 2, "address": "c", "mrc": {"look_ups": 9, "distinct_bytes": 1 << 20, "ram_bytes": 1 << 20, "ram_found": 0,
                                             "points": [{"bytes": 1 << 20, "found": 0}]}},
        {"index": 3, "address": "d", "mrc": {"look_ups": 0, "ram_bytes": 1, "points": []}}]}, ["mrc"]),
    "/admin/tiers": ({"data": [
        dict(TIER, tier="ram", forged=1, lost=2, dirty=3, tail_age_s=4000),
        dict(TIER, tier="nvme", misses={"never": 0}, rejected={"budget": 2}, load_bytes_per_s=2.5e9, first_ms=0.51, errors=1, timeouts=2,
             breaker="closed", breaker_opened=3, write_budget_ratio=0.25, degraded="no io_uring")]}, ["tiers"]),
    "/admin/chunks": ({"data": [RECORD, dict(RECORD, id="cd" + "1" * 30, pinned=True, namespace=None, idle_s=4000, contexts=0, context_tokens=0)]}, ["ls"]),
    "/admin/chunks/" + RECORD["id"]: (RECORD, ["show", RECORD["id"].upper()]),
    "/admin/decisions/told": ({"data": [{
        "id": "told", "reply_id": "chatcmpl-1", "by": "controller", "before_s": 0.002,
        "in": {"n_tok": 3000, "n_prefix": 20, "prefix_tier": 0, "max_ttft_s": 0.5,
               "tiers": [{"name": "ram"}, {"name": "nvme", "bytes_per_s": 2e9, "first_s": 0.001, "queue_s": 0}],
               "chunks": [{"n": 500, "tier": 1, "bytes": 1000000, "reuse": True}, {"n": 400, "tier": -1, "bytes": 0, "reuse": False}]},
        "out": {"strategy": "qs", "ratio": 0.15, "n_reused": 1, "reason": "it is fast", "predicted": {"ttft_s": 0.1},
                "full": {"ttft_s": 0.5}},
        "measured": {"prefill_s": 0.11, "compute_s": 0.1, "loads": [
            {"tier": "nvme", "records": 1, "bytes": 1000000, "begin_s": 0.001, "end_s": 0.02}], "steps": [
            {"name": "embed", "begin_s": 0.002, "end_s": 0.01, "compute_s": 0.008},
            {"name": "layers", "layers": [0, 3], "begin_s": 0.01, "end_s": 0.1, "compute_s": 0.07}]},
        "alternatives": [{"strategy": "full", "ratio": 1, "ttft_s": 0.5, "compute_s": 0.5, "load_s": 0, "exposed_s": 0}]}, {
        "id": "told", "reply_id": "chatcmpl-1", "by": "rules", "before_s": 0, "measured": {}, "alternatives": [],
        "in": {"n_tok": 30, "n_prefix": 0, "prefix_tier": -1, "max_ttft_s": 0, "tiers": [{"name": "ram"}], "chunks": []},
        "out": {"strategy": "full", "ratio": 1, "n_reused": 0, "reason": "nothing is held"}}]}, ["explain", "told"]),
    "/admin/segment": ({
        "segments": [dict(message=0, begin=b, end=e, tokens=9, detector="blocks", id="%032x" % b, cached=b > 0, tier="ram", miss="never")
                     for b, e in ((0, 18), (20, 140))],
        "prompt_tokens": 60, "preamble_tokens": 5, "suffix_tokens": 6, "mode": "blend", "strategy": "qs", "ratio": 0.15,
        "tokens": {"prefix": 5, "reused": 20, "recomputed": 4, "computed": 30},
        "boundaries": [dict(GAP, begin=18, end=20, cut=True, reason="marker"), dict(GAP, begin=140, end=142, cut=False, reason="edge")]},
        ["segment", "-"]),
}

SHOWN = {
    "status": """gateway   ready, version 1.2, pid 7, up 2 m 5 s
requests  1 of 8 running, 2 of 64 waiting
shed      1 share, 2 full
upstream  far down at http://b, breaker open: it answers 500
worker 0  ready at unix:/w, pid 9, 0 restarts
  model   m (llama, 30 layers), context 8192, kv f32
  compute 2 threads, avx2, gemm tiles
  engine  1 running, 0 waiting, 3 builds
  store   11.8 MiB of 1.0 GiB, 12 records (1 pinned), 0 evictions
  hits    7 of 12 look-ups, never 3, io 2
  tier    redis REFUSES: WRONGPASS
  blend   qs at ratio 0.15
worker 1  loading at http://h:1
  loading 42 %
worker 2  down at http://h:2: no answer
""",
    "quality": """worker 0  unix:/a
  RAISED    to level 2 of 4: qs at ratio 0.5
  now       KL 0.3414 nats (0.0640 to 0.6189), limit 0.9523, over 170 shadows
            the best token is the same in 95.2 %; plain reuse: KL 2.1352, of which 16 % are left
  then      KL 0.3414 nats (0.0640 to 0.6189), limit 0.9523, over 170 shadows
            the best token is the same in 95.2 %
  shadows   2.0 % of requests; 1 done, 2 pending, 3 dropped, 4 failed
  alarms    1, returns 0
worker 1  b
  no answer
worker 2  c
  off       --guard is 0
  shadows   0.0 % of requests; 1 done, 2 pending, 3 dropped, 4 failed
  alarms    0, returns 0
""",
    "targets": """TARGET  KIND      STATE  BREAKER  IN FLIGHT  SENT  FAILED  BUSY  FIRST BYTE  WAIT  MODELS                                           REASON
a       worker    ready  closed         0/8     3       3     0     12.3 ms  0 ms  m
größer  upstream  down   open             5     3       0     0           -     -  gpt-0-with-a-name, gpt-1-with-a-name and 7 more  late
""",
    "keys": """KEY  WEIGHT  PRIORITY  OBJECTIVE  WAITING   SHARE  RUNNING  REQUESTS LEFT  TOKENS LEFT
one       2         5          -        1  25.0 %      1/4       59 of 60            -
two     0.5         0     800 ms        0  75.0 %        1              -    0 of 1000
""",
    "profile": """source    default
measured  by hand
strategy  qs, 15.0 % of the reused tokens recomputed, for a loss of 0.300
layers    5 to 24 score (sensitivity to the power of 0.5), 3 is the sidecar's, K is checked at 1
records   are built behind one token, in idle time once more behind each of 2 contexts of 1200 tokens

LOSS  R=0.1  R=0.4
hkvd  0.500  0.300
qs        -  0.250

LOSS: distance from a full prefill (KL) as a share of plain reuse's, 0.9700 nats
""",
    "mrc": """worker 0  unix:/a
  5000 look-ups; the different records among them take 1.5 GiB

      RAM   FOUND
512.0 MiB  30.0 %  █████████
700.0 MiB  40.0 %  ████████████ (now)
  1.0 GiB  70.0 %  █████████████████████
  1.5 GiB  90.0 %  ███████████████████████████
worker 1  b
  no answer
worker 2  c
  9 look-ups; the different records among them take 1.0 MiB

    RAM  FOUND
1.0 MiB  0.0 %   (now)
worker 3  d
  nothing was looked up yet
""",
    "tiers": """TIER       USED       OF  RECORDS  PINNED  HITS      LOADS    FIRST   TAIL
ram   120.6 KiB  1.0 GiB        3     0 B     4          -        -  1.1 h
nvme  120.6 KiB  1.0 GiB        3     0 B     4  2.50 GB/s  0.51 ms      -

ram
  misses    never 3, gate 1
  evicted   2, expired 1, corrupt 0, forged 1, lost 2, waiting to be written 3
nvme
  refused   budget 2
  evicted   2, expired 1, corrupt 0, errors 1, timeouts 2
  breaker   closed (opened 3 times)
  written   25.0 % of the day's budget
  degraded  no io_uring
""",
    "ls": """ID            KIND   TOKENS     SIZE  HITS  TIERS       IDLE  NAMESPACE          FLAGS
ab0000000000  chunk     512  2.2 MiB     3  ram,nvme  59.9 s  acme               2 contexts
cd1111111111  chunk     512  2.2 MiB     3  ram,nvme   1.1 h  #0123456789abcdef  pinned
2 records, 4.5 MiB
""",
    "show": """id       ab000000000000000000000000000000
kind     chunk
tokens   512
size     2.2 MiB
space    acme
tiers    ram,nvme
hits     3
age      1 m 40 s
idle     59.9 s
expires  59 m 59 s
pinned   no
building no
contexts 2 of 800 tokens
""",
    "explain": """request   told (chatcmpl-1)
prompt    3000 tokens, 20 of them an exact prefix that was held in ram
decided   qs, 15.0 % of the reused tokens recomputed, 1 chunks reused
by        the controller
because   it is fast
predicted 100.0 ms of prefill (exact: 500.0 ms)
measured  110.0 ms of prefill, 100.0 ms of it computing; 2.0 ms before it
objective 500.0 ms were left of max_ttft_ms

STEP, LOAD  OF                    FROM MS     TO  COMPUTED
nvme        1 records, 976.6 KiB      1.0   20.0
embed                                 2.0   10.0       8.0
layers      layers 0 to 3            10.0  100.0      70.0

CHUNK  TOKENS  HELD IN    TO LOAD  THEN
    1     500  nvme     976.6 KiB  reused
    2     400  nowhere          -  computed
nvme was taken to load 2.000 GB/s, after 1.0 ms and a queue of 0.0 ms

with all that was held reused, at the least ratio that keeps the quality:
INSTEAD  RATIO  FIRST TOKEN MS  COMPUTE  LOAD  WAITING
full         1           500.0    500.0   0.0      0.0

---- prompt 2 ----
request   told (chatcmpl-1)
prompt    30 tokens, 0 of them an exact prefix that was held
decided   full, 100.0 % of the reused tokens recomputed, 0 chunks reused
by        the rules: nothing to choose
because   nothing is held
measured  nothing: the request ended before its first token

""",
    "segment": """MESSAGE  BYTES   TOKENS  DETECTOR  CACHED     ID            TEXT
      0  0-18         9  blocks    no: never  000000000000  A text of its own.
      0  20-140       9  blocks    ram        000000000000  äöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäöüäö…

boundaries (BEFORE, BEHIND: different neighbours seen of the text there)
MESSAGE   AT  GAP   CUT  WHY     BEFORE  BEHIND  CONFIDENCE  TEXT
      0   20  \\n\\n  yes  marker       1       2        0.57  A text of its own. | äöüäöüäöüäöü
      0  142  \\n\\n  no   edge         1       2        0.57  äöüäöüäöüäöü | Why?

  edge                 cut: the text's beginning or end
  marker               cut: a framework's marker or a part, document or range of the request

prompt      60 tokens: 5 before the first chunk, 2 chunks, 6 after the last
would run   mode blend, strategy qs, ratio 0.15
reused      25 tokens (5 as exact prefix, 20 blended)
recomputed  4 tokens of reused chunks, 30 tokens that nothing holds
to compute  57 % of the prompt
""",
}


class Gateway(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps(VIEWS[self.path.split("?")[0]][0]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def address_string(self):
        return "ctl"

    def log_message(self, *_):
        pass


def test_views():
    with tempfile.TemporaryDirectory() as d, socketserver.UnixStreamServer(d + "/admin", Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for answer, command in VIEWS.values():
            for args in ([], ["--json"]):
                r = subprocess.run([KVBLENDCTL, "--admin", f"unix:{d}/admin", *command, *args], capture_output=True, text=True,
                                   input=json.dumps(REQUEST), timeout=60)
                assert r.returncode == 0 and not r.stderr, (command, r)
                if args:
                    assert json.loads(r.stdout) == answer, (command, r.stdout)
                else:
                    shown = "\n".join(line.rstrip() for line in r.stdout.split("\n"))
                    assert shown == SHOWN[command[0]], (command, shown)
        server.shutdown()


if __name__ == "__main__":
    main(globals())
