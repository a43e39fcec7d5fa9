"""Thin client of the command `sky`, which has the user's clouds and its own server."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

import click
from pydantic_core import from_json

from runners.errors import EngineFailed, EngineMissing
from runners.pools.program import find_command
from runners.pools.runner import Notify

NAME = "skypilot"
REMEDY = (
    "pip install 'stagesweep[skypilot]', in an environment of its own if you like, and put sky on the PATH"
)
TIMEOUT_S = 600.0  # its server may have to start first, and its controller's machine
# The error of sky where its controller was never started, or sleeps.
_NO_CONTROLLER = "No in-progress managed jobs"
_ENDED = ("SUCCEEDED", "CANCELLED", "CANCELLING")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Managed job, as `sky jobs queue` lists it."""

    id: int
    status: str
    where: str = ""
    recoveries: int = 0

    @property
    def over(self) -> bool:
        """Return True where it will not run again."""
        return self.status in _ENDED or self.status.startswith("FAILED")


class Sky:
    """Command `sky`: raises `EngineMissing` without it; its calls raise `EngineFailed` with its error."""

    def __init__(self) -> None:
        found = find_command("sky")
        if found is None:
            raise EngineMissing(NAME, "the command sky", REMEDY)
        self._sky = found

    def stream(self, *words: str, notify: Notify) -> None:
        """Run it, passing on every line of its output as it comes."""
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
        """Run it and return its stdout."""
        try:
            ran = subprocess.run(
                [self._sky, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(NAME, f"sky {words[0]} did not answer within {TIMEOUT_S:g} s") from None
        if ran.returncode:
            raise EngineFailed(
                NAME, ran.stderr or ran.stdout or f"sky {words[0]} ended with {ran.returncode}"
            )
        return ran.stdout

    def jobs(self, name: str) -> list[Job]:
        """Return all managed jobs of this name, oldest first."""
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
            raise EngineFailed(NAME, f"sky jobs queue answered {text[:200]!r}, which is not JSON") from None
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
