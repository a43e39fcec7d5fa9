"""What the site takes from the code: no command and no key of the trainer is left out. `make docs` builds it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import sweeps.cli
from sweeps import errors
from sweeps.cli import cli
from trainer.config.compose import keys

SITE = Path(__file__).parents[2] / "docs" / "site"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", SITE / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_its_help(hooks):
    page = hooks.commands()
    for name in cli.list_commands(None):
        assert f"## `sweep {name}`\n\n```text\nUsage: sweep {name} " in page
    assert "## `sweep snapshots" in page


def test_every_exit_status_is_said():
    """They are public (docs/reference/stability.md)."""
    statuses = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    for text in ((SITE.parent / "reference" / "command-line.md").read_text(), sweeps.cli.__doc__, cli.epilog):
        (said,) = re.findall(r"(?:Every command ends with|Exit status:) [^.]*", text)
        assert {int(number) for number in re.findall(r"\d+", said)} == statuses


def test_every_key_has_a_row_with_its_meaning(hooks):
    rows = {}
    for section in hooks.keys().split("## ")[1:]:
        name = section.splitlines()[0].strip("`")
        prefix = "" if name == "Of the run" else f"{name}."
        rows |= {
            f"{prefix}{key}": meaning
            for key, meaning in re.findall(r"^\| `(\w+)` \| `.*?` \| (.*) \|$", section, re.MULTILINE)
        }
    missing = [key for key in keys(["data=text", "model=hf"]) if not rows.get(key)]
    assert missing == []


def test_links_lead_to_the_places_of_the_site(hooks):
    text = "[a](docs/log.md) [b](CHANGELOG.md#x) [c](https://a.b/docs/c.md) [d](#here)"
    assert hooks._relinked(text, "README.md", "index.md") == (
        "[a](log.md) [b](changelog.md#x) [c](https://a.b/docs/c.md) [d](#here)"
    )
    assert hooks._relinked("[a](../../CONTRIBUTING.md)", "docs/how-to/launch.md", "how-to/launch.md") == (
        "[a](../contributing.md)"
    )
