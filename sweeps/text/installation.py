"""The command that adds an extra to this package, from where it was installed: no package index has it."""

from __future__ import annotations

import shlex
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sweeps.text import json_reader

DISTRIBUTION = "stagesweep"


@cache
def install_command(extra: str) -> str:
    """Return the command, by what the installer has recorded (PEP 610)."""
    option, source = "", f"/path/to/{DISTRIBUTION}[{extra}]"  # as the docs write it
    try:
        recorded = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
        origin = json_reader.parse(recorded or "{}")
        if "dir_info" in origin:
            # A clone that is imported from where it is stays so.
            option = "-e " if origin["dir_info"].get("editable") else ""
            source = f"{unquote(urlsplit(origin['url']).path)}[{extra}]"
        elif "archive_info" in origin:
            source = f"{DISTRIBUTION}[{extra}] @ {origin['url']}"
    except metadata.PackageNotFoundError:
        if ((sources := Path(__file__).parents[2]) / "pyproject.toml").exists():
            option, source = "-e ", f"{sources}[{extra}]"
    return f"pip install {option}{shlex.quote(source)}"
