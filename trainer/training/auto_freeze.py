"""Auto-freeze: parameters that have stopped changing are rounded to float16 and frozen.

An inspection compares copies in the host's memory with those of the inspection before. Nothing else is read
from the device, so on XLA no graph is broken, and only a freeze, which changes the graph, compiles once more.
All watched parameters are frozen together, once in a run. Built by `pipeline`, called by `loop` after every
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from sweeps.text.counted import counted
from trainer.checkpoint.state import State, StateError
from trainer.checkpoint.writer import HostCopies
from trainer.config import AutoFreezeConfig, Config
from trainer.errors import ConfigError
from trainer.optim.build import optimizers

PART = "auto_freeze"
"""Name of its state in a checkpoint."""

_KEY = "auto_freeze.parameters"
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of one inspection.

    Args:
        numbers: for the step's line of metrics.
        decision: a line for people; "" where nothing was decided.
        froze: whether the parameters were frozen.
    """

    numbers: Mapping[str, float]
    decision: str = ""
    froze: bool = False


class AutoFreeze:
    """Inspection of parameters over the stages of one run, until they are frozen. A part of a checkpoint.

    Args:
        watched: parameters by name, all of which are trained.
    """

    def __init__(self, config: AutoFreezeConfig, watched: Mapping[str, nn.Parameter]) -> None:
        self._config, self._watched = config, dict(watched)
        self._copies = (HostCopies(), HostCopies())  # of this inspection, and of the one before
        self._before: Mapping[str, Tensor] = {}
        self._stable, self._inspections, self._frozen = 0, 0, False
        self._on_freeze: Callable[[], None] = lambda: None

    def begin(self, on_freeze: Callable[[], None]) -> None:
        """Begin a stage. Changes are counted anew, since learning rate and loss are others.

        Args:
            on_freeze: called when the parameters are frozen: in this attempt, or by a restored checkpoint.
        """
        self._before, self._stable, self._on_freeze = {}, 0, on_freeze

    def inspect(self, step: int) -> Inspection | None:
        """Inspect the parameters after the one-based `step`; None where it is not due, or all is frozen."""
        config = self._config
        if self._frozen or step % config.every_steps or step < config.start_step:
            return None
        now = self._copies[self._inspections % 2].take(self._watched)
        before, self._before = self._before, now
        self._inspections += 1
        rounded = {name: value.half().to(value.dtype) for name, value in now.items()}
        distance = _largest(now, rounded)
        numbers = {"auto_freeze_fp16_distance": distance}
        if before:
            change = _largest(before, now)
            self._stable = self._stable + 1 if change < config.threshold else 0
            numbers["auto_freeze_max_change"] = change
            total = sum(_difference(before[name], value).double().sum().item() for name, value in now.items())
            numbers["auto_freeze_mean_change"] = total / sum(value.numel() for value in now.values())
        decision, frozen = self._decide(rounded, distance, numbers.get("auto_freeze_max_change", math.nan))
        if frozen:
            with torch.no_grad():
                for name, parameter in self._watched.items():
                    parameter.copy_(rounded[name])
            self._stop_training()
        numbers |= {"auto_freeze_stable": self._stable, "auto_freeze_frozen": frozen}
        # JSON knows no infinity: what no float16 can hold, and a change that is not a number, is left out.
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        return Inspection(numbers=finite, decision=decision, froze=frozen > 0)

    def _decide(self, rounded: Mapping[str, Tensor], distance: float, change: float) -> tuple[str, int]:
        """Return the decision in words, and how many parameters are to be frozen."""
        if self._stable < self._config.patience:
            return "", 0
        count = counted(len(rounded), "parameter")
        stable = (
            f"auto_freeze: {count} at rest for {counted(self._stable, 'inspection')} (change {change:.3g}, "
            f"below {self._config.threshold:.3g})"
        )
        if not math.isfinite(distance):
            return f"{stable}, but not frozen: they hold numbers that no float16 can", 0
        if self._config.dry_run:
            return (f"{stable}; dry run: not frozen" if self._stable == self._config.patience else ""), 0
        return f"{stable}: rounded to float16 (by at most {distance:.3g}) and frozen", len(rounded)

    def _stop_training(self) -> None:
        for parameter in self._watched.values():
            parameter.requires_grad_(False)
            parameter.grad = None
        self._frozen, self._before = True, {}
        self._on_freeze()

    def state(self) -> State:
        values = {"stable": self._stable, "looks": self._inspections, "frozen": self._frozen}
        return State(tensors=self._before, values=values)

    def restore(self, state: State) -> None:
        """Take the state of a checkpoint, and freeze the parameters if they were frozen.

        Raises:
            StateError: it is of other parameters.
        """
        if state.tensors and state.tensors.keys() != self._watched.keys():
            raise StateError(PART, "it watches other parameters")
        self._before = dict(state.tensors)
        self._stable, self._inspections = state.values["stable"], state.values["looks"]
        if state.values["frozen"]:
            self._stop_training()


def auto_freeze(config: Config, student: nn.Module) -> AutoFreeze | None:
    """Return the auto-freeze of the student's parameters; None where it is not enabled.

    Raises:
        ConfigError: a pattern matches nothing, nothing would be left to train, or an optimizer goes on
            changing what is frozen.
    """
    if not config.auto_freeze.enabled:
        return None
    trained = {name: p for name, p in student.named_parameters() if p.requires_grad}
    for pattern in config.auto_freeze.parameters:
        if not any(fnmatchcase(name, pattern) for name in trained):
            shown = ", ".join(list(trained)[:_SHOWN])
            raise ConfigError(
                f"no parameter of the student matches {pattern!r}; there are {shown} and "
                f"{max(0, len(trained) - _SHOWN)} more",
                key=_KEY,
            )
    watched = {
        name: parameter
        for name, parameter in trained.items()
        if any(fnmatchcase(name, pattern) for pattern in config.auto_freeze.parameters)
    }
    if len(watched) == len(trained):
        raise ConfigError("they match all parameters: nothing would be left to train; name fewer", key=_KEY)
    for key, optimizer in optimizers(config):
        scaled = [name for name in watched if ".q_proj." in name or ".k_proj." in name]
        if optimizer.type == "muonclip" and scaled and not key.startswith("model."):
            raise ConfigError(
                f"muonclip ({key}) goes on scaling {scaled[0]}, frozen or not; write muon, or leave queries "
                "and keys out",
                key=_KEY,
            )
    return AutoFreeze(config.auto_freeze, watched)


def _largest(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> float:
    """Return the largest difference of two numbers; NaN or infinite where one is."""
    return max(
        (_difference(before[name], value).max().item() for name, value in now.items()),
        key=lambda value: math.inf if math.isnan(value) else value,
    )


def _difference(before: Tensor, now: Tensor) -> Tensor:
    return (now.float() - before.float()).abs()
