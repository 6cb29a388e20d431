#!/usr/bin/env python3
"""System texts that are never twice the same: a date, a name, a session in their middle.

What stands before the volatile line is an exact prefix, what stands behind it is reused as a chunk,
the line itself is computed; passages behind the system text are found as ever. A request is judged
by the worker's own account of its tokens.
"""
import random

from harness import ADMIN, KVBLEND, WORKER, Program, gateway, main, need, tiny_model, worker_listening

need(KVBLEND, WORKER)
CHAT = "/v1/chat/completions"
WORDS = ("answer policy student library course teacher exam room number office building form deadline register "
         "credit semester source state explain short polite refer contact page document rule").split()
BLOCK = 64  # tokens of an exact prefix record
GLUE = 240  # of template, volatile line, markers and question: about 200 of 6900 (this tokenizer nearly has letters)


def sentences(seed, n, words=12):
    r = random.Random(seed)
    return " ".join(" ".join(r.choice(WORDS) for _ in range(words)).capitalize() + "." for _ in range(n))


def block(seed):
    """Instructions of about 1300 bytes: lines and short paragraphs."""
    r = random.Random(seed)
    return "".join(f"- {sentences(seed * 100 + k, r.randint(1, 4))}{r.choice(chr(10) * 2)}" + "\n" * (k % 3 == 0)
                   for k in range(7)).strip()


def volatile(i):
    r = random.Random(1000 + i)
    return f"Time: 2026-11-{1 + i % 28:02} {i % 24:02}:{r.randrange(60):02}. Session {r.getrandbits(48):012x}."


ONE, TWO, THREE = block(1), block(2), block(3)
PASSAGES = [sentences(5000 + i, 2, 30) for i in range(9)]


def with_line(i):
    """Three blocks, the second with one volatile line."""
    head, tail = TWO[:TWO.index("\n-", 500)], TWO[TWO.index("\n-", 500):]
    return f"{ONE}\n\n{head}\n\n{volatile(i)}\n\n{tail}\n\n{THREE}"


def worker():
    return worker_listening(Program([WORKER, "--model", tiny_model(), "--listen", "127.0.0.1:0", *ADMIN]))


def ask(p, system, i, shape="marks", headers=None):
    docs = random.Random(i).sample(PASSAGES, 6)
    question = f"What is the {WORDS[i % 20]} of the {WORDS[i % 7]}?"
    body = {"max_tokens": 1, "temperature": 0, "kvblend": {"mode": "reuse", "explain": True}}
    content = question
    if shape == "marks":
        content = "\n\n".join(f"[Document {k + 1}]\n{d}" for k, d in enumerate(docs)) + f"\n\nQuestion: {question}"
    elif shape == "parts":
        content = [{"type": "text", "text": d} for d in docs] + [{"type": "text", "text": question}]
    else:
        body["documents"] = docs
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    if shape == "one text":
        content = "\n\n".join(f"[Document {k + 1}]\n{d}" for k, d in enumerate(docs)) + f"\n\nQuestion: {question}"
        messages = [{"role": "user", "content": f"{system}\n\n{content}"}]
        del body["documents"]
    r = p.post(CHAT, dict(body, messages=messages), headers=headers or {})
    assert r.status == 200, (r.status, r.body)
    return r.json()["kvblend"]


def tokens_of(p, text):
    r = p.post("/v1/tokenize", {"content": text})
    assert r.status == 200, r.body
    return len(r.json()["tokens"])


def sources(k):
    return [c["source"] for c in k["chunks"]]


# ---- what stands around the line ----

def test_passages_behind_a_volatile_block_hit():
    """The third block is another one every time; two blocks are exact prefix, all passages are found."""
    with worker() as p:
        stable = tokens_of(p, f"{ONE}\n\n{TWO}")
        for i in range(12):
            k = ask(p, f"{ONE}\n\n{TWO}\n\n{block(100 + i)}", i)
        assert stable - 2 * BLOCK < k["tokens"]["prefix"] <= stable + GLUE, (k, stable)
        assert sources(k)[-6:] == ["ram"] * 6, k
        assert len(k["chunks"]) == 6, k  # what is always new is no chunk: nothing is built in vain


def check_line(p, shape):
    before = tokens_of(p, with_line(0).split(volatile(0))[0])
    behind = tokens_of(p, with_line(0).split(volatile(0))[1])
    for i in range(12):
        k = ask(p, with_line(i), i, shape)
        if i < 2:
            continue
        t = k["tokens"]
        assert before - BLOCK - 8 <= t["prefix"] <= before + BLOCK, (i, before, k)
        assert behind - 16 < k["chunks"][0]["tokens"] <= behind and len(k["chunks"]) == 7, (i, behind, k)
    assert sources(k) == ["ram"] * 7 and t["computed"] < GLUE, k


def test_a_volatile_line_costs_itself():
    with worker() as p:
        check_line(p, "marks")


def test_where_the_request_says_its_chunks():
    for shape in ("documents", "parts"):
        with worker() as p:
            check_line(p, shape)


def test_instructions_in_the_users_text():
    with worker() as p:
        check_line(p, "one text")


def test_a_line_in_front_of_everything():
    with worker() as p:
        for i in range(4):
            k = ask(p, f"{volatile(i)}\n\n{ONE}\n\n{TWO}", i)
        assert k["tokens"]["prefix"] <= 2 * BLOCK and k["chunks"][0]["source"] == "ram", k
        assert k["chunks"][0]["tokens"] > tokens_of(p, f"{ONE}\n\n{TWO}") - 16, k


# ---- texts that come again ----

def test_a_constant_text_is_an_exact_prefix():
    """At once: no chunk is cut out of it, none is built."""
    with worker() as p:
        whole = tokens_of(p, f"{ONE}\n\n{TWO}")
        for i in range(3):
            k = ask(p, f"{ONE}\n\n{TWO}", i)
            assert len(k["chunks"]) == 6, k
            assert k["tokens"]["prefix"] == 0 if i == 0 else k["tokens"]["prefix"] > whole - BLOCK, (whole, k)


def test_a_session_repeats_its_text():
    """Two requests of a session have the same text; an edited text is a constant one before long."""
    with worker() as p:
        for i in range(6):
            k = ask(p, with_line(i // 2), i)
        first = k["chunks"][0]
        assert first["source"] == "ram" and first["message"] == 0 and first["tokens"] > 1000, k
        whole = tokens_of(p, with_line(2))
        for i in range(6, 11):
            k = ask(p, with_line(2), i)
        assert k["tokens"]["prefix"] > whole - BLOCK and len(k["chunks"]) == 6, (whole, k)


def test_a_strangers_text_teaches_nothing():
    """Another key's system texts, even the very same ones, decide nothing about how mine is cut."""
    keys = ("--api-key", "a-key id=acme", "--api-key", "b-key id=beta", "--ram", "64MiB")
    a, b = ({"Authorization": f"Bearer {k}-key"} for k in "ab")

    def mine(g):
        return [[c["id"] for c in ask(g, with_line(i), i, headers=b)["chunks"]] for i in range(4)]
    with gateway(*keys) as g:
        theirs = [len(ask(g, with_line(i), i, headers=a)["chunks"]) for i in range(4)]
        after = mine(g)
    with gateway(*keys) as g:
        alone = mine(g)
    assert theirs == [6, 7, 7, 7] == [len(x) for x in alone] and after == alone, (theirs, after, alone)


if __name__ == "__main__":
    main(globals())
