"""kvblend-bench rag: what each kind of cache finds, counted here again by the plainest means."""
import importlib.util
import itertools
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
from importlib.machinery import SourceFileLoader

from bench_cli import BENCH, report

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "tests" / "data" / "traces" / "ragpulse_90"
FILES = {"sys_prompt": ("1_sys_prompt", "sys_prompt_id"), "passages_ids": ("2_passages", "passage_id"),
         "history": ("3_history", "history_id"), "web_search": ("5_web_search", "web_search_id"),
         "user_input": ("4_user_input", "user_input_id")}
ROOMS = (5000, 20000)
FOREVER = 10 ** 12
WORD = struct.Struct("<II")  # a token: its part, and where it stands in it

loader = SourceFileLoader("hit_rates", str(ROOT / "tools" / "hit-rates"))
hit_rates = importlib.util.module_from_spec(importlib.util.spec_from_loader("hit_rates", loader))
loader.exec_module(hit_rates)


def read_requests():
    """Requests, each a list of (kind, id), and tokens by (kind, id)."""
    size = {(kind, line[key]): line["token_length"] for kind, (name, key) in FILES.items()
            for line in map(json.loads, (SAMPLE / f"{name}.jsonl").open())}
    lines = [json.loads(line)["hash_ids"] for line in (SAMPLE / "0_trace.jsonl").open()]
    return [[(kind, i) for kind in FILES for i in line[kind]] for line in lines], size


def kind_of(request, *kinds):
    return [part for part in request if part[0] in kinds]


class Node:
    def __init__(self, docs, parent, path=None):
        self.docs, self.parent, self.path, self.children = docs, parent, path, []


class Pilot:
    """ContextPilot's index for one request at a time (contextpilot/server/live_index.py)."""

    def __init__(self):
        self.root = Node([], None)

    def forget(self, cache, node=None):
        """What the cache has put out."""
        node = node or self.root
        for child in list(node.children):
            if child.children:
                self.forget(cache, child)
            if not child.children and (child.path is None or child.path not in cache):
                node.children.remove(child)

    @staticmethod
    def distance(a, b):
        both = set(a) & set(b)
        if not both:
            return None
        apart = sum(abs(a.index(doc) - b.index(doc)) for doc in both) / len(both)
        d = 1 - len(both) / max(len(a), len(b)) + 0.001 * apart
        return struct.unpack("f", struct.pack("f", d))[0]  # its matrix is of float32

    def order(self, docs):
        """The passages in their new order, and the leaf that stands for the request."""
        at = self.root
        while True:
            near = [(self.distance(docs, c.docs), i, c) for i, c in enumerate(at.children) if set(docs) & set(c.docs)]
            if not near:
                prefix = True
                break
            at = min(near)[2]
            prefix = at.docs[0] in docs
            if not prefix or not at.children:
                break
        new = [d for d in at.docs if d in docs] + [d for d in docs if d not in at.docs]
        if at is self.root or (prefix and at.children):
            parent = at
        else:
            parent = at.parent
            same = [a for a, b in itertools.takewhile(lambda ab: ab[0] == ab[1], zip(at.docs, new))]
            if prefix and same != new:
                middle = Node(same, parent)
                parent.children[parent.children.index(at)] = middle
                middle.children.append(at)
                at.parent = parent = middle
            elif prefix and same != at.docs:
                raise AssertionError("a leaf that goes on behind the whole request")
        leaf = Node(new, parent)
        parent.children.append(leaf)
        return new, leaf


def longest_path(cache, head, passages):
    """Of all orders the passages' one that has most tokens behind the head in the cache; first come, first kept."""
    best, best_tokens = [], 0
    for order in itertools.permutations(range(len(passages))):
        path, tokens = [], 0
        for i in order:
            if tuple(head + [passages[j] for j in path + [i]]) not in cache:
                break
            path, tokens = path + [i], tokens + SIZE[passages[i]]
            if tokens > best_tokens:
                best, best_tokens = path, tokens
    return [passages[i] for i in best + [i for i in range(len(passages)) if i not in best]]


def ordered(way, request, cache, pilot):
    """The prompt, and the index's leaf for it."""
    system, passages = kind_of(request, "sys_prompt"), kind_of(request, "passages_ids")
    rest, leaf = kind_of(request, "history", "web_search", "user_input"), None
    if way == "prefix":
        return request, None
    if way == "contextpilot" and passages:
        pilot.forget(cache)
        left = list(passages)
        passages, leaf = pilot.order(list(dict.fromkeys(passages)))
        for part in passages:
            left.remove(part)
        passages = passages + left
        leaf.path = tuple(system[:2] + passages)
    if way == "best-path":
        passages = longest_path(cache, system[:2], passages)
    return system[:2] + passages + system[2:] + rest, leaf


def ask_prefix(way, request, cache, pilot):
    found, known = [], True
    prompt, _ = ordered(way, request, cache, pilot)
    paths = [tuple(prompt[:i + 1]) for i in range(len(prompt))]
    for part, path in zip(prompt, paths):
        known = known and path in cache
        found += [(part, SIZE[part] if known else 0)]
    return found, [(path, SIZE[path[-1]]) for path in paths]


def ask_grid(window, request, cache):
    text = b"".join(map(TEXT.get, request))
    whose = [at for at, part in enumerate(request) for _ in range(SIZE[part])]

    def words(t):
        return text[t * WORD.size:(t + window) * WORD.size]

    found, hits, t = [0] * len(request), [], 0
    while t + window <= len(whose):
        key = words(t)
        if key in cache:
            hits.append((key, window))
            for at in whose[t:t + window]:
                found[at] += 1
        t += window if key in cache else 1
    kept = [(words(t), window) for t in range(0, len(whose) - window + 1, window)]
    return list(zip(request, found)), hits + kept


def ask_parts(only, request, cache):
    kept = [part for part in request if only in (None, part[0])]
    found = [(part, SIZE[part] if part in cache and part in kept else 0) for part in request]
    return found, [(part, SIZE[part]) for part in kept]


def ask_bound(request, earlier):
    passages, best = kind_of(request, "passages_ids"), []
    for other in earlier:
        both = [part for part in passages if part in other]
        if other[:2] == request[:2] and sum(map(SIZE.get, both)) > sum(map(SIZE.get, best)):
            best = both
    earlier.append(request)
    return [(part, SIZE[part] if part in best else 0) for part in request], []


def ask(way, request, cache, state):
    if way.startswith("grid-"):
        return ask_grid(int(way[5:]), request, cache)
    if way in ("chunks", "passages"):
        return ask_parts("passages_ids" if way == "passages" else None, request, cache)
    if way == "reorder-bound":
        return ask_bound(request, state["earlier"])
    return ask_prefix(way, request, cache, state["pilot"])


def expected(way, room, policy):
    """(tokens found, of them passages', requests with all passages, with at least four)"""
    cache = (hit_rates.Arc if policy == "arc" else hit_rates.Lru)(room or FOREVER)
    state, sums = {"earlier": [], "pilot": Pilot()}, [0, 0, 0, 0]
    for request in REQUESTS:
        found, kept = ask(way, request, cache, state)
        passages = [(part, n) for part, n in found if part[0] == "passages_ids"]
        whole = sum(n == SIZE[part] for part, n in passages)
        for i, n in enumerate((sum(n for _, n in found), sum(n for _, n in passages),
                               bool(passages) and whole == len(passages), whole >= 4)):
            sums[i] += n
        for key, size in reversed(kept):
            cache.touch(key, size)
    return sums


def check_counts():
    rows = report("rag", "--trace", str(SAMPLE), "--rooms", ",".join(map(str, ROOMS)))["rows"]
    everything = sum(SIZE[part] for request in REQUESTS for part in request)
    passages = [kind_of(request, "passages_ids") for request in REQUESTS]
    of_passages = sum(SIZE[part] for parts in passages for part in parts)
    assert {(r["room"], r["policy"]) for r in rows} == {(None, "")} | {(n, p) for n in ROOMS for p in ("lru", "arc")}
    for row in rows:
        got = expected(row["cache"], row["room"], row["policy"])
        assert [row["found"], row["found_passages"]] == got[:2], (row, got)
        shares = [row["of_passages"], row["of_requests"], row["of_requests_four"]]
        wholes = [of_passages, sum(map(bool, passages)), sum(len(p) >= 4 for p in passages)]
        assert all(abs(s - n / w) < 1e-7 for s, n, w in zip(shares, got[1:], wholes)), (row, got)
        assert (row["of_all"] is None) == (row["cache"] == "reorder-bound"), row
        assert row["of_all"] is None or abs(row["of_all"] - got[0] / everything) < 1e-7, row
    found = {(r["cache"], r["room"], r["policy"]): r["found_passages"] for r in rows}
    assert len(found) == len(rows) == 10 + 7 * len(ROOMS) * 2
    # The sample tells them apart, and no lossless order exceeds the bound.
    for less, more in itertools.pairwise(("prefix", "prefix-moved", "contextpilot", "reorder-bound", "chunks")):
        assert found[less, None, ""] < found[more, None, ""], (less, more)
    assert found["contextpilot", 20000, "lru"] < found["best-path", 20000, "lru"]
    assert found["chunks", 20000, "lru"] != found["chunks", 20000, "arc"]


def check_refusals(folder):
    good = (SAMPLE / "0_trace.jsonl").read_text()
    request = json.loads(good.split("\n")[0])

    def other(**change):
        return json.dumps({**request, **change}) + "\n"

    for file, text, why in (
            ("0_trace.jsonl", good + "{\"timestamp\": oops}\n", "0_trace.jsonl:91:"),
            ("0_trace.jsonl", good + "\n[]\n", "0_trace.jsonl:92:"),
            ("0_trace.jsonl", other(timestamp="-1"), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(timestamp="12s"), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(timestamp=12), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(hash_ids={}), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(hash_ids={**request["hash_ids"], "history": [1 << 60]}), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(hash_ids={**request["hash_ids"], "history": [-1]}), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(hash_ids={**request["hash_ids"], "history": ["7"]}), "0_trace.jsonl:1:"),
            ("0_trace.jsonl", other(hash_ids={**request["hash_ids"], "user_input": request["hash_ids"]["user_input"] * 65}),
             "0_trace.jsonl:1:"),
            ("0_trace.jsonl", "\n", "no requests"),
            ("2_passages.jsonl", "", "0_trace.jsonl:"),
            ("2_passages.jsonl", '{"passage_id": 1, "token_length": 0}\n', "2_passages.jsonl:1:"),
            ("3_history.jsonl", '{"history_id": -1, "token_length": 5}\n', "3_history.jsonl:1:"),
            ("3_history.jsonl", '{"history_id": 99999999999, "token_length": 5}\n', "3_history.jsonl:1:"),
            ("5_web_search.jsonl", '{"passage_id": 1, "token_length": 5}\n', "5_web_search.jsonl:1:"),
            ("4_user_input.jsonl", None, "4_user_input.jsonl: cannot be opened")):
        trace = folder / "trace"
        shutil.rmtree(trace, ignore_errors=True)
        shutil.copytree(SAMPLE, trace)
        (trace / file).unlink()
        if text is not None:
            (trace / file).write_text(text)
        refused(why, "--trace", str(trace))
    refused("--trace FOLDER is needed")
    refused("1_sys_prompt.jsonl", "--trace", str(folder / "none"))
    refused("--rooms", "--trace", str(SAMPLE), "--rooms", "some")


def refused(why, *args):
    r = subprocess.run([BENCH, "rag", *args], capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 1 and why in r.stderr, (args, r.returncode, r.stderr)


REQUESTS, SIZE = read_requests()
TEXT = {part: b"".join(WORD.pack(i, t) for t in range(SIZE[part])) for i, part in enumerate(SIZE)}
check_counts()
with tempfile.TemporaryDirectory() as name:
    check_refusals(pathlib.Path(name))
