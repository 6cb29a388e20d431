#!/usr/bin/env python3
"""Trains the small model of tests/data/crossref, whose answers need more than one chunk.

The text is generated: people with names, nicknames and facts, told in 4 to 8 chunks of about 50
tokens. A later chunk says "she", uses a nickname or corrects a fact, so that its meaning hangs on an
earlier chunk; a question asks for one word. Kinds of questions:
  single  the fact's own chunk names the person
  coref   the fact is told of "she" or "he"; the name stands in an earlier chunk
  alias   the fact is told of a nickname, introduced in an earlier chunk; asked by name
  update  a later chunk replaces the fact ("she now lives in ...")
What makes it learn: names drawn afresh per text, every word one token, few and short chunks first,
many questions behind one text (they do not see each other), and two losses that exist in training
only: name the owner of a fact, at its subject after an early layer and at its value after a middle
one. Hidden matrices are trained with Muon, the rest with AdamW.

Writes a Hugging Face folder (config.json, model.safetensors in f16, tokenizer.json,
tokenizer_config.json) and questions.jsonl in the format of kvblend-bench quality.

Run: python3 tools/train_crossref.py --out FOLDER [--seed 1] [--minutes 0] [--resume STATE]
Needs torch and numpy. One thread; the same seed and number of steps give the same files on the same
machine and version of torch. Data preparation only: nothing here runs when kvblend does.
"""
import argparse
import json
import os
import random
import re
import struct
import time

import torch
import torch.nn.functional as F
from torch import nn

# ---- words ------------------------------------------------------------------------------------

FIRST = "Ba Ce Da Fe Ga Hi Jo Ka Le Mi No Pe Ra Si Tu Ve".split()
FEMALE = [a + b for a in FIRST for b in "lina rissa".split()]
MALE = [a + b for a in FIRST for b in "ron mund".split()]
NICK = [a + b for a in "Red Blue Grey Gold".split()
        for b in "fox hawk bear moth wolf crow".split()]
RELATIONS = [  # verb and what follows it, the question's words, values
    ("lives in", "Where does {} live ?", "Paris Rome Oslo Cairo Lima Delhi Tokyo Quito Bern Minsk "
     "Accra Dublin Athens Hanoi Riga Sofia Tunis Lagos Madrid Vienna"),
    ("keeps a", "What does {} keep ?", "dog cat goat horse parrot rabbit snake turtle pig sheep "
     "donkey hamster duck goose ferret llama canary pony lizard toad"),
    ("plays the", "What does {} play ?", "flute piano drum harp violin cello trumpet organ banjo "
     "guitar lute horn tuba oboe bassoon clarinet viola zither fiddle mandolin"),
    ("drinks", "What does {} drink ?", "tea coffee milk cocoa juice water cider beer wine soda "
     "lemonade broth kefir mead tonic whey sherry punch cola nectar"),
    ("drives a", "What does {} drive ?", "truck bus van taxi tractor tram lorry train scooter "
     "jeep cart coach limousine moped ferry crane digger wagon sedan buggy"),
    ("studies", "What does {} study ?", "law music physics botany history logic algebra dance "
     "geology medicine poetry optics ethics anatomy chess drama genetics grammar acoustics rhetoric"),
    ("wears a", "What does {} wear ?", "hat scarf coat cap belt tie ring cloak shawl jacket vest "
     "robe apron helmet bonnet kilt poncho turban sash wig"),
    ("grows", "What does {} grow ?", "roses corn wheat beans tulips onions apples rice cotton "
     "plums barley grapes lilies hops figs peas carrots olives pears lentils"),
]
HEADINGS = "Letter Diary Report Notes Minutes Memo".split()
OPENINGS = ["", "", "", "Today", "At home", "We hear", "As before"]
FILLERS = ["The rain fell all day", "Nobody said much", "It was cold in the morning",
           "The town was quiet", "Dinner was late", "The road is closed"]
VALUES = [r[2].split() for r in RELATIONS]
BOS, EOS = "<s>", "</s>"
TAIL = "\n Answer within 5 words .".split(" ")  # of the quality tool's prompt, see question_words()


def byte_alphabet():
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, n = [], 0
    for b in range(256):
        out.append(chr(b) if b in keep else chr(256 + n))
        n += b not in keep
    return out


def vocabulary():
    """Token texts by id. Space is written as the byte-level alphabet does."""
    words = HEADINGS + ["Question", "Answer", "\n"]
    spaced = ["She", "He", "she", "he", "now", "is", "also", "called", "within", "5", "words"]
    spaced += [w for r in RELATIONS for t in (r[0], r[1]) for w in t.split() if w not in ("{}", "?")]
    spaced += [w for v in VALUES for w in v]
    spaced += [w for t in OPENINGS + FILLERS for w in t.split()]
    spaced += FEMALE + MALE + NICK
    bytes_ = byte_alphabet()
    words = [w for w in words if len(w) > 1]
    return [BOS, EOS] + bytes_ + words + ["\u0120" + w for w in dict.fromkeys(spaced)]


VOCAB = vocabulary()
ID = {t: i for i, t in enumerate(VOCAB)}
NEWLINE, STOP, WHAT, COLON = ID["\u010a"], ID["."], ID["?"], ID[":"]
PEOPLE = FEMALE + MALE
STAND_INS = {ID["\u0120" + w] for w in NICK + ["She", "He", "she", "he"]}


def spaced(text):
    return [ID["\u0120" + w] for w in text.split()]


def to_ids(text):
    """What the byte-level tokenizer makes of text whose words are all in the vocabulary."""
    words = re.findall(r" ?[A-Za-z]+| ?[0-9]+|[.?:]|\n", text)
    return [ID[w.replace(" ", "\u0120").replace("\n", "\u010a")] for w in words]


def to_text(ids):
    return "".join(VOCAB[i] for i in ids).replace("\u0120", " ").replace("\u010a", "\n")


# ---- texts ------------------------------------------------------------------------------------

KINDS = ["single", "coref", "alias", "update"]
MIX = {  # ways to tell a fact at the beginning of a later chunk and elsewhere; questions asked
    "begin": {"he": 0.55, "update": 0.3, "nick": 0.1, "new": 0.05},
    "go on": {"he": 0.28, "new": 0.2, "old": 0.14, "nick": 0.13, "call": 0.1, "update": 0.15,
              "fill": 0.05},
    "ask": {"single": 0.25, "coref": 0.25, "alias": 0.2, "update": 0.3}}


class Person:
    def __init__(self, name, female):
        self.name, self.female = name, female
        self.nick, self.nick_chunk, self.nick_at = None, None, None
        self.facts = {}  # relation -> Fact


class Fact:
    def __init__(self, value, kind, chunk, at):
        self.value, self.kind, self.chunk, self.at, self.updated = value, kind, chunk, at, False


class Text:
    """One generated text: ids, chunk ranges, labels of subjects and values, and its facts."""

    def __init__(self, rng, n_chunks, chunk_tokens, max_people):
        self.rng, self.max_people = rng, max_people
        self.ids, self.chunks, self.subjects, self.values = [ID[BOS]], [], [], []
        self.nick_uses = []  # where a nickname stands, where it was introduced
        self.people, self.last = [], {True: None, False: None}
        self.named_in = {True: -1, False: -1}  # chunk of the name that "she", "he" stands for
        self.names = {True: rng.sample(FEMALE, len(FEMALE)), False: rng.sample(MALE, len(MALE))}
        self.nicks = rng.sample(NICK, len(NICK))
        self.pool = [rng.sample(v, len(v)) for v in VALUES]
        for c in range(n_chunks):
            if c:
                self.ids += [NEWLINE, NEWLINE]
            begin = len(self.ids)
            self.ids += [ID[rng.choice(HEADINGS)], STOP]
            self.sentence = 0
            while len(self.ids) - begin < chunk_tokens - 4:
                self.tell(c)
                self.sentence += 1
            self.chunks.append((begin, len(self.ids)))

    def tell(self, c):
        rng = self.rng
        p = MIX["begin" if c and self.sentence < 2 else "go on"]
        for _ in range(8):
            way = rng.choices(list(p), list(p.values()))[0]
            if getattr(self, "tell_" + way)(c):
                return
        self.tell_fill(c)

    def tell_fill(self, c):
        self.ids += spaced(self.rng.choice(FILLERS)) + [STOP]
        return True

    def free_relation(self, person):
        free = [r for r in range(len(RELATIONS)) if r not in person.facts and self.pool[r]]
        return self.rng.choice(free) if free else None

    def put(self, c, person, subject, kind, relation, update=False):
        """One sentence. Labels: (position, class of the owner's name)."""
        opening = self.rng.choice(OPENINGS)
        owner = PEOPLE.index(person.name)
        self.ids += spaced(opening)
        self.subjects.append((len(self.ids), owner))
        if subject == person.nick:
            self.nick_uses.append((len(self.ids), person.nick_at))
        self.ids += spaced(subject.lower() if opening and subject in ("She", "He") else subject)
        if update:
            self.ids += spaced("now")
            person.facts[relation].updated = True
        self.ids += spaced(RELATIONS[relation][0])
        value = self.pool[relation].pop()
        self.values.append((len(self.ids), owner, relation))
        fact = Fact(value, kind, c, len(self.ids))
        fact.updated = update
        person.facts[relation] = fact
        self.ids += spaced(value) + [STOP]
        return True

    def name(self, c, person):
        self.last[person.female], self.named_in[person.female] = person, c
        return person.name

    def tell_he(self, c):
        options = [g for g in (True, False) if self.last[g]]
        if not options:
            return False
        female = self.rng.choice(options)
        person = self.last[female]
        relation = self.free_relation(person)
        if relation is None:
            return False
        kind = "coref" if self.named_in[female] < c else "single"
        return self.put(c, person, "She" if female else "He", kind, relation)

    def tell_new(self, c):
        if len(self.people) >= self.max_people:
            return False
        female = self.rng.random() < 0.5
        person = Person(self.names[female].pop(), female)
        self.people.append(person)
        relation = self.free_relation(person)
        if relation is None:
            return False
        return self.put(c, person, self.name(c, person), "single", relation)

    def tell_old(self, c):
        if not self.people:
            return False
        person = self.rng.choice(self.people)
        relation = self.free_relation(person)
        if relation is None:
            return False
        return self.put(c, person, self.name(c, person), "single", relation)

    def tell_call(self, c):
        options = [p for p in self.people if not p.nick]
        if not options:
            return False
        person = self.rng.choice(options)
        person.nick, person.nick_chunk = self.nicks.pop(), c
        owner = PEOPLE.index(person.name)
        self.ids += spaced(self.name(c, person)) + spaced("is also called")
        person.nick_at = len(self.ids)
        self.subjects.append((len(self.ids), owner))
        self.ids += spaced(person.nick) + [STOP]
        return True

    def tell_nick(self, c):
        options = [p for p in self.people if p.nick]
        if not options:
            return False
        person = self.rng.choice(options)
        relation = self.free_relation(person)
        if relation is None:
            return False
        self.last[person.female] = None  # "she" would be ambiguous from here
        kind = "alias" if person.nick_chunk < c else "single"
        return self.put(c, person, person.nick, kind, relation)

    def tell_update(self, c):
        options = [(g, r) for g in (True, False) for r, f in
                   (self.last[g].facts.items() if self.last[g] else ())
                   if f.chunk < c and not f.updated and self.pool[r] and self.named_in[g] < c]
        if not options:
            return False
        female, relation = self.rng.choice(options)
        return self.put(c, self.last[female], "She" if female else "He", "update", relation, True)

    def questions(self):
        """(kind, name, relation, value) of every fact that still holds."""
        return [(f.kind, p.name, r, f.value, f.at) for p in self.people for r, f in p.facts.items()]


def question_ids(name, relation):
    """What the quality tool's format appends: two newlines, the question, how to answer."""
    words = RELATIONS[relation][1].format(name).split()[:-1]
    return ([NEWLINE, NEWLINE, ID["Question"], COLON] + [ID["\u0120" + w] for w in words] + [WHAT]
            + [NEWLINE, ID["Answer"]] + spaced("within 5 words") + [STOP])


def question_text(name, relation):
    return RELATIONS[relation][1].format(name).replace(" ?", "?")


# ---- model ------------------------------------------------------------------------------------

CONFIG = dict(L=6, D=128, H=4, G=2, K=32, F=256, theta=100000.0, eps=1e-5)
SUBJECT_LAYER, VALUE_LAYER = 2, 4  # layers done where the training-only heads read


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d, kv = c["D"], c["G"] * c["K"]
        self.norm_attn, self.norm_ffn = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.q = nn.Linear(d, c["H"] * c["K"], bias=False)
        self.k, self.v = nn.Linear(d, kv, bias=False), nn.Linear(d, kv, bias=False)
        self.o = nn.Linear(c["H"] * c["K"], d, bias=False)
        self.gate, self.up = nn.Linear(d, c["F"], bias=False), nn.Linear(d, c["F"], bias=False)
        self.down = nn.Linear(c["F"], d, bias=False)

    def norm(self, x, w):
        return F.rms_norm(x, (x.shape[-1],), w, self.c["eps"])

    def heads(self, x, lin, n):
        return lin(x).view(*x.shape[:-1], n, self.c["K"]).transpose(-2, -3)

    def qkv(self, x):
        """q [.., H, T, K], k and v [.., G, T, K], before RoPE."""
        h = self.norm(x, self.norm_attn)
        c = self.c
        return self.heads(h, self.q, c["H"]), self.heads(h, self.k, c["G"]), self.heads(
            h, self.v, c["G"])

    def rest(self, x, att):
        x = x + self.o(att.transpose(-2, -3).flatten(-2))
        h = self.norm(x, self.norm_ffn)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x, cos, sin, n_text, mask):
        """The first n_text tokens see what is before them, the others what `mask` says."""
        q, k, v = self.qkv(x)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        n = self.c["H"] // self.c["G"]
        k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
        text = F.scaled_dot_product_attention(*(y[:, :, :n_text] for y in (q, k, v)),
                                              is_causal=True)
        asked = F.scaled_dot_product_attention(q[:, :, n_text:], k, v, attn_mask=mask)
        return self.rest(x, torch.cat((text, asked), dim=2))


class Model(nn.Module):
    def __init__(self, c=None):
        super().__init__()
        self.c = c or CONFIG
        self.embed = nn.Parameter(torch.randn(len(VOCAB), self.c["D"]) * 0.1)
        self.layers = nn.ModuleList(Layer(self.c) for _ in range(self.c["L"]))
        self.norm_out = nn.Parameter(torch.ones(self.c["D"]))
        self.subject_head = nn.Linear(self.c["D"], len(PEOPLE), bias=False)  # training only
        self.value_head = nn.Linear(self.c["D"], len(PEOPLE), bias=False)  # training only
        self.relation_head = nn.Linear(self.c["D"], len(RELATIONS), bias=False)  # training only
        for layer in self.layers:
            with torch.no_grad():
                layer.o.weight.mul_(0.4)
                layer.down.weight.mul_(0.4)

    def cos_sin(self, pos):
        k = self.c["K"]
        inv = self.c["theta"] ** (-torch.arange(0, k, 2, dtype=torch.float32) / k)
        angle = pos[..., None].float() * inv
        return angle.cos(), angle.sin()

    def logits(self, x):
        x = F.rms_norm(x, (x.shape[-1],), self.norm_out, self.c["eps"])
        return x @ self.embed.T

    def forward(self, ids, pos, n_text, mask):
        """The residual stream after every layer, [0] the embeddings."""
        cos, sin = self.cos_sin(pos)
        x = self.embed[ids]
        out = [x]
        for layer in self.layers:
            x = layer(x, cos[:, None], sin[:, None], n_text, mask)
            out.append(x)
        return out


# ---- batches ----------------------------------------------------------------------------------

def pick_questions(rng, text, n):
    wanted = MIX["ask"]
    groups = {k: [q for q in text.questions() if q[0] == k] for k in KINDS}
    groups = {k: rng.sample(v, len(v)) for k, v in groups.items() if v}
    out = []
    while groups and len(out) < n:
        kind = rng.choices(list(groups), [wanted[k] for k in groups])[0]
        out.append(groups[kind].pop())
        if not groups[kind]:
            del groups[kind]
    return out


class Batch:
    """Texts with questions behind them; a question sees the text and itself."""

    def __init__(self, rng, n, stage, n_questions):
        lo, hi, tokens, people = stage
        n_chunks = rng.randint(lo, hi)
        texts = [Text(rng, n_chunks, tokens, people) for _ in range(n)]
        T0 = max(len(t.ids) for t in texts)
        rows, pos, group, subj, val, ask, nick, want, kinds = ([] for _ in range(9))
        for b, t in enumerate(texts):
            ids = t.ids + [0] * (T0 - len(t.ids))
            p, g = list(range(T0)), [0] * len(t.ids) + [-1] * (T0 - len(t.ids))
            for k, (kind, name, r, value, at) in enumerate(pick_questions(rng, t, n_questions)):
                q = question_ids(name, r) + spaced(value)
                ask.append((b, len(ids) + len(q) - 2, PEOPLE.index(name), r, at))
                want.append(spaced(value)[0])
                kinds.append(kind)
                ids, g = ids + q, g + [k + 1] * len(q)
                p = p + list(range(len(t.ids), len(t.ids) + len(q)))
            subj += [(b, i, o) for i, o in t.subjects]
            val += [(b, *x) for x in t.values]
            nick += [(b, *x) for x in t.nick_uses]
            rows.append(ids), pos.append(p), group.append(g)
        T = max(len(r) for r in rows)
        self.ids = torch.tensor([r + [0] * (T - len(r)) for r in rows])
        self.pos = torch.tensor([p + [0] * (T - len(p)) for p in pos])
        g = torch.tensor([x + [-1] * (T - len(x)) for x in group])
        causal = torch.ones(T, T, dtype=torch.bool).tril()[T0:]
        see = (g[:, None, :] == 0) | (g[:, None, :] == g[:, T0:, None])
        self.n_text, self.mask = T0, (see & causal)[:, None]  # rows: tokens behind the text
        self.subj, self.val = torch.tensor(subj).T, torch.tensor(val).T
        self.nick = torch.tensor(nick).T
        self.ask, self.want, self.kinds = torch.tensor(ask).T, torch.tensor(want), kinds
        self.tokens = self.ids.numel()


# ---- training ---------------------------------------------------------------------------------

class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal by five Newton-Schulz steps."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 0.05)
                x = p.grad.lerp(m, 0.95)
                flip = x.shape[0] > x.shape[1]
                x = x.T if flip else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                x = x.T if flip else x
                p.mul_(1 - 0.01 * group["lr"])
                p.add_(x, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


COOL = 0.3  # the learning rate falls over this last share of the steps
NICK_FROM = 295  # step from which nicknames are told where they were introduced
STAGES = [(2, 3, 26, 4), (3, 5, 44, 7), (4, 8, 50, 9)]
"""chunks from, to, tokens of a chunk, people at most: the next when the last one is learnt"""


class Trainer:
    def __init__(self, seed, bf16):
        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        self.model = Model()
        hidden = [p for layer in self.model.layers for p in layer.parameters() if p.ndim == 2]
        ids = {id(p) for p in hidden}
        others = [p for p in self.model.parameters() if id(p) not in ids]
        self.opts = [Muon(hidden, 0.02), torch.optim.AdamW(others, lr=4e-3, betas=(0.9, 0.98),
                                                          weight_decay=0.0)]
        self.base = [0.02, 4e-3]
        self.step, self.stage, self.bf16 = 0, 0, bf16
        self.right = {k: 0.0 for k in KINDS}
        self.aux = [0.0, 0.0]

    def run(self, batch):
        """Losses: the answer, the end behind it, owners at subjects, owners and relations."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            out = self.model(batch.ids, batch.pos, batch.n_text, batch.mask)
        m, (sb, si, so), (vb, vi, vo, vr), (qb, qi, qo, qr, at) = (
            self.model, batch.subj, batch.val, batch.ask)
        norm = lambda x: F.rms_norm(x.float(), (x.shape[-1],))
        s = m.subject_head(norm(out[SUBJECT_LAYER][sb, si]))
        middle_v, middle_q = norm(out[VALUE_LAYER][vb, vi]), norm(out[VALUE_LAYER][qb, qi])
        v = m.value_head(middle_v)
        owners = (F.cross_entropy(v, vo) + F.cross_entropy(m.value_head(middle_q), qo)
                  + 0.5 * F.cross_entropy(m.relation_head(middle_v), vr)
                  + 0.5 * F.cross_entropy(m.relation_head(middle_q), qr)
                  + self.attention(batch, out[VALUE_LAYER], VALUE_LAYER, qb, qi, at))
        if self.step >= NICK_FROM and len(batch.nick):
            owners = owners + self.attention(batch, out[SUBJECT_LAYER - 1], SUBJECT_LAYER - 1,
                                             *batch.nick)
        answers = m.logits(out[-1][qb, qi].float())
        ends = m.logits(out[-1][qb, qi + 1].float())
        eos = torch.full((len(qb),), ID[EOS])
        self.note(batch, answers, (s.argmax(-1) == so).float().mean(),
                  (v.argmax(-1) == vo).float().mean())
        return [F.cross_entropy(answers, batch.want), F.cross_entropy(ends, eos),
                F.cross_entropy(s, so), owners]

    def attention(self, batch, x, index, b, i, at):
        """How far the heads of a layer's first group, at tokens (b, i), are from looking at `at`."""
        layer, c = self.model.layers[index], self.model.c
        cos, sin = self.model.cos_sin(batch.pos)
        h = layer.norm(x, layer.norm_attn)
        n = c["H"] // c["G"]
        q = rotate(layer.q(h[b, i])[:, :n * c["K"]].view(-1, n, c["K"]), cos[b, i][:, None],
                   sin[b, i][:, None])
        k = rotate(layer.k(h)[..., :c["K"]], cos, sin)[b]
        s = torch.einsum("qhk,qtk->qht", q, k) * c["K"] ** -0.5
        before = torch.arange(s.shape[-1]) <= i[:, None]
        asks = (i >= batch.n_text)[:, None]
        see = torch.where(asks, batch.mask[b, 0, (i - batch.n_text).clamp(min=0)], before)
        s = s.masked_fill(~see[:, None], float("-inf"))
        return F.cross_entropy(s.flatten(0, 1), at.repeat_interleave(n))

    def note(self, batch, answers, s, v):
        ok = (answers.argmax(-1) == batch.want).tolist()
        for kind in set(batch.kinds):
            got = [o for o, k in zip(ok, batch.kinds) if k == kind]
            self.right[kind] += 0.05 * (sum(got) / len(got) - self.right[kind])
        self.aux = [self.aux[0] + 0.05 * (float(s) - self.aux[0]),
                    self.aux[1] + 0.05 * (float(v) - self.aux[1])]

    def train_step(self, share):
        """share: how much of the whole run is done, for the learning rate."""
        texts = [32, 16, 12][self.stage]
        batch = Batch(self.rng, texts, STAGES[self.stage], [6, 10, 14][self.stage])
        a, e, s, v = self.run(batch)
        loss = a + 0.1 * e + s + v
        for o in self.opts:
            o.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        warm = min(1, (self.step + 1) / 50)
        cool = min(1, (1 - share) / COOL)
        for o, base in zip(self.opts, self.base):
            for g in o.param_groups:
                g["lr"] = base * warm * max(cool, 0.02)
            o.step()
        self.step += 1
        if self.stage + 1 < len(STAGES) and sum(self.right.values()) > 0.75 * len(self.right):
            self.stage += 1
            self.right = {k: 0.5 for k in KINDS}
        return [x.item() for x in (a, s, v)] + [batch.tokens]

    def state(self):
        return dict(model=self.model.state_dict(), opts=[o.state_dict() for o in self.opts],
                    rng=self.rng.getstate(), step=self.step, stage=self.stage, right=self.right,
                    aux=self.aux)

    def load(self, s):
        self.model.load_state_dict(s["model"])
        for o, x in zip(self.opts, s["opts"]):
            o.load_state_dict(x)
        self.rng.setstate(s["rng"])
        self.step, self.stage, self.right, self.aux = s["step"], s["stage"], s["right"], s["aux"]


def train(a):
    t = Trainer(a.seed, a.bf16)
    if a.resume:
        t.load(torch.load(a.resume, weights_only=False))
    begin = saved = time.time()
    while t.step < a.steps:
        loss = t.train_step(t.step / a.steps)
        if t.step % 20 == 0 or t.step == a.steps:
            right = " ".join(f"{k} {v:.3f}" for k, v in t.right.items())
            print(f"{t.step} stage {t.stage} loss {loss[0]:.3f} {loss[1]:.3f} {loss[2]:.3f} "
                  f"right {right} owner {t.aux[0]:.3f} {t.aux[1]:.3f} "
                  f"{time.time() - begin:.0f} s", flush=True)
        if a.state and (time.time() - saved > 60 or t.step == a.steps):
            torch.save(t.state(), a.state + ".new")
            os.replace(a.state + ".new", a.state)
            saved = time.time()
    return t.model


# ---- files ------------------------------------------------------------------------------------

def tensor_names(model):
    """Name of a parameter here -> its name in the file."""
    names = {"embed": "model.embed_tokens.weight", "norm_out": "model.norm.weight"}
    parts = {"norm_attn": "input_layernorm", "norm_ffn": "post_attention_layernorm"}
    parts |= {f"{x}.weight": f"self_attn.{x}_proj" for x in "qkvo"}
    parts |= {f"{x}.weight": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    for i in range(model.c["L"]):
        names |= {f"layers.{i}.{a}": f"model.layers.{i}.{b}.weight" for a, b in parts.items()}
    return names


def write_model(model, folder):
    head, data = {}, b""
    for ours, name in sorted(tensor_names(model).items(), key=lambda x: x[1]):
        w = model.get_parameter(ours).detach().half().contiguous()
        raw = w.numpy().tobytes()
        head[name] = dict(dtype="F16", shape=list(w.shape),
                          data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(head, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def write_json(folder, name, data):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, indent=1)
        f.write("\n")


def write_settings(c, folder):
    write_json(folder, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "num_hidden_layers": c["L"], "hidden_size": c["D"], "intermediate_size": c["F"],
        "num_attention_heads": c["H"], "num_key_value_heads": c["G"], "head_dim": c["K"],
        "vocab_size": len(VOCAB), "max_position_embeddings": 2048, "rms_norm_eps": c["eps"],
        "rope_theta": c["theta"], "rope_scaling": None, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": ID[BOS],
        "eos_token_id": ID[EOS], "torch_dtype": "float16"})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    text = [{"Sequence": {"id": x, "type_id": 0}} for x in "AB"]
    write_json(folder, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": ID[t], "content": t, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for t in (BOS, EOS)],
        "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos, text[0]], "pair": [bos] + text,
            "special_tokens": {BOS: {"id": BOS, "ids": [ID[BOS]], "tokens": [BOS]}}},
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {t: i for i, t in enumerate(VOCAB)}, "merges": []}})
    write_json(folder, "tokenizer_config.json", {
        "bos_token": BOS, "eos_token": EOS, "model_max_length": 2048,
        "tokenizer_class": "PreTrainedTokenizerFast"})


def write_questions(folder, seed, per_kind):
    """One question a text, texts of the last stage that training has not seen (another seed)."""
    rng = random.Random(f"questions {seed}")
    lo, hi, tokens, people = STAGES[-1]
    with open(os.path.join(folder, "questions.jsonl"), "w") as f:
        for i in range(per_kind * len(KINDS)):
            kind = KINDS[i % len(KINDS)]
            found = []
            while not found:
                t = Text(rng, rng.randint(lo, hi), tokens, people)
                found = [q for q in t.questions() if q[0] == kind]
            _, name, relation, value, _ = rng.choice(found)
            line = {"kind": kind, "chunks": [to_text(t.ids[a:b]) for a, b in t.chunks],
                    "question": question_text(name, relation), "answer": value}
            f.write(json.dumps(line) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--steps", type=int, default=4000)
    p.add_argument("--state", help="file for a state to go on from")
    p.add_argument("--resume", help="such a file")
    p.add_argument("--questions", type=int, default=160, help="per kind")
    p.add_argument("--bf16", action="store_true")
    a = p.parse_args()
    torch.set_num_threads(1)
    model = train(a)
    if a.out:
        os.makedirs(a.out, exist_ok=True)
        write_model(model, a.out)
        write_settings(model.c, a.out)
        write_questions(a.out, a.seed, a.questions)


if __name__ == "__main__":
    main()
