"""The thin client of `kubernetes`: the command kubectl, which has the user's clusters and rights."""

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
_PATIENCE_S = 60
REMEDY = "install it: https://kubernetes.io/docs/tasks/tools/"


class Kubectl:
    """Raises `EngineMissing` where there is no kubectl; its calls raise `EngineFailed` with what it said."""

    def __init__(self, options: KubernetesOptions) -> None:
        found = shutil.which("kubectl")
        if found is None:
            raise EngineMissing(NAME, "the command kubectl", REMEDY)
        self._argv = [found]
        for flag in ("context", "namespace"):
            if value := getattr(options, flag):
                self._argv.append(f"--{flag}={value}")

    def __call__(self, *words: str, stdin: str = "", patience_s: float = _PATIENCE_S) -> str:
        """What it wrote to stdout."""
        try:
            ran = subprocess.run(
                [*self._argv, *words],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineFailed(NAME, f"kubectl {words[0]} did not answer within {patience_s:g} s") from None
        if ran.returncode:
            raise EngineFailed(NAME, ran.stderr or f"kubectl {words[0]} ended with {ran.returncode}")
        return ran.stdout

    def get(self, *words: str) -> Any:
        """What there is, parsed; None where one thing was asked for by name and is not there."""
        text = self("get", *words, "--output=json", "--ignore-not-found")
        try:
            return from_json(text) if text.strip() else None
        except ValueError:
            raise EngineFailed(NAME, f"kubectl get answered {text[:200]!r}, which is no JSON") from None

    def create(self, manifest: dict[str, Any], verb: Sequence[str] = ("create",)) -> None:
        """Hand over a manifest, on stdin."""
        self(*verb, "--filename=-", stdin=json.dumps(manifest))
