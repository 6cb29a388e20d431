#!/usr/bin/env python3
"""Write tests/data/tokenizers/hashes.json: what the `tokenizers` package makes of very many texts.

Usage: tests/data/make/make_tok_hashes.py [--dir DIR] [--per N] [--texts N] [--show NAME NUMBER]

The texts are made by a seeded generator from the tables of DIR/texts.json (tests/unit/fusor/test_tok.c
has the same generator): scripts, combining marks, emoji with joiners, digits, runs of blanks, contractions,
control characters, names of control tokens, code points that stand for nothing. Of every tokenizer of
DIR/hf/ the file has a hash for each N texts, of their ids and, unless it is an encoder's, of what the
ids decode to. --per 1 tells texts apart, --show prints one with its ids. Needs tokenizers.
"""
import argparse
import json
import pathlib

from tokenizers import Tokenizer

DATA = pathlib.Path(__file__).resolve().parent.parent / "tokenizers"
MASK = (1 << 64) - 1


class Rand:
    """splitmix64, as test_rand() of tests/test.h."""

    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        return z ^ z >> 31


def make_text(rand, tables):
    ranges, bits = tables["ranges"], tables["bits"]
    out = []
    for _ in range(1 + rand() % 12):
        r = rand()
        kind, pick, n = r % 20, r >> 8 & 0xFFFFFF, r >> 32
        if kind < 11:
            out.append(bits[pick % len(bits)])
        elif kind < 18:
            lo, hi = ranges[pick % len(ranges)]
            out += [chr(lo + rand() % (hi - lo + 1)) for _ in range(1 + n % 5)]
        else:
            out.append(bits[pick % len(bits)] * (2 + n % 7))
    return "".join(out)


def fnv(h, data):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def hashed(h, tok, text, decodes):
    ids = tok.encode(text, add_special_tokens=False).ids
    h = fnv(h, b"".join(i.to_bytes(4, "little") for i in [*ids, 0xFFFFFFFF]))
    return fnv(h, tok.decode(ids, skip_special_tokens=False).encode()) if decodes else h


def open_tokenizer(folder):
    """Without control tokens: in a user's text their names are text."""
    data = json.loads((folder / "tokenizer.json").read_text())
    control = {a["id"] for a in data["added_tokens"] if a["special"]}
    data["added_tokens"] = [a for a in data["added_tokens"] if not a["special"]]
    if data["model"]["type"] == "Unigram":  # whose pieces they are, too: under names that no text has
        data["model"]["vocab"] = [[f"\ue0ff{i}", score] if i in control else [piece, score]
                                  for i, (piece, score) in enumerate(data["model"]["vocab"])]
    return Tokenizer.from_str(json.dumps(data)), data["model"]["type"] == "BPE"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--dir", type=pathlib.Path, default=DATA)
    args.add_argument("--per", type=int, default=100)
    args.add_argument("--texts", type=int, default=10000)
    args.add_argument("--show", nargs=2, metavar=("NAME", "NUMBER"))
    args = args.parse_args()
    tables = json.loads((DATA / "texts.json").read_text())
    rand = Rand(tables["seed"])
    texts = [make_text(rand, tables) for _ in range(args.texts)]
    if args.show:
        tok, _ = open_tokenizer(args.dir / "hf" / args.show[0])
        text = texts[int(args.show[1])]
        print(ascii(text), tok.encode(text, add_special_tokens=False).ids)
        return
    out = {}
    for folder in sorted(p.parent for p in (args.dir / "hf").glob("*/tokenizer.json")):
        tok, decodes = open_tokenizer(folder)
        out[folder.name] = hashes = []
        for at in range(0, len(texts), args.per):
            h = 0xCBF29CE484222325
            for text in texts[at:at + args.per]:
                h = hashed(h, tok, text, decodes)
            hashes.append(f"{h & 0xFFFFFFFF:08x}")
    lines = [f"{json.dumps(name)}: {json.dumps(' '.join(h))}" for name, h in out.items()]
    head = f'"texts": {args.texts}, "per": {args.per}'
    (args.dir / "hashes.json").write_text("{" + ",\n".join([head, *lines]) + "}\n")


if __name__ == "__main__":
    main()
