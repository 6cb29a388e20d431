#!/usr/bin/env python3
"""Several continuations of a prompt, and several prompts of a request, on whatever start-up chooses
on this machine: each is what a request of its own says, whatever was asked before. They once read
other requests' KV where pages of bf16 are the faster ones."""
from harness import KVBLEND, WORKER, gateway, main, need, real_model, tiny_model

need(KVBLEND, WORKER)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
QUESTIONS = ["Name three colours of the rainbow.",
             "Write one sentence about the sea and the ships that cross it in winter.",
             "Which of the following is a metal: wood, iron, wool, glass, or paper? " * 4]


def chat(g, question, n):
    r = g.post(CHAT, {"messages": [{"role": "user", "content": question}], "max_tokens": 24,
                      "temperature": 0, "n": n})
    assert r.status == 200, r.body
    choices = sorted(r.json()["choices"], key=lambda c: c["index"])
    assert [c["index"] for c in choices] == list(range(n)), choices
    return [c["message"]["content"] for c in choices]


def texts(g, prompts, n=1):
    r = g.post(TEXT, {"prompt": prompts, "max_tokens": 16, "temperature": 0, "n": n})
    assert r.status == 200, r.body
    return [c["text"] for c in sorted(r.json()["choices"], key=lambda c: c["index"])]


def same(got, want):
    assert got == want, (got, want)


def test_each_says_what_it_would_alone():
    for model in filter(None, (tiny_model(), real_model())):
        with gateway(model=model) as g:
            alone = [chat(g, q, 1)[0] for q in QUESTIONS]
            for n in (2, 8):
                for q, want in zip(QUESTIONS, alone):
                    for got in chat(g, q, n):
                        same(got, want)
            prompts = [texts(g, [q])[0] for q in QUESTIONS]
            for got, want in zip(texts(g, QUESTIONS), prompts):
                same(got, want)
            for i, got in enumerate(texts(g, QUESTIONS, n=2)):
                same(got, prompts[i // 2])


if __name__ == "__main__":
    main(globals())
