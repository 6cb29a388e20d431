#!/usr/bin/env python3
"""The tables of docs/models.md from what the tree itself says: tools/models.py [--check]

Families come from the tables of fusor/model/arch.c and fusor/encode/config.c, forms of weights from that of
fusor/model/quant.c; what is tested from the models and lists that the tests read. Writes the page, or with --check says
what differs and exits 1. What no file says stands below: the names that people know models by, and their templates.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
PAGE = ROOT / "docs" / "models.md"

# By architecture: models of this kind, and files of tests/data/chat that stand for their templates.
FAMILIES = {
    "llama": ("Llama 2, 3.x; Yi; SmolLM2; TinyLlama", "llama2 llama3 tool-llama3.1 yi smollm2 zephyr"),
    "mistral": ("Mistral 7B, Nemo, Small", "mistral-v0.2 tool-mistral-v3 mistral-tekken tool-mistral-v7"),
    "qwen2": ("Qwen2, Qwen2.5", "qwen2 qwen2.5 tool-hermes"),
    "qwen3": ("Qwen3, Qwen3-Embedding, -Reranker", "qwen3 tool-qwen3"),
    "gemma2": ("Gemma 2", "gemma"),
    "gemma3": ("Gemma 3 (text)", "tool-gemma3"),
    "phi3": ("Phi-3, 3.5, 4", "phi3 tool-phi4"),
    "granite": ("Granite 3", "tool-granite"),
    "smollm3": ("SmolLM3", "tool-smollm3"),
    "olmo2": ("OLMo 2", "olmo2"),
    "glm4": ("GLM-4-0414", "tool-glm4"),
    "gpt-oss": ("gpt-oss 20B, 120B", ""),
    "llama4": ("Llama 4 Scout, Maverick (text)", "tool-llama4"),
    "stablelm": ("StableLM 3B, Zephyr 3B, 2 1.6B", "zephyr chatml"),
    "mixtral": ("Mixtral", "mistral-v1"),
    "qwen2moe": ("Qwen1.5-MoE, Qwen2-57B-A14B", "qwen2"),
    "qwen3moe": ("Qwen3-30B-A3B, -Coder", "qwen3 tool-qwen3-coder"),
    "olmoe": ("OLMoE", "olmo2"),
}
ENCODERS = {"bert": "bge, e5, MiniLM", "roberta": "RoBERTa", "xlm-roberta": "bge-m3, multilingual-e5", "nomic-bert": "nomic",
            "gte": "gte", "modernbert": "ModernBERT"}


def rows_of(path, table):
    """The initialisers { … } of a C table of structs, without those inside."""
    text = (ROOT / path).read_text()
    start = text.index("{", text.index(table))
    out, depth = [], 0
    for i in range(start, len(text)):
        if text[i] == "{":
            depth += 1
            if depth == 2:
                begin = i + 1
        elif text[i] == "}":
            if depth == 2:
                out.append(text[begin:i])
            depth -= 1
            if depth == 0:
                return out
    raise SystemExit(f"{path}: {table} has no end")


def field(row, name):
    found = re.search(rf'(?<!\w)\.{name} = "([^"]*)"', row)
    return found and found[1]


def architecture(folder):
    return json.loads((folder / "config.json").read_text())["architectures"][0]


def golden_models():
    """Of each architecture the tiny models that are held against transformers, by form; and those that a GPU's test has."""
    tests = (ROOT / "tests/unit/fusor/test_golden.c").read_text()
    out = {}
    for check, name in re.findall(r'check_(model|on_cpu)\("([^"]+)"', tests):
        folder, _, form = name.partition(".")
        forms = out.setdefault(architecture(DATA / "models" / folder), {"folder": [], "gguf": [], "gpu": []})
        forms["gguf" if form else "folder"].append(form.removesuffix(".gguf") or folder)
        forms["gpu"] += [name] if check == "model" else []
    return out


def syntaxes():
    tests = (ROOT / "tests/unit/worker/test_answer.c").read_text()
    found = re.findall(r'\{"([\w.-]+)", (?:"([\w-]+)"|NULL), (?:true|false)\}', tests)
    return {template: syntax or "generic" for template, syntax in found if template.startswith("tool-")}


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in rows)]


def unique(words):
    return list(dict.fromkeys(words))


def causal():
    tested, calls, rows = golden_models(), syntaxes(), []
    for row in rows_of("fusor/model/arch.c", "struct model_arch archs[]"):
        hf, outer, gguf, name = (field(row, k) for k in ("hf", "hf_outer", "gguf", "name"))
        models, templates = FAMILIES.get(name, (name, ""))
        for t in templates.split():
            if not (DATA / "chat" / f"{t}.jinja").exists():
                raise SystemExit(f"tools/models.py: {name}: tests/data/chat has no {t}.jinja")
        kinds = [tested[n] for n in (hf, outer) if n in tested]
        forms = {k: sum((kind[k] for kind in kinds), []) for k in ("folder", "gguf", "gpu")}
        rows.append([models, " ".join(f"`{n}`" for n in unique(filter(None, [hf, outer, gguf]))),
                     str(len(forms["folder"])) if forms["folder"] else "–", ", ".join(unique(forms["gguf"])) or "–",
                     "yes" if forms["gpu"] else "no", ", ".join(templates.split()) or "–",
                     ", ".join(unique(calls[t] for t in templates.split() if t in calls)) or "–"])
    return table(["models", "architecture: folder, GGUF", "folders tested", "GGUF tested", "GPU", "templates tested",
                  "tool calls tested"], rows)


def encoders():
    found, rows = {}, {}
    for folder in DATA.glob("encoders/*/config.json"):
        found.setdefault(architecture(folder.parent), []).append(folder.parent.name)
    for row in rows_of("fusor/encode/config.c", "struct arch archs[]"):
        hf, name = re.findall(r'"([^"]+)"', row)
        rows.setdefault(name, ([], []))[0].append(f"`{hf}`")
        rows[name][1].extend(sorted(found.get(hf, [])))
    return table(["encoders", "architectures", "tested"],
                 [[ENCODERS.get(n, n), " ".join(hf), ", ".join(t) or "–"] for n, (hf, t) in rows.items()])


def weights():
    names = [re.search(r'"(\w+)"', row)[1] for row in rows_of("fusor/model/quant.c", "struct quant_type types[]")]
    held = [n for n in names if (DATA / "quant" / f"{n}.bin").exists()]
    return ["GGUF files: " + ", ".join(names) + ".", "Held bit for bit against the gguf package: " +
            ("all but " + ", ".join(n for n in names if n not in held) if len(held) < len(names) else "all") + "."]


def main():
    page = PAGE.read_text()
    for name, lines in (("causal", causal()), ("weights", weights()), ("encoders", encoders())):
        begin, end = f"<!-- {name}: by tools/models.py -->\n", "<!-- end -->"
        if begin not in page:
            raise SystemExit(f"docs/models.md has no place for {name}")
        head, rest = page.split(begin)
        page = head + begin + "\n".join(lines) + "\n" + rest[rest.index(end):]
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        raise SystemExit("docs/models.md is not what the tree says: run tools/models.py")


if __name__ == "__main__":
    main()
