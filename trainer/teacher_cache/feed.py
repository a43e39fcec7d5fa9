"""Batches of text with what a cache holds of each. Made by `stages.distill`."""

from __future__ import annotations

from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data.errors import DataError
from trainer.data.feed import Feed
from trainer.data.taught import Taught
from trainer.device import Device
from trainer.losses.sparse import Sample
from trainer.teacher_cache.read import Cache

_CACHE = "teacher_cache"


class CachedFeed(Taught[Sample]):
    """A stage's text, row by row beside the cache's. The plain feed stays the caller's to close.

    Args:
        source: of the stage, whose state says how many rows were given out.
        device: where predictions go, a micro-batch at a time; its processes share each batch, as `source`
            knows.
    """

    def __init__(self, source: Feed, cache: Cache, *, device: Device) -> None:
        self._source, self._cache, self._device = source, cache, device

    def __next__(self) -> Tensor:
        """Raises DataError: the cache was made with other text."""
        before = int(self._source.state().values["rows"])
        ids_BT = next(self._source)
        rank, world = self._device.ranks.rank, self._device.ranks.world
        self._hand_out(self._cache.rows(range(before + rank, before + len(ids_BT) * world, world), ids_BT))
        return ids_BT

    def _placed(self, said: Sample) -> Sample:
        return said.placed(self._device.place)

    def wait(self) -> None:
        self._source.wait()

    def state(self) -> State:
        """That of the text, and which cache it was read with."""
        values = self._source.state().values
        return State(values={**values, _CACHE: self._cache.digest})

    def restore(self, state: State) -> None:
        if state.values.get(_CACHE) != self._cache.digest:
            raise DataError(
                "the teacher's cache is not the one that the checkpoint was written with; bring that one "
                "back, or delete the run's checkpoints/"
            )
        values = {name: value for name, value in state.values.items() if name != _CACHE}
        self._source.restore(State(tensors=state.tensors, values=values))
