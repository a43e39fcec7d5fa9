"""`state.json` of a checkpoint: where the run was, every plain value, and the checksums of the other files.

Without torch: whoever only asks whether a run can go on need not load it. Written by `write`, read by `find`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic_core import from_json

SCHEMA = 1
DOCUMENT = "state.json"
WEIGHTS = "model.safetensors"
TENSORS = "training.safetensors"
METRICS = "metrics.copy"

_CHECKSUM = "sha256"


class UnusableError(Exception):
    """A checkpoint that nothing can go on from; the message says why, in a few words."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One checkpoint, but for its tensors.

    Args:
        stage, step, of: the last optimizer step that was done, one-based; 0 before a stage's first.
        over: whether the stage was over: then only what outlasts it is here.
        steps: optimizer steps that were done, over all stages.
        config_sha256: of the configuration, `trainer.config.sha256`.
        code_version: of the program that wrote it.
        told: learning rate, lambda and the like in that step; for people, nothing is restored from them.
        values: plain values of each part, by its name.
        measured: what was measured once on the way.
        peak_memory_bytes: the most that any attempt has used so far.
        compile_seconds: that the compiler took in all attempts so far; earlier documents do not tell.
        files: size in bytes and SHA-256 of the other files.
    """

    stage: str
    step: int
    of: int
    over: bool
    steps: int
    config_sha256: str
    code_version: str
    told: Mapping[str, float]
    values: Mapping[str, Mapping[str, Any]]
    measured: Mapping[str, Mapping[str, float]]
    peak_memory_bytes: int
    compile_seconds: float
    files: Mapping[str, tuple[int, str]]

    @property
    def where(self) -> str:
        """The position in words."""
        return f"step {self.step} of {self.stage}"


def encode(document: Document) -> bytes:
    """As it stands in the file, with a checksum over itself."""
    content = {"schema": SCHEMA, **asdict(document)}
    return (json.dumps(content | {_CHECKSUM: _checksum(content)}, indent=1, allow_nan=False) + "\n").encode()


def decode(data: bytes) -> Document:
    """What `encode` made. Raises UnusableError."""
    try:
        content = from_json(data)
    except ValueError:
        raise UnusableError(f"{DOCUMENT} is cut off or damaged") from None
    if not isinstance(content, dict):
        raise UnusableError(f"{DOCUMENT} is no JSON object")
    if content.get("schema") != SCHEMA:
        raise UnusableError(f"its schema is {content.get('schema')!r}, and this program reads {SCHEMA}")
    written = content.pop(_CHECKSUM, None)
    if written != _checksum(content):
        raise UnusableError(f"{DOCUMENT} does not match its own checksum")
    del content["schema"]
    content.setdefault("compile_seconds", 0.0)
    if content.keys() != {field.name for field in fields(Document)}:
        raise UnusableError(f"{DOCUMENT} has other fields")
    content["files"] = {name: (size, digest) for name, (size, digest) in content["files"].items()}
    return Document(**content)


def verified(folder: Path) -> Document:
    """The document of a checkpoint whose every file is there as it was written. Raises UnusableError."""
    try:
        document = decode((folder / DOCUMENT).read_bytes())
        for name, (size, digest) in document.files.items():
            if (found := (folder / name).stat().st_size) != size:
                raise UnusableError(f"{name} has {found} bytes instead of {size}")
            if file_digest(folder / name) != digest:
                raise UnusableError(f"{name} does not match its checksum")
    except FileNotFoundError as error:
        raise UnusableError(f"{Path(error.filename).name} is missing") from None
    except OSError as error:
        raise UnusableError(f"it cannot be read: {error.strerror}") from None
    return document


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
