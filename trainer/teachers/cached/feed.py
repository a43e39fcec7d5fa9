"""Batches of text with what a cache holds of each. Made by `stages.distill`."""

from __future__ import annotations

from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data.errors import DataError
from trainer.data.feed import Feed
from trainer.data.labelled_feed import Taught
from trainer.devices.device import Device
from trainer.losses.sparse import Targets
from trainer.teachers.cached.reader import Cache

_CACHES = ("teacher_cache", "anchor_cache")


class CachedFeed(Taught[Targets]):
    """A stage's text, row by row beside what is kept of it. The plain feed stays the caller's to close.

    Args:
        source: of the stage, whose state says how many rows were given out.
        anchor: None: there is none.
        device: where predictions go, a micro-batch at a time; its processes share each batch, as `source`
            knows.
    """

    def __init__(self, source: Feed, teacher: Cache, anchor: Cache | None, *, device: Device) -> None:
        self._source, self._teacher, self._anchor, self._device = source, teacher, anchor, device
        digests = [cache and cache.digest for cache in (teacher, anchor)]
        self._digests = dict(zip(_CACHES, digests, strict=True))

    def __next__(self) -> Tensor:
        """Raises DataError: the cache was made with other text."""
        before = int(self._source.state().values["rows"])
        ids_BT = next(self._source)
        rank, world = self._device.ranks.rank, self._device.ranks.world
        rows = range(before + rank, before + len(ids_BT) * world, world)
        self._hand_out(
            Targets(
                teacher=self._teacher.rows(rows, ids_BT),
                anchor=self._anchor.rows(rows, ids_BT) if self._anchor else None,
            )
        )
        return ids_BT

    def _placed(self, said: Targets) -> Targets:
        return said.placed(self._device.place)

    def wait(self) -> None:
        self._source.wait()

    def state(self) -> State:
        """That of the text, and which caches it was read with."""
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
