#!/usr/bin/env python3
"""Tiny random models that give embeddings, for tests/data/encoders/, and what they give.

NAME/ is a folder as sentence-transformers saves one (`bert-cls` in the older spelling of its files, with weights in
f16, `bert-mean` without any), with the tokenizer of tests/data/tokenizers/hf/ that fits; NAME.json holds texts and the
vectors that the package computes for them, one at a time. cross-NAME/ is a cross-encoder, cross-NAME.json holds pairs
and the scores of the package's CrossEncoder. Weights are spread widely enough that vectors of different texts are far
apart; norms and biases are random, so that forgetting one shows.

Run: python3 tests/data/make/make_encoders.py [NAME …]   (needs torch, transformers, sentence-transformers)
Everything is seeded; the results are committed.
"""
import json
import math
import pathlib
import random
import shutil
import sys
import tempfile

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

DATA = pathlib.Path(__file__).resolve().parent.parent
OUT = DATA / "encoders"
BERT = dict(hidden_size=48, num_attention_heads=4, num_hidden_layers=2, intermediate_size=96,
            max_position_embeddings=160)
NOMIC = dict(BERT, rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
GTE = dict(BERT, type_vocab_size=1, rope_parameters={"rope_type": "default", "rope_theta": 20000.0})
MODERN = dict(BERT, num_hidden_layers=4, intermediate_size=40, local_attention=16, pad_token_id=0, bos_token_id=2,
              eos_token_id=3, cls_token_id=2, sep_token_id=3)  # windows of 8 to each side, but in layers 0 and 3
QWEN3 = dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=16, num_hidden_layers=2,
             intermediate_size=64, max_position_embeddings=256, use_sliding_window=False, tie_word_embeddings=True)

# name: configuration, model, settings, tokenizer, pooling (None: no files of sentence-transformers), normalised, seed
MODELS = {
    "bert-cls": ("BertConfig", "BertModel", BERT, "wordpiece", "cls", True, 1),
    "bert-mean": ("BertConfig", "BertModel", BERT, "wordpiece-cased", None, False, 2),
    "xlmr-mean": ("XLMRobertaConfig", "XLMRobertaModel", dict(BERT, type_vocab_size=1, pad_token_id=1),
                  "unigram", "mean", True, 3),
    "nomic-mean": ("NomicBertConfig", "NomicBertModel", NOMIC, "wordpiece", "mean", True, 4),
    "gte-cls": ("GteConfig", "GteModel", GTE, "unigram", "cls", True, 5),
    "modernbert-mean": ("ModernBertConfig", "ModernBertForMaskedLM", MODERN, "wordpiece", "mean", False, 6),
    "qwen3-last": ("Qwen3Config", "Qwen3ForCausalLM", QWEN3, "qwen2", "lasttoken", True, 4),
}
# name: configuration, model, settings, tokenizer, activation (None: no file says it), seed
IDENTITY = "torch.nn.modules.linear.Identity"
CROSS = {
    "cross-bert": ("BertConfig", "BertForSequenceClassification", BERT, "wordpiece-cased", None, 11),
    "cross-xlmr": ("XLMRobertaConfig", "XLMRobertaForSequenceClassification",
                   dict(BERT, type_vocab_size=1, pad_token_id=1), "unigram", "torch.nn.modules.activation.Sigmoid", 12),
    "cross-modernbert": ("ModernBertConfig", "ModernBertForSequenceClassification",
                         dict(MODERN, classifier_pooling="mean"), "wordpiece", IDENTITY, 13),
}


def randomize(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=g, dtype=torch.float32)
            if "norm" in name.lower():
                p.copy_((0.0 if name.endswith("bias") else 1.0) + 0.3 * r)
            elif name.endswith("bias"):
                p.copy_(0.3 * r)
            else:
                p.copy_(r * (1.0 if "embed" in name else 1.5 / math.sqrt(p.shape[1])))


def texts(rng):
    words = "the and of to in is that for it with as was on be by at this have from or".split()
    out = ["", "a", "The cat.", "École ÀÉÎ 你好 мир!", "x" * 300, "don't stop, [now]"]
    out += [" ".join(rng.choices(words, k=n)) for n in (3, 30, 64, 100, 300)]  # the last is too long
    return out


def save_classic(folder, dim, pool, most):
    """The files as sentence-transformers 2 wrote them."""
    modules = ["Transformer", "Pooling", "Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    (folder / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{m}"}
         for i, (m, p) in enumerate(zip(modules, paths))], indent=2) + "\n")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": dim, "pooling_mode_cls_token": pool == "cls",
         "pooling_mode_mean_tokens": pool == "mean", "pooling_mode_max_tokens": False,
         "pooling_mode_mean_sqrt_len_tokens": False}, indent=2) + "\n")
    (folder / "sentence_bert_config.json").write_text(json.dumps(
        {"max_seq_length": most, "do_lower_case": False}, indent=2) + "\n")


def around_pairs(data, first, between, last, second_type):
    """What published tokenizers have around two texts."""
    def item(name, type_id):
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": type_id}}
    data["post_processor"]["pair"] = ([item(first, 0), item("A", 0)] + [item(b, 0) for b in between] +
                                      [item("B", second_type), item(last, second_type)])


def tokenizer_for(folder, name, pairs=False):
    data = json.loads((DATA / "tokenizers" / "hf" / name / "tokenizer.json").read_text())
    if name == "qwen2":  # as Qwen3-Embedding has it: an end behind the text, nothing before it
        end = "<|im_end|>"
        i = next(t["id"] for t in data["added_tokens"] if t["content"] == end)
        data["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {end: {"id": end, "ids": [i], "tokens": [end]}}}
        names = dict(pad_token=end, eos_token=end)
    elif name == "unigram":
        names = dict(pad_token="<pad>", unk_token="<unk>", cls_token="<s>", sep_token="</s>", mask_token="<mask>")
    else:
        names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
    more = {}
    if pairs and name == "unigram":
        around_pairs(data, "<s>", ["</s>", "</s>"], "</s>", 0)
    elif pairs and name == "wordpiece":  # ModernBERT's, whose types the model does not take
        around_pairs(data, "[CLS]", ["[SEP]"], "[SEP]", 1)
        more = {"model_input_names": ["input_ids", "attention_mask"]}
    elif pairs:  # as BERT's tokenizer class says
        more = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128, **names, **more}) + "\n")
    vocab = data["model"]["vocab"]
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    return max([t["id"] for t in data["added_tokens"]] + list(ids)) + 1


def make(name):
    config, model, settings, tokenizer, pool, normalize, seed = MODELS[name]
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    n_vocab = tokenizer_for(folder, tokenizer)
    m = getattr(transformers, model)(getattr(transformers, config)(vocab_size=n_vocab, **settings))
    randomize(m, seed)
    half = name == "bert-cls"
    (m.half() if half else m).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    with tempfile.TemporaryDirectory() as saved:
        modules = [Transformer(str(folder)), Pooling(settings["hidden_size"], pooling_mode=pool or "mean")]
        st = SentenceTransformer(modules=modules + ([Normalize()] if normalize else []), device="cpu")
        st.float()
        if pool and not half:
            st.save(saved)
            for path in pathlib.Path(saved).rglob("*"):
                to = folder / path.relative_to(saved)
                if path.is_dir():
                    to.mkdir(exist_ok=True)
                elif path.suffix == ".json" and not to.exists():
                    shutil.copy(path, to)
        elif half:
            save_classic(folder, settings["hidden_size"], pool, 100)
            st.max_seq_length = 100
    all_texts = texts(random.Random(seed))
    rows = [st.encode([t], batch_size=1)[0] for t in all_texts]
    with open(OUT / f"{name}.json", "w", encoding="utf-8") as f:
        json.dump({"max_length": st.max_seq_length,
                   "texts": [{"text": t, "vector": [round(float(x), 7) for x in r]}
                             for t, r in zip(all_texts, rows)]}, f, indent=0)
        f.write("\n")
    print(name, n_vocab, st.max_seq_length, sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()))


def pairs(rng):
    all_texts = [t for t in texts(rng) if t]
    queries = ["which cat?", "École and 你好", "x"]
    return [(queries[i % len(queries)], t) for i, t in enumerate(all_texts + all_texts[:2])] + [("a b", "")]


def make_cross(name):
    config, model, settings, tokenizer, activation, seed = CROSS[name]
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    n_vocab = tokenizer_for(folder, tokenizer, pairs=True)
    more = {"sentence_transformers": {"activation_fn": activation}} if activation else {}
    m = getattr(transformers, model)(getattr(transformers, config)(vocab_size=n_vocab, num_labels=1, **settings, **more))
    randomize(m, seed)
    m.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    scorer = CrossEncoder(str(folder), device="cpu")
    asked = pairs(random.Random(seed))
    rows = [float(scorer.predict([p], batch_size=1)[0]) for p in asked]
    with open(OUT / f"{name}.json", "w", encoding="utf-8") as f:
        json.dump({"max_length": scorer.max_seq_length,
                   "pairs": [{"query": q, "document": d, "score": round(s, 7)} for (q, d), s in zip(asked, rows)]}, f,
                  indent=0)
        f.write("\n")
    print(name, n_vocab, scorer.max_seq_length, [round(s, 3) for s in rows])


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:] or [*MODELS, *CROSS]:
        (make if name in MODELS else make_cross)(name)


if __name__ == "__main__":
    main()
