"""How much memory the tensors of a program take, told without running it: on shapes alone. Used by `trace`.

The program runs under torch's FakeTensorMode, where tensors have a shape, a dtype and a storage, and no data.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_DEVICE = torch.ops.prim.device.default


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotations here
    """Counts storages from the operation that makes them until nothing refers to them.

    Attributes:
        now: bytes alive.
        peaks: the most that was alive in each phase, by its name.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._device = device
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now, self.peaks, self._phase = 0, dict[str, int](), "begin"

    def begin(self, phase: str) -> None:
        """What comes now counts for this phase, which may be begun more than once."""
        self._phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.now)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:  # asked several times an operation; all are on the one
            return self._device
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: Any) -> None:
        key = id(storage)
        if key in self._alive:
            return
        size = storage.nbytes()
        self._alive[key] = weakref.ref(storage, self._forget(key, size))
        self.now += size
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.now)

    def _forget(self, key: int, size: int) -> Callable[[Any], None]:
        def forget(reference: object) -> None:
            del self._alive[key]
            self.now -= size

        return forget


@contextmanager
def shapes_alone(device: torch.device) -> Iterator[Live]:
    """What is computed inside is computed on shapes; tensors for which no device is named are on `device`."""
    live = Live(device)
    with FakeTensorMode(allow_non_fake_inputs=True), live, device:
        yield live
