#!/usr/bin/env python3
"""Manual pages and shell completions from the programs' own tables of options: tools/describe.py FOLDER VERSION PROGRAM…

Each PROGRAM is run with --dump-options, which prints its table as JSON. Written to FOLDER for each: NAME.1, NAME.bash,
NAME.fish; for a program with a configuration file also NAME.yaml.5; for all of them _kvblend (zsh).
"""
import html
import itertools
import json
import pathlib
import re
import subprocess
import sys

HELP = {"flag": "help", "help": "print what there is to say", "switch": True, "value": None, "words": None}


class Option:
    """A flag, as every program of ours describes it."""

    def __init__(self, o):
        self.flag, self.help, self.switch, self.value = o["flag"], o["help"], o["switch"], o.get("value")
        self.words = (o.get("words") or "").split("|") if o.get("words") else []
        self.default, self.key, self.variable = o.get("default"), o.get("key"), o.get("variable")
        self.repeatable, self.live, self.everywhere = o.get("repeatable", False), o.get("live", False), o.get("global", True)

    def takes(self):
        return not self.switch

    def form(self):
        return "|".join(self.words) or self.value


class Command:
    """A first word with what goes with it."""

    def __init__(self, name, about, operands="", options=(), fields=""):
        self.name, self.help, self.operands, self.options, self.modes = name, about, operands or "", list(options), []
        self.fields = fields or ""


class Program:
    def __init__(self, path):
        table = json.loads(subprocess.run([path, "--dump-options"], check=True, capture_output=True, text=True, timeout=60).stdout)
        self.name, self.about, self.has_file = table["program"], table["about"], table.get("file", False)
        self.options = [Option(o) for o in [*table.get("options", ()), HELP]]
        self.positional = [o["flag"] for o in table.get("options", ()) if o.get("positional")]
        self.commands, self.subs = [], []
        for c in table.get("commands", ()):
            mine = [o for o in self.options if o.flag in c["options"]]
            self.commands.append(Command(c["name"], c["help"], c["operands"], mine, c["fields"]))
        self.options = [o for o in self.options if o.everywhere]
        for sub in table.get("subs", ()):
            self.add_sub(sub)

    def add_sub(self, sub):
        """`kvblend-bench quality calibrate` is a mode of its first word, which shares its options."""
        _, first, *mode = sub["program"].split()
        options = [Option(o) for o in sub["options"]]
        self.subs.append((f"{first} {' '.join(mode)}".strip(), sub["about"], options))
        command = next((c for c in self.commands if c.name == first), None)
        if not command:
            command = Command(first, sub["about"] if not mode else "")
            self.commands.append(command)
        command.help = command.help or sub["about"]
        command.modes += mode
        known = {o.flag for o in command.options}
        command.options += [o for o in options if o.flag not in known]


# ---- manual pages ----

def roff(text):
    text = str(text).replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("'", "\\(aq")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.split("\n"))


def page(name, section, version, title, parts):
    head = f'.TH {name.upper()} {section} "" "kvblend {version}" "kvblend"\n.SH NAME\n{roff(name)} \\- {roff(title)}\n'
    return head + "".join(f".SH {heading}\n{body}" for heading, body in parts if body)


def sentence(text):
    text = text if "://" in text.split()[0] else text[0].upper() + text[1:]
    return text if text.endswith(".") else text + "."


def describe(o, of_key=False):
    notes = []
    if o.default not in (None, "", "false"):
        notes.append(f"Default: {o.default}.")
    if o.repeatable:
        notes.append("It may be given several times." if not of_key else "A list.")
    other = [f"flag --{o.flag}"] if of_key else [f"key {o.key}"] if o.key else []
    notes += [f"{sentence(', '.join(other + ([f'variable {o.variable}'] if o.variable else [])))}"] if other or o.variable else []
    if of_key:
        notes.append("A reload applies it." if o.live else "A change needs a restart.")
    return roff(" ".join([sentence(o.help), *notes])) + "\n"


def bold(text):
    return f"\\fB{roff(text)}\\fR"


def italic(text):
    return f"\\fI{roff(text)}\\fR"


def items(options):
    return "".join(f".TP\n{bold('--' + o.flag)}{' ' + italic(o.form()) if o.takes() and o.form() else ''}\n{describe(o)}"
                   for o in options)


def synopsis(p):
    rest = f" {italic('COMMAND')} [{italic('OPERAND')} ...]" if p.commands else ""
    return f"{bold(p.name)}{rest} [{italic('options')}]" + "".join(f" [{italic(x)}]" for x in p.positional) + "\n"


def commands(p):
    if p.subs:
        return "".join(f".SS {roff(name)}\n{roff(sentence(about))}\n{items(options)}" for name, about, options in p.subs)
    text = ""
    for c in p.commands:
        flags = ", ".join("--" + o.flag for o in c.options)
        text += f".TP\n{bold(c.name)} {roff(c.operands)}\n" + roff(sentence(c.help) + (f" Options: {flags}." if flags else "") +
                                                                    (f" FIELD: {c.fields}." if c.fields else "")) + "\n"
    return text


def manual(p, version, others):
    about = p.about.split("\n")
    see = ", ".join(f"{bold(name)}({section})" for name, section in others if name != p.name)
    rest = [x for c in p.commands for x in c.options]
    shared = {o.flag: o for o in [*p.options, *rest]}.values() if not p.subs else p.options
    return page(p.name, 1, version, about[0].rstrip("."),
                [("SYNOPSIS", synopsis(p)), ("DESCRIPTION", roff(p.about) + "\n"), ("COMMANDS", commands(p)), ("OPTIONS", items(shared)), ("SEE ALSO", see + "\n")])


def by_section(options):
    """(section, its options) of a file; what stands in none comes first."""
    keys = sorted((o for o in options if o.key), key=lambda o: ("." in o.key, o.key.split(".")[0]))
    return itertools.groupby(keys, key=lambda o: o.key.split(".")[0] if "." in o.key else "")


def file_page(p, version):
    text = ""
    for section, mine in by_section(p.options):
        text += f".SS {section + ':' if section else 'top level'}\n"
        for o in mine:
            form = "true|false" if o.switch else o.form() or "TEXT"
            text += f".TP\n{bold(o.key)}: {italic(form)}\n{describe(o, True)}"
    intro = ("YAML: a mapping of keys and of one level of sections, which a dot joins, so that key limits.rpm is rpm in the section limits. "
             f"{p.name} \\-\\-check names every problem with its line. A flag goes before a variable, that before the file, and that before the default.")
    return page(p.name + ".yaml", 5, version, f"configuration file of {p.name}",
                [("DESCRIPTION", intro + "\n"), ("KEYS", text), ("SEE ALSO", f"{bold(p.name)}(1)\n")])


# ---- the reference of all settings, as a page ----

REFERENCE = """# Configuration

Every option of the gateway and of the worker, from the programs' own tables (`tests/e2e/test_references.py` makes this page
and compares it). A flag goes before a variable, a variable before the file, the file before the default. `kvblend --check` names
every problem of a configuration with its line; [etc/kvblend.yaml](../etc/kvblend.yaml) is a commented sample, [gateway.md](gateway.md)
and [tiers.md](tiers.md) say what to choose. Sizes are `512MiB`, `4GiB`; times `250ms`, `30s`, `5m`, `1h`, `7d`.
"""


def cell(text):
    return html.escape(str(text), quote=False).replace("|", "&#124;").replace("\n", " ")


def code(text):
    return f"<code>{cell(text)}</code>"  # a bar between backticks means different things to different readers


def names(o, keyed):
    """Flag, variable and (of a program with a file) key: the names that one setting goes by."""
    value = f" {o.form()}" if o.takes() and o.form() else ""
    key = f"{o.key}:" if keyed and o.key else ""
    return "<br>".join(code(x) for x in (f"--{o.flag}{value}", o.variable, key) if x)


def rows(options, keyed=True):
    text = "| setting | default | meaning |\n|---|---|---|\n"
    for o in options:
        default = code(o.default) if o.default not in (None, "") else ""
        more = (" It may be given several times." if o.repeatable else "") + (" A reload applies it." if o.live else "")
        text += f"| {names(o, keyed)} | {default} | {cell(sentence(o.help))}{more} |\n"
    return text


def reference(gateway, worker):
    """docs/configuration.md, of two programs."""
    text = REFERENCE + (f"\n## {gateway.name}\n\nThe three names of a setting: its flag, its variable, and its key in the file, "
                        "where a dot leads into a section.\n")
    for section, mine in by_section(gateway.options):
        text += f"\n### {section or 'top level'}\n\n{rows(mine)}"
    text += f"\n### not in the file\n\n{rows([o for o in gateway.options if not o.key and o.flag != 'help'])}"
    return text + f"\n## {worker.name}\n\nA flag, or its variable.\n\n{rows([o for o in worker.options if o.flag != 'help'], False)}"


# ---- completions ----

def short(text):
    """As much as a line of a list shows; no dot ends it."""
    first = re.split(r"[;:.] |[;:.]$", text.split("\n")[0])[0]
    return first if len(first) <= 72 else first[:71].rsplit(" ", 1)[0] + " …"


def flags(options):
    return " ".join("--" + o.flag for o in options)


def bash(p):
    name = "_" + p.name.replace("-", "_")
    everything = [*p.options, *(o for c in p.commands for o in c.options)]
    valued = "|".join(sorted({"--" + o.flag for o in everything if o.takes()})) or "--"
    words = "".join(f"    *:--{flag}) COMPREPLY=($(compgen -W '{' '.join(w)}' -- \"$cur\")); return ;;\n"
                    for flag, w in sorted({o.flag: o.words for o in everything if o.words}.items()))
    words += "".join(f"    {c.name}:--sort) COMPREPLY=($(compgen -W '{c.fields}' -- \"$cur\")); return ;;\n" for c in p.commands if c.fields)
    known = "".join(f"    {c.name}) options='{flags(c.options)}' names='{' '.join(c.modes)}' ;;\n" for c in p.commands)
    names = " ".join(c.name for c in p.commands)
    return f"""# bash completion for {p.name}; made by tools/describe.py
{name}()
{{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command= options= names='{names}' i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
        {valued}) ((i++)) ;;
        -*) ;;
        *) command=${{command:-${{COMP_WORDS[i]}}}} ;;
        esac
    done
    COMPREPLY=()
    case $command:$prev in
{words}    *:{valued.replace('|', '|*:')}) return ;; # a file, or what only the user knows
    esac
    case $command in
    '') ;;
{known}    *) names= ;;
    esac
    case $cur in
    -*) COMPREPLY=($(compgen -W "{flags(p.options)} $options" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -W "$names" -- "$cur")) ;;
    esac
}}
complete -o default -F {name} {p.name}
"""


def zsh_quote(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh_options(options, fields=""):
    lines = []
    for o in options:
        words = fields.split() if o.flag == "sort" else o.words
        value = f":{zsh_quote(o.value or 'value')}:" + (f"({' '.join(words)})" if words else "_files") if o.takes() else ""
        lines.append(f"'{'*' if o.repeatable else ''}--{o.flag}[{zsh_quote(short(o.help))}]{value}'")
    return " \\\n        ".join(lines)


def zsh_program(p):
    function = f"_{p.name.replace('-', '_')}_options"
    if not p.commands:
        return f"{function}()\n{{\n    _arguments \\\n        {zsh_options(p.options)} \\\n        '*:file:_files'\n}}\n"
    names = " ".join(f"'{c.name}:{zsh_quote(short(c.help))}'" for c in p.commands)
    cases = "".join(f"    {c.name})\n        _arguments \\\n        {zsh_options([*p.options, *c.options], c.fields)} \\\n        '*:operand:"
                    + (f"({' '.join(c.modes)})" if c.modes else "_files") + "' ;;\n" for c in p.commands)
    return f"""{function}()
{{
    local state line commands=({names})
    _arguments -C \\
        {zsh_options(p.options)} \\
        '1: :->command' '*:: :->rest' && return
    case $state:$line[1] in
    command:*) _describe command commands; return ;;
    esac
    case $line[1] in
{cases}    esac
}}
"""


def zsh(programs):
    dispatch = "".join(f"{p.name}) _{p.name.replace('-', '_')}_options ;;\n" for p in programs)
    return (f"#compdef {' '.join(p.name for p in programs)}\n# made by tools/describe.py\n" + "".join(map(zsh_program, programs)) +
            f"case $service in\n{dispatch}esac\n")


def fish_quote(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_option(p, o, condition="", fields=""):
    words = fields.split() if o.flag == "sort" else o.words
    value = f" -x -a {fish_quote(' '.join(words))}" if words else " -r" if o.takes() else ""
    return f"complete -c {p.name}{condition} -l {o.flag}{value} -d {fish_quote(short(o.help))}\n"


def fish(p):
    text = f"# fish completion for {p.name}; made by tools/describe.py\n" + "".join(fish_option(p, o) for o in p.options)
    for c in p.commands:
        seen = f" -n {fish_quote('__fish_seen_subcommand_from ' + c.name)}"
        text += f"complete -c {p.name} -f -n __fish_use_subcommand -a {c.name} -d {fish_quote(short(c.help))}\n"
        text += "".join(f"complete -c {p.name}{seen} -a {mode}\n" for mode in c.modes)
        text += "".join(fish_option(p, o, seen, c.fields) for o in c.options)
    return text


def main(folder, version, *paths):
    out = pathlib.Path(folder)
    programs = [Program(path) for path in paths]
    pages = [(p.name, 1) for p in programs] + [(p.name + ".yaml", 5) for p in programs if p.has_file]
    for p in programs:
        (out / f"{p.name}.1").write_text(manual(p, version, pages))
        (out / f"{p.name}.bash").write_text(bash(p))
        (out / f"{p.name}.fish").write_text(fish(p))
        if p.has_file:
            (out / f"{p.name}.yaml.5").write_text(file_page(p, version))
    (out / "_kvblend").write_text(zsh(programs))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: tools/describe.py FOLDER VERSION PROGRAM…")
    main(*sys.argv[1:])
