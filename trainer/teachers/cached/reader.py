"""Cached predictions by row number, and their feed with the text. Used by `stages.distill`."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweeps.text.regular_file import read_regular
from trainer.checkpoint.state import State
from trainer.config.distill import TEACHER_PATH
from trainer.data.feed import Feed, LabelledFeed
from trainer.devices.device import Device
from trainer.errors import DataError, TrainerError
from trainer.losses.sparse import Sample, Targets
from trainer.teachers.cached.index import Index, Location, Shard, read_index

_CACHES = ("teacher_cache", "anchor_cache")  # names of their digests in a checkpoint
IDS = "ids"
PARTS = ("topk_idx", "topk_logits", "rand_idx", "rand_logits")


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Text ids [T], candidates' ids [P, C] and logits [P, C] of one row, or of several: [rows, …]."""

    text: Tensor
    ids: Tensor
    logits: Tensor


class Cache:
    """The first `rows` of a cache.

    Args:
        preload: read and verify all of it now; otherwise read each row on demand.

    Raises:
        TrainerError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, index: Index, *, rows: int, preload: bool) -> None:
        self._folder = folder
        self._shards = [shard for shard in index.shards if shard.first < rows]
        self._firsts = [shard.first for shard in self._shards]
        self._loaded: dict[str, Any] = {}
        self.digest = index.digest(rows)
        for shard in self._shards:
            self._loaded[shard.file] = self._load(shard) if preload else self._open(shard)

    def rows(self, numbers: Sequence[int], ids_BT: Tensor) -> Sample:
        """Return the predictions of some rows, on the CPU.

        Args:
            numbers: of the rows, B of them.
            ids_BT: their text, int64.

        Raises:
            DataError: the cache was made with other text.
        """
        found = [self._row(number) for number in numbers]
        for number, row, ids_T in zip(numbers, found, ids_BT, strict=True):
            if not torch.equal(row.text.long(), ids_T):
                raise DataError(
                    f"row {number} of the text is not the one that the teacher's cache was made with; build "
                    "the cache anew in another folder"
                )
        return Sample(
            ids=torch.stack([row.ids for row in found]), logits=torch.stack([row.logits for row in found])
        )

    def _row(self, number: int) -> _Rows:
        shard = self._shards[bisect_right(self._firsts, number) - 1]
        loaded, at = self._loaded[shard.file], number - shard.first
        if isinstance(loaded, _Rows):
            return _Rows(text=loaded.text[at], ids=loaded.ids[at], logits=loaded.logits[at])
        return _join_candidates({name: loaded.get_slice(name)[at] for name in (IDS, *PARTS)})

    def _load(self, shard: Shard) -> _Rows:
        from safetensors.torch import load

        try:
            data = read_regular(self._folder / shard.file)
        except OSError as error:
            raise self._unusable(shard, error.strerror or str(error)) from error
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise self._unusable(shard, "it is not what was written")
        return _join_candidates(load(data))

    def _open(self, shard: Shard) -> Any:
        from safetensors import SafetensorError, safe_open

        path = self._folder / shard.file
        try:
            if not path.is_file() or path.stat().st_size != shard.size:
                raise self._unusable(shard, "it is not what was written")
            return safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise self._unusable(shard, getattr(error, "strerror", None) or str(error)) from error

    def _unusable(self, shard: Shard, reason: str) -> TrainerError:
        return TrainerError(
            f"cannot use {self._folder / shard.file} of the teacher's cache: {reason}; run the command that "
            "built the cache again to repair it"
        )


def _join_candidates(tensors: Mapping[str, Tensor]) -> _Rows:
    """Join likeliest tokens and negatives, so that a batch of preloaded rows is copied once."""
    return _Rows(
        text=tensors[IDS],
        ids=torch.cat([tensors["topk_idx"], tensors["rand_idx"]], dim=-1),
        logits=torch.cat([tensors["topk_logits"], tensors["rand_logits"]], dim=-1),
    )


def open_cache(path: str, *, rows: int, preload: bool) -> Cache:
    """Open the cache at a path or URL that `index.check` has accepted.

    Args:
        path: as in the configuration.
        preload: read and verify all of it now.

    Raises:
        TrainerError: it has become too short, or a file is missing or damaged.
    """
    folder = Location(path).local_copy()
    index = read_index(Location(str(folder)), path, key=TEACHER_PATH)
    if index is None or index.rows < rows:
        raise TrainerError(f"the cache at {path} has become shorter than the run")
    return Cache(folder, index, rows=rows, preload=preload)


class CachedFeed(LabelledFeed[Targets]):
    """A stage's text with its cached predictions; the caller still closes `source`.

    Args:
        source: the plain feed of the stage.
        device: receives the predictions, a micro-batch at a time; its processes share each batch.
    """

    def __init__(self, source: Feed, teacher: Cache, anchor: Cache | None, *, device: Device) -> None:
        self._source, self._teacher, self._anchor, self._device = source, teacher, anchor, device
        digests = [cache and cache.digest for cache in (teacher, anchor)]
        self._digests = dict(zip(_CACHES, digests, strict=True))

    def __next__(self) -> Tensor:
        """Return the next batch [B / world, T], or raise DataError if the cache was made with other text."""
        before = int(self._source.state().values["rows"])
        ids_BT = next(self._source)
        rank, world = self._device.ranks.data_rank, self._device.ranks.data_world
        rows = range(before + rank, before + len(ids_BT) * world, world)
        self.set_labels(
            Targets(
                teacher=self._teacher.rows(rows, ids_BT),
                anchor=self._anchor.rows(rows, ids_BT) if self._anchor else None,
            )
        )
        return ids_BT

    def to_device(self, labels: Targets) -> Targets:
        return labels.mapped(self._device.place)

    def wait(self) -> None:
        self._source.wait()

    def state(self) -> State:
        """Return the state of the text with the digests of the caches."""
        text = self._source.state()
        return replace(text, values={**text.values, **self._digests})

    def restore(self, state: State) -> None:
        for name, digest in self._digests.items():
            if state.values.get(name) != digest:
                raise DataError(
                    f"the {name.replace('_', ' ')} is not the one that the checkpoint was written with; "
                    "bring that one back, or delete the run's checkpoints/"
                )
        values = {name: value for name, value in state.values.items() if name not in _CACHES}
        self._source.restore(State(tensors=state.tensors, values=values))
