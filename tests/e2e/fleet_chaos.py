#!/usr/bin/env python3
"""A fleet that is broken on purpose, under load: tests/e2e/fleet_chaos.py [--write] [part of an event's name ...]

`tools/test --fleet` runs it, as root.

Three hosts (network.py) with two gateways, four workers and a Redis Cluster of three, told and ended as the chart of
etc/kubernetes does it. It begins with the programs of $KVBLEND_OLD_BUILD and is upgraded to those of $KVBLEND_BUILD one
by one; then programs are killed and ways cut. Clients stream answers all the time and ask twice more, as the official
ones do, where an answer failed before its first token.

An answer is wrong unless it is what an undisturbed worker gives that holds the same of the prompt's chunks (each answer
says which were reused; temperature 0, no contexts). A stream is lost if no try brought a token, and cut if it ended
behind its first one. --write: the table in docs/operations.md is made anew.
"""
import collections
import http.client
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import network  # noqa: E402
from harness import BUILD, ROOT, Missing, Program, need, real_model, skip, tiny_model, until  # noqa: E402
from test_workers import doc  # noqa: E402

OLD = os.environ.get("KVBLEND_OLD_BUILD", "")
CLIENTS, TRIES = 6, 3
PAUSE_S = 0.05  # of a client between two requests
LENGTHS = (24, 24, 24, 600)  # tokens: most are short, some are under way when something happens
DOCS, PROMPTS = 30, 40
WINDOW_S = 3  # what a hit share is taken over
BACK_S, GIVE_UP_S = 60, 90
CUT_S, WAIT_S = 45, 35  # a way is cut for so long; 20 s of silence tell, and 2 s of a fresh connection, so nobody waits for its mending
PRE_STOP_S = {"worker": 3, "gateway": 5}  # etc/kubernetes/chart/templates
KEY, WORKER_KEY, REDIS_KEY = "sesame", "open", "barley"
GATEWAY, WORKER, REDIS = 8010, 8020, 6379


def prompts(kind):
    r = random.Random(kind)
    return [tuple(r.sample(range(DOCS * kind, DOCS * (kind + 1)), 3)) for _ in range(PROMPTS)]


def body(ids, length, **kv):
    parts = [{"type": "text", "text": t} for t in [doc(i) for i in ids] + ["What is it about?"]]
    return {"stream": True, "temperature": 0, "max_tokens": length, "ignore_eos": True,
            "kvblend": {"mode": "blend", "strategy": "qs", "ratio": 0.3, "explain": True, **kv},
            "messages": [{"role": "system", "content": "You answer from passages."}, {"role": "user", "content": parts}]}


# ---- a request ----

class Failed(Exception):
    pass


def stream(address, port, key, ask):
    """(text, report, seconds to the first token), or Failed with whether there was a token."""
    began, text, first, report = time.monotonic(), "", None, None
    c = http.client.HTTPConnection(address, port, timeout=GIVE_UP_S)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(ask), {"Authorization": f"Bearer {key}"})
        r = c.getresponse()
        if r.status != 200:
            raise Failed(False, f"{r.status} {r.read()[:200]}")
        for line in r:
            if not line.startswith(b"data: {"):
                if line.startswith(b"data: [DONE]") and report:
                    return text, report, first
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise Failed(first is not None, event["error"]["message"])
            report = event.get("kvblend") or report
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                first = first or (time.monotonic() - began if choice["delta"].get("content") else None)
        raise Failed(first is not None, "no end")
    except (OSError, http.client.HTTPException) as e:
        raise Failed(first is not None, repr(e)) from None
    finally:
        c.close()


class Answer:
    """What became of a request, all tries together."""

    def __init__(self, prompt, length):
        self.prompt, self.length, self.began = prompt, length, time.monotonic()
        self.text = self.reused = None
        self.whys = []
        self.n_again, self.fate = 0, "lost"

    def ask(self, targets, first):
        for k in range(TRIES):
            self.n_again = k
            at = time.monotonic() - self.began
            live = targets()
            try:
                self.text, report, wait = stream(live[(first + k) % len(live)], GATEWAY, KEY,
                                                 dict(body(self.prompt, self.length), cache_salt="fleet"))
                self.reused = tuple(c["source"] != "computed" for c in report["chunks"])
                self.fate, self.wait = "answered", at + (wait or 0)
                break
            except Failed as e:
                cut, why = e.args
                self.whys.append(f"{why} of {live[(first + k) % len(live)]}")
                if cut:
                    self.fate = "cut"
                    break
        self.ended = time.monotonic()
        if self.fate != "answered":
            self.wait = self.ended - self.began


class Load:
    """Clients that ask all the time."""

    def __init__(self, fleet):
        self.fleet, self.answers, self.kind, self.prompts, self.over = fleet, [], 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(CLIENTS)]
        self.ask_new()
        for t in self.threads:
            t.start()

    def ask_new(self):
        """From now on about documents that nobody holds."""
        self.kind += 1
        self.prompts = prompts(self.kind)

    def spread(self):
        """The same, until they are held; have all workers a part of them? One that was away gets little for a while."""
        def said():
            return [w.program.metric("kvblend_generated_tokens_total") for w in self.fleet.workers]
        before = said()
        self.ask_new()
        until("the caches are warm", lambda: (self.share(time.monotonic()) or 0) > 0.99)
        return all(b - a > 1000 for a, b in zip(before, said()))

    def run(self, seed):
        r = random.Random(seed)
        while not self.over.wait(PAUSE_S):
            a = Answer(r.choice(self.prompts), r.choice(LENGTHS))
            a.ask(lambda: self.fleet.open, r.randrange(2))
            self.answers.append(a)

    def share(self, until_s):
        """Of the chunks of answers in the window, how many were reused; None without answers."""
        got = [a for a in list(self.answers) if a.reused and until_s - WINDOW_S < a.ended <= until_s]
        return sum(map(sum, (a.reused for a in got))) / sum(len(a.reused) for a in got) if got else None

    def stop(self):
        self.over.set()
        for t in self.threads:
            t.join()


# ---- the fleet ----

class Node:
    """A gateway or a worker at its place, whichever program runs there."""

    def __init__(self, fleet, kind, host, port=None):
        self.fleet, self.kind, self.host, self.program = fleet, kind, host, None
        self.port = port or GATEWAY

    def start(self, build):
        args, env = self.fleet.worker(self) if self.kind == "worker" else self.fleet.gateway()
        exe = os.path.join(build, *{"worker": ("worker", "kvblend-worker"), "gateway": ("gateway", "kvblend")}[self.kind])
        self.program = Program([*self.host.prefix, exe, "--listen", f"{self.host.address}:{self.port}", *args], env)
        self.program.host, self.program.port = self.host.address, self.port
        self.program.key = WORKER_KEY if self.kind == "worker" else KEY
        until(f"the {self.kind} is ready", self.ready)
        if self.kind == "gateway":
            self.fleet.open.append(self.host.address)

    def ready(self):
        assert self.program.proc.poll() is None, self.program.log()
        try:
            return self.program.get("/ready").status == 200
        except OSError:
            return False

    def kill(self):
        self.program.proc.kill()
        self.program.proc.wait()
        self.close()

    def leave(self):
        """As its pod ends: services forget a gateway, preStop waits, SIGTERM lets requests end."""
        if self.kind == "gateway":
            self.fleet.open.remove(self.host.address)
        time.sleep(PRE_STOP_S[self.kind])
        status = self.program.stop()
        assert status == 0, (status, self.program.log())
        self.close()

    def close(self):
        self.program.__exit__(None, None)
        self.program = None


class Fleet:
    def __init__(self, net, build):
        self.net, self.dir, self.redis, self.nodes, self.open = net, tempfile.mkdtemp(prefix="kvb-fleet-"), [], [], []
        self.url = f"redis-cluster://:{REDIS_KEY}@" + ",".join(f"{h.address}:{REDIS}" for h in net.hosts)
        try:
            self.redis = [self.start_redis(h) for h in net.hosts]
            self.join_redis()
            h = net.hosts
            self.workers = [Node(self, "worker", *place) for place in ((h[0], WORKER), (h[1], WORKER), (h[2], WORKER),
                                                                       (h[2], WORKER + 1))]
            self.gateways = [Node(self, "gateway", host) for host in h[:2]]
            for node in self.workers + self.gateways:
                self.start(node, build)
        except BaseException:
            self.close()
            raise

    def start(self, node, build):
        self.nodes.append(node)
        node.start(build)

    def worker(self, node):
        at = f"{node.host.address}:{node.port}"
        return (["--model", tiny_model(), "--advertise", f"http://{at}", "--ram", "64MiB", "--threads", "1", "--nvme",
                 f"{self.dir}/{at}:64MiB", "--drain-timeout", "100s", "--namespace", "*=contexts:off"],
                {"KVBLEND_WORKER_REDIS": self.url, "KVBLEND_WORKER_API_KEY": WORKER_KEY})

    def gateway(self):
        return ["--drain-timeout", "100s"], {"KVBLEND_REGISTRY": self.url, "KVBLEND_REGISTRY_API_KEY": WORKER_KEY,
                                             "KVBLEND_API_KEY": KEY}

    def start_redis(self, host):
        folder = os.path.join(self.dir, host.name)
        os.makedirs(folder, exist_ok=True)
        return subprocess.Popen(
            [*host.prefix, "redis-server", "--bind", host.address, "--port", str(REDIS), "--dir", folder, "--save", "",
             "--requirepass", REDIS_KEY, "--masterauth", REDIS_KEY, "--cluster-enabled", "yes", "--cluster-node-timeout",
             "5000", "--cluster-require-full-coverage", "no", "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"],
            stdout=subprocess.DEVNULL)

    def redis_cli(self, *args, host=None):
        host = host or self.net.hosts[0]
        r = subprocess.run([*host.prefix, "redis-cli", *(() if "--cluster" in args else ("-h", host.address)), *args],
                           env=dict(os.environ, REDISCLI_AUTH=REDIS_KEY), capture_output=True, text=True, check=False)
        return r.stdout

    def join_redis(self):
        for host in self.net.hosts:
            until("Redis answers", lambda h=host: "PONG" in self.redis_cli("ping", host=h))
        print(self.redis_cli("--cluster", "create", *(f"{h.address}:{REDIS}" for h in self.net.hosts), "--cluster-yes"),
              file=sys.stderr)
        for host in self.net.hosts:
            until("the cluster is one", lambda h=host: "cluster_state:ok" in self.redis_cli("cluster", "info", host=h))

    def keeper(self):
        """The Redis that has the registry."""
        return next(i for i, h in enumerate(self.net.hosts) if "workers" in self.redis_cli("keys", "*registry*workers", host=h))

    def close(self):
        try:
            for node in self.nodes:
                if node.program:
                    node.close()
            for r in self.redis:
                r.kill()
                r.wait()
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)


# ---- what happens to it ----

def upgrade(fleet, _):
    for node in itertools.chain(*zip(fleet.workers, fleet.gateways + [None, None])):
        if node:
            node.leave()
            node.start(BUILD)


def kill_worker(fleet, _):
    def busy(w):
        return w.program.metric("kvblend_requests_active")
    victim = until("a worker is at it", lambda: next(filter(busy, fleet.workers), None))
    victim.kill()
    time.sleep(PRE_STOP_S["worker"])  # until something notices
    victim.start(BUILD)


def kill_gateway(fleet, _):
    fleet.gateways[0].kill()
    time.sleep(PRE_STOP_S["gateway"])
    fleet.open.remove(fleet.gateways[0].host.address)
    fleet.gateways[0].start(BUILD)


def kill_redis(fleet, _):
    i = fleet.keeper()
    fleet.redis[i].kill()
    fleet.redis[i].wait()
    time.sleep(20)
    fleet.redis[i] = fleet.start_redis(fleet.net.hosts[i])


def cut(*ways):
    def event(fleet, _):
        for a, b in ways:
            fleet.net.cut(fleet.net.hosts[a], fleet.net.hosts[b])
        time.sleep(CUT_S)
        fleet.net.mend()
    return event


def slow(fleet, _):
    with fleet.net.slow(fleet.net.hosts[2], 0.1):
        time.sleep(20)


def scale_up(fleet, load):
    fleet.fifth = Node(fleet, "worker", fleet.net.hosts[0], WORKER + 1)
    fleet.start(fleet.fifth, BUILD)
    for g in fleet.gateways:
        until("it is known", lambda g=g: [w["state"] for w in g.program.admin_get("/admin/status")["workers"]].count("ready") == 5)
    load.ask_new()
    until("the new worker answers", lambda: fleet.fifth.program.metric("kvblend_generated_tokens_total") > 1000)


def scale_down(fleet, _):
    fleet.fifth.leave()


PLANNED = {"rolling upgrade, one by one": upgrade, "a fifth worker, then other documents": scale_up, "the fifth worker leaves": scale_down,
           "host 3 by a slow link (200 ms)": slow}
EVENTS = {**PLANNED, "a worker is killed": kill_worker, "a gateway is killed": kill_gateway,
          "the Redis master of the registry is killed": kill_redis, "host 1 does not reach host 3": cut((0, 2)),
          "host 3 does not reach host 1": cut((2, 0)),
          "host 3 is cut off": cut((0, 2), (2, 0), (1, 2), (2, 1))}


class Row:
    def __init__(self, name, load, act):
        until("all workers have their part", load.spread)
        self.name, self.began = name, time.monotonic()
        whole = load.share(self.began)
        act()
        self.acted = time.monotonic()
        low = self.began
        at = self.began + 0.5
        while at < max(self.acted, low) + WINDOW_S + 2 and at < self.acted + GIVE_UP_S:
            time.sleep(max(0, at - time.monotonic()))
            share = load.share(at)
            if share is None or share < 0.95 * whole:
                low = at
            at += 0.5
        self.ended, self.back = time.monotonic(), low - self.began

    def count(self, answers, wrong):
        """Of the answers not yet counted those that began by then; returns the rest."""
        mine = [a for a in answers if a.began <= self.ended]
        self.n, self.wrong = len(mine), sum(a in wrong for a in mine)
        self.fates = collections.Counter(a.fate for a in mine)
        self.again, self.wait = sum(a.n_again for a in mine), max(a.wait for a in mine)
        self.whys = collections.Counter(why for a in mine for why in a.whys)
        return [a for a in answers if a.began > self.ended]

    def faults(self):
        """What must not be: a gateway's death alone is its clients' to mend, and what is planned cuts nothing."""
        return [what for what, bad in (
            ("wrong answers", self.wrong), ("lost streams", self.fates["lost"]), ("hit share", (self.back or 0) > BACK_S),
            ("long waits", self.wait > WAIT_S), ("asked again", self.again and EVENTS.get(self.name) is not kill_gateway),
            ("cut streams", self.fates["cut"] and self.name in PLANNED)) if bad]

    def __str__(self):
        back = "–" if self.back is None else f"{self.back:.0f} s"
        return (f"| {self.name} | {self.n} | {self.wrong} | {self.fates['lost']} | {self.fates['cut']} | {self.again} | "
                f"{self.wait:.1f} s | {back} |")


# ---- what is right ----

def references(net, build, wanted):
    """{(prompt, length, reused): text} of a worker that nothing happens to."""
    found, host = {}, net.hosts[0]
    exe = os.path.join(build, "worker", "kvblend-worker")
    w = Program([*host.prefix, exe, "--listen", f"{host.address}:{WORKER}", "--model", tiny_model(), "--ram", "1GiB",
                 "--threads", "1", "--namespace", "*=contexts:off", "--api-key", WORKER_KEY])
    w.host, w.port, w.key = host.address, WORKER, WORKER_KEY
    with w:
        until("the worker is ready", lambda: "listening" in w.log() and w.get("/ready").status == 200)
        for ids, length, reused in wanted:
            space = "-".join(map(str, ids)) + "." + "".join(str(int(x)) for x in reused)
            texts = [doc(i) for i, x in zip(ids, reused) if x]
            if texts:
                r = w.post("/v1/segments", {"texts": texts, "namespace": space})
                assert r.status == 200, r.body
            text, report, _ = stream(host.address, WORKER, WORKER_KEY, body(ids, length, namespace=space, store=False))
            assert tuple(c["source"] != "computed" for c in report["chunks"]) == reused, (ids, reused, report)
            found[ids, length, reused] = text
    return found


def wrong_answers(net, answers):
    given = [a for a in answers if a.fate == "answered"]
    wanted = {(a.prompt, a.length, a.reused) for a in given}
    right = [references(net, build, wanted) for build in (BUILD, OLD)]
    print(f"{len(given)} answers, {len(wanted)} different ones", file=sys.stderr)
    return {a for a in given if a.text not in [r[a.prompt, a.length, a.reused] for r in right]}


# ---- a prefill of seconds whose host is cut off ----

def long_prompt():
    words = [doc(i) for i in range(300, 400)]
    return {"stream": True, "temperature": 0, "max_tokens": 16, "kvblend": {"mode": "full", "explain": True},
            "messages": [{"role": "user", "content": " ".join(words)}]}


class LongPrefill(Row):
    """Two workers of a real model: the one that reads the prompt vanishes, the other one answers."""

    def __init__(self, net):
        here, *others = net.hosts
        workers = [self.start([*h.prefix, os.path.join(BUILD, "worker", "kvblend-worker"), "--model", real_model(), "--threads",
                               "1", "--ram", "64MiB", "--api-key", WORKER_KEY], h, WORKER, WORKER_KEY) for h in others]
        args = [x for h in others for x in ("--worker", f"http://{h.address}:{WORKER} api_key={WORKER_KEY}")]
        gateway = self.start([*here.prefix, os.path.join(BUILD, "gateway", "kvblend"), *args, "--api-key", KEY], here, GATEWAY, KEY)
        with workers[0], workers[1], gateway:
            right, _, undisturbed = stream(others[0].address, WORKER, WORKER_KEY, long_prompt())
            answer = {}
            t = threading.Thread(target=lambda: answer.update(got=self.ask(here)))
            t.start()
            busy = until("a worker reads it", lambda: [h for h, w in zip(others, workers) if w.metric(
                "kvblend_requests_active")])[0]
            net.cut(here, busy)
            net.cut(busy, here)
            t.join()
            net.mend()
        self.name = f"a host is cut off while its worker reads a long prompt ({undisturbed:.1f} s undisturbed)"
        self.n, (text, self.wait) = 1, answer["got"]
        self.wrong, self.again, self.back = int(text not in (None, right)), 0, None
        self.fates = collections.Counter(["lost" if text is None else "answered"])

    @staticmethod
    def start(cmd, host, port, key):
        p = Program([*cmd, "--listen", f"{host.address}:{port}"])
        p.host, p.port, p.key = host.address, port, key
        until("it is ready", lambda: "listening" in p.log() and p.get("/ready").status == 200)
        return p

    @staticmethod
    def ask(host):
        began = time.monotonic()
        try:
            text, _, wait = stream(host.address, GATEWAY, KEY, long_prompt())
            return text, wait
        except Failed as e:
            print(e, file=sys.stderr)
            return None, time.monotonic() - began


# ---- all of it ----

HEAD = ("| what happens | requests | wrong | lost | cut | asked again | longest wait | hit share back after |\n"
        "|---|---|---|---|---|---|---|---|\n")


def run(net, wanted):
    fleet = Fleet(net, OLD)
    rows, load = [], Load(fleet)
    try:
        for name, event in EVENTS.items():
            if wanted and event is not upgrade and not any(w in name for w in wanted):
                continue
            rows.append(Row(name, load, lambda: event(fleet, load)))
            print(f"{time.strftime('%H:%M:%S')} {name}", file=sys.stderr)
        load.stop()
    finally:
        load.stop()
        fleet.close()
    left, wrong = load.answers, wrong_answers(net, load.answers)
    for row in rows:
        left = row.count(left, wrong)
        print(row, dict(row.whys), row.faults(), sep="\n", file=sys.stderr)
    return rows


def commit(build):
    r = subprocess.run(["git", "-C", build, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    return r.stdout.strip() or "of no commit"


def write(table):
    made = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {commit(BUILD)} over {commit(OLD)}:\n\n"
    path = os.path.join(ROOT, "docs", "operations.md")
    with open(path) as f:
        text = f.read()
    begin, end = "<!-- fleet: begin -->\n", "<!-- fleet: end -->"
    at, stop = text.index(begin) + len(begin), text.index(end)
    with open(path, "w") as f:
        f.write(text[:at] + made + table + text[stop:])


if __name__ == "__main__":
    need(BUILD, OLD)
    try:
        real_model()
        network.enter()
        net = network.Network(3)
        rows = run(net, [a for a in sys.argv[1:] if a != "--write"])
        rows.append(LongPrefill(net))
    except Missing as e:
        skip(e)
    table = HEAD + "".join(f"{r}\n" for r in rows)
    print(table)
    if "--write" in sys.argv:
        write(table)
    sys.exit(1 if any(r.faults() for r in rows) else 0)
