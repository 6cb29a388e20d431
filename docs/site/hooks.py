"""mkdocs: links of the pages mean the same on the site as in the repository.

A link that leaves docs/ (`../etc/kvblend.yaml`) becomes one to a copy below source/; there Markdown is text, since its
own links would lead on. Headings are named as the repository's reader names them, so that `page.md#heading` works in both.
"""
import os
import re

from mkdocs.structure.files import File

LINK = re.compile(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
SOURCE = "source"


def slug(text, separator):
    """Lower case; letters, digits, hyphens and underscores stay, a blank becomes a hyphen."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def outside(config, page, target):
    """(path in the repository, path on the site) of what a page links to outside docs/; None: it is inside."""
    root = os.path.dirname(config.config_file_path)
    path = os.path.normpath(os.path.join(config.docs_dir, os.path.dirname(page), target))
    if path.startswith(config.docs_dir + os.sep):
        return None
    rel = os.path.relpath(path, root)
    if rel.startswith("..") or not os.path.isfile(path):
        raise ValueError(f"{page} links to {target}, which is no file of the repository")
    return path, f"{SOURCE}/{rel}" + (".txt" if rel.endswith((".md", ".yaml", ".yml", ".conf", ".h", ".c", ".py")) else "")


def on_files(files, config):
    for page in list(files.documentation_pages()):
        with open(page.abs_src_path, encoding="utf-8") as f:
            text = f.read()
        for target, _ in LINK.findall(text):
            found = outside(config, page.src_uri, target)
            if found and found[1] not in files.src_uris:
                files.append(File.generated(config, found[1], abs_src_path=found[0]))
    return files


def on_page_markdown(markdown, page, config, files):
    def moved(match):
        found = outside(config, page.file.src_uri, match.group(1))
        up = "../" * page.file.src_uri.count("/")
        return f"]({up}{found[1]})" if found else match.group(0)

    return LINK.sub(moved, markdown)
