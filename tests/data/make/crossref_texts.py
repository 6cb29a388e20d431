#!/usr/bin/env python3
"""The texts and questions of tests/data/crossref: what they are says train_crossref.py.

Run: python3 tests/data/make/crossref_texts.py FILE [--seed 1] [--questions 128]
Writes questions in the format of kvblend-bench quality, so many of each kind; another seed gives other
ones. Plain Python, so that a test can draw lines to calibrate on which nobody has seen.
"""
import argparse
import json
import random
import re

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


STAGES = [(2, 3, 26, 4), (3, 5, 44, 7), (3, 6, 44, 8)]
"""Of training: chunks from, to, tokens of a chunk, people at most."""


def write_questions(path, seed, per_kind):
    """One question a text, texts of the last stage that training has not seen (another seed)."""
    rng = random.Random(f"questions {seed}")
    lo, hi, tokens, people = STAGES[-1]
    with open(path, "w") as f:
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
    p.add_argument("file")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--questions", type=int, default=128, help="per kind")
    a = p.parse_args()
    write_questions(a.file, a.seed, a.questions)


if __name__ == "__main__":
    main()
