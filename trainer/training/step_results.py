"""Results of training steps: on the device until they are read, then reported as `Step`.

Where reading waits for the device, a step is read when the next one is submitted, or several are read
together. Used by `train_step` and `loop`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from trainer.devices.device import Device
from trainer.errors import DivergedError
from trainer.training.auto_freeze import Inspection

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One finished optimizer step.

    Args:
        step: one-based, of `of`.
        losses: `loss`, which was minimised, and its parts.
        details: 0-d and 1-D tensors, on the device; reading them waits for it.
        grad_norm: before clipping.
        tokens: trained on in this step, by all processes.
        seconds: from asking for the batch to the end of the computation, without `compile_seconds`.
        data_seconds: of these, waiting for the batch and placing it.
        save_seconds: spent saving after the step before this one; not in `seconds`.
        settings: values that the stage set for this step (lambda, k, …).
        inspection: by auto-freeze after the step; None: there was none.
        compile_seconds: spent compiling for this step, where that is known.
    """

    stage: str
    step: int
    of: int
    losses: Mapping[str, float]
    lr: float
    grad_norm: float
    tokens: int
    seconds: float
    settings: Mapping[str, float]
    details: Mapping[str, Tensor] = field(default_factory=dict)
    data_seconds: float = 0.0
    save_seconds: float = 0.0
    inspection: Inspection | None = None
    compile_seconds: float = 0.0


Watch = Callable[[Step], None]
"""Called with each finished step, in order."""


class StepResult:
    """The losses, gradient norm and details of one step, on the device until they are read.

    Args:
        losses: means, 0-d.
        grad_norm: before clipping, 0-d.
        details: the 1-D losses, gradient norms by kind of parameter before clipping, and readings of the
            optimizer.
    """

    def __init__(
        self, losses: Mapping[str, Tensor], grad_norm: Tensor, details: Mapping[str, Tensor], *, stage: str
    ) -> None:
        self._names, self._stage = tuple(losses), stage
        self._values = torch.stack([*losses.values(), grad_norm.float()])  # for one transfer
        self._read: list[float] | None = None
        self._arrive: Callable[[], Tensor] | None = None
        self.details = dict(details)

    @property
    def known(self) -> bool:
        return self._read is not None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return everything that is on the device."""
        return self._values, *self.details.values()

    def send(self, device: Device) -> None:
        """Begin to copy everything to the host: `arrive` will wait for this step, not for later ones."""
        self._arrive = device.begin_fetch(torch.cat([tensor.reshape(-1) for tensor in self.tensors]))

    def arrive(self) -> bool:
        """Wait for what was sent and take it; return whether anything was."""
        if self._arrive is None:
            return False
        shapes = [tensor.shape for tensor in self.tensors]
        pieces = torch.split(self._arrive(), [shape.numel() for shape in shapes])
        self.take(piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True))
        return True

    def take(self, copies: Iterator[Tensor]) -> None:
        """Take the next of the given host copies, which are in the order of `tensors`."""
        self._read = next(copies).tolist()
        self.details = {name: next(copies) for name in self.details}

    @property
    def losses(self) -> dict[str, float]:
        """Return the means by name. Waits for the device."""
        return dict(zip(self._names, self._on_host()[:-1], strict=True))

    @property
    def grad_norm(self) -> float:
        """Return the norm before clipping. Waits for the device."""
        return self._on_host()[-1]

    def refuse_divergence(self, number: int) -> None:
        """Raise DivergedError if a loss or the gradient of the one-based step `number` is not finite."""
        for quantity, value in (("loss", self.losses["loss"]), ("gradient norm", self.grad_norm)):
            if not math.isfinite(value):
                raise DivergedError(quantity=quantity, value=value, stage=self._stage, step=number)

    def _on_host(self) -> list[float]:
        if self._read is None:
            self._read = self._values.tolist()  # waits for the device
        return self._read


class PendingResults(Generic[T]):
    """Results of steps that were computed but not yet reported, in order.

    At most one where the device reads every step at once.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._steps: list[tuple[StepResult, int, Callable[..., T]]] = []

    def add(self, result: StepResult, number: int, build: Callable[..., T]) -> None:
        """Add a step.

        Args:
            result: of the step, read or not.
            number: one-based.
            build: makes a report of the keyword arguments `losses`, `grad_norm` and `details`.
        """
        self._steps.append((result, number, build))

    def reports(self) -> Iterator[T]:
        """Yield the report of each step that was read, and forget it.

        Raises:
            DivergedError: a step is not finite; those before it were yielded.
        """
        while self._steps and self._steps[0][0].known:
            result, number, build = self._steps.pop(0)
            result.refuse_divergence(number)
            yield build(losses=result.losses, grad_norm=result.grad_norm, details=result.details)

    def read(self, more: Sequence[StepResult] = ()) -> None:
        """Read all pending results, and `more`: what was not sent in one transfer. Waits for the device."""
        unread = [each for each in (*(result for result, _, _ in self._steps), *more) if not each.known]
        waiting = [each for each in unread if not each.arrive()]
        if not waiting:
            return
        copies = iter(self._device.fetch([tensor for result in waiting for tensor in result.tensors]))
        for result in waiting:
            result.take(copies)
