"""Memory of a program's tensors, measured without computing them. Used by `trace`.

The program runs under torch's FakeTensorMode, where tensors have a shape, a dtype and a storage, and no data.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_DEVICE = torch.ops.prim.device.default


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotations here
    """Count of storages, from the operation that makes them until nothing refers to them.

    Attributes:
        now: bytes alive.
        peaks: most bytes alive in each phase, by its name; and when each of its operations made a storage, by
            phase, operation and size.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._device = device
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now, self.peaks, self._phase = 0, dict[Hashable, int](), "begin"

    def begin(self, phase: str) -> None:
        """Count for this phase from now on; it may be begun more than once."""
        self._phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.now)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:  # called several times per operation; all tensors are on one device
            return self._device
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if not isinstance(leaf, torch.Tensor):
                continue
            storage: Any = leaf.untyped_storage()
            if id(storage) in self._alive:  # a view, or written in place
                continue
            size = storage.nbytes()
            self._alive[id(storage)] = weakref.ref(storage, partial(self._remove, id(storage), size))
            self.now += size
            for moment in (self._phase, (self._phase, func, size)):
                self.peaks[moment] = max(self.peaks.get(moment, 0), self.now)
        return result

    def _remove(self, key: int, size: int, reference: object) -> None:
        del self._alive[key]
        self.now -= size


@contextmanager
def fake_tensors(device: torch.device) -> Iterator[LiveStorages]:
    """Run the block on fake tensors, by default on `device`, and yield the count of their storages."""
    live = LiveStorages(device)
    with FakeTensorMode(allow_non_fake_inputs=True), live, device:
        yield live
