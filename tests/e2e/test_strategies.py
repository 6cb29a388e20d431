#!/usr/bin/env python3
"""MapReduce, MapRerank and the LMCache bridge in front of an upstream that answers by rule."""
import json
import os
import re
import subprocess
import tempfile
import time

from harness import KVBLEND, KVBLENDCTL, main, need, proxy, until
from upstream import SCRIPT, Upstream

need(KVBLEND, KVBLENDCTL)
CHAT = "/v1/chat/completions"
ANY = "models=* health=off"
WAIT_S = 0.15
TOWNS = ["Arden", "Brill", "Corby", "Dunmow", "Esher"]


def passage(town):
    return (f"{town} has a mill that stands by the river {town}water. It was built by the miller of {town} "
            f"after the flood, and the people of {town} still tell how the wheel turned all night.")


def prompt(towns=TOWNS, question="Which river has the mill of Corby?"):
    docs = "\n\n".join(f"[Document {i + 1}]\n{passage(t)}" for i, t in enumerate(towns))
    return f"{docs}\n\nQuestion: {question}"


def ask(strategy, towns=TOWNS, **kw):
    body = {"model": "m", "messages": [{"role": "system", "content": "Be brief."},
                                       {"role": "user", "content": prompt(towns)}],
            "kvblend": {"strategy": strategy}}
    body.update(kw)
    return body


def texts_of(body):
    if "prompt" in body:
        return body["prompt"]
    parts = [m["content"] for m in body["messages"]]
    return "\n".join(p if isinstance(p, str) else "\n".join(x["text"] for x in p) for p in parts)


def usage(prompt_tokens, completion):
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion,
            "total_tokens": prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": 1}}


class Ruled(Upstream):
    """Answers each completion by rule(body) → text, or a script; each call costs 10 + 3 tokens."""

    def __init__(self, rule, **kw):
        super().__init__(**kw)
        self.rule, self.bodies = rule, []

    def script_of(self, r):
        body = r.json()
        self.bodies.append(body)
        answer = self.rule(body)
        if isinstance(answer, dict):
            return scripted(answer)
        chat = r.path.endswith("chat/completions")
        frame = {"id": "c1", "created": 1, "model": body.get("model")}
        if body.get("stream"):
            events = [dict(frame, object="chat.completion.chunk", choices=[
                {"index": 0, "delta": d, "finish_reason": f}]) for d, f in
                (({"role": "assistant", "content": ""}, None), ({"content": answer}, None), ({}, "stop"))]
            if (body.get("stream_options") or {}).get("include_usage"):
                events.append(dict(frame, object="chat.completion.chunk", choices=[], usage=usage(10, 3)))
            data = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
            return scripted({"body": data, "type": "text/event-stream"})
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        choice.update({"message": {"role": "assistant", "content": answer}} if chat else {"text": answer})
        return scripted({"body": json.dumps(dict(
            frame, object="chat.completion", choices=[choice], usage=usage(10, 3)))})


def scripted(fields):
    return dict(SCRIPT, **fields)


def is_map(body):
    return "Summarise" in texts_of(body)


def town_in(body):
    found = [t for t in TOWNS if f"the miller of {t}" in texts_of(body)]
    return found[0] if len(found) == 1 else None


def summaries(body):
    return f"Mill of {town_in(body)}: {town_in(body)}water." if is_map(body) else "FINAL"


# ---- MapReduce ----

def counted(calls):
    """What the calls have used, as an answer says it."""
    return {"prompt_tokens": 10 * calls, "completion_tokens": 3 * calls, "total_tokens": 13 * calls,
            "prompt_tokens_details": {"cached_tokens": calls}}


def charged(g, key_id):
    name = 'kvblend_gateway_key_tokens_total{key="%s",kind="%s"}'
    return [g.metric(name % (key_id, kind)) for kind in ("prompt", "completion")]


def estimate(body):
    return len(body) // 4 + 1


def test_map_reduce():
    with Ruled(summaries) as up, proxy([up.entry(ANY)]) as g:
        r = g.post(CHAT, ask("map_reduce", max_tokens=50, top_p=0.5, temperature=None))
        assert r.status == 200, r.body
        a = r.json()
        assert a["choices"][0]["message"]["content"] == "FINAL", a
        assert r.headers["x-kvblend-strategy"] == "map_reduce"
        maps, last = up.bodies[:-1], up.bodies[-1]
        assert sorted(town_in(b) for b in maps) == sorted(TOWNS)
        for b in maps:
            assert b["temperature"] == 0 and b["max_tokens"] == 256 and b["top_p"] == 0.5, b
            assert "Which river" in texts_of(b) and "stream" not in b and "kvblend" not in b or \
                "strategy" not in b["kvblend"], b
        text = texts_of(last)
        for t in TOWNS:
            assert f"Mill of {t}: {t}water." in text and f"the miller of {t}" not in text, text
        assert text.startswith("Be brief.") and text.endswith("Question: Which river has the mill of Corby?")
        assert last["max_tokens"] == 50 and last["kvblend"]["strategy"] is None
        assert a["usage"] == counted(6), a["usage"]
        assert a["kvblend"] == {"strategy": "map_reduce", "chunks": 5, "calls": 6, "failed": [],
                                "tokens": {"map_prompt": 50, "map_completion": 15}}, a["kvblend"]
        log = until("the log", lambda: [x for x in g.access_log() if x["path"] == CHAT])[0]
        assert (log["prompt_tokens"], log["completion_tokens"], log["cached_tokens"]) == (60, 18, 6), log


def test_map_reduce_streams():
    with Ruled(summaries) as up, proxy([up.entry(ANY)]) as g:
        for counts in (False, True):
            body = ask("map_reduce", stream=True)
            if counts:
                body["stream_options"] = {"include_usage": True}
            r = g.post(CHAT, body)
            events = r.events()
            assert events[-1] == b"[DONE]", events
            frames = [json.loads(e) for e in events[:-1]]
            assert "".join(f["choices"][0]["delta"].get("content", "") for f in frames
                           if f["choices"]) == "FINAL"
            told = [f for f in frames if "kvblend" in f]
            assert len(told) == 1 and told[0] is frames[-1], frames
            assert told[0]["kvblend"]["calls"] == 6
            if counts:
                assert told[0]["choices"] == [] and told[0]["usage"] == counted(6), told
            else:
                assert told[0]["choices"][0]["finish_reason"] == "stop"


def test_counts_that_come_again_are_raised_each_time():
    """Some servers count in every frame: the last one has them all."""
    frames = "".join("data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}],
                                            "usage": usage(10, i)}) + "\n\n" for i in (1, 2, 3))
    stream = {"body": frames + "data: [DONE]\n\n", "type": "text/event-stream", "split": 50}
    with Ruled(lambda b: summaries(b) if is_map(b) else stream) as up, \
            proxy([up.entry(ANY)], "--api-key", "k1 id=a") as g:
        r = g.post(CHAT, ask("map_reduce", stream=True, stream_options={"include_usage": True}),
                   headers={"Authorization": "Bearer k1"})
        told = [json.loads(e) for e in r.events()[:-1]]
        assert [f["usage"]["completion_tokens"] for f in told] == [16, 17, 18], told
        assert all(f["usage"]["prompt_tokens"] == 60 and f["kvblend"]["calls"] == 6 for f in told), told
        until("it is settled", lambda: left(g)["running"] == 0)
        assert charged(g, "a") == [60, 18], charged(g, "a")


def slow_and_counted(up, at_once):
    """A rule whose answers take WAIT_S: what came no longer ago than that is surely not answered yet."""
    def rule(body):
        at_once.append(sum(1 for r in up.requests if time.monotonic() - r.t < WAIT_S))
        return {"wait_s": WAIT_S, "body": json.dumps({"choices": [{"message": {"content": "s"}}],
                                                      "usage": usage(10, 3)})}
    return rule


def test_parallel_is_bounded():
    at_once = []
    with Ruled(None) as up, proxy([up.entry(ANY)], "--strategy-parallel", "2") as g:
        up.rule = slow_and_counted(up, at_once)
        r = g.post(CHAT, ask("map_reduce"))
        assert r.status == 200, r.body
        assert max(at_once) == 2, at_once


# ---- MapRerank ----

def scored(body):
    scores = {"Arden": "Score: 30", "Brill": "no score", "Corby": "Score: 90", "Dunmow": "Score: 90",
              "Esher": "Score: 400"}
    t = town_in(body)
    return f"{t}water\n{scores[t]}"


def test_map_rerank():
    with Ruled(scored) as up, proxy([up.entry(ANY)]) as g:
        r = g.post(CHAT, ask("map_rerank", max_tokens=20))
        a = r.json()
        assert r.status == 200 and r.headers["x-kvblend-strategy"] == "map_rerank", r.body
        assert a["choices"][0]["message"]["content"] == "Corbywater", a  # a tie: the earlier one
        assert a["kvblend"]["scores"] == [30, 0, 90, 90, 0] and a["kvblend"]["chosen"] == 2, a
        assert a["kvblend"]["calls"] == 5 and len(up.bodies) == 5
        assert a["usage"] == counted(5), a["usage"]
        for b in up.bodies:
            assert b["max_tokens"] == 36 and b["temperature"] == 0 and "Score: N" in texts_of(b), b
            assert texts_of(b).startswith("Be brief.") and "Question: Which river" in texts_of(b)
        r = g.post(CHAT, ask("map_rerank", stream=True, stream_options={"include_usage": True}))
        frames = [json.loads(e) for e in r.events()[:-1]]
        assert r.events()[-1] == b"[DONE]" and r.headers["content-type"].startswith("text/event-stream")
        assert "".join(f["choices"][0]["delta"].get("content", "") for f in frames
                       if f["choices"]) == "Corbywater"
        assert frames[-1]["usage"] == counted(5) and frames[-1]["kvblend"]["chosen"] == 2
        for log in until("both lines", lambda: len(g.access_log()) == 2 and g.access_log()):
            assert (log["prompt_tokens"], log["completion_tokens"]) == (50, 15), log


def test_header_and_completions():
    with Ruled(scored) as up, proxy([up.entry(ANY)]) as g:
        body = {"model": "m", "prompt": prompt()}
        r = g.post("/v1/completions", body, headers={"X-KVBlend-Strategy": "map_rerank"})
        assert r.json()["choices"][0]["text"] == "Corbywater", r.body
        assert all("prompt" in b and "messages" not in b for b in up.bodies)
        up.rule = summaries
        r = g.post("/v1/completions", body, headers={"X-KVBlend-Strategy": "map_reduce"})
        assert r.json()["choices"][0]["text"] == "FINAL", r.body
        r = g.post(CHAT, ask(None), headers={"X-KVBlend-Strategy": "guess"})
        assert r.status == 400 and r.error()["param"] == "kvblend.strategy"
        r = g.post(CHAT, ask("map_reduce", n=2))
        assert r.status == 400 and "n > 1" in r.error()["message"]


def test_marks_of_the_application():
    """Content parts, documents and ranges are the chunks, as in any request."""
    with Ruled(summaries) as up, proxy([up.entry(ANY)]) as g:
        parts = [{"type": "text", "text": passage(t)} for t in TOWNS[:3]]
        body = ask("map_reduce", messages=[
            {"role": "user", "content": parts + [{"type": "text", "text": "Which river?"}]}])
        assert g.post(CHAT, body).json()["kvblend"]["calls"] == 4
        last = up.bodies[-1]["messages"][0]["content"]
        assert [p["text"] for p in last][0].endswith("Mill of Arden: Ardenwater.") and len(last) == 4
        body = ask("map_reduce", messages=[{"role": "user", "content": "Which river?"}],
                   documents=[{"title": "x", "text": passage(t)} for t in TOWNS[:2]])
        assert g.post(CHAT, body).json()["kvblend"]["calls"] == 3
        assert up.bodies[-1]["documents"][1]["text"].endswith("Mill of Brill: Brillwater.")


def test_no_chunks():
    with Ruled(lambda b: "plain") as up, proxy([up.entry(ANY)]) as g:
        body = ask("map_reduce", messages=[{"role": "user", "content": "Hello"}])
        r = g.post(CHAT, body)
        assert r.status == 200 and r.headers["x-kvblend-strategy"] == "none", r.headers
        assert up.bodies == [dict(body, kvblend={"strategy": None})] and "kvblend" not in r.json()
        r = g.post(CHAT, ask(None, messages=body["messages"]))
        assert "x-kvblend-strategy" not in r.headers


# ---- failures ----

def test_a_failing_call_is_left_out():
    tries = []

    def rule(body):
        if is_map(body) and town_in(body) == "Brill":
            tries.append(1)
            return {"status": 500}
        return summaries(body)

    with Ruled(rule) as up, proxy([up.entry(ANY)]) as g:
        a = g.post(CHAT, ask("map_reduce")).json()
        assert len(tries) == 2 and a["kvblend"]["failed"] == [1] and a["kvblend"]["calls"] == 7, a
        assert "Brill" not in texts_of(up.bodies[-1])
        tries.clear()
        up.rule = lambda b: {"status": 500} if not tries.append(1) and len(tries) <= 1 else summaries(b)
        a = g.post(CHAT, ask("map_reduce")).json()
        assert a["kvblend"]["failed"] == [] and a["kvblend"]["calls"] == 7, a
        up.rule = lambda b: {"status": 400}
        r = g.post(CHAT, ask("map_rerank"))
        assert r.status == 502 and "400" in r.error()["message"], r.body
        r = g.post(CHAT, ask("map_reduce", stream=True))
        assert r.status == 502, r.body
        up.rule = lambda b: {"body": "nonsense"}
        assert g.post(CHAT, ask("map_reduce")).status == 502


def test_abort_cancels_all_calls():
    with Ruled(lambda b: {"wait_s": 60}) as up, proxy([up.entry(ANY)], "--api-key", "k1 id=a") as g:
        s = g.open(CHAT, ask("map_reduce"), headers="Authorization: Bearer k1\r\n")
        until("five calls", lambda: len(up.bodies) == 5)
        target, = g.admin_get("/admin/targets")["targets"]
        assert target["prompt_tokens_in_flight"] == sum(estimate(r.body) for r in up.requests), target
        s.close()
        until("all are given up", lambda: all(r.left_at for r in up.requests), 10)
        log = until("the log", lambda: g.access_log())[-1]
        assert log["status"] == 499 and log["end"] == "client_abort", log
        assert not g.admin_get("/admin/requests")["requests"]
        prompts = sum(estimate(r.body) for r in up.requests)  # of what was under way
        assert (log["prompt_tokens"], log["completion_tokens"]) == (prompts, 0), (log, prompts)
        assert charged(g, "a") == [prompts, 0], charged(g, "a")


def test_fail_over_to_another_upstream():
    with Ruled(lambda b: {"status": 503}, name="a") as a, Ruled(summaries, name="b") as b, \
            proxy([a.entry(ANY + " priority=0"), b.entry(ANY + " priority=1")]) as g:
        r = g.post(CHAT, ask("map_reduce"))
        assert r.status == 200 and r.json()["kvblend"]["failed"] == [], r.body
        assert len(b.bodies) == 6


def test_the_one_that_failed_is_not_asked_again():
    """Whatever its place in the list."""
    with Ruled(summaries, name="a") as a, Ruled(lambda b: {"status": 503}, name="b") as b, \
            proxy([a.entry(ANY + " priority=1"), b.entry(ANY + " priority=0")], "--breaker-failures",
                  "1000000") as g:
        r = g.post(CHAT, ask("map_reduce"))
        assert r.status == 200 and r.json()["kvblend"]["failed"] == [], r.body
        assert (len(a.bodies), len(b.bodies)) == (6, 6), (len(a.bodies), len(b.bodies))


def test_aliases_and_keys():
    with Ruled(summaries) as up, proxy(
            [up.entry("models=nice=real health=off api_key=secret")], "--api-key", "k1 id=a tpm=2000") as g:
        r = g.post(CHAT, ask("map_reduce", model="nice"), headers={"Authorization": "Bearer k1"})
        assert r.status == 200, r.body
        assert {b["model"] for b in up.bodies} == {"real"}
        assert {q.header("authorization") for q in up.requests} == {"Bearer secret"}
        used = 2000 - g.admin_get("/admin/keys")["keys"][0]["tokens_left"]
        assert 40 < used <= 78, used  # 78 were used by six calls, 33 a second come back


def left(g):
    return g.admin_get("/admin/keys")["keys"][0]


def test_every_call_counts():
    """Requests, tokens and places of the key: those that were made, no more and no fewer."""
    n = len(TOWNS)
    auth = {"Authorization": "Bearer k1"}

    def rule(body):
        return "An answer.\nScore: 5"
    for kind, calls in (("map_reduce", n + 1), ("map_rerank", n)):
        with Ruled(rule) as up, proxy([up.entry("models=* health=off")], "--api-key", f"k1 rpm={2 * calls}") as g:
            r = g.post(CHAT, ask(kind), headers=auth)
            assert r.status == 200 and len(up.bodies) == calls, (kind, r.status, len(up.bodies))
            assert r.headers["x-ratelimit-remaining-requests"] == str(calls), r.headers
            until("it is settled", lambda: left(g)["running"] == 0)
            assert left(g)["requests_left"] in (calls, calls + 1), left(g)  # one may have come back
        with Ruled(rule) as up, proxy([up.entry("models=* health=off")], "--api-key", f"k1 rpm={calls - 1}") as g:
            r = g.post(CHAT, ask(kind), headers=auth)  # more than a minute ever holds
            assert r.status == 429 and f"Requested {calls}" in r.error()["message"], r.body
            assert r.headers["x-should-retry"] == "false" and not up.bodies
            assert left(g)["requests_left"] == calls - 1, left(g)  # it costs nothing
        with Ruled(rule) as up, proxy([up.entry("models=* health=off")], "--api-key", f"k1 rpm={calls}") as g:
            plain = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            assert g.post(CHAT, plain, headers=auth).status == 200
            up.bodies.clear()
            r = g.post(CHAT, ask(kind), headers=auth)  # one is missing: none is made
            assert r.status == 429 and int(r.headers["retry-after"]) >= 1, r.headers
            assert r.headers["x-should-retry"] == "true" and not up.bodies
        with Ruled(rule) as up, proxy([up.entry("models=* health=off")], "--api-key", "k1 tpm=200") as g:
            r = g.post(CHAT, ask(kind), headers=auth)
            assert r.status == 429 and "tokens per min" in r.error()["message"] and not up.bodies, r.body


def test_what_calls_ask_for_is_the_sum_of_their_lengths():
    """A refusal says how much it would have been: the passages once, and the rest of each call."""
    auth, n, most, score = "Bearer k%d", len(TOWNS), 7, "\n\nScore: N"
    maps = "Summarise <{question}> {text}"
    body = json.dumps(ask("map_rerank", max_tokens=most)).encode()
    chunks = sum(len(passage(t)) for t in TOWNS)
    with Ruled(lambda b: "Score: 5") as up, proxy(
            [up.entry(ANY)], "--map-prompt", maps, "--rerank-prompt", score, "--map-tokens", "30", "--api-key", "k0",
            "--api-key", f"k1 tpm={estimate(body) + most}") as g:
        def requested(body):
            assert g.post(CHAT, body, headers={"Authorization": auth % 0}).status == 200
            up.bodies.sort(key=lambda b: not is_map(b))
            r = g.post(CHAT, body, headers={"Authorization": auth % 1})
            assert r.status == 429 and "tokens per min" in r.error()["message"], r.body
            return int(re.search(r"Requested (\d+)", r.error()["message"]).group(1))

        call = len(score) + len(body) - chunks
        asked = estimate(b"x" * chunks) + n * estimate(b"x" * call) + n * most
        assert requested(body) == asked, asked
        up.bodies.clear()
        got = requested(body.replace(b"map_rerank", b"map_reduce"))
        question = re.search("<(.*?)>", texts_of(up.bodies[0]), re.S).group(1)
        call = len(maps) + len(question)
        asked = estimate(b"x" * chunks) + n * estimate(b"x" * call) + n * 30 + estimate(body) + most
        assert got == asked, (got, asked, question)


def test_every_calls_tokens_are_charged():
    """As reported; where an answer does not say, by the length of what was sent and of what came."""
    auth = {"Authorization": "Bearer k1"}
    n = len(TOWNS)
    for kind, calls in (("map_reduce", n + 1), ("map_rerank", n)):
        with Ruled(lambda b: "An answer.\nScore: 5") as up, proxy([up.entry(ANY)], "--api-key", "k1 id=a") as g:
            for i, how in enumerate(({}, {"stream": True, "stream_options": {"include_usage": True}}), 1):
                assert g.post(CHAT, ask(kind, **how), headers=auth).status == 200
                until("it is settled", lambda: left(g)["running"] == 0)
                assert charged(g, "a") == [10 * calls * i, 3 * calls * i], (kind, i, charged(g, "a"))
    text = "Twelve words."
    silent = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                                      "finish_reason": "stop"}]})
    with Ruled(lambda b: {"body": silent}) as up, proxy([up.entry(ANY)], "--api-key", "k1 id=a") as g:
        sent = json.dumps(ask("map_reduce")).encode()
        r = g.post(CHAT, sent, headers=auth)
        until("it is settled", lambda: left(g)["running"] == 0)
        maps = sum(estimate(q.body) for q in up.requests[:-1])
        told = {"map_prompt": maps, "map_completion": n * estimate(text)}
        assert r.json()["kvblend"]["tokens"] == told, (r.body, told)
        assert charged(g, "a") == [maps + estimate(sent), n * estimate(text) + len(r.body) // 4], charged(g, "a")


def test_calls_take_places_of_the_key():
    for limit, most in ((1, 1), (2, 2), (0, 8)):
        at_once = []
        with Ruled(None) as up:
            up.rule = slow_and_counted(up, at_once)
            with proxy([up.entry("models=* health=off")], "--api-key", f"k1 concurrency={limit}") as g:
                r = g.post(CHAT, ask("map_reduce"), headers={"Authorization": "Bearer k1"})
                assert r.status == 200 and len(up.bodies) == len(TOWNS) + 1, r.body
                assert max(at_once) <= most, (limit, at_once)
                until("all places are free", lambda: left(g)["running"] == 0)


def test_a_call_that_is_made_again_counts():
    failed = []

    def rule(body):
        if is_map(body) and not failed:
            failed.append(1)
            return {"status": 500}
        return summaries(body)
    with Ruled(rule) as up, proxy([up.entry("models=* health=off")], "--api-key", "k1 rpm=100", "--retries", "0") as g:
        r = g.post(CHAT, ask("map_reduce"), headers={"Authorization": "Bearer k1"})
        assert r.status == 200 and len(up.bodies) == len(TOWNS) + 2, r.body
        until("it is settled", lambda: left(g)["running"] == 0)
        used = 100 - left(g)["requests_left"]
        assert len(TOWNS) <= used <= len(TOWNS) + 2, used


# ---- LMCache ----

def test_lmcache_separators():
    with Ruled(lambda b: "x") as up, proxy([up.entry(ANY + " lmcache=true")]) as g:
        body = ask(None)
        del body["kvblend"]
        assert g.post(CHAT, body).status == 200
        sent = texts_of(up.bodies[-1])
        assert sent.replace(" # # ", "") == texts_of(body)
        for t in TOWNS:
            assert f" # # {passage(t)} # # " in sent, sent
        assert sent.count(" # # ") == 10
        g.post(CHAT, up.bodies[-1])  # its own work is recognised
        assert texts_of(up.bodies[-1]) == sent
        small = ask(None, messages=[{"role": "user", "content": "Hello \u00e4"}])
        g.post(CHAT, small)
        assert up.requests[-1].body == json.dumps(small).encode()
    with Ruled(lambda b: "x") as up, proxy([up.entry(ANY)]) as g:
        g.post(CHAT, body)
        assert up.requests[-1].body == json.dumps(body).encode()


def segment(g, body, *args):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(body, f)
        f.flush()
        return subprocess.run([KVBLENDCTL, "--admin", g.admin, *args, "segment", f.name],
                              capture_output=True, text=True, timeout=60)


def test_segment_explains_without_a_worker():
    with Ruled(lambda b: "x") as up, proxy([up.entry(ANY)]) as g:
        r = segment(g, ask(None))
        assert r.returncode == 0, r.stderr
        assert "no worker answered" in r.stdout and "document-bracket" in r.stdout, r.stdout
        assert "Corby has a mill" in r.stdout and "a framework's marker" in r.stdout, r.stdout
        r = segment(g, ask(None), "--json")
        told = json.loads(r.stdout)
        text = prompt().encode()
        assert [text[s["begin"]:s["end"]].decode() for s in told["segments"]] == \
            [passage(t) for t in TOWNS] and told["boundaries"], told
        plain = {"model": "m", "messages": [{"role": "user", "content": plain_prompt(TOWNS)}]}
        r = segment(g, plain)
        assert "a short typed text, for the first time" in r.stdout, r.stdout
        plain["messages"][0]["content"] = plain_prompt(TOWNS + TOWNS[::-1])
        r = segment(g, plain)
        assert "nothing is known yet" in r.stdout and "the question begins here" in r.stdout, r.stdout
        assert segment(g, []).returncode == 1


# ---- what was learned ----

def plain_prompt(towns):
    return "\n\n".join(passage(t) for t in towns) + "\n\nWhich river has the mill of Corby?"


def cuts_of(g, up, towns):
    """Are exactly the passages enclosed?"""
    g.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": plain_prompt(towns)}]})
    sent = texts_of(up.bodies[-1])
    return (all(f" # # {passage(t)} # # " in sent for t in towns)
            and sent.count(" # # ") == 2 * len(towns))


def test_learning_survives_a_restart():
    orders = [[TOWNS[(a * i + b) % 5] for i in range(5)] for a in (1, 2, 3, 4) for b in range(5)]
    with tempfile.TemporaryDirectory() as d, Ruled(lambda b: "x") as up:
        memory = os.path.join(d, "memory")
        args = [up.entry(ANY + " lmcache=true")], "--segment-memory", memory
        with proxy(*args) as g:
            assert not cuts_of(g, up, orders[0])
            for o in orders[1:8]:
                g.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": plain_prompt(o)}]})
            assert cuts_of(g, up, orders[8])
            assert g.stop() == 0
        with open(memory, "rb") as f:
            data = f.read()
        assert b"miller" not in data and len(data) < 100000, len(data)
        with proxy(*args) as g:
            assert cuts_of(g, up, orders[9])
        with open(memory, "wb") as f:
            f.write(data[:200] + b"!" + data[201:])
        with proxy(*args) as g:  # damaged: as if it were not there, and replaced
            assert "ignoring" in g.log() and not cuts_of(g, up, orders[9])
            assert g.stop() == 0
        with proxy(*args) as g:
            assert "ignoring" not in g.log()
        with proxy([up.entry(ANY + " lmcache=true")], "--segment-memory", "off") as g:
            assert not cuts_of(g, up, orders[9])


if __name__ == "__main__":
    main(globals())
