#!/usr/bin/env python3
"""Render the chat templates of tests/data/chat with Python's jinja2, as transformers sets it up.

Usage: tests/data/make/make_chat_golden.py > tests/data/chat/golden.json
       tests/data/make/make_chat_golden.py --ids > tests/data/chat/ids.json

Each case: template file, expected family name, messages, add_generation_prompt, and `text`, or
`error` where the template raises. bos_token is <s>, eos_token </s>. llama3.2 takes the date of the
day it runs, so it is rendered with {{DATE}} in its place. Needs jinja2.

--ids: the token ids that transformers makes of a chat (`messages`, apply_chat_template) and of a text
(`prompt`), with the tokenizers of tests/data/tokenizers/hf, all of which put a BOS before a text.
Needs transformers.
"""
import json
import pathlib
import sys

import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent / "chat"
NAMES = {"llama3-always": "llama3", "mistral-v0.2": "mistral-v0.1", "qwen3-2507": "chatml",
         "llama2-trim": "llama2"}


def msgs(*pairs):
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[r], "content": c} for r, c in pairs]


PLAIN = [
    msgs(("u", "Hello")),
    msgs(("u", "Hi"), ("a", "Hello, how can I help?"), ("u", "Name a prime.")),
    msgs(("u", "  spaced\n"), ("a", "\n\u00a0 answer \t\n"), ("u", "\u2003again\u2003")),
    msgs(("u", "")),
    msgs(("u", "a <|im_end|> b </s> [INST] <|eot_id|>"), ("a", "ünï 🦙 '\"\\n"), ("u", "ok")),
    msgs(("u", "q"), ("a", "prefilled")),
]
SYSTEM = [
    msgs(("s", "Be brief."), ("u", "Hello")),
    msgs(("s", " Be\nbrief. \n"), ("u", "\n one "), ("a", "two"), ("u", "three\n\n")),
    msgs(("s", "Only you."), ("u", " \n ")),
    msgs(("s", ""), ("u", "x"), ("a", ""), ("u", "y"), ("a", "z"), ("u", "w")),
]
FREE = [
    msgs(("u", "one"), ("u", "two")),
    msgs(("a", "first"), ("u", "second")),
]
LATE_SYSTEM = [msgs(("u", "one"), ("s", "now french"), ("a", "un"), ("u", "deux"))]
TOOL = [
    msgs(("u", "weather?"), ("a", "let me look"), ("t", "sunny"), ("t", "20 C"), ("a", "Sunny."),
         ("u", "and\n")),
    msgs(("t", "stray")),
    msgs(("u", "weather?"), ("a", "<think>\nhm\n</think>\n\nlooking"), ("t", "sunny")),
]
THINK = [
    msgs(("u", "a"), ("a", "<think>\nold thoughts\n</think>\n\n b"), ("u", "c")),
    msgs(("u", "a"), ("a", "<think>\nnew\n\n</think>\n\n\nb\n")),
    msgs(("u", "a"), ("a", "x<think>1</think>y<think>2</think>z"), ("a", "<think></think>q"),
         ("a", "w")),
    msgs(("u", "a"), ("a", "<think>\nt\n</think>\nb"), ("u", "<tool_response>r</tool_response>"),
         ("a", "d")),
    msgs(("a", "no question"), ("a", "<think>i</think>j")),
]
STRICT = PLAIN + SYSTEM + FREE + LATE_SYSTEM
SETS = {
    "smollm2": STRICT, "chatml": STRICT, "qwen2": STRICT, "qwen2.5": STRICT + TOOL,
    "qwen3": STRICT + TOOL + THINK, "qwen3-2507": STRICT + TOOL,
    "llama2-trim": STRICT, "yi": PLAIN + SYSTEM + FREE, "llama2": STRICT, "llama3": STRICT,
    "llama3-always": STRICT, "llama3.1": STRICT, "llama3.2": STRICT, "mistral-v0.1": STRICT,
    "mistral-v0.2": STRICT, "mistral-v1": STRICT, "mistral-v3": STRICT, "mistral-tekken": STRICT,
    "zephyr": STRICT, "phi3": STRICT, "phi3-v1": PLAIN + FREE,
}


IDS_TOKENIZERS = ("smollm", "llama3", "llama2", "metaspace-split")
IDS_TEMPLATES = ("chatml", "qwen2.5", "yi", "zephyr", "phi3", "llama2", "llama3", "mistral-v1", "phi3-v1")
IDS_CHATS = [msgs(("u", "Name a river.")),
             msgs(("u", "Hi"), ("a", "Hello there."), ("u", "And now, 2 rivers?"))]


def ids():
    from transformers import PreTrainedTokenizerFast
    cases = []
    for name in IDS_TOKENIZERS:
        path = ROOT.parent / "tokenizers" / "hf" / name / "tokenizer.json"
        tok = PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token="<s>", eos_token="</s>")
        for text in ("Name a river.", " two"):
            cases.append({"tokenizer": name, "prompt": text, "ids": tok(text)["input_ids"]})
        for template in IDS_TEMPLATES:
            for chat in IDS_CHATS:
                got = tok.apply_chat_template(chat, chat_template=(ROOT / f"{template}.jinja").read_text(),
                                              add_generation_prompt=True, return_dict=False)
                cases.append({"tokenizer": name, "template": template, "messages": chat, "ids": got})
    return cases


def fail(message):
    raise jinja2.exceptions.TemplateError(message)


def write(cases):
    print("[")
    print(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
    print("]")
    return 0


def main():
    if sys.argv[1:] == ["--ids"]:
        return write(ids())
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = lambda fmt: "{{DATE}}"
    cases = []
    for name, conversations in SETS.items():
        template = env.from_string((ROOT / f"{name}.jinja").read_text())
        for messages in conversations:
            for gen in (False, True):
                case = {"template": name, "name": NAMES.get(name, name), "messages": messages,
                        "gen": gen}
                try:
                    case["text"] = template.render(messages=messages, add_generation_prompt=gen,
                                                   bos_token="<s>", eos_token="</s>")
                except jinja2.exceptions.TemplateError as e:
                    case["error"] = str(e)
                cases.append(case)
    return write(cases)


if __name__ == "__main__":
    sys.exit(main())
