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

Run: python3 tests/data/make/train_crossref.py --out FOLDER [--seed 1] [--minutes 0] [--resume STATE]
Needs torch and numpy. One thread; the same seed and number of steps give the same files on the same
machine and version of torch. Data preparation only: nothing here runs when kvblend does.
"""
import argparse
import json
import os
import random
import struct
import time

import torch
import torch.nn.functional as F
from torch import nn

from crossref_texts import (BOS, EOS, ID, KINDS, MIX, PEOPLE, RELATIONS, STAGES, Text, VOCAB,
                            question_ids, spaced, write_questions)

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
        write_questions(os.path.join(a.out, "questions.jsonl"), a.seed, a.questions)


if __name__ == "__main__":
    main()
