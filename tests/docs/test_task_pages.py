"""Pages that are a session: the commands of each are run in order, in a folder with the files that it shows.

What a page prints under a command is what the command prints, but for times: `UPDATE_GOLDEN=1 pytest` this file
writes it there, and a person reads it.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SESSIONS = (
    "tutorial/own-script",
    "how-to/stage-lengths",
    "how-to/failed-trials",
    "how-to/compare-sweeps",
    "how-to/move-a-sweep",
)
PAGES = [ROOT / "docs" / f"{name}.md" for name in SESSIONS]
FILE = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


FAILS = ("sweep worker --exit-when-idle",)
"""Commands that end with 1: on the page about trials that fail."""


def cleaned(printed: str) -> str:
    """The output without what differs between two runs."""
    for pattern, word in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "2026-11-23 09:00:00 UTC"),
        (r"\b[\w.-]+-\d+-[0-9a-f]{6}\b", "desk-1234-a1b2c3"),
        (r"\b\d+\.\d s\b", "0.2 s"),
        (r"^( +\d+  completed .* )(?:  \d|\d\.\d)$", r"\g<1>0.2"),
        (r"\bthe end of (.*?), \d+ B\b", r"the end of \1"),
        (r"[\w./-]*/\.venv/bin/python[\d.]*", "python"),
    ):
        printed = re.sub(pattern, word, printed, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, sweep, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("train", None)  # of another test's folder, in this process
    monkeypatch.setattr("sweeps.operations.control.getpass.getuser", lambda: "ada")
    monkeypatch.setattr("sweeps.operations.control.platform.node", lambda: "desk")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        monkeypatch.delenv(name, raising=False)
    for table in (ROOT / "analysis" / "examples").glob("*.csv"):
        shutil.copy(table, tmp_path)
    text = page.read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    wrong: list[tuple[str, int, str]] = []

    def ran(block: re.Match[str]) -> str:
        lines = []
        for command in (line[2:] for line in block[1].splitlines() if line.startswith("$ ")):
            piped = re.fullmatch(r"(sweep .*?)( 2>&1)? \| tail -n (\d+)", command)
            if command.startswith("sweep ") and (piped or "|" not in command):
                result = sweep(*shlex.split(piped[1] if piped else command)[1:])
                status, printed = result.status, result.out + result.err
                if piped:
                    seen = printed if piped[2] else result.out
                    printed = "".join(seen.splitlines(keepends=True)[-int(piped[3]) :])
            elif command == "python compare.py":
                runpy.run_path("compare.py", run_name="__main__")
                status, printed = 0, capsys.readouterr().out
            else:
                done = subprocess.run(
                    ["bash", "-c", command], capture_output=True, text=True, check=False
                )  # fmt: skip
                status, printed = done.returncode, done.stdout + done.stderr
            if status != (command in FAILS):
                wrong.append((command, status, printed))
            lines.append(f"$ {command}\n{cleaned(printed)}")
        return f"```console\n{''.join(lines)}```"

    shown = CONSOLE.sub(ran, text)
    sys.modules.pop("train", None)
    assert wrong == []
    if os.environ.get("UPDATE_GOLDEN"):
        page.write_text(shown, encoding="utf-8")
    assert shown == page.read_text(encoding="utf-8")


def test_the_readme_names_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in SESSIONS if f"docs/{name}.md" not in readme] == []
