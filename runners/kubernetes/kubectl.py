"""Thin client of the command `kubectl`, which has the user's clusters and rights."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from runners.errors import EngineFailed, EngineMissing
from runners.kubernetes.options import KubernetesOptions

NAME = "kubernetes"
_TIMEOUT_S = 60
REMEDY = "install it: https://kubernetes.io/docs/tasks/tools/"


class Kubectl:
    """Command `kubectl`: raises `EngineMissing` without it; its calls raise `EngineFailed` with its error."""

    def __init__(self, options: KubernetesOptions) -> None:
        found = shutil.which("kubectl")
        if found is None:
            raise EngineMissing(NAME, "the command kubectl", REMEDY)
        self._argv = [found]
        for flag in ("context", "namespace"):
            if value := getattr(options, flag):
                self._argv.append(f"--{flag}={value}")

    def __call__(self, *words: str, stdin: str = "", timeout_s: float = _TIMEOUT_S) -> str:
        """Run it and return its stdout."""
        try:
            ran = subprocess.run(
                [*self._argv, *words],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(NAME, f"kubectl {words[0]} did not answer within {timeout_s:g} s") from None
        if ran.returncode:
            raise EngineFailed(NAME, ran.stderr or f"kubectl {words[0]} ended with {ran.returncode}")
        return ran.stdout

    def get(self, *words: str) -> Any:
        """Return the parsed objects; None for a single object that does not exist."""
        text = self("get", *words, "--output=json", "--ignore-not-found")
        try:
            return from_json(text) if text.strip() else None
        except ValueError:
            raise EngineFailed(NAME, f"kubectl get answered {text[:200]!r}, which is not JSON") from None

    def create(self, manifest: dict[str, Any], verb: Sequence[str] = ("create",)) -> None:
        """Create the objects of a manifest, which is passed on stdin."""
        self(*verb, "--filename=-", stdin=json.dumps(manifest))
