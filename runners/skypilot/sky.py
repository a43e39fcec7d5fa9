"""The thin client of `skypilot`: the command sky, which has the user's clouds and its own server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from pydantic_core import from_json

from runners.errors import EngineFailed, EngineMissing
from runners.pools.runner import Tell

NAME = "skypilot"
REMEDY = (
    "pip install 'stagesweep[skypilot]', in an environment of its own if you like, and put sky on the PATH"
)
PATIENCE_S = 600.0  # its server may have to start first, and its controller's machine
_NO_CONTROLLER = (
    "No in-progress managed jobs"  # sky fails so where its controller was never started, or sleeps
)
_ENDED = ("SUCCEEDED", "CANCELLED", "CANCELLING")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A managed job, as `sky jobs queue` tells of it."""

    id: int
    status: str
    where: str = ""
    recoveries: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing of it will run again."""
        return self.status in _ENDED or self.status.startswith("FAILED")


class Sky:
    """Raises `EngineMissing` where there is no sky; its calls raise `EngineFailed` with what it said."""

    def __init__(self) -> None:
        found = find()
        if found is None:
            raise EngineMissing(NAME, "the command sky", REMEDY)
        self._sky = found

    def notify(self, *words: str, notify: Tell) -> None:
        """Run it, and pass on every line as it comes."""
        last = ""
        with subprocess.Popen(
            [self._sky, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as running:
            for line in running.stdout or ():
                if plain := click.unstyle(line).strip():
                    last = plain
                    notify(plain)
        if running.returncode:
            raise EngineFailed(NAME, last or f"sky {' '.join(words[:2])} ended with {running.returncode}")

    def read(self, *words: str) -> str:
        """Run it; what it wrote to stdout."""
        try:
            ran = subprocess.run(
                [self._sky, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(NAME, f"sky {words[0]} did not answer within {PATIENCE_S:g} s") from None
        if ran.returncode:
            raise EngineFailed(
                NAME, ran.stderr or ran.stdout or f"sky {words[0]} ended with {ran.returncode}"
            )
        return ran.stdout

    def jobs(self, name: str) -> list[Job]:
        """All managed jobs of this name, the oldest first."""
        try:
            text = self.read("jobs", "queue", "--all", "--output", "json")
        except EngineFailed as error:
            if _NO_CONTROLLER in error.problem:
                return []
            raise
        begin = re.search(r"^\[", text, re.MULTILINE)
        try:
            rows = from_json(text[begin.start() :] if begin else "")
        except ValueError:
            raise EngineFailed(NAME, f"sky jobs queue answered {text[:200]!r}, which is no JSON") from None
        found = [
            Job(
                id=int(row["job_id"]),
                status=str(row["status"]),
                where=row.get("infra") or row.get("region") or "",
                recoveries=row.get("recovery_count") or 0,
            )
            for row in rows
            if row.get("job_name") == name
        ]
        return sorted(found, key=lambda job: job.id)


def find() -> str | None:
    """The command sky: on the PATH, or beside our own interpreter."""
    beside = Path(sys.executable).parent / "sky"
    return shutil.which("sky") or (str(beside) if os.access(beside, os.X_OK) else None)
