"""What is seen of steps: their time, losses, parts, operations and synchronisations. Called by `cases`."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.devices.device import Device
from trainer.optim.build import OptimizerSet
from trainer.training.step_results import Step
from trainer.training.train_step import TrainStep

WARM_STEPS = 3  # the first compiles and allocates the optimizer's state
Result = dict[str, Any]


class _EnoughError(Exception):
    """Ends a training that has been measured."""


class Observer:
    """Time of steps, their losses, and what one step does: called by the loop with each finished step.

    The first steps warm up, then steps are timed, then a few more are recorded: their synchronisations,
    parts, kernels and operations, each of which takes time of its own.
    """

    def __init__(self, device: Device, measure: float) -> None:
        self._device, self._measure = device, measure
        self.losses: list[float] = []
        self._times: list[float] = []
        self._recorder = _Recorder(device)
        self._began = time.perf_counter()

    def __call__(self, step: Step) -> None:
        self.stepped(step.step, step.losses["loss"])

    def stepped(self, number: int, loss: float) -> None:
        """Take note of a finished one-based step; raise _EnoughError after the last."""
        self.losses.append(loss)
        if self._recorder.active:
            if self._recorder.finished_step():
                raise _EnoughError
            return
        self._times.append(time.perf_counter())
        if number > WARM_STEPS + 1 and self._times[-1] - self._times[WARM_STEPS - 1] > self._measure:
            self._recorder.begin()

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Return when there is enough."""
        self._device.synchronize()
        self._device.reset_peak_memory()
        self._began = time.perf_counter()
        try:
            with self._recorder:
                yield
        except _EnoughError:
            pass

    @property
    def measured(self) -> int:
        """Return the number of timed steps."""
        return len(self._times) - WARM_STEPS

    @property
    def seconds_per_step(self) -> float:
        """Return the mean over the timed steps: results may be read late, so that single ones mean little."""
        return (self._times[-1] - self._times[WARM_STEPS - 1]) / self.measured

    @property
    def compile_seconds(self) -> float:
        """Return what the first steps took longer than others: compilation, and what is allocated once."""
        return self._times[WARM_STEPS - 1] - self._began - WARM_STEPS * self.seconds_per_step

    def parts(self) -> Result:
        """Return the parts of the recorded steps."""
        return self._recorder.results()


class _Recorder:
    """Operations, synchronisations and milliseconds by part of single steps.

    While it is entered, the trainer's step and optimizer are wrapped; it records from `begin` on: one step
    for each phase. On a GPU results may be read a step late; then a phase begins and ends within a step.
    """

    PHASES = ("syncs", "parts", "kernels", "operations")
    KERNELS = 15  # those that take the most time

    def __init__(self, device: Device) -> None:
        self._device = device
        self._phase: str | None = None
        self._marks: dict[str, list[Callable[[], float]]] = {}
        self._counts: Counter[str] = Counter()
        self._syncs = 0
        self._kernels: list[tuple[str, float, int]] = []
        self._exit = ExitStack()

    @property
    def active(self) -> bool:
        return self._phase is not None

    def begin(self) -> None:
        self._enter(self.PHASES[0])

    def finished_step(self) -> bool:
        """Go on with the next phase; return whether that was the last."""
        phase = cast(str, self._phase)
        self._leave(phase)
        following = self.PHASES[self.PHASES.index(phase) + 1 :]
        if following:
            self._enter(following[0])
        return not following

    def _enter(self, phase: str) -> None:
        self._phase = phase
        if self._device.kind != "cuda":
            return
        if phase == "syncs":
            self._caught = self._exit.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        if phase == "kernels":
            activities = [torch.profiler.ProfilerActivity.CUDA]
            self._profile = self._exit.enter_context(torch.profiler.profile(activities=activities))

    def _leave(self, phase: str) -> None:
        if self._device.kind != "cuda":
            return
        if phase == "syncs":
            torch.cuda.set_sync_debug_mode("default")
            # Not the mode's own warning at its first use: "Synchronization debug mode is a prototype …".
            self._syncs = sum("called a synchronizing" in str(warning.message) for warning in self._caught)
        if phase == "kernels":
            self._device.synchronize()
        self._exit.close()
        if phase == "kernels":
            rows = sorted(self._profile.key_averages(), key=lambda row: -row.self_device_time_total)
            self._kernels = [
                (row.key, row.self_device_time_total / 1000, row.count) for row in rows[: self.KERNELS]
            ]

    def __enter__(self) -> None:
        self._originals = TrainStep.accumulate, OptimizerSet.step
        TrainStep.accumulate = self._wrapped("forward and backward", TrainStep.accumulate)  # type: ignore[method-assign]
        OptimizerSet.step = self._wrapped("optimizer", OptimizerSet.step)  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        TrainStep.accumulate, OptimizerSet.step = self._originals  # type: ignore[method-assign]

    def _wrapped(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **settings: Any) -> Any:
            if self._phase == "parts":
                began = self._clock()
                value = function(*arguments, **settings)
                ended = self._clock()
                self._marks.setdefault(part, []).append(lambda: self._ms(began, ended))
                return value
            with _Counting(self._counts, part) if self._phase == "operations" else nullcontext():
                return function(*arguments, **settings)

        return wrapper

    def _clock(self) -> Any:
        if self._device.kind != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _ms(self, began: Any, ended: Any) -> float:
        self._device.synchronize()
        return began.elapsed_time(ended) if self._device.kind == "cuda" else 1000 * (ended - began)

    def results(self) -> Result:
        """Return milliseconds and operations by part, host synchronisations, and kernels with their ms."""
        return {
            "parts_ms": {part: sum(mark() for mark in marks) for part, marks in self._marks.items()},
            "operations": dict(self._counts),
            "kernels": self._kernels,
            "syncs": self._syncs if self._device.kind == "cuda" else None,
        }


class _Counting(TorchDispatchMode):
    """Counts operations; views are none. A compiled function is a few of them, whatever it computes."""

    VIEWS = frozenset(
        {"view", "t", "transpose", "expand", "detach", "alias", "unsqueeze", "squeeze", "select", "slice"}
        | {"permute", "_unsafe_view", "split", "as_strided", "unbind"}
    )

    def __init__(self, counts: Counter[str], part: str) -> None:
        super().__init__()
        self._counts, self._part = counts, part

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ not in self.VIEWS:
            self._counts[self._part] += 1
        return func(*args, **(kwargs or {}))
