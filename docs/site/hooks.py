"""Hooks of MkDocs: the parts of the site that come from the code, and pages that lie outside of docs/."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    ".github/CITATION.cff": "CITATION.cff",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "benchmarks/landscapes/README.md": "landscapes.md",
}
"""Pages and files that are found at other places in the repository -> where the site has them."""

LINK = re.compile(r"(\]\(|src=\"|srcset=\")(?!\w+:|#)([^)#\s\"]+)")
WIDTH = {"max_content_width": 100, "terminal_width": 100}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/, and the files that pages link to there."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, source, page)))
    for space in sorted((ROOT / "search_spaces").glob("*.yaml")):
        files.append(File.generated(config, f"search_spaces/{space.name}", abs_src_path=str(space)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in what is generated, and lead links out of docs/ to where the site has their targets."""
    name = page.file.src_uri
    if name in OUTSIDE.values():
        return markdown
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    if "<!-- keys -->" in markdown:
        markdown = markdown.replace("<!-- keys -->", keys())
    return _relinked(markdown, f"docs/{name}", name)


def _relinked(text: str, source: str, page: str) -> str:
    """Return the text with its links, relative to `source` in the repository, led to what the site has."""

    def target(match: re.Match[str]) -> str:
        path = os.path.normpath(ROOT / Path(source).parent / match[2])
        inside = os.path.relpath(path, ROOT)
        if inside == "search_spaces":
            inside = "search_spaces/quickstart.yaml"
        there = OUTSIDE.get(inside, inside.removeprefix("docs/"))
        return match[1] + os.path.relpath(there, Path(page).parent)

    return LINK.sub(target, text)


def commands() -> str:
    """Return the help of every command, as Markdown."""
    from sweeps.cli import cli

    context = click.Context(cli, info_name="sweep", **WIDTH, help_option_names=["-h", "--help"])
    sections = [_help("sweep", cli.get_help(context))]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name) or click.Command(name)
        inner = click.Context(command, info_name=name, parent=context, **WIDTH)
        sections.append(_help(f"sweep {name}", command.get_help(inner)))
        for sub, part in sorted(getattr(command, "commands", {}).items()):  # of a group
            innermost = click.Context(part, info_name=sub, parent=inner, **WIDTH)
            sections.append(_help(f"sweep {name} {sub}", part.get_help(innermost)))
    return "\n".join(sections)


def _help(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## `{title}`\n\n```text\n{lines}\n```\n"


def keys() -> str:
    """Return the trainer's keys with their defaults, values and meanings, a table for each section."""
    from trainer.config.usage import key_help

    tables: dict[str, list[str]] = {}
    for key in key_help():
        section, _, name = key.name.rpartition(".")
        values = f" *{key.values}*" if key.values else ""
        meaning = _cell(" ".join(dict.fromkeys(key.meanings))) + _cell(values)
        tables.setdefault(section, []).append(f"| `{name}` | `{_cell(key.default)}` | {meaning} |")
    head = "| key | default | meaning and values |\n|---|---|---|\n"
    return "\n".join(
        f"## {f'`{section}`' if section else 'Of the run'}\n\n{head}" + "\n".join(rows) + "\n"
        for section, rows in tables.items()
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


sys.path.insert(0, str(ROOT))
