"""`docs/reference/command-line.md` holds the help of every command as it is. `make docs` writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sweeps.cli import cli

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
WIDTH = {"max_content_width": 100, "terminal_width": 100}
HEAD = """\
# The command line

Generated from `--help` by `make docs`; a test compares the two. Exit status of every command: 0 done, 1 the work
failed, 2 the input is wrong, 75 preempted after handing the trial back. With `--format json`, stdout holds one JSON
document and nothing else; messages go to stderr.
"""


def generated() -> str:
    context = click.Context(cli, info_name="sweep", **WIDTH, help_option_names=["-h", "--help"])
    sections = [HEAD, _section("sweep", cli.get_help(context))]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, **WIDTH)
        sections.append(_section(f"sweep {name}", command.get_help(inner)))
        for sub, part in sorted(getattr(command, "commands", {}).items()):  # of a group
            innermost = click.Context(part, info_name=sub, parent=inner, **WIDTH)
            sections.append(_section(f"sweep {name} {sub}", part.get_help(innermost)))
    return "\n".join(sections)


def _section(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## `{title}`\n\n```text\n{lines}\n```\n"


def test_the_page_is_what_the_commands_say():
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(generated(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == generated()
