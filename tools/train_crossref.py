#!/usr/bin/env python3
"""Trains the small model of tests/data/crossref, whose answers need more than one chunk.

The text is generated: people with names, roles and facts, told in 3 to 6 chunks of about 45 tokens.
A later chunk says "she", names a role, leaves the subject out or corrects a fact, so that its meaning
hangs on an earlier chunk; a question asks for one word. Kinds of questions:
  single    the fact's own chunk names the person
  coref     the fact is told of "she" or "he"; the name stands in an earlier chunk
  ellipsis  the fact's subject is left out ("Also keeps a dog."); it ends an earlier chunk
  alias     the fact is told of "the mayor", who an earlier chunk says is that person
  update    a later chunk replaces the fact ("she now lives in ...", "the mayor now ...")
What makes it learn: names drawn afresh per text, every word one token, few and short chunks first,
many questions behind one text (they do not see each other), and losses that exist in training only:
name the owner of a fact at the fact's last token, its value, after two layers; where the value looks
for its sentence's subject (first layer) and for what says whom that means (second); where the
question looks for its fact (fourth). So one token, the value, carries what a fact says and of whom.
Hidden matrices are trained with Muon, the rest with AdamW.

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
ROLES = "mayor baker doctor judge miller smith pilot clerk".split()
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
OPENINGS = ["", "", "", "", "Today", "At home", "As before"]
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
    spaced = ["She", "He", "she", "he", "The", "the", "Also", "now", "is", "within", "5", "words"]
    spaced += [w for r in RELATIONS for t in (r[0], r[1]) for w in t.split() if w not in ("{}", "?")]
    spaced += [w for v in VALUES for w in v]
    spaced += [w for t in OPENINGS + FILLERS for w in t.split()]
    spaced += FEMALE + MALE + ROLES
    bytes_ = byte_alphabet()
    words = [w for w in words if len(w) > 1]
    return [BOS, EOS] + bytes_ + words + ["\u0120" + w for w in dict.fromkeys(spaced)]


VOCAB = vocabulary()
ID = {t: i for i, t in enumerate(VOCAB)}
NEWLINE, STOP, WHAT, COLON = ID["\u010a"], ID["."], ID["?"], ID[":"]
PEOPLE = FEMALE + MALE
STAND_INS = {ID["\u0120" + w] for w in ROLES + ["She", "He", "she", "he"]}


def spaced(text):
    return [ID["\u0120" + w] for w in text.split()]


def to_ids(text):
    """What the byte-level tokenizer makes of text whose words are all in the vocabulary."""
    words = re.findall(r" ?[A-Za-z]+| ?[0-9]+|[.?:]|\n", text)
    return [ID[w.replace(" ", "\u0120").replace("\n", "\u010a")] for w in words]


def to_text(ids):
    return "".join(VOCAB[i] for i in ids).replace("\u0120", " ").replace("\u010a", "\n")


# ---- texts ------------------------------------------------------------------------------------

KINDS = ["single", "coref", "ellipsis", "alias", "update"]
MIX = {  # ways to tell a fact at the beginning of a later chunk and elsewhere; questions asked
    "begin": {"pronoun": 0.3, "also": 0.4, "update": 0.25, "role": 0.2, "new": 0.05},
    "go on": {"pronoun": 0.22, "also": 0.1, "new": 0.18, "old": 0.08, "role": 0.15, "call": 0.14,
              "update": 0.1, "fill": 0.03},
    "ask": {"single": 0.18, "coref": 0.2, "ellipsis": 0.2, "alias": 0.22, "update": 0.2}}
APART = 12  # tokens between two women's (men's) names, or nobody says "she" ("he") after them


class Person:
    def __init__(self, name, female):
        self.name, self.female = name, female
        self.role, self.role_chunk, self.role_at = None, None, None
        self.facts = {}  # relation -> Fact


class Fact:
    def __init__(self, value, kind, chunk, at):
        self.value, self.kind, self.chunk, self.at, self.updated = value, kind, chunk, at, False


class Focus:
    """Whom "she" or "he" stands for: the woman or man who was named last."""

    def __init__(self):
        self.person, self.chunk, self.at, self.other_at, self.clear = None, -1, None, None, False

    def name(self, person, chunk, at):
        if self.person is not person:
            self.other_at = self.at
        self.person, self.chunk, self.at = person, chunk, at
        self.clear = self.other_at is None or at - self.other_at >= APART

    def mention(self, person):
        """Told of by her role: "she" is not clear any more if that is somebody else."""
        self.clear = self.clear and person is self.person


class Subject:
    """Of a sentence: a person, where the word for her stands, and what says whom it means."""

    def __init__(self, person, word, chunk, at, says, says_chunk):
        self.person, self.word, self.chunk, self.at = person, word, chunk, at
        self.says, self.says_chunk = says, says_chunk


class Text:
    """One generated text: ids, chunk ranges, its facts, and labels for training."""

    def __init__(self, rng, n_chunks, chunk_tokens, max_people):
        self.rng, self.max_people = rng, max_people
        self.ids, self.chunks = [ID[BOS]], []
        self.values = []  # position of a fact's value, class of its owner
        self.tells = []  # position of such a value, of its sentence's subject
        self.refers = [[], []]  # such a value, the token that says whom a pronoun, a role means
        self.subject = None  # of the sentence before: see Subject
        self.people, self.focus = [], {True: Focus(), False: Focus()}
        self.names = {True: rng.sample(FEMALE, len(FEMALE)), False: rng.sample(MALE, len(MALE))}
        self.roles = rng.sample(ROLES, len(ROLES))
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
        self.subject = None
        self.ids += spaced(self.rng.choice(FILLERS)) + [STOP]
        return True

    def free_relation(self, person):
        free = [r for r in range(len(RELATIONS)) if r not in person.facts and self.pool[r]]
        return self.rng.choice(free) if free else None

    def put(self, c, subject, kind, relation):
        """One sentence; its subject is said already, or stood in the sentence before."""
        person = subject.person
        if kind == "update":
            self.ids += spaced("now")
            person.facts[relation].updated = True
        self.ids += spaced(RELATIONS[relation][0])
        value, at = self.pool[relation].pop(), len(self.ids)
        self.values.append((at, PEOPLE.index(person.name)))
        self.tells.append((at, subject.at))
        if subject.word != person.name:
            self.refers[subject.word.startswith("The ")].append((at, subject.says))
        person.facts[relation] = Fact(value, kind, c, at)
        person.facts[relation].updated = kind == "update"
        self.ids += spaced(value) + [STOP]
        self.subject = subject
        return True

    def say(self, c, person, word, says=None, says_chunk=None):
        """The beginning of a sentence: an opening and the subject."""
        if word.startswith("The "):
            self.focus[person.female].mention(person)
        opening = self.rng.choice(OPENINGS)
        self.ids += spaced(opening)
        lower = opening and word != person.name
        self.ids += spaced(word[0].lower() + word[1:] if lower else word)
        at = len(self.ids) - 1
        if word == person.name:
            self.focus[person.female].name(person, c, at)
        return Subject(person, word, c, at, says, says_chunk)

    def named(self, c, person):
        """A fact told with the person's name, which "she" stands for from now on."""
        relation = self.free_relation(person)
        if relation is None:
            return False
        return self.put(c, self.say(c, person, person.name), "single", relation)

    def tell_new(self, c):
        if len(self.people) >= self.max_people:
            return False
        female = self.rng.random() < 0.5
        person = Person(self.names[female].pop(), female)
        self.people.append(person)
        return self.named(c, person)

    def tell_old(self, c):
        return bool(self.people) and self.named(c, self.rng.choice(self.people))

    def tell_call(self, c):
        options = [p for p in self.people if not p.role]
        if not options or not self.roles:
            return False
        person = self.rng.choice(options)
        person.role, person.role_chunk = self.roles.pop(), c
        self.focus[person.female].name(person, c, len(self.ids))
        self.ids += spaced(person.name + " is the " + person.role) + [STOP]
        at = person.role_at = len(self.ids) - 2
        self.subject = Subject(person, "The " + person.role, c, at, at, c)
        return True

    def tell_also(self, c):
        """The subject left out: it is that of the sentence before."""
        s = self.subject
        relation = self.free_relation(s.person) if s else None
        if relation is None:
            return False
        kind = "single"
        if s.chunk < c:
            kind = "ellipsis"
        elif s.word != s.person.name and s.says_chunk < c:
            kind = "alias" if s.word.startswith("The ") else "coref"
        self.ids += spaced("Also")
        return self.put(c, s, kind, relation)

    def pronouns(self):
        """(person, words that stand for her, position and chunk that say so)."""
        return [(f.person, "She" if g else "He", f.at, f.chunk)
                for g, f in self.focus.items() if f.person and f.clear]

    def roles_told(self):
        return [(p, "The " + p.role, p.role_at, p.role_chunk) for p in self.people if p.role]

    def tell_of(self, c, options, kind):
        if not options:
            return False
        person, word, says, chunk = self.rng.choice(options)
        relation = self.free_relation(person)
        if relation is None:
            return False
        subject = self.say(c, person, word, says, chunk)
        return self.put(c, subject, kind if chunk < c else "single", relation)

    def tell_pronoun(self, c):
        return self.tell_of(c, self.pronouns(), "coref")

    def tell_role(self, c):
        return self.tell_of(c, self.roles_told(), "alias")

    def tell_update(self, c):
        options = [(x, r) for x in self.pronouns() + self.roles_told()
                   for r, f in x[0].facts.items()
                   if f.chunk < c and x[3] < c and not f.updated and self.pool[r]]
        if not options:
            return False
        (person, word, says, chunk), relation = self.rng.choice(options)
        return self.put(c, self.say(c, person, word, says, chunk), "update", relation)

    def questions(self):
        """(kind, name, relation, value, its position) of every fact that still holds."""
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
TELL_LAYER = 0  # looks from a fact's value to the subject of its sentence
REFER_LAYER = 1  # looks from a fact's value to what says whose it is
OWNER_LAYER = 2  # layers done where the training-only heads read owner and relation
READ_LAYER = 3  # looks from a question to the value of its fact


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
        # Large, or what the layers add drowns which word it is; the last norm makes up for it.
        self.embed = nn.Parameter(torch.randn(len(VOCAB), self.c["D"]) * 0.5)
        self.layers = nn.ModuleList(Layer(self.c) for _ in range(self.c["L"]))
        self.norm_out = nn.Parameter(torch.full((self.c["D"],), 0.2))
        self.owner_head = nn.Linear(self.c["D"], len(PEOPLE), bias=False)  # training only
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
        rows, pos, group, val, tells, ask, want, kinds = ([] for _ in range(8))
        refers = ([], [])  # of pronouns, of roles
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
            val += [(b, *x) for x in t.values]
            tells += [(b, *x) for x in t.tells]
            for told, own in zip(refers, t.refers):
                told += [(b, *x) for x in own]
            rows.append(ids), pos.append(p), group.append(g)
        T = max(len(r) for r in rows)
        self.ids = torch.tensor([r + [0] * (T - len(r)) for r in rows])
        self.pos = torch.tensor([p + [0] * (T - len(p)) for p in pos])
        g = torch.tensor([x + [-1] * (T - len(x)) for x in group])
        causal = torch.ones(T, T, dtype=torch.bool).tril()[T0:]
        see = (g[:, None, :] == 0) | (g[:, None, :] == g[:, T0:, None])
        self.n_text, self.mask = T0, (see & causal)[:, None]  # rows: tokens behind the text
        self.val, self.tells = torch.tensor(val).T, torch.tensor(tells).T
        self.refers = [torch.tensor(x).view(-1, 3).T for x in refers]
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
OWNER_LEARNT = 0.96  # share of owners named right, before a next stage begins
STAGES = [(2, 3, 26, 4), (3, 5, 44, 7), (3, 6, 44, 8)]
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
        self.owner = 0.0

    def run(self, batch):
        """Losses: the answer, the end behind it, owners and relations, where to look."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            out = self.model(batch.ids, batch.pos, batch.n_text, batch.mask)
        m, (vb, vi, vo), (qb, qi, qo, qr, at) = self.model, batch.val, batch.ask
        norm = lambda x: F.rms_norm(x.float(), (x.shape[-1],))
        value, asked = norm(out[OWNER_LAYER][vb, vi]), norm(out[OWNER_LAYER][qb, qi])
        v = m.owner_head(value)
        owners = (F.cross_entropy(v, vo) + F.cross_entropy(m.owner_head(asked), qo)
                  + 0.5 * F.cross_entropy(m.relation_head(asked), qr))
        look = (self.attention(batch, out, TELL_LAYER, 0, *batch.tells)
                + self.attention(batch, out, READ_LAYER, 0, qb, qi, at))
        for group, told in enumerate(batch.refers):
            if told.shape[1]:
                look = look + self.attention(batch, out, REFER_LAYER, group, *told)
        answers = m.logits(out[-1][qb, qi].float())
        ends = m.logits(out[-1][qb, qi + 1].float())
        eos = torch.full((len(qb),), ID[EOS])
        self.note(batch, answers, (v.argmax(-1) == vo).float().mean())
        early = m.logits(out[READ_LAYER + 1][qb, qi].float())  # or the last layers drown what was read
        return [F.cross_entropy(answers, batch.want), F.cross_entropy(ends, eos), owners,
                look + F.cross_entropy(early, batch.want)]

    def attention(self, batch, out, index, group, b, i, at):
        """How far the heads of a layer's group, at tokens (b, i), are from looking at `at`."""
        layer, c, n_text = self.model.layers[index], self.model.c, batch.n_text
        asks = bool((i >= n_text).any())  # text: what is behind it need not be looked at
        x = out[index] if asks else out[index][:, :n_text]
        cos, sin = self.model.cos_sin(batch.pos[:, :x.shape[1]])
        h = layer.norm(x, layer.norm_attn)
        n = c["H"] // c["G"]
        q = h[b, i] @ layer.q.weight[group * n * c["K"]:][:n * c["K"]].T
        q = rotate(q.view(-1, n, c["K"]), cos[b, i][:, None], sin[b, i][:, None])
        k = rotate(h @ layer.k.weight[group * c["K"]:][:c["K"]].T, cos, sin)[b]
        s = torch.einsum("qhk,qtk->qht", q, k) * c["K"] ** -0.5
        see = (batch.mask[b, 0, i - n_text] if asks
               else torch.arange(s.shape[-1]) <= i[:, None])
        s = s.masked_fill(~see[:, None], float("-inf"))
        return F.cross_entropy(s.flatten(0, 1), at.repeat_interleave(n))

    def note(self, batch, answers, owner):
        ok = (answers.argmax(-1) == batch.want).tolist()
        for kind in set(batch.kinds):
            got = [o for o, k in zip(ok, batch.kinds) if k == kind]
            self.right[kind] += 0.05 * (sum(got) / len(got) - self.right[kind])
        self.owner += 0.05 * (float(owner) - self.owner)

    def train_step(self, share):
        """share: how much of the whole run is done, for the learning rate."""
        texts = [24, 14, 12][self.stage]
        batch = Batch(self.rng, texts, STAGES[self.stage], [6, 10, 14][self.stage])
        answer, end, owners, look = self.run(batch)
        loss = answer + 0.1 * end + owners + look
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
        if (self.stage + 1 < len(STAGES) and self.owner > OWNER_LEARNT
                and sum(self.right.values()) > 0.75 * len(self.right)):
            self.stage += 1
            self.right = {k: 0.5 for k in KINDS}
        return [x.item() for x in (answer, owners, look)]

    def state(self):
        return dict(model=self.model.state_dict(), opts=[o.state_dict() for o in self.opts],
                    rng=self.rng.getstate(), step=self.step, stage=self.stage, right=self.right,
                    owner=self.owner)

    def load(self, s):
        self.model.load_state_dict(s["model"])
        for o, x in zip(self.opts, s["opts"]):
            o.load_state_dict(x)
        self.rng.setstate(s["rng"])
        self.step, self.stage, self.right, self.owner = s["step"], s["stage"], s["right"], s["owner"]


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
                  f"right {right} owner {t.owner:.3f} "
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
