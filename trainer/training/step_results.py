"""What steps came to, read from the device: at once, or several together where reading waits for it. Used by
`step` and `loop`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from trainer.devices.device import Device
from trainer.errors import DivergedError

T = TypeVar("T")


class StepResult:
    """What one step came to, on the device until it is read.

    Args:
        losses: means, 0-d.
        grad_norm: before clipping, 0-d.
        details: the 1-D losses; norms of the gradient by kind of parameter, before clipping; what the
            optimizer has to tell.
    """

    def __init__(
        self, losses: Mapping[str, Tensor], grad_norm: Tensor, details: Mapping[str, Tensor], *, stage: str
    ) -> None:
        self._names, self._stage = tuple(losses), stage
        self._values = torch.stack([*losses.values(), grad_norm.float()])  # for one transfer
        self._read: list[float] | None = None
        self.details = dict(details)

    @property
    def known(self) -> bool:
        """Whether it was read."""
        return self._read is not None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is on the device."""
        return self._values, *self.details.values()

    def take(self, copies: Iterator[Tensor]) -> None:
        """Reads from copies of `tensors` on the CPU."""
        self._read = next(copies).tolist()
        self.details = {name: next(copies) for name in self.details}

    @property
    def losses(self) -> dict[str, float]:
        """Means."""
        return dict(zip(self._names, self._on_host()[:-1], strict=True))

    @property
    def grad_norm(self) -> float:
        """Before clipping."""
        return self._on_host()[-1]

    def refuse_divergence(self, number: int) -> None:
        """Raises DivergedError if a loss or the gradient of the one-based step `number` is not finite."""
        for quantity, value in (("loss", self.losses["loss"]), ("gradient norm", self.grad_norm)):
            if not math.isfinite(value):
                raise DivergedError(quantity=quantity, value=value, stage=self._stage, step=number)

    def _on_host(self) -> list[float]:
        if self._read is None:
            self._read = self._values.tolist()  # waits for the device
        return self._read


class PendingResults(Generic[T]):
    """Hold the results of steps that were computed but not yet reported, in order.

    At most one where every step is read at once.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._steps: list[tuple[StepResult, int, Callable[..., T]]] = []

    def add(self, stepped: StepResult, number: int, build: Callable[..., T]) -> None:
        """The one-based step `number`; `build` makes of losses, grad_norm and details what is told."""
        self._steps.append((stepped, number, build))

    def results(self) -> Iterator[T]:
        """What there is to tell of them all; none are left. Raises DivergedError at the first that is not
        finite."""
        self.read()
        while self._steps:
            stepped, number, build = self._steps.pop(0)
            stepped.refuse_divergence(number)
            yield build(losses=stepped.losses, grad_norm=stepped.grad_norm, details=stepped.details)

    def read(self, more: Sequence[StepResult] = ()) -> None:
        """Reads them, and `more`. Waits for the device; one transfer brings all that is still there."""
        waiting = [each for each in (*(stepped for stepped, _, _ in self._steps), *more) if not each.known]
        found = iter(self._device.fetch([each for stepped in waiting for each in stepped.tensors]))
        for stepped in waiting:
            stepped.take(found)
