"""Writing of checkpoints and of finished stages: a copy in host memory, and its way to the disk.

A step waits for the copy alone; a thread writes it, one folder at a time, each by one rename. Used by
`checkpoints` and, for its copies, by `training.auto_freeze`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sweeps.text.atomic_file import sync
from sweeps.text.counted import counted
from sweeps.text.regular_file import open_regular
from trainer.cache import file_digest
from trainer.checkpoint import layout
from trainer.checkpoint.manifest import METRICS, STAGE_FILE, STATE_FILE, Manifest, encode
from trainer.checkpoint.sharded import ALONE_SAVING, SaveGroup, problem, save_shard
from trainer.devices.lazy_tensor import copy_to_host
from trainer.distributed.tensors import full_tensor, is_dtensor, local_tensor

SHARD = "shard"
"""The name among the files of a snapshot of what each process writes of a sharded one."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A run between two steps.

    Args:
        manifest: without its `files`.
        tensors: on the CPU and nobody else's, by file; of a sharded one this process's own, as `SHARD`.
        metrics_bytes: size of its beginning that belongs to the snapshot.
        group: of the processes that write it together; `writer` means each process's own thread then.
    """

    manifest: Manifest
    tensors: Mapping[str, Mapping[str, Tensor]]
    metrics: Path
    metrics_bytes: int
    group: SaveGroup = ALONE_SAVING


def write(root: Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint and return its folder in `root`, which appears once all of it is on the disk.

    Raises:
        OSError: the disk refuses it; nothing is left of it.
        SafetensorError: the same, from safetensors.
    """
    final = root / f"{snapshot.manifest.steps:0{layout.DIGITS}d}"
    write_folder(final, snapshot)
    if snapshot.group.first:
        layout.point_to(root, final.name)
    return final


def write_folder(final: Path, snapshot: Snapshot, last: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Write all files into a hidden draft, those of `last` at the end, and rename it into place.

    Of a sharded one each process writes and digests its own file, and the first the rest once all have.
    Raises as `write` does, and leaves as little.
    """
    root, group = final.parent, snapshot.group
    draft = group.from_first(partial(layout.draft_in, root))

    def write_own() -> dict[str, tuple[int, str]]:
        paths = []
        for name, tensors in snapshot.tensors.items():
            if name == SHARD:
                paths += save_shard(draft, tensors, group)
            else:
                save_file(dict(tensors), draft / name)
                paths.append(draft / name)
        if group.first:
            _copy_beginning(snapshot.metrics, draft / METRICS, snapshot.metrics_bytes)
            paths.append(draft / METRICS)
        for path in paths:
            sync(path)
        return {path.name: (path.stat().st_size, file_digest(path)) for path in paths}

    def complete(files: Mapping[str, tuple[int, str]]) -> None:
        state = encode(dataclasses.replace(snapshot.manifest, files=files))
        for name, content in ({STATE_FILE: state} | dict(last)).items():
            (draft / name).write_bytes(content)
            sync(draft / name)
        sync(draft)
        draft.rename(final)
        sync(root)

    try:
        written = group.gather(write_own)
        files = {name: about for each in written for name, about in each.items()}
        group.from_first(partial(complete, dict(sorted(files.items()))))
    finally:
        if group.first:
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


class Writer:
    """Writer of snapshots on a thread of its own.

    Args:
        last: steps of the newest existing checkpoint, or None.
        warn: called with one line for a failure that does not set `full`.
    """

    def __init__(self, root: Path, *, keep: int, last: int | None, warn: Callable[[str], None]) -> None:
        self._root, self._keep, self._warn = root, keep, warn
        self._thread: threading.Thread | None = None
        self._warning = ""
        self.last = last
        """Steps of the newest complete checkpoint."""
        self.full = ""
        """The system's message when the disk was full and there was no checkpoint; the run must end."""

    @property
    def busy(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, snapshot: Snapshot) -> None:
        """Start to write the snapshot as a checkpoint, once the one before is written."""
        self._start(partial(self._write, snapshot))

    def begin_stage(self, folder: Path, document: bytes, snapshot: Snapshot) -> None:
        """Start to write a finished stage, whose last file has these bytes; a failure is only a warning."""
        self._start(partial(self._write_stage, folder, document, snapshot))

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self, target: Callable[[], None]) -> None:
        self.wait()
        self._thread = threading.Thread(target=target, name="checkpoint")
        self._thread.start()

    def _write_stage(self, folder: Path, document: bytes, snapshot: Snapshot) -> None:
        try:
            write_folder(folder, snapshot, {STAGE_FILE: document})
        except Exception as error:  # noqa: BLE001 - as below
            stage = snapshot.manifest.stage
            if snapshot.group.first:
                reason = problem(error)
                self._warn(f"the snapshot of {stage} could not be written ({reason}); the run goes on")

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write(self._root, snapshot)
        except Exception as error:  # noqa: BLE001 - safetensors reports a full disk as an error of its own
            reason = problem(error)
            if not snapshot.group.first:
                return  # the first process warns, or ends the run
            if self.last is None and any(os.strerror(number) in reason for number in _FULL):
                self.full = reason
            else:
                self._warn_once(snapshot.manifest.steps, reason)
        else:
            self.last, self._warning = snapshot.manifest.steps, ""
            if snapshot.group.first:
                retain(self._root, self._keep)

    def _warn_once(self, steps: int, reason: str) -> None:
        fallback = (
            "without any other, so that an end now would lose everything"
            if self.last is None
            else f"and could go on from the one after {counted(self.last, 'step')}"
        )
        warning = f"could not be written ({reason}); the run goes on, {fallback}"
        if warning != self._warning:  # once, not at every interval
            self._warn(f"the checkpoint after {counted(steps, 'step')} {warning}")
        self._warning = warning


class HostCopies:
    """Copies of tensors in host memory, in reused buffers: the next `take` overwrites them.

    The copy is all that a checkpoint costs the training step. Touching fresh memory takes 20 times as long as
    the copy (240 MB: 1.8 s and 0.08 s on 2 shared cores).
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor], *, in_parts: bool = False) -> dict[str, Tensor]:
        """Return copies on the CPU, contiguous and detached, by name.

        DTensors are gathered one at a time, while the other processes `contribute`.

        Args:
            in_parts: copy this process's part of a DTensor alone, without any communication.
        """
        held, self._buffers = self._buffers, {}
        for name, given in tensors.items():
            tensor = given.detach() if in_parts else full_tensor(given.detach())
            buffer = held.get(name)
            if buffer is None or _layout(buffer) != _layout(tensor):
                if is_dtensor(tensor):
                    buffer = torch.empty_like(tensor, device="cpu")
                else:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            copy_to_host(local_tensor(buffer), local_tensor(tensor))
            self._buffers[name] = buffer
        return self._buffers

    @property
    def nbytes(self) -> int:
        """Return the bytes that this process's buffers take."""
        return sum(local_tensor(buffer).nbytes for buffer in self._buffers.values())


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a buffer shares with its tensor: shape, dtype and, of a DTensor, mesh and placements."""
    parts = (tensor.device_mesh, tensor.placements) if is_dtensor(tensor) else ()
    return (tensor.shape, tensor.dtype, *parts)


def contribute(tensors: Mapping[str, Tensor]) -> None:
    """Contribute this process's shards of the same tensors to the process that takes copies."""
    for part in tensors.values():
        full_tensor(part.detach())
