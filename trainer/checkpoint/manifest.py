"""`state.json` of a checkpoint: its position, every plain value, and the checksums of the other files.

Without torch, which a check for a resumable run does not need. Written by `writer`, read by `layout`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sweeps.text.regular_file import read_regular
from trainer.cache import file_digest

SCHEMA = 1
STATE_FILE = "state.json"
WEIGHTS = "model.safetensors"
TENSORS = "training.safetensors"
METRICS = "metrics.copy"
STAGE_FILE = "stage.json"  # of a finished stage, see `stage_snapshot`
IDENTITY = "snapshot"  # the name among `values` of what a finished stage belongs to

_CHECKSUM = "sha256"
_DETAILS = "told"  # the key of `details` in schema 1


class UnusableError(Exception):
    """A checkpoint that no run can resume from, with the reason in a few words."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint, without its tensors.

    Args:
        stage, step, of: the last optimizer step that was done, one-based; 0 before a stage's first.
        over: whether the stage was over; then its passing parts are not here.
        steps: optimizer steps that were done, over all stages.
        details: learning rate, lambda and the like of that step, for people; they are not restored.
        values: plain values of each part, by its name.
        measured: measurements that are taken once per run, by name.
        peak_memory_bytes: largest of all attempts so far.
        compile_seconds: of all attempts so far.
        files: size in bytes and SHA-256 of the other files.
    """

    stage: str
    step: int
    of: int
    over: bool
    steps: int
    config_sha256: str
    code_version: str
    details: Mapping[str, float]
    values: Mapping[str, Mapping[str, Any]]
    measured: Mapping[str, Mapping[str, float]]
    peak_memory_bytes: int
    compile_seconds: float
    files: Mapping[str, tuple[int, str]]

    @property
    def sharded(self) -> bool:
        """Return whether each process has written its own part of the tensors; see `sharded`."""
        return WEIGHTS not in self.files

    @property
    def where(self) -> str:
        return f"step {self.step} of {self.stage}"


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of the file, with a checksum of its content."""
    content: dict[str, Any] = {"schema": SCHEMA}
    content |= {_DETAILS if name == "details" else name: value for name, value in asdict(manifest).items()}
    return (json.dumps(content | {_CHECKSUM: _checksum(content)}, indent=1, allow_nan=False) + "\n").encode()


def decode(data: bytes) -> Manifest:
    """Return the manifest that `encode` wrote. Raises UnusableError."""
    try:
        content = from_json(data)
    except ValueError:
        raise UnusableError(f"{STATE_FILE} is cut off or damaged") from None
    if not isinstance(content, dict):
        raise UnusableError(f"{STATE_FILE} is no JSON object")
    if content.get("schema") != SCHEMA:
        raise UnusableError(f"its schema is {content.get('schema')!r}, and this program reads {SCHEMA}")
    written = content.pop(_CHECKSUM, None)
    if written != _checksum(content):
        raise UnusableError(f"{STATE_FILE} does not match its own checksum")
    del content["schema"]
    if _DETAILS in content:
        content["details"] = content.pop(_DETAILS)
    if content.keys() != {field.name for field in fields(Manifest)}:
        raise UnusableError(f"{STATE_FILE} has other fields")
    content["files"] = {name: (size, digest) for name, (size, digest) in content["files"].items()}
    return Manifest(**content)


def verified(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint, once size and digest of every file are checked.

    Raises:
        UnusableError: a file is missing, damaged or unreadable.
    """
    try:
        manifest = decode(read_regular(folder / STATE_FILE))
        for name, (size, digest) in manifest.files.items():
            if (found := (folder / name).stat().st_size) != size:
                raise UnusableError(f"{name} has {found} bytes instead of {size}")
            if file_digest(folder / name) != digest:
                raise UnusableError(f"{name} does not match its checksum")
    except FileNotFoundError as error:
        raise UnusableError(f"{Path(error.filename).name} is missing") from None
    except OSError as error:
        raise UnusableError(f"it cannot be read: {error.strerror}") from None
    return manifest


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
