"""Atomic writing of checkpoints, and of finished stages, to the disk. Called by `background_writer`."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from sweeps.text.atomic_file import sync
from sweeps.text.regular_file import open_regular
from trainer.checkpoint import layout
from trainer.checkpoint.manifest import METRICS, STAGE_FILE, STATE_FILE, Manifest, encode, file_digest


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
    _write_folder(final, snapshot)
    layout.point_to(root, final.name)
    return final


def write_stage(final: Path, snapshot: Snapshot, document: bytes) -> None:
    """Write a finished stage as the folder `final`, whose last file is `stage.json` with the given bytes.

    Raises as `write` does, and leaves as little.
    """
    _write_folder(final, snapshot, {STAGE_FILE: document})


def _write_folder(final: Path, snapshot: Snapshot, last: Mapping[str, bytes] | None = None) -> None:
    """Write all files into a hidden draft, those of `last` at the end, and rename it into place."""
    root = final.parent
    draft = layout.draft_in(root)
    try:
        for name, tensors in snapshot.tensors.items():
            save_file(dict(tensors), draft / name)
        _copy_beginning(snapshot.metrics, draft / METRICS, snapshot.metrics_bytes)
        files = {}
        for path in sorted(draft.iterdir()):
            sync(path)
            files[path.name] = (path.stat().st_size, file_digest(path))
        state = encode(dataclasses.replace(snapshot.manifest, files=files))
        for name, content in ({STATE_FILE: state} | dict(last or {})).items():
            (draft / name).write_bytes(content)
            sync(draft / name)
        sync(draft)
        draft.rename(final)
        sync(root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def retain(root: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`; one that cannot be removed stays."""
    for path in layout.listing(root)[keep:]:
        with contextlib.suppress(OSError):
            layout.remove(path)


def _copy_beginning(source: Path, target: Path, size: int) -> None:
    """Copy the first `size` bytes: lines may have been added since."""
    with open_regular(source) as reader, target.open("wb") as writer:
        while size:
            block = reader.read(min(size, 2**20))
            if not block:
                raise OSError(f"{source} has become shorter")
            writer.write(block)
            size -= len(block)
