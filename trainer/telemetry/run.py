"""Telemetry of one run: `metrics.jsonl`, lines for people, the heartbeat and other channels.

Built by `__main__`, fed by `pipeline` through `watch`. Of several processes of one run, only the first
writes; the others have `Telemetry(None, …)`, which does nothing.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, TextIO

from pydantic_core import from_json

from sweeps.text.counted import counted
from sweeps.text.regular_file import open_regular
from trainer.config import Config
from trainer.devices.device import Device
from trainer.errors import TrainerError
from trainer.layout import METRICS_FILE
from trainer.result import Result
from trainer.telemetry.health import Health
from trainer.telemetry.heartbeat import Heartbeat
from trainer.telemetry.line import StageLines, StepTotals, share_done
from trainer.telemetry.tensorboard import FOLDER, TensorBoard
from trainer.telemetry.wandb_run import open_wandb
from trainer.text import Lines
from trainer.training.evaluation import HeldOutPoint
from trainer.training.loop import Step


class Channel(Protocol):
    """A tracker of runs. Its methods never raise, so that it cannot end a run."""

    def tag(self, stage: str) -> None:
        """Record that a stage begins."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Record a line of `metrics.jsonl`."""

    def replay(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Record the stages and lines of another run that this one goes on from."""

    def summarise(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a finished run."""

    def close(self, status: int) -> None:
        """End the record with the run's exit status. May be called twice."""


def open_channels(config: Config, folder: Path) -> list[Channel]:
    """Return the trackers that are configured and could be opened; others have warned on stderr."""
    channels: list[Channel] = []
    if config.telemetry.tensorboard:
        channels.append(TensorBoard(folder / FOLDER, metrics=folder / METRICS_FILE))
    if wandb := open_wandb(config, folder):
        channels.append(wandb)
    return channels


class Telemetry:
    """The channels of one run. A context manager around it.

    Args:
        path: of `metrics.jsonl`; None: nothing is written at all.
        every: steps between two lines; the last step of a stage has one, too.
        dense: first steps of a stage that have a line each.
        append: keep the lines of an earlier attempt.
        heartbeat: informed of every phase, and closed with the run.
        out: stream for people; None: none. Warnings go to stderr.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        every: int,
        dense: int = 1,
        append: bool = False,
        channels: Sequence[Channel] = (),
        heartbeat: Heartbeat | None = None,
        out: TextIO | None = None,
    ) -> None:
        earlier = _lines_with(("warnings", "held_out_loss"), path) if path and append else []
        self._warnings: list[Mapping[str, Any]] = []
        self._held_out: Mapping[str, Any] = {}  # the last such line
        self._file = None if path is None else path.open("a" if append else "w", encoding="utf-8")
        self._every, self._dense, self._channels, self._heartbeat = every, dense, channels, heartbeat
        self._console = Lines(None if path is None else out)
        self._total, self._totals = 0.0, StepTotals()
        self._remember(earlier)

    @property
    def warnings(self) -> tuple[Mapping[str, Any], ...]:
        """Return the health warnings so far, of all attempts at this run."""
        return tuple(self._warnings)

    def plan(self, total: float) -> None:
        """Set the work of the run, in effective steps."""
        self._total = total

    def take_over(
        self, metrics: Path, place: str, stages: Mapping[str, tuple[int, int]], *, held_out: bool
    ) -> None:
        """Replace all lines by those of the run that computed what comes before a place.

        Args:
            metrics: its `metrics.jsonl` up to there.
            place: in words.
            stages: of this run in order: effective steps of one step, and steps; the lines have another plan.
            held_out: take its held-out losses, too; not if this run measures them on other text.
        """
        if self._file is None:
            return
        self._file.seek(0)
        self._file.truncate()
        with open_regular(metrics) as file:
            lines: list[dict[str, Any]] = [from_json(line) for line in file]
        lines = [line for line in lines if held_out or "held_out_loss" not in line]
        for line in lines:
            # Effective steps of the stages before that of the line.
            before = sum(w * n for w, n in (stages[name] for name in takewhile(line["stage"].__ne__, stages)))
            weight, line["of"] = stages[line["stage"]]
            line["done"] = share_done(before, weight * line["step"], self._total)
            self._write(line)
        for channel in self._channels:
            channel.replay(lines)
        self._warnings = []
        self._remember(lines)
        self._console.write(f"going on after {place}, from its snapshot")

    def begin(
        self, stage: str, *, finished: float, weight: float, device: Device, flops_per_token: float = 0.0
    ) -> None:
        """Begin a stage.

        Args:
            finished: work of the run before it, in effective steps.
            weight: work of each of its steps, in effective steps.
            flops_per_token: operations of training per token.
        """
        self._lines = StageLines(
            device=device, before=finished, weight=weight, total=self._total, flops_per_token=flops_per_token
        )
        self._totals, self._health = StepTotals(), Health(stage)
        if self._heartbeat:
            self._heartbeat.record_step(None)
            # The first step of a stage compiles its graph.
            phase = "compiling" if device.compiles else "training"
            self._heartbeat.enter(phase, f"the first step of {stage}")
        for channel in self._channels:
            channel.tag(stage)

    def preparing(self, what: str, fraction: float | None) -> None:
        """Report the preparation of text and teacher; `fraction` is the share done, where it is known."""
        if self._heartbeat:
            self._heartbeat.enter(
                "loading", what if fraction is None else f"{what}, {fraction:.0%} of it done"
            )

    def during(self, phase: str, detail: str = "") -> AbstractContextManager[None]:
        """Return a context for a phase other than a step: evaluating, saving."""
        return self._heartbeat.during(phase, detail) if self._heartbeat else contextlib.nullcontext()

    def watch(self, step: Step) -> None:
        """Record a step. It is logged if a line is due, and always if a health check warns."""
        self._totals.add(step)
        self._beat(step)
        if self._file is None:
            return
        warnings = self._check_health(step)
        regular = step.step % self._every == 0 or step.step in (1, step.of)
        if not (regular or warnings or step.inspection or step.step <= self._dense):
            return
        line = self._lines.line(step, self._totals, now=time.time())
        if warnings:
            line["warnings"] = warnings
        self._totals = StepTotals()
        self._write(line)
        for channel in self._channels:
            channel.log(line)
        if regular:
            shown = [name for name in ("loss", "lr", "lambda", "tokens_per_second") if name in line]
            numbers = "  ".join(f"{name} {line[name]:.4g}" for name in shown)
            self._console.write(f"{step.stage} {step.step}/{step.of}  {numbers}")
        if step.inspection and step.inspection.decision:
            self._console.write(f"{step.stage} {step.step}/{step.of}  {step.inspection.decision}")

    def record_held_out(self, point: HeldOutPoint) -> None:
        """Record a held-out loss within the present stage, unless an earlier attempt has done so."""
        if (point.stage, point.step) == (self._held_out.get("stage"), self._held_out.get("step")):
            return
        line = self._lines.held_out(point, now=time.time())
        self._keep_held_out(line)
        self._write(line)
        if self._file is not None:
            for channel in self._channels:
                channel.log(line)
        shown = "not finite" if point.loss is None else f"{point.loss:.4g}"
        # A part of the text has another loss than all of it, on which the final loss is measured.
        text = f"on the first {counted(point.sequences, 'sequence')}"
        self._console.write(f"{point.stage} {point.step}/{point.of}  held_out_loss {shown} {text}")

    def _remember(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Take warnings and the last held-out loss of lines that are in the file already."""
        self._warnings += [warning for line in lines for warning in line.get("warnings", ())]
        for line in lines:
            self._keep_held_out(line)

    def _keep_held_out(self, line: Mapping[str, Any]) -> None:
        if "held_out_loss" in line:
            self._held_out = line
            if self._heartbeat:
                self._heartbeat.record_held_out(line["held_out_loss"])

    def finish(self, result: Result) -> None:
        """Report the result of a finished run."""
        for channel in self._channels:
            channel.summarise(asdict(result.metrics) | dict(result.scores))
        m = result.metrics
        self._console.write(
            f"final_loss {m.final_loss:.4f} ± {m.final_loss_sem:.4f} nats per token, lambda 1"
        )
        for name, score in result.scores.items():
            self._console.write(f"{name} {score:.4g}")

    def close(self, status: int = 0) -> None:
        """Close all channels with the run's exit status. May be called twice."""
        with ExitStack() as stack:
            if self._heartbeat:
                self._heartbeat.enter("ending", "closing trackers")
                stack.callback(self._heartbeat.close, status)
            for channel in self._channels:
                stack.callback(channel.close, status)
            if self._file is not None:
                # A line that a full disk refused is still buffered, and was reported; closing tries again.
                with contextlib.suppress(OSError):
                    self._file.close()

    def __enter__(self) -> Telemetry:
        if self._heartbeat:
            self._heartbeat.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(0 if error is None else getattr(error, "exit_status", 1))

    def _check_health(self, step: Step) -> list[Mapping[str, Any]]:
        """Return the new health warnings, and print them."""
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

    def _beat(self, step: Step) -> None:
        """Report to the heartbeat that this step ended, and the next began."""
        if self._heartbeat is None:
            return
        self._heartbeat.record_step(step.seconds)
        if step.step < step.of:
            self._heartbeat.enter(
                "training",
                f"step {step.step + 1} of {step.of} in {step.stage}",
                stage=step.stage,
                step=step.step + 1,
                of=step.of,
            )
        else:
            self._heartbeat.enter("training", f"{step.stage} is done")

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append a line and flush it, for readers that follow the file."""
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


def _lines_with(names: Sequence[str], metrics: Path) -> list[Mapping[str, Any]]:
    """Return the lines of an earlier attempt that may have one of the fields."""
    with open_regular(metrics) as lines:
        return [from_json(line) for line in lines if any(name.encode() in line for name in names)]
