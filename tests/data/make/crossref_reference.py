#!/usr/bin/env python3
"""What the engine's strategies should reach on tests/data/crossref, by an independent computation.

Plain float32 torch, one prompt at a time, no pages, no slices: every token's K (before RoPE) and V
of every layer in one array, rows that are computed write over it, and a row at position p sees keys
0...p. Chunks are encoded alone behind the first token. Strategies: full, reuse, hkvd (largest squared
K deviation at the check layer), query (attention of the suffix over the reused KV, layers L/3 to
5L/6), qs (query times context sensitivity: per token the mean over layers 1...L/2 of
|dK|/|K| + |dV|/|V| between the isolated encoding and one behind another chunk, largest over chunks of
the four lines that follow, as the quality tool does it), sense (that sensitivity alone); oracles: value (the
asked fact's value, nothing else), subject (its pronoun or role, nothing else), values (every fact's). "+first": tokens of a chunk right behind
the first token, which are exact, are left out of the choice; the number of tokens stays.

Run: python3 tests/data/make/crossref_reference.py FOLDER [--limit N] [--methods full,reuse,hkvd@0.15,...]
Needs torch and train_crossref.py beside it. Prints a table: share of right answers and mean
KL(full || method) of the answer's token, by kind of question.
"""
import argparse
import json
import os
import struct

import torch
import torch.nn.functional as F

import crossref_texts as texts
import train_crossref as tc

VALUE_IDS = {texts.ID["\u0120" + w] for v in texts.VALUES for w in v}


def load(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    m = tc.Model()
    for ours, name in tc.tensor_names(m).items():
        lo, hi = head[name]["data_offsets"]
        w = torch.frombuffer(bytearray(data[lo:hi]), dtype=torch.float16)
        m.get_parameter(ours).data = w.float().reshape(head[name]["shape"])
    return m.eval()


class Prompt:
    def __init__(self, line):
        self.ids, self.chunk = [texts.ID[texts.BOS]], []
        for c in line["chunks"]:
            if self.chunk:
                self.ids += [texts.NEWLINE] * 2
            ids = texts.to_ids(c)
            self.chunk.append((len(self.ids), len(self.ids) + len(ids)))
            self.ids += ids
        self.suffix0 = len(self.ids)
        self.ids += texts.to_ids("\n\nQuestion: " + line["question"] + "\nAnswer within 5 words.")
        self.kind, self.want = line["kind"], texts.to_ids(" " + line["answer"])[0]
        self.text = line["chunks"]

    def oracle(self, what):
        """The asked fact's value, its subject where that is a pronoun or a role, all values."""
        if what == "values":
            return [i for i in range(self.suffix0) if self.ids[i] in VALUE_IDS]
        value = max(i for i in range(self.suffix0) if self.ids[i] == self.want)
        if what == "value":
            return [value]
        begin = max(i for i in range(value) if self.ids[i] in (texts.STOP, texts.NEWLINE))
        return [i for i in range(begin, value) if self.ids[i] in texts.STAND_INS]


class Runner:
    def __init__(self, model):
        self.m, self.c = model, model.c
        self.alone = {}  # text of a chunk -> its K, V of every layer, built behind the first token

    def run(self, x, rows, K, V, layers):
        """Rows (positions, ascending) through layers; K, V: lists of [T, G, K], written."""
        c, n = self.c, self.c["H"] // self.c["G"]
        T = K[0].shape[0]
        cos, sin = self.m.cos_sin(torch.arange(T))
        for l in layers:
            layer = self.m.layers[l]
            q, k, v = layer.qkv(x)
            K[l][rows], V[l][rows] = k.transpose(0, 1), v.transpose(0, 1)
            q = tc.rotate(q, cos[rows], sin[rows])
            keys = tc.rotate(K[l].transpose(0, 1), cos, sin).repeat_interleave(n, dim=0)
            vals = V[l].transpose(0, 1).repeat_interleave(n, dim=0)
            s = q @ keys.transpose(-1, -2) * c["K"] ** -0.5
            s = s.masked_fill(torch.arange(T)[None, :] > rows[:, None], float("-inf"))
            self.p = s.softmax(-1)
            x = layer.rest(x, self.p @ vals)
        return x

    def empty(self, T):
        shape = (T, self.c["G"], self.c["K"])
        return ([torch.zeros(shape) for _ in range(self.c["L"])],
                [torch.zeros(shape) for _ in range(self.c["L"])])

    def full(self, ids):
        K, V = self.empty(len(ids))
        x = self.run(self.m.embed[torch.tensor(ids)], torch.arange(len(ids)), K, V,
                     range(self.c["L"]))
        return self.m.logits(x[-1]), K, V

    def stored(self, text):
        if text not in self.alone:
            _, K, V = self.full([texts.ID[texts.BOS]] + texts.to_ids(text))
            self.alone[text] = ([k[1:].half().float() for k in K], [v[1:].half().float() for v in V])
        return self.alone[text]

    def sensitivity(self, text, others):
        """Of every token of a chunk, from its encodings behind other chunks."""
        K0, V0 = self.stored(text)
        best = torch.zeros(K0[0].shape[0])
        for other in others:
            ids = [texts.ID[texts.BOS]] + texts.to_ids(other) + texts.to_ids(text)
            _, K, V = self.full(ids)
            n = len(best)
            s = torch.zeros(n)
            for l in range(1, self.c["L"] // 2 + 1):
                for a, b in ((K, K0), (V, V0)):
                    d = (a[l][-n:] - b[l]).flatten(1).norm(dim=1)
                    s += d / b[l].flatten(1).norm(dim=1)
            best = torch.maximum(best, s / (self.c["L"] // 2))
        return best

    def place(self, p):
        """The prompt with every chunk's stored KV in its place; True where reused."""
        T = len(p.ids)
        K, V = self.empty(T)
        reused = torch.zeros(T, dtype=torch.bool)
        for (lo, hi), text in zip(p.chunk, p.text):
            k, v = self.stored(text)
            for l in range(self.c["L"]):
                K[l][lo:hi], V[l][lo:hi] = k[l], v[l]
            reused[lo:hi] = True
        return K, V, reused

    def finish(self, p, K, V, reused, chosen):
        keep = ~reused
        keep[chosen] = True
        rows = keep.nonzero()[:, 0]
        x = self.run(self.m.embed[torch.tensor(p.ids)][rows], rows, K, V, range(self.c["L"]))
        return self.m.logits(x[-1])

    def query_score(self, p):
        K, V, reused = self.place(p)
        rows = (~reused).nonzero()[:, 0]
        n = len(p.ids) - p.suffix0
        score = torch.zeros(len(p.ids))
        lo, hi = self.c["L"] // 3, 5 * self.c["L"] // 6
        x = self.m.embed[torch.tensor(p.ids)][rows]
        for l in range(hi):
            x = self.run(x, rows, K, V, [l])
            if l >= lo:
                score += self.p[:, -n:].sum((0, 1))
        return score

    def hkvd(self, p, ratio, check):
        K, V, reused = self.place(p)
        K0 = [k.clone() for k in K]
        T = len(p.ids)
        x = self.run(self.m.embed[torch.tensor(p.ids)], torch.arange(T), K, V, range(check))
        _, k, v = self.m.layers[check].qkv(x)
        dev = (k.transpose(0, 1) - K0[check]).flatten(1).square().sum(1)
        # Below the check layer everything was computed; at it all fresh K, V stay.
        K[check][:], V[check][:] = k.transpose(0, 1), v.transpose(0, 1)
        keep = ~reused
        keep[self.top(dev, reused, ratio)] = True
        rows = keep.nonzero()[:, 0]
        return self.m.logits(self.run(x[rows], rows, K, V, range(check, self.c["L"]))[-1])

    @staticmethod
    def top(score, among, ratio, budget=None):
        n = int(float(among.sum() if budget is None else budget) * ratio + 0.5)
        return score.masked_fill(~among, -1).topk(min(n, int(among.sum()))).indices

    def method(self, p, name):
        """Logits of the answer's first token."""
        what, _, ratio = name.partition("@")
        first = what.endswith("+first")
        what, ratio = what.removesuffix("+first"), float(ratio or 0)
        K, V, reused = self.place(p)
        if what == "full":
            return self.full(p.ids)[0]
        if what == "reuse":
            return self.finish(p, K, V, reused, torch.tensor([], dtype=torch.long))
        if what.startswith("hkvd"):
            return self.hkvd(p, ratio, int(what[4:] or 1))
        among = reused.clone()
        if first:
            among[p.chunk[0][0]:p.chunk[0][1]] = False
        if what in ("value", "subject", "values"):
            return self.finish(p, K, V, reused, torch.tensor(p.oracle(what), dtype=torch.long))
        score = self.query_score(p) if what[0] == "q" else torch.ones(len(p.ids))
        if what in ("qs", "sense"):
            for (lo, hi), text in zip(p.chunk, p.text):
                score[lo:hi] *= p.sense[text]
        chosen = self.top(score, among, ratio, int(reused.sum()))
        return self.finish(p, K, V, reused, chosen)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("folder")
    a.add_argument("--limit", type=int, default=0)
    a.add_argument("--neighbours", type=int, default=4)
    a.add_argument("--methods", default="full,reuse,value,subject," + ",".join(
        f"{s}@{r}" for s in ("hkvd", "hkvd2", "query", "qs")
        for r in ("0.05", "0.075", "0.15")))
    a = a.parse_args()
    torch.set_num_threads(1)
    with open(os.path.join(a.folder, "questions.jsonl")) as f:
        prompts = [Prompt(json.loads(line)) for line in f]
    r = Runner(load(a.folder))
    kinds = sorted({p.kind for p in prompts})
    names = a.methods.split(",")
    right = {(n, k): [] for n in names for k in kinds}
    kl = {(n, k): [] for n in names for k in kinds}
    with torch.no_grad():
        for at, p in enumerate(prompts[:a.limit or None]):
            if any(n.startswith(("qs", "sense")) for n in names):
                p.sense = {}
                for i, text in enumerate(p.text):
                    near = [prompts[(at + j + 1) % len(prompts)].text for j in range(a.neighbours)]
                    p.sense[text] = r.sensitivity(text, [t[(i + j) % len(t)]
                                                         for j, t in enumerate(near)])
            full = F.log_softmax(r.full(p.ids)[0], -1)
            for n in names:
                got = F.log_softmax(r.method(p, n), -1)
                right[n, p.kind].append(int(got.argmax()) == p.want)
                kl[n, p.kind].append(float((full.exp() * (full - got)).sum()))
    mean = lambda d, n, ks: sum(sum(d[n, k]) for k in ks) / sum(len(d[n, k]) for k in ks)
    print(f"{'right / KL':16}" + "".join(f"{k:>16}" for k in kinds + ["all"]))
    for n in names:
        cells = "".join(f"{mean(right, n, ks):8.3f} {mean(kl, n, ks):7.3f}"
                        for ks in [[k] for k in kinds] + [kinds])
        print(f"{n:16}{cells}")


if __name__ == "__main__":
    main()
