#!/usr/bin/env python3
"""What a merged record tells of the chunks that it was encoded behind: secrets in a neighbour, fished for with prompts that
hold only the other chunk, reused as it is stored.

Leak of a secret: how much likelier, in nats over all of its tokens, the record behind it makes it than records of the same
chunk behind the same neighbour with other secrets of the same form do, in the mean. KVBLEND_CANARIES, secrets of each kind (2 to 8): all kinds, contexts and chunks, as docs/security.md has
them (ten minutes for 2); without it two kinds and two contexts, which take a minute or two."""
import json
import math
import os
import random
import statistics
import tempfile

from harness import KVBLEND, ROOT, WORKER, gateway, main, need, real_model, until

need(KVBLEND, WORKER)
ALL = "KVBLEND_CANARIES" in os.environ
N = int(os.environ.get("KVBLEND_CANARIES", "2"))
BOUND = 0.1  # of what the neighbour in the prompt tells; measured: 0.03 at most (docs/security.md)
BIAS = 20  # of logits: brings a token among the reported ones
HEAD = "Documents:\n\n"  # a prompt's first token is its attention sink, and stands in no chunk
WAYS = ("once", "fifty times")
with open(os.path.join(ROOT, "etc/demo/1-lighthouse.txt"), encoding="utf-8") as f:
    OTHER = f.read().strip()[:900]
# Cue, secrets, and a chunk about the same matter that does not hold the secret.
KINDS = {
    "code": ("The access code of the vault is", " 7481, 2956, 6038, 9174, 5263, 8407, 3690, 4715",
             "The vault stands in the cellar of the town hall, behind two doors of steel. The mayor opens it every Monday with the "
             "access code, which is changed once a year. Deeds, seals and the chain of office lie in the vault."),
    "fact": ("Amara Okafor was treated for", " malaria, asthma, cancer, depression, diabetes, tuberculosis, cholera, hepatitis",
             "Amara Okafor teaches geography at the school in Mill Lane. In spring she was away for six weeks, and her classes were "
             "taken by a colleague. She was treated in the clinic at the harbour and came back in May."),
    "name": ("The informant in the harbour case is", " Walter Brandt, Oscar Jensen, Helen Moreau, Laura Costa, Martin Silva, "
             "Peter Novak, Anna Weber, Rosa Klein",
             "In the harbour case the police had an informant from the start. What the informant told them led to the raid on "
             "pier nine, where two crates of watches were found. The trial opens in autumn; the informant will not appear."),
    "word": ("The password of the archive is", " obelisk, hyacinth, quixotic, zeppelin, marzipan, labyrinth, tourmaline, "
             "kaleidoscope",
             "The archive keeps the papers of the council since 1820. Readers ask at the desk for the password, which opens the "
             "catalogue, and wear gloves. The password of the archive is known to the staff alone."),
}
if not ALL:
    KINDS = {kind: KINDS[kind] for kind in ("code", "word")}


def secrets_of(kind):
    return KINDS[kind][1].split(",")[:N]


def neighbour(kind, secret, way):
    said = f"{KINDS[kind][0]}{secret}."
    if way == "fifty times":
        return " ".join([said] * 50)
    return (f"Minutes of the meeting. The roof of the hall is to be mended before winter. {said} The next meeting is in the reading "
            "room, at seven in the evening; members bring their own cups.")


def chunks_of(kind):
    """What is fished with: a chunk about the matter; one that a caller put there to be told, the cue and nothing behind
    it, again and again; one about something else."""
    cue, _, topic = KINDS[kind]
    return {"topic": topic, "crafted": f"{cue} ...\n" * 12, "other": OTHER}


def space_of(kind, secret, way):
    return f"{kind}-{secret.strip()}-{way}".replace(" ", "")


class Asked:
    """A gateway whose worker merges behind so many contexts; a namespace for every secret and way, and what they hold."""

    def __init__(self, contexts):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump({"contexts": contexts, "context_tokens": 1200}, self.file)
        self.file.flush()
        self.g = gateway("--profile", self.file.name, "--namespace", "/alone=contexts:off", "--ram", "2GiB", model=real_model())
        self.known = {}  # token ids by text, text by ids

    def __enter__(self):
        self.g.__enter__()
        built = []
        for kind in KINDS:
            for way in WAYS:
                for s in secrets_of(kind):
                    built += self.build(space_of(kind, s, way), [neighbour(kind, s, way), *chunks_of(kind).values()])
            self.build("alone", list(chunks_of(kind).values()))
        until("records are merged", lambda: all(self.merged(*b) for b in built), 280)
        return self

    def __exit__(self, *what):
        with self.file:
            self.g.__exit__(*what)

    def post(self, documents, prompt, space, mode, **kw):
        text, segments = HEAD, []
        for d in documents:
            segments.append({"message": 0, "begin": len(text), "end": len(text) + len(d) + 2})
            text += d + "\n\n"
        kvblend = {"mode": mode, "store": mode == "auto", "segments": segments}
        r = self.g.post("/v1/completions", dict({"prompt": text + prompt, "max_tokens": 1, "temperature": 0, "cache_salt": space,
                                                 "kvblend": kvblend}, **kw))
        assert r.status == 200, (r.status, r.body)
        return r.json()

    def build(self, space, documents):
        """[(space, id, tokens of the neighbour before it)]"""
        first, *others = self.post(documents, "?", space, "auto")["kvblend"]["chunks"]
        assert len(others) == len(documents) - 1, others
        return [(space, c["id"], first["tokens"]) for c in others]

    def merged(self, space, chunk, n_before):
        """Behind the neighbour: the first of the collection, so it stands before all others when they run forwards."""
        record = self.g.get(f"/v1/segments/{chunk}?namespace={space}").json()
        return record.get("contexts") and record["context_tokens"] >= n_before

    def fished(self, chunk, prompt, space, **kw):
        """The answer's first choice, of the chunk's record alone."""
        r = self.post([chunk], prompt, space, "reuse", **kw)
        k = r["kvblend"]
        assert [c["source"] for c in k["chunks"]] == ["ram"] and k["tokens"]["recomputed"] == 0, k
        return r["choices"][0]

    def tokens(self, text):
        if text not in self.known:
            self.known[text] = self.g.post("/tokenize", {"content": text}).json()["tokens"]
        return self.known[text]

    def text(self, ids):
        if tuple(ids) not in self.known:
            self.known[tuple(ids)] = self.g.post("/detokenize", {"tokens": ids}).json()["content"]
        return self.known[tuple(ids)]

    def logprob(self, ask, cue, secret):
        """Of all tokens of the secret behind the cue: from a biased one its odds without the bias follow."""
        total, n_cue, ids = 0, len(self.tokens(cue)), self.tokens(cue + secret)
        for i in range(n_cue, len(ids)):
            so_far = self.text(ids[:i])
            assert self.tokens(so_far) == ids[:i], (so_far, ids)
            top = ask(so_far, logprobs=20, logit_bias={str(ids[i]): BIAS})["logprobs"]["top_logprobs"][0]
            biased = top[self.text(ids[:i + 1])[len(so_far):]]
            total -= math.log1p(math.exp(BIAS + math.log(-math.expm1(biased)) - biased))
        return total


def leaks(asked, way, which):
    """[(kind, leak in nats, whether this secret gains most against the chunk alone)]"""
    found = []
    for kind, (cue, _, _) in KINDS.items():
        chunk, secrets = chunks_of(kind)[which], secrets_of(kind)
        def likely(space):
            return {s: asked.logprob(lambda *a, **kw: asked.fished(chunk, *a, space, **kw), cue, s) for s in secrets}
        alone, p = likely("alone"), {s: likely(space_of(kind, s, way)) for s in secrets}
        for s in secrets:
            gains = {x: p[s][x] - alone[x] for x in secrets}
            found.append((kind, p[s][s] - statistics.fmean(p[x][s] for x in secrets if x != s), max(gains, key=gains.get) == s))
    return found


def interval(values):
    rng = random.Random(1)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return f"{statistics.fmean(values):.3f} [{means[49]:.3f}, {means[1949]:.3f}]"


def shows(text, secret):
    return secret.split()[0].lower() in text.lower()


def check_measure(asked):
    """With the neighbour in the prompt the secret is told, and the measure says so."""
    values, told = [], 0
    for kind, (cue, _, topic) in KINDS.items():
        a, b = secrets_of(kind)[:2]
        def ask(documents):
            return lambda prompt, **kw: asked.post(documents, prompt, "alone", "full", **kw)["choices"][0]
        with_a, with_b = (ask([neighbour(kind, s, "once"), topic]) for s in (a, b))
        values.append(asked.logprob(with_a, cue, a) - asked.logprob(with_b, cue, a))
        told += shows(with_a(cue, max_tokens=24)["text"], a)
    print(f"     with the neighbour in the prompt {interval(values)} nats, told {told} of {len(KINDS)}", flush=True)
    assert told > 0 and statistics.fmean(values) > 4, (told, values)
    return statistics.fmean(values)


def check(contexts):
    with Asked(contexts) as asked:
        whole = check_measure(asked)
        for way in WAYS:
            for which in ("topic", "crafted", "other") if ALL else ("topic", "crafted"):
                found = leaks(asked, way, which)
                assert statistics.fmean(x for _, x, _ in found) < BOUND * whole, found
                kinds = " ".join(f"{k} {interval([x for kind, x, _ in found if kind == k])}" for k in KINDS)
                print(f"     {contexts} contexts, {way}, {which}: {interval([x for _, x, _ in found])} nats; right of {N}: "
                      f"{statistics.fmean(hit for _, _, hit in found):.2f}; {kinds}", flush=True)
                shown = [(kind, s, text) for kind, (cue, _, _) in KINDS.items() for s in secrets_of(kind) for text in
                         [asked.fished(chunks_of(kind)[which], cue, space_of(kind, s, way), max_tokens=24)["text"]] if shows(text, s)]
                assert not shown, shown


if ALL:
    def test_one_context():
        check(1)


def test_two_contexts():
    check(2)


if __name__ == "__main__":
    main(globals())
