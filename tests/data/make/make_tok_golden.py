#!/usr/bin/env python3
"""Write the tokenizer golden files of tests/data/tokenizers with the `tokenizers` package.

Usage: tests/data/make/make_tok_golden.py [--out DIR] [--texts N] [--seed S] [--only NAME] [MODEL.gguf]

hf/NAME/: a small tokenizer of each family, trained here on the tokens of the GPT-2 vocabulary that
stands beside it, in the files a Hugging Face folder has. hf/NAME.golden: lines {"text", "ids"}:
random texts and the ids the package gives without added BOS. smollm2.golden: the same for the
vocabulary of MODEL.gguf (SmolLM2). Needs tokenizers, gguf, sentencepiece.
"""
import argparse
import json
import pathlib
import random
import sys
import tempfile
import unicodedata as ud

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

DATA = pathlib.Path(__file__).resolve().parent.parent / "tokenizers"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
          r"?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL)
QWEN2 = LLAMA3.replace("{1,3}", "")
UP, LOW = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UP}]*[{LOW}]+|[^\r\n\p{{L}}\p{{N}}]?[{UP}]+[{LOW}]*|\p{{N}}| "
          r"?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
O200K = (TEKKEN.replace("+|[^", "+" + END + "[^", 1).replace(r"]*|\p{N}|", "]*" + END + r"\p{N}{1,3}|", 1))


def split(regex):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level])


BYTE = {
    "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt2-prefix": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "smollm": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                              pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "llama3": (None, split(LLAMA3)),
    "qwen2": (normalizers.NFC(), split(QWEN2)),
    "tekken": (None, split(TEKKEN)),
    "o200k": (None, split(O200K)),
    "cl100k": (None, split(LLAMA3)),  # OLMo 2, GLM-4, Phi-4: merges alone decide
    "neox": (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),  # StableLM 3B
}
SPM = {
    "llama2": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
               None),
    "metaspace-first": (None, pre_tokenizers.Metaspace("▁", "first", split=False)),
    "metaspace-split": (None, pre_tokenizers.Metaspace("▁", "always", split=True)),
    # No dummy space; the split finds no space any more. Trained on whole texts: tokens span words.
    "gemma": (normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")),
}


def gguf_field(path, key):
    field = gguf.GGUFReader(path).fields[key]
    return [field.contents(i) for i in range(len(field.data))]


def printable():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {**{chr(b): b for b in keep}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def corpus():
    table = printable()
    words = []
    for token in gguf_field(DATA / "ggml-vocab-gpt-2.gguf", "tokenizer.ggml.tokens")[256:-1:3]:
        words.append(bytes(table[c] for c in token).decode("utf-8", "ignore"))
    words += ["École ΑΒΓ мир 你好 日本語 한국어 नमस्ते naïve Ünï"] * 40
    return ["".join(words[i:i + 50]) + "\n\n" for i in range(0, len(words), 50)]


SCRIPTS = [
    (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA),
    (0x905, 0x939), (0x3041, 0x3096), (0x4E00, 0x4FFF), (0xAC00, 0xAD00), (0x1100, 0x1112),
    (0x1161, 0x1175), (0x1F600, 0x1F64F), (0x300, 0x345), (0x93C, 0x94D), (0x2160, 0x2188),
    (0x660, 0x669), (0xB2, 0xB3), (0x2000, 0x206F), (0x1C0, 0x1CC), (0x1F88, 0x1F8F),
    (0x20000, 0x20010), (0xE0100, 0xE0105)]
BITS = [
    " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u0085",
    "\u001c", "'s", "'T", "'rE", "'VE", "'ll", "'d", "'m", "'\u017f", "'", "''", "0", "7", "42",
    "123", "1234567", "½", "...", "!?", "//", "/\n", "(x)", "_", "-", "--\n\n", "=",
    "<|im_start|>", "<s>", "</s>", "<unk>", "[INST]", "<extra>", "▁", "▁▁", "word", " the", "The", "HELLO",
    "fooBar", "e\u0301", "A\u030a", "\u0344", "\u1100\u1161\u11a8", "\ud55c", "q\u0323\u0307",
    "q\u0307\u0323", "\ufb01", "\u212b", "\u0958", "\u200d", "\u0000", "\u007f"]


def random_text(rng):
    out = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        if kind < 0.55:
            out.append(rng.choice(BITS))
        elif kind < 0.9:
            lo, hi = rng.choice(SCRIPTS)
            chars = [chr(rng.randint(lo, hi)) for _ in range(rng.randrange(1, 6))]
            out.append("".join(c for c in chars if ud.category(c) != "Cn"))
        else:
            out.append(rng.choice(BITS) * rng.randrange(2, 9))
    return "".join(out)


def write_golden(path, tok, texts):
    with open(path, "w", encoding="utf-8") as f:
        for text in texts:
            ids = tok.encode(text, add_special_tokens=False).ids
            f.write(json.dumps({"text": text, "ids": ids}, separators=(",", ":")) + "\n")


def finish(tok, folder, name, spm):
    user = [AddedToken("<extra>", special=False, normalized=False, lstrip=True, rstrip=True)]
    if name == "neox":
        user = [AddedToken(" " * n, special=False, normalized=True) for n in range(24, 1, -1)]
    tok.add_tokens(user)
    bos = "<s>"
    begin = [bos, "<unk>"] if name == "cl100k" else [bos]  # two, as GLM-4
    tok.post_processor = processors.TemplateProcessing(
        single=" ".join(begin) + " $A", special_tokens=[(t, tok.token_to_id(t)) for t in begin])
    folder.mkdir(parents=True, exist_ok=True)
    if spm:
        strip = [] if name == "gemma" else [decoders.Strip(" ", 1, 0)]
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                         decoders.Fuse(), *strip])
    else:
        tok.decoder = decoders.ByteLevel()
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"bos_token": bos, "eos_token": {"content": "</s>"},
              "chat_template": "in tokenizer_config"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3]}\n')


# BertNormalizer's settings: clean_text, handle_chinese_chars, strip_accents, lowercase
WORDPIECE = {
    "wordpiece": (True, True, None, True),
    "wordpiece-cased": (True, True, None, False),
    "wordpiece-accents": (False, False, False, True),
    "wordpiece-strip": (False, True, True, False),
}


def encoder_texts(rng, n, special):
    """As random_text(), with what encoders' normalizers look at, and words that are too long."""
    more = ["don't", "\u0130stanbul", "ÀÉÎ", "Straße", "\u03a3\u03a3", "中文字", "\uf900", "\u30ab\u30ca",
            "\u200b", "\ufeff", "\ue000", "\u0007", "\u000b", "\u000c", "\ufffd", "\u00ad", "\u302e\u302f",
            "##ing", "ing", "playing", "a" * 99, "b" * 100, "c" * 101, "é" * 101, "😀", "$5", "x^y", "`q`"]
    texts = []
    for _ in range(n):
        parts = [random_text(rng)] + [rng.choice(more) for _ in range(rng.randrange(4))]
        rng.shuffle(parts)
        text = rng.choice(["", " "]).join(parts)
        for s in special:
            text = text.replace(s, s[1:])
        texts.append(text)
    return texts


def make_wordpiece(out, name, settings, n_texts, seed, text):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    clean, chinese, strip, lower = settings
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tok.normalizer = normalizers.BertNormalizer(clean_text=clean, handle_chinese_chars=chinese,
                                                strip_accents=strip, lowercase=lower)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator(text, trainers.WordPieceTrainer(
        vocab_size=900, special_tokens=special, limit_alphabet=300, show_progress=False,
        continuing_subword_prefix="##"))
    ids = [(s, tok.token_to_id(s)) for s in ("[CLS]", "[SEP]")]
    if lower:
        tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]",
                                                           special_tokens=ids)
    else:
        tok.post_processor = processors.BertProcessing(ids[1], ids[0])
    folder = out / "hf" / name
    folder.mkdir(parents=True, exist_ok=True)
    tok.decoder = decoders.WordPiece()
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    write_golden(out / "hf" / f"{name}.golden", tok,
                 encoder_texts(random.Random(seed), n_texts, special))


# name: normalizers behind the map, split at white space first (as older XLM-R files)
UNIGRAM = {
    "unigram": ([normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")], False),
    "unigram-words": ([normalizers.Replace(Regex(" {2,}"), " ")], True),
    "unigram-bare": (None, False),
}
# Rules of a character map, as nmt_nfkc has them.
RULES = {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": " ", "\u00ad": "", "\u007f": "",
         "\u0007": "", "\ufb01": "fi", "½": "1⁄2", "①": "1", "\u212b": "Å", "e\u0301": "é", "A\u030a": "Å",
         "\u1100\u1161\u11a8": "각", "…": "...", "ﷺ": "صلى الله عليه وسلم", "\uff21": "A", "\uff22": "B",
         "q\u0323\u0307": "q", "\u0344": "\u0308\u0301", "\u2028": " "}


def charsmap():
    """The map as SentencePiece compiles it, and pieces with scores."""
    with tempfile.TemporaryDirectory() as d:
        rules, lines = pathlib.Path(d) / "rules.tsv", pathlib.Path(d) / "text"
        rules.write_text("".join("{}\t{}\n".format(*(" ".join(f"{ord(c):X}" for c in s) for s in pair))
                                 for pair in sorted(RULES.items())))
        lines.write_text("\n".join(corpus()).replace("\n\n", "\n"))
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines), model_prefix=f"{d}/m", vocab_size=900, model_type="unigram", minloglevel=2,
            normalization_rule_tsv=str(rules), character_coverage=0.98, num_threads=1, max_sentence_length=100000)
        m = sentencepiece_model_pb2.ModelProto()
        m.ParseFromString((pathlib.Path(d) / "m.model").read_bytes())
    return m.normalizer_spec.precompiled_charsmap, [(p.piece, p.score) for p in m.pieces]


def make_unigram(out, name, made, n_texts, seed):
    (after, split), (table, pieces) = UNIGRAM[name], made
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [(s, 0.0) for s in special] + [p for p in pieces if p[0] not in special] + [("<mask>", 0.0)]
    tok = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    if after is not None:
        tok.normalizer = normalizers.Sequence([normalizers.Precompiled(table)] + after)
    metaspace = pre_tokenizers.Metaspace("▁", "always")
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace]) if split else metaspace
    tok.add_special_tokens(special + [AddedToken("<mask>", lstrip=True)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tok.decoder = decoders.Metaspace("▁", "always")
    folder = out / "hf" / name
    folder.mkdir(parents=True, exist_ok=True)
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    rng = random.Random(seed)
    texts = encoder_texts(rng, n_texts, special + ["<mask>"])
    texts = [t + rng.choice(["", "", "  ", " \n", "▁", "…", " ▁a", "①②", "e\u0301"]) for t in texts]
    write_golden(out / "hf" / f"{name}.golden", tok, texts)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model", nargs="?")
    args.add_argument("--out", type=pathlib.Path, default=DATA)
    args.add_argument("--texts", type=int, default=200)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--only", action="append", help="NAME of hf/; may be repeated")
    args = args.parse_args()
    rng = random.Random(args.seed)
    special = ["<unk>", "<s>", "</s>", "<|im_end|>"]
    text = corpus()
    wanted = lambda names: [n for n in names if not args.only or n in args.only]
    for name in wanted({**BYTE, **SPM}):
        norm, pre = {**BYTE, **SPM}[name]
        spm = name in SPM
        tok = Tokenizer(models.BPE(unk_token="<unk>" if spm else None, fuse_unk=spm,
                                   byte_fallback=spm, ignore_merges=name == "llama3"))
        if spm:  # trained on words, as SentencePiece does, then used with the family's own pipeline
            tok.normalizer = norm if name == "gemma" else None
            if name != "gemma":
                tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", split=True)
            special_all = special + [f"<0x{b:02X}>" for b in range(256)]
            alphabet = ["▁"]
        else:
            tok.pre_tokenizer = pre
            special_all, alphabet = special, pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=1100, special_tokens=special_all,
                                      limit_alphabet=400, initial_alphabet=alphabet,
                                      show_progress=False)
        tok.train_from_iterator(text, trainer)
        if spm:  # byte tokens are no added tokens
            data = json.loads(tok.to_str())
            data["added_tokens"] = [a for a in data["added_tokens"]
                                    if not a["content"].startswith("<0x")]
            if name == "metaspace-first":  # the older spelling of merges
                data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
            tok = Tokenizer.from_str(json.dumps(data))
        tok.normalizer = norm
        tok.pre_tokenizer = pre
        finish(tok, args.out / "hf" / name, name, spm)
        plain = Tokenizer.from_file(str(args.out / "hf" / name / "tokenizer.json"))
        texts = [random_text(rng) for _ in range(args.texts)]
        # In user text control tokens are text to us; the package always matches them: leave out.
        for s in special:
            texts = [t.replace(s, s[1:]) for t in texts]
        write_golden(args.out / "hf" / f"{name}.golden", plain, texts)
    for name in wanted(WORDPIECE):
        make_wordpiece(args.out, name, WORDPIECE[name], args.texts, args.seed, text)
    made = charsmap() if wanted(UNIGRAM) else None
    for name in wanted(UNIGRAM):
        make_unigram(args.out, name, made, args.texts, args.seed)
    if args.model:
        tokens = gguf_field(args.model, "tokenizer.ggml.tokens")
        merges = [tuple(m.split(" ")) for m in gguf_field(args.model, "tokenizer.ggml.merges")]
        tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tok.pre_tokenizer = BYTE["smollm"][1]
        texts = [random_text(rng) for _ in range(args.texts)]
        write_golden(args.out / "smollm2.golden", tok, texts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
