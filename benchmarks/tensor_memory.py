"""Peak memory of tensors, counted and not sampled: the same number on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(work: Callable[[], object], *, after: Callable[[], object] = lambda: None) -> int:
    """Return the peak bytes of live tensors during `work`.

    Tensors that existed before do not count, nor temporary memory within an operation.

    Args:
        after: called before; what it made and is still there counts, and its own peak does not.
    """
    watch = _Watch()
    with watch:
        after()
        watch.peak = 0
        work()
    return watch.peak


@dataclass(frozen=True, kw_only=True)
class MostBytes:
    """Peak bytes of live tensors, and bytes of the largest single one."""

    at_once: int
    largest: int


def most_bytes(work: Callable[[], object]) -> MostBytes:
    """Return what `peak_bytes` counts, and the size of the largest tensor that `work` made."""
    watch = _Watch()
    with watch:
        work()
    return MostBytes(at_once=watch.peak, largest=watch.largest)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotations here
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.peak = self.largest = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(hasattr(each, "full_tensor") for each in types):
            return NotImplemented  # a DTensor has no storage; the operations on its own part come here again
        inputs = {id(leaf.untyped_storage()) for leaf in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage: Any = tensor.untyped_storage()
            if id(storage) not in inputs:  # else a view, or written in place
                self._alive[id(storage)] = weakref.ref(storage)
                self.largest = max(self.largest, storage.nbytes())
        # Sizes are read anew: FSDP frees and allocates a storage that lives on.
        alive = {key: storage for key, each in self._alive.items() if (storage := each()) is not None}
        self._alive = {key: self._alive[key] for key in alive}
        self.peak = max(self.peak, sum(storage.nbytes() for storage in alive.values()))
        return result


def _tensors(tree: object) -> list[Tensor]:
    """Return the tensors that have memory: DTensors work out shapes of results on fake or meta ones."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and not _is_empty(leaf)]


def _is_empty(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta
