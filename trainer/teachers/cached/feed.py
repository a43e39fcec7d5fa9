"""Batches of text with their cached predictions. Created by `stages.distill`."""

from __future__ import annotations

from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data.errors import DataError
from trainer.data.feed import Feed
from trainer.data.labelled_feed import LabelledFeed
from trainer.devices.device import Device
from trainer.losses.sparse import Targets
from trainer.teachers.cached.reader import Cache

_CACHES = ("teacher_cache", "anchor_cache")


class CachedFeed(LabelledFeed[Targets]):
    """A stage's text with its cached predictions; the caller still closes `source`.

    Args:
        source: the plain feed of the stage.
        teacher: the teacher's cache.
        anchor: the anchor's cache, if any.
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
        rank, world = self._device.ranks.rank, self._device.ranks.world
        rows = range(before + rank, before + len(ids_BT) * world, world)
        self.set_labels(
            Targets(
                teacher=self._teacher.rows(rows, ids_BT),
                anchor=self._anchor.rows(rows, ids_BT) if self._anchor else None,
            )
        )
        return ids_BT

    def to_device(self, labels: Targets) -> Targets:
        return labels.placed(self._device.place)

    def wait(self) -> None:
        self._source.wait()

    def state(self) -> State:
        """Return the state of the text with the digests of the caches."""
        return State(values={**self._source.state().values, **self._digests})

    def restore(self, state: State) -> None:
        for name, digest in self._digests.items():
            if state.values.get(name) != digest:
                raise DataError(
                    f"the {name.replace('_', ' ')} is not the one that the checkpoint was written with; "
                    "bring that one back, or delete the run's checkpoints/"
                )
        values = {name: value for name, value in state.values.items() if name not in _CACHES}
        self._source.restore(State(tensors=state.tensors, values=values))
