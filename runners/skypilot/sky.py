"""Thin client of the command `sky`, which has the user's clouds and its own server."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

import click

from runners.errors import EngineFailed
from runners.pools.program import parse_json, require_command, run_command
from runners.pools.runner import Notify
from sweeps.text.installation import install_command

NAME = "skypilot"
TIMEOUT_S = 600.0  # its server may have to start first, and its controller's machine
# The error of sky where its controller was never started, or sleeps.
_NO_CONTROLLER = "No in-progress managed jobs"
_ENDED = ("SUCCEEDED", "CANCELLED", "CANCELLING")


def remedy() -> str:
    """Return what to do where sky is missing."""
    return f"{install_command(NAME)}, in an environment of its own if you like, and put sky on the PATH"


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
        self._sky = require_command(NAME, "sky", remedy())

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
        return run_command(NAME, ("sky", *words), remedy=remedy(), timeout_s=TIMEOUT_S)

    def jobs(self, name: str) -> list[Job]:
        """Return all managed jobs of this name, oldest first."""
        try:
            text = self.read("jobs", "queue", "--all", "--output", "json")
        except EngineFailed as error:
            if _NO_CONTROLLER in error.problem:
                return []
            raise
        begin = re.search(r"^\[", text, re.MULTILINE)
        rows = parse_json(NAME, "sky jobs queue", text[begin.start() :] if begin else text)
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
