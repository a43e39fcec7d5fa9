"""Atomic writing of a snapshot to the disk. Called by `background_writer`."""

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
from trainer.checkpoint.manifest import METRICS, STATE_FILE, Manifest, encode, file_digest
from trainer.text import sync


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run between two steps.

    Args:
        manifest: without its `files`.
        tensors: on the CPU and nobody else's, by file.
        metrics: the run's `metrics.jsonl`.
        metrics_bytes: size of its beginning that belongs to the snapshot.
    """

    manifest: Manifest
    tensors: Mapping[str, Mapping[str, Tensor]]
    metrics: Path
    metrics_bytes: int


def write(root: Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint and return its folder in `root`, which appears once all of it is on the disk.

    Raises:
        OSError: the disk refuses it; nothing is left of it.
        SafetensorError: the same, from safetensors.
    """
    final = root / layout.name_of(snapshot.manifest.steps)
    draft = layout.draft_in(root)
    try:
        for name, tensors in snapshot.tensors.items():
            save_file(dict(tensors), draft / name)
        _copy_beginning(snapshot.metrics, draft / METRICS, snapshot.metrics_bytes)
        files = {}
        for path in sorted(draft.iterdir()):
            sync(path)
            files[path.name] = (path.stat().st_size, file_digest(path))
        (draft / STATE_FILE).write_bytes(encode(dataclasses.replace(snapshot.manifest, files=files)))
        sync(draft / STATE_FILE)
        sync(draft)
        draft.rename(final)
        sync(root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    layout.point_to(root, final.name)
    return final


def retain(root: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`; one that cannot be removed stays."""
    for path in layout.listing(root)[keep:]:
        with contextlib.suppress(OSError):
            layout.remove(path)


def _copy_beginning(source: Path, target: Path, size: int) -> None:
    """Copy the first `size` bytes: lines may have been added since."""
    with source.open("rb") as reader, target.open("wb") as writer:
        while size:
            block = reader.read(min(size, 2**20))
            if not block:
                raise OSError(f"{source} has become shorter")
            writer.write(block)
            size -= len(block)
