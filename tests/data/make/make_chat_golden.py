#!/usr/bin/env python3
"""Render the chat templates of tests/data/chat with transformers' own code.

Usage: tests/data/make/make_chat_golden.py > tests/data/chat/golden.json
       tests/data/make/make_chat_golden.py --tools > tests/data/chat/tools.json
       tests/data/make/make_chat_golden.py --tools FILE.jinja … > mine.json
       tests/data/make/make_chat_golden.py --snippets > tests/data/chat/snippets.json
       tests/data/make/make_chat_golden.py --ids > tests/data/chat/ids.json

Each case: template file, messages, tools, further variables, add_generation_prompt, and `text`, or `error`:
the template's own words where it raises, "" where it cannot be run. bos_token is <s>, eos_token </s>, the
time is NOW in UTC. --tools: chats with tools, calls, answers and thoughts; with files, of templates that are
not in this tree: KVBLEND_CHAT_GOLDEN=mine.json test_fusor_chat -k others compares them.

--snippets: `source` in place of a template's file, one or two for everything that the subset has.

--ids: the token ids that transformers makes of a chat (`messages`, apply_chat_template) and of a text
(`prompt`), with the tokenizers of tests/data/tokenizers/hf, all of which put a BOS before a text.

Needs transformers (5.24: whose functions of chats are used by their names in it).
"""
import copy
import datetime
import json
import pathlib
import re
import sys

import jinja2
from transformers.utils import chat_template_utils as hf

ROOT = pathlib.Path(__file__).resolve().parent.parent / "chat"
NOW = 1753500000  # 2025-07-26 03:20 UTC


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
    "gemma": STRICT, "olmo2": STRICT,
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


# ---- chats with tools --------------------------------------------------------------------------------

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a place,\nas \"told\" \u2014 <now> & here.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Name, e.g. K\u00f6ln"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": "integer", "minimum": 1}, "scale": {"type": "number", "default": 1.5},
            "tags": {"type": "array", "items": {"type": "string"}}}}}},
    {"type": "function", "function": {
        "name": "stop", "description": "", "parameters": {"type": "object", "properties": {
            "why": {"type": ["string", "null"], "nullable": True}, "at": {
                "type": "object", "properties": {"x": {"type": "number"}, "deep": {
                    "type": "array", "items": {"type": "object", "properties": {"y": {"type": "boolean"}}}}}}}},
        "return": {"type": "string", "description": "how it ended"}}},
]


def call(name, ident, **arguments):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(ident, name, content):
    return {"role": "tool", "tool_call_id": ident, "name": name, "content": content}


CALLS = [call("get_weather", "abcdef123", city="K\u00f6ln", days=2, scale=0.5, deep={"a": [1, None, True]}),
         call("stop", "xyzdef456", why="it's \"done\"\n")]
CALLED = {"role": "assistant", "content": None, "tool_calls": CALLS[:1]}
AFTER = [result("abcdef123", "get_weather", '{"sky": "clear", "t": [20, 21.5]}')]
TOOL_CHATS = [
    msgs(("u", "weather?")),
    msgs(("s", " Be brief. "), ("u", "weather? \u2028<|im_end|>[INST]")),
    msgs(("u", "weather?")) + [CALLED] + AFTER,
    msgs(("s", "Be brief."), ("u", "weather?")) + [CALLED] + AFTER + msgs(("a", "Clear.\n"), ("u", " and ")),
    msgs(("u", "both")) + [dict(CALLED, content="", tool_calls=CALLS)] + AFTER +
    [result("xyzdef456", "stop", "stopped")],
    msgs(("u", "why")) + [dict(CALLED, content="<think>\nhm\n</think>\n\nso", tool_calls=CALLS)] + AFTER,
    msgs(("u", "why")) + [{"role": "assistant", "content": "so", "reasoning_content": "hm\n", "thinking": "hm"}],
    msgs(("u", "why")) + [{"role": "assistant", "content": "so", "reasoning": "well"}],
]
TOOL_VARS = [{}, {"enable_thinking": False, "custom_tools": None, "thinking": True}]


def compiled(source):
    """As transformers compiles it, and keeps it for its next call; with a clock that stands."""
    template = hf._compile_jinja_template(source)
    template.environment.globals["strftime_now"] = lambda fmt: datetime.datetime.fromtimestamp(
        NOW, datetime.timezone.utc).strftime(fmt)
    return template


def made(case, text):
    """The case with what text() makes, or with how it fails."""
    try:
        case["text"] = text()
    except jinja2.exceptions.TemplateError as e:
        case["error"] = str(e) if type(e) is jinja2.exceptions.TemplateError else ""
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
        case["error"] = ""
    return case


def render(source, name, messages, gen, tools=None, extra=None):
    case = {"template": name, "messages": messages, "gen": gen}
    if tools:
        case["tools"] = True
    if extra:
        case["vars"] = extra

    def text():
        compiled(source)
        return hf.render_jinja_template([messages], tools, chat_template=source, add_generation_prompt=gen,
                                        bos_token="<s>", eos_token="</s>", **copy.deepcopy(extra or {}))[0][0]

    return made(case, text)


def tool_cases(files):
    cases = []
    for path in files or sorted(ROOT.glob("tool-*.jinja")):
        name = str(path) if files else path.stem
        source = pathlib.Path(path).read_text()
        for i, messages in enumerate(TOOL_CHATS):
            for extra in TOOL_VARS if i in (0, 4) or files else TOOL_VARS[:1]:
                for tools in (TOOLS, None) if i == 1 or files else (TOOLS,):
                    cases.append(render(source, name, messages, i % 2 == 0, tools, extra))
    cases = [c for c in cases if not files or c.get("error") != ""]
    return [dict(c, all_tools=TOOLS) if i == 0 else c for i, c in enumerate(cases)]


# ---- the subset, piece by piece ------------------------------------------------------------------------

SNIPPET_VARS = {
    "s": " Hall\u00f6 <w> it's\n", "t": "a,b,,c", "n": 7, "f": 2.5, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "names": ["b", "A", "a", "B"], "d": {"b": 1, "A": [1, None], "items": "own"},
    "rows": [{"k": "x", "v": 2, "in": {"deep": ["p", "q"]}}, {"k": "y", "v": 1}, {"k": "x", "v": 3, "on": True}]}
EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 8|7 // 2 ~ -7 // 2 ~ 7 % 3 ~ -7 % 3 ~ 2 ** 10|7.5 // 2 ~ 7.5 % 2 ~ 2 ** -1|n + f|-n ~ +n ~ - -n
'a' + 'b' 'c'|'ab' * 3 ~ 2 * 'x' ~ [1, n] * 2 ~ (1, 2)[1:] ~ l * -1 ~ 'x' * yes|[1] + [2, 3]|1 if yes else 2|1 if no|'x' if no else 'y' if nil else 'z'
1 < 2 < 3|3 > 2 == 2|'a' < 'b'|[1, 2] < [1, 3]|1 == 1.0 and true == 1|'1' == 1|nil == none|s != t|1 <= 1 >= 1
'b' in t|'z' not in t|1 in l|'b' in d|'q' in missing|not yes or nil|yes and s|no or 'else'|not not 1|(1, 2) == (1, 2)
[1, 2] == [1, 2]|{'a': 1} == {'a': 1.0}|[] or {} or '' or 0 or nil or 'none of them'|n is odd and 4 is even
s[0] ~ s[-1] ~ s[1:6] ~ s[:-3] ~ s[99:]|s[::2]|s[::-1]|l[::-1]|l[1:]|l[-1]|l[-2:]|l[5:]|t[1::3]|l[2:0:-1]|l[:n]
d.b ~ d['b'] ~ d.missing ~ d['A'][0]|d['items']|'m' if {'a': 1}['items'] else 'n'|l['index'] is defined ~ l['nope'] is defined|'9007199254740993' | int ~ '1e3' | int ~ '7' | float|rows[0].in.deep[1]|rows[0]['in']['deep'].0|nil.x is defined|t.0|l[1.0] is defined
d.get('b') ~ d.get('x') ~ d.get('x', 5)|d.keys() | list ~ d.values() | list|d.items() | list | length|rows[1].get('in', {}).get('deep')
s.strip() ~ s.lstrip() ~ s.rstrip()|t.strip('a') ~ t.strip('ac,') ~ t.lstrip('ba') ~ t.rstrip('c')|'\u00e4x\u00e4'.strip('\u00e4')
s.upper() ~ s.lower()|'hello wORLD 3rd'.title() ~ 'hELLO'.capitalize()|t.split(',') ~ t.split(',', 1)|s.split() ~ ' a  b '.split(none, 1)
t.rsplit(',', 1)|t.rsplit(',')|'a\nb\r\nc\n'.splitlines()|''.split(',') ~ ''.split()|t.replace(',', ';') ~ t.replace(',', '', 2)
s.startswith(' H') ~ s.endswith('x') ~ t.startswith(('q', 'a'))|s.find('w') ~ s.find('zz')|t.count(',') ~ l.count(1) ~ l.index(2)
', '.join(names)|'12'.isdigit() ~ 'x1'.isdigit() ~ ''.isdigit()|s | trim|t | trim('a')|'%s: %d%%, %s' | format(s, n, l) ~ '%s' | format(missing)|'%d' | format(s)|'a' | format(1)|s | upper ~ s | lower | length
'hello wORLD (ab) 3rd-x' | title|s | capitalize|t | replace(',', '') | replace('a', 'b', 1)|names | join ~ names | join('-')
rows | join(', ', attribute='k')|[1, 'a', none, 2.5, true] | join('/')|missing | join|s | length ~ l | length ~ d | length ~ missing | length
l | first ~ l | last ~ t | first|[] | first is defined|l | sort ~ l | sort(reverse=true)|names | sort ~ names | sort(case_sensitive=true)
rows | sort(attribute='v') | map(attribute='k') | list|names | unique | list|rows | unique(attribute='k') | list | length
l | max ~ l | min ~ l | sum|names | reverse | max ~ names | max(case_sensitive=true)|rows | sum(attribute='v')|rows | max(attribute='v')|l | reverse | list|t | reverse|t | list|d | list
d | dictsort|d | dictsort(case_sensitive=true) ~ d | dictsort(reverse=true)|d | items | list|missing | items | list
missing | default('x') ~ nil | default('x') ~ '' | default('x', true)|missing | d|n | default(1)|missing | default(d.b)
'3' | int ~ '3.9' | int ~ 'x' | int ~ 'x' | int(9) ~ 2.9 | int ~ true | int|'2.5' | float ~ 'x' | float ~ 3 | float
-3 | abs ~ yes | abs ~ 5 | round ~ 0 | select | list ~ 2.0 is even ~ 9.5 is divisibleby 2 ~ 2.567 | round(2) ~ 2.5 | round ~ 3.5 | round|n | string + 'x'|s | safe|rows | map(attribute='in.deep.1') | list
names | map('upper') | join|rows | map(attribute='on', default='-') | list|l | select('odd') | list|l | reject('gt', 1) | list
l | select('in', [1, 2]) | list|[0, 1, '', 'a', none] | select | list|rows | selectattr('on') | list | length
rows | selectattr('k', 'equalto', 'x') | map(attribute='v') | list|rows | rejectattr('k', 'eq', 'x') | list|rows | selectattr('on', 'defined') | list
d | tojson|rows | tojson(indent=2)|s | tojson ~ '\u00e9\u2028\x7f\t/"' | tojson|[1.0, 1e-7, 1e16, 123456.789, 0.1, -0.0, 100000.0] | tojson
d | tojson(sort_keys=true)|d | tojson(separators=(',', ':'))|'\u00e9\U0001f600\x7f' | tojson(ensure_ascii=true)|[[], {}, [1]] | tojson(indent=1)
{1: 2, none: 3, true: 4} | tojson|(1, 'a') | tojson|[1.5, 1e22, 1e-5, 3e100] | string|d ~ rows[0] ~ (1,) ~ () ~ (1, 2)
["it's", 'say "x"', 'both \' "', 'tab\t nl\n \x00 \u200b \u00e9 \\'] | string|missing ~ nil ~ yes ~ 1.0 ~ 5
'a\nb\n\nc' | indent ~ 'a\nb' | indent(2, true)|'a\n\nb' | indent(1, blank=true)|range(3) | list ~ range(1, 9, 3) | list ~ range(3, 0, -1) | list
missing is defined ~ missing is undefined ~ nil is none ~ s is string|yes is boolean ~ yes is true ~ no is false ~ 1 is true
1 is integer ~ 1.0 is float ~ 1 is number ~ true is integer|d is mapping ~ l is mapping ~ l is sequence ~ s is iterable ~ n is iterable ~ d is iterable
9 is divisibleby 3 ~ 9 is divisibleby(2)|n is eq 7 ~ n is gt(6) ~ n is le 6 ~ n is sameas 7 ~ 'a' is in ['a']|'ab' is lower ~ 'AB' is upper
namespace(a=1, b=s).b|dict(a=1, b=2)|dict(d, b=9).b|namespace is callable ~ n is callable|n is not none and n is not string
1_000 ~ 1.5e3 ~ 1e2|'\x41\u0042\103\q\\n'|"say \"x\""|[1, 2, ][1] ~ {'a': 1, }.a|loop is defined ~ true ~ True ~ None
missing.x|missing + 1|1 + 'a'|nil | length|nil.strip()|1 / 0|l['a'].b|[1, 'a'] | sort|nil | tojson ~ missing | tojson|n()|l < 1
raise_exception('no ' + t)|strftime_now('%Y-%m-%d %H:%M')|'x' in nil|s.split('')|9223372036854775807 - 1|for_ is defined
"""
TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('o', 'e') }}{{ loop.depth }} {% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.last }}{% else %}none{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'h\u00e9y' %}[{{ c }}]{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% for y in l %}{% break %}{% endfor %}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = x + y %}{{ x }}{% endfor %}{{ x }}{% set ns = namespace(x=1) %}"
    "{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% set a, b = 1, 'two' %}{% set (c, e) = l[:2] %}{{ a }}{{ b }}{{ c }}{{ e }}{% set x = 1, 2 %}{{ x }}",
    "{% set x %}a{{ n }}\n{% set n = 9 %}b{% endset %}[{{ x }}]{{ n }}{% set y | trim | upper %} q{{ t }} {% endset %}[{{ y }}]",
    "{% macro m(a, b='d' ~ n, c=a) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(c=3, a=1) }}{{ m() }}",
    "{% macro r(x) -%} {{ x }}{% if x > 0 %}{{ r(x - 1) }}{% endif %}{%- endmacro %}{{ r(3) }}{{ r(2) | upper | length }}",
    "{% macro out() %}{{ g }}{{ x }}{% endmacro %}{% set g = 1 %}{% for x in l %}{{ out() }}{% endfor %}{% set g = 2 %}{{ out() }}",
    "{% macro m(a) %}x{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}x{% endmacro %}{{ m(z=2) }}",
    "{% if no %}1{% elif nil %}2{% elif missing %}3{% else %}4{% endif %}{% if yes and not no %}5{% endif %}",
    "  {% if yes %}  \n  a  \n  {% endif %}  \n b\n", "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\n  c", "x {%+ if yes %} y {%+ endif +%}\n z",
    "a\n  {# one #}\n b {#- two -#} \n c\n", "a  {{- n -}}  b\n{{ n }}\n\nc\n", "  {% set x = 1 %}  {% set y = 2 %}\n\t{% if y %}z{% endif %}\n\n",
    "{%- for x in l %}\n  {%- if x == 1 %}\n    {{- x }}\n  {%- else %}\n    {{ x }}\n  {% endif %}\n{%- endfor %}\nend\n\n", "\r\na\r\n{% if yes %}\r\nb\r{% endif %}\r\n",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}{{ {'a': {'b': '}}'}}['a']['b'] }}{{ {} }}{% if '%}' %}x{% endif %}", "{# {{ x }} {% if %} #}{ { }% {",
    "{% filter upper | replace('A', '4') %}banana {{ n }}{% endfilter %}", "{% generation %}a{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}",
    "{{ 1, 2 }}{{ (1) }}{{ (1,) }}", "{% set s2 = s %}{% for i in range(3) %}{% set s2 = s2 + '!' %}{% endfor %}{{ s2 }}",
    "{% set ns = namespace() %}{% for x in l %}{% set ns.t = (ns.t or '') + x | string %}{% endfor %}{{ ns.t }}", "{% set d.x = 1 %}",
    "{% set a, b = l %}{{ a }}", "{% for a, b in l %}{{ a }}{% endfor %}", "{% for x in n %}{{ x }}{% endfor %}", "{% for x in nil %}{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}e{% endfor %}", "{{ n if n }}",
    "{{ d.items is defined }}{{ s.strip is defined }}{{ 's' if d.items }}",
    "{{ l | map('tojson') | join(',') }}{{ [s, t] | map('trim') | map('length') | list }}", "{{ not_there() }}", "{{ d.get('nope')('x') }}",
]


def snippets():
    cases = []
    expressions = [e for line in EXPRESSIONS.strip().split("\n") for e in split_cases(line)]
    for source in ["{{ " + e + " }}" for e in expressions] + TEMPLATES:
        cases.append(made({"source": source}, lambda: compiled(source).render(copy.deepcopy(SNIPPET_VARS))))
    return [dict(cases[0], vars=SNIPPET_VARS)] + cases[1:]


def split_cases(line):
    """At each | with nothing around it; filters have spaces around theirs."""
    return re.split(r"(?<=\S)\|(?=\S)", line)


def write(cases):
    print("[")
    print(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
    print("]")
    return 0


def main():
    if sys.argv[1:] == ["--ids"]:
        return write(ids())
    if sys.argv[1:] == ["--snippets"]:
        return write(snippets())
    if sys.argv[1:2] == ["--tools"]:
        return write(tool_cases(sys.argv[2:]))
    return write([render((ROOT / f"{name}.jinja").read_text(), name, messages, gen)
                  for name, conversations in SETS.items() for messages in conversations for gen in (False, True)])


if __name__ == "__main__":
    sys.exit(main())
