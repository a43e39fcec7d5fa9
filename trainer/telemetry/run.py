"""The one object that a run tells everything to: `metrics.jsonl`, people, a heartbeat, other channels.

Built by `__main__`, fed by `pipeline` through `watch`. Of several processes of one run, the first alone has
one that writes; the others take `Telemetry(None, …)`, which does nothing.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from pydantic_core import from_json

from trainer.devices.device import Device
from trainer.errors import TrainerError
from trainer.result import Result
from trainer.telemetry.health import Health
from trainer.telemetry.heartbeat import Heartbeat
from trainer.telemetry.line import Since, StageLines
from trainer.text import Lines
from trainer.training.loop import Step


class Channel(Protocol):
    """Somewhere else that a run is shown. It never raises: what is shown is worth less than the run."""

    def tag(self, stage: str) -> None:
        """A stage begins."""

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`."""

    def summarise(self, metrics: Mapping[str, Any]) -> None:
        """The run is complete."""

    def close(self, status: int) -> None:
        """It is over, with this exit status. May be called twice."""


class Telemetry:
    """The channels of one run. Use as a context manager.

    Args:
        path: of `metrics.jsonl`, begun anew unless `append`; None: nothing is told at all.
        every: log each that many steps, and the last of a stage.
        dense: log each of the first so many steps of a stage.
        channels: further ones.
        heart: told what the run is doing; closed with it.
        out: where people read; None: nowhere. Warnings go to stderr.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        every: int,
        dense: int = 1,
        append: bool = False,
        channels: Sequence[Channel] = (),
        heart: Heartbeat | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._warnings = _warnings_in(path) if path and append else []
        self._file = None if path is None else path.open("a" if append else "w", encoding="utf-8")
        self._every, self._dense, self._channels, self._heart = every, dense, channels, heart
        self._people = Lines(None if path is None else out)
        self._total, self._since = 0.0, Since()

    @property
    def warnings(self) -> tuple[Mapping[str, Any], ...]:
        """What has looked wrong so far, in all attempts at this run."""
        return tuple(self._warnings)

    def plan(self, total: float) -> None:
        """How much work there is, in the unit of `begin`'s `finished`."""
        self._total = total

    def begin(
        self, stage: str, *, finished: float, weight: float, device: Device, flops_per_token: float = 0.0
    ) -> None:
        """A stage begins: `finished` work is behind it, and each of its steps is `weight` more."""
        self._lines = StageLines(
            device=device,
            before=finished,
            weight=weight,
            total=self._total,
            flops_per_token=flops_per_token,
        )
        self._since, self._health = Since(), Health(stage)
        if self._heart:
            self._heart.stepped(None)
            # The first step of a stage is what compiles its graph.
            self._heart.enter("compiling" if device.compiles else "training", f"the first step of {stage}")
        for channel in self._channels:
            channel.tag(stage)

    def preparing(self, what: str, fraction: float | None) -> None:
        """Before the stages: text and teacher are loaded, or made."""
        if self._heart:
            self._heart.enter("loading", what if fraction is None else f"{what}, {fraction:.0%} of it done")

    def during(self, phase: str, detail: str = "") -> AbstractContextManager[None]:
        """Around what is no step: evaluating, saving."""
        return self._heart.during(phase, detail) if self._heart else contextlib.nullcontext()

    def watch(self, step: Step) -> None:
        """One step is done; every so often that is a line, and always where something looks wrong."""
        self._since.add(step)
        self._pulse(step)
        if self._file is None:
            return
        warnings = self._examine(step)
        regular = step.step % self._every == 0 or step.step in (1, step.of)
        if not (regular or warnings or step.inspection or step.step <= self._dense):
            return
        line = self._lines.line(step, self._since, now=time.time())
        if warnings:
            line["warnings"] = warnings
        self._since = Since()
        self._write(line)
        for channel in self._channels:
            channel.log(line)
        if regular:
            told = (
                f"{name} {line[name]:.4g}"
                for name in ("loss", "lr", "lambda", "tokens_per_second")
                if name in line
            )
            self._people.write(f"{step.stage} {step.step}/{step.of}  {'  '.join(told)}")
        if step.inspection and step.inspection.decision:
            self._people.write(f"{step.stage} {step.step}/{step.of}  {step.inspection.decision}")

    def finish(self, result: Result) -> None:
        """The run is complete."""
        for channel in self._channels:
            channel.summarise(asdict(result.metrics))
        m = result.metrics
        self._people.write(f"final_loss {m.final_loss:.4f} ± {m.final_loss_sem:.4f} nats per token, lambda 1")

    def close(self, status: int = 0) -> None:
        """Ends the channels; `status` is the run's exit status. May be called twice."""
        with ExitStack() as stack:
            if self._heart:
                self._heart.enter("ending", "closing what it is shown in")
                stack.callback(self._heart.close, status)
            for channel in self._channels:
                stack.callback(channel.close, status)
            if self._file is not None:
                # What a full disk refused is still buffered, and closing tries again; that was told already.
                with contextlib.suppress(OSError):
                    self._file.close()

    def __enter__(self) -> Telemetry:
        if self._heart:
            self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(0 if error is None else getattr(error, "exit_status", 1))

    def _examine(self, step: Step) -> list[Mapping[str, Any]]:
        """What looks wrong after this step, told."""
        found = self._health.step(
            step.step,
            loss=step.losses["loss"],
            settings=step.settings,
            tokens=step.tokens,
            seconds=step.seconds,
            memory_bytes=self._lines.device.memory_bytes,
        )
        for warning in found:
            Lines(sys.stderr).write(f"trainer: warning: {warning.message}")
        warnings: list[Mapping[str, Any]] = [asdict(warning) for warning in found]
        self._warnings += warnings
        return warnings

    def _pulse(self, step: Step) -> None:
        """The next step begins with the end of this one."""
        if self._heart is None:
            return
        self._heart.stepped(step.seconds)
        if step.step < step.of:
            self._heart.enter(
                "training",
                f"step {step.step + 1} of {step.of} in {step.stage}",
                stage=step.stage,
                step=step.step + 1,
                of=step.of,
            )
        else:
            self._heart.enter("training", f"{step.stage} is done")

    def _write(self, line: Mapping[str, Any]) -> None:
        # Flushed: whoever follows the file sees each line when it is written.
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrainerError(
                f"cannot write {self._file.name!r}: {error.strerror}; make room there, and give the same "
                "command again"
            ) from error


def _warnings_in(metrics: Path) -> list[Mapping[str, Any]]:
    """Those of the lines that an earlier attempt has left."""
    with metrics.open(encoding="utf-8") as lines:
        return [warning for line in lines if "warnings" in line for warning in from_json(line)["warnings"]]
