#!/usr/bin/env python3
"""Scores of the tiny reranker by transformers, for tests/data/golden/qwen3-reranker.json.

The score is what Qwen3-Reranker's model card defines: the softmax of the logits of "yes" and "no" behind the published
prompt. `document_first` has the same fields with the document in front.

Run: python3 tests/data/make/make_rerank_golden.py   (needs torch, transformers)
"""
import json
import os

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MODEL = os.path.join(DATA, "models", "qwen3-reranker")
HEAD = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n")
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
ORDERS = {"query_first": "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
          "document_first": "<Document>: {document}\n<Instruct>: {instruction}\n<Query>: {query}"}
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QUERIES = ["Which river turns the mill?", "Wo steht die Mühle? Ĳ", "  spaces,\nlines\n"]
DOCUMENTS = ["The mill stands by the river and has a wheel of oak.",
             "Bread is made of flour, water, salt and yeast; it is baked in an oven until it is brown.\n\n  Then it rests. ",
             "Ein Fluß – größer als 3 Bäche — treibt das Rad an.", "x", ""]


def main():
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(MODEL, "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    yes, no = (tokenizer.convert_tokens_to_ids(w) for w in ("yes", "no"))
    out = []
    for order, fields in ORDERS.items():
        for query in QUERIES:
            for document in DOCUMENTS:
                text = HEAD + fields.format(instruction=INSTRUCTION, query=query, document=document) + TAIL
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                with torch.no_grad():
                    logits = model(torch.tensor([ids])).logits[0, -1].double()
                score = torch.softmax(logits[[no, yes]], 0)[1].item()
                out.append({"order": order, "query": query, "document": document, "tokens": len(ids), "score": score})
    with open(os.path.join(DATA, "golden", "qwen3-reranker.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")
    print(f"{len(out)} scores, {min(x['score'] for x in out):.3f} to {max(x['score'] for x in out):.3f}")


main()
