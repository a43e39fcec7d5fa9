"""A copy of a run's state, written to the disk: whole, or not at all. Called by `background`."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from trainer.checkpoint import layout
from trainer.checkpoint.manifest import DOCUMENT, METRICS, Document, encode, file_digest


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run between two steps.

    Args:
        document: with no `files` yet.
        tensors: on the CPU and nobody else's, by file.
        metrics: the run's `metrics.jsonl`, of which the first `metrics_bytes` belong to the snapshot.
    """

    document: Document
    tensors: Mapping[str, Mapping[str, Tensor]]
    metrics: Path
    metrics_bytes: int


def write(root: Path, snapshot: Snapshot) -> Path:
    """The checkpoint's folder in `root`, which appears when everything in it is on the disk.

    Raises:
        OSError, SafetensorError: the disk refuses it; nothing is left of it.
    """
    final = root / layout.name_of(snapshot.document.steps)
    draft = layout.draft_in(root)
    try:
        for name, tensors in snapshot.tensors.items():
            save_file(dict(tensors), draft / name)
        _copy_beginning(snapshot.metrics, draft / METRICS, snapshot.metrics_bytes)
        files = {}
        for path in sorted(draft.iterdir()):
            layout.sync(path)
            files[path.name] = (path.stat().st_size, file_digest(path))
        (draft / DOCUMENT).write_bytes(encode(dataclasses.replace(snapshot.document, files=files)))
        layout.sync(draft / DOCUMENT)
        layout.sync(draft)
        draft.rename(final)
        layout.sync(root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    layout.point_to(root, final.name)
    return final


def retain(root: Path, keep: int) -> None:
    """Removes all checkpoints but the newest `keep`; one that cannot be removed stays."""
    for path in layout.listing(root)[keep:]:
        with contextlib.suppress(OSError):
            layout.remove(path)


def _copy_beginning(source: Path, target: Path, size: int) -> None:
    """The first `size` bytes: lines may have been added since."""
    with source.open("rb") as reader, target.open("wb") as writer:
        while size:
            block = reader.read(min(size, 2**20))
            if not block:
                raise OSError(f"{source} has become shorter")
            writer.write(block)
            size -= len(block)
