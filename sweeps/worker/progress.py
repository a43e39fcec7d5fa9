"""Progress of a worker: a progress bar on a terminal, else a line per event, in text or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sweeps.experiment import Experiment
from sweeps.export.table import seconds, stage_costs
from sweeps.space.definition import Value
from sweeps.space.overrides import to_overrides
from sweeps.stages import sharing
from sweeps.text.printable import escape_json
from sweeps.text.shorten import shorten
from sweeps.trials.record import Trial
from sweeps.trials.redaction import printable
from sweeps.worker.trial_run import Watcher

if TYPE_CHECKING:
    from rich.progress import Progress


def say(line: str) -> None:
    """Write a line for people to stderr, without secrets and escape sequences."""
    print(printable(f"sweep: {line}"), file=sys.stderr, flush=True)


@contextmanager
def watcher(experiment: Experiment, log_format: str = "text") -> Iterator[Watcher]:
    """Yield a watcher that writes to stderr.

    Args:
        log_format: "json" for programs; "text" for people, with a progress bar on a terminal.
    """
    if log_format == "json":
        yield Events(experiment)
        return
    if not sys.stderr.isatty():
        yield Lines(experiment)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[progress]}", markup=False),  # a program's own text
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
    )
    with bar:
        yield Bar(experiment, bar)


class Lines(Watcher):
    """Watcher that writes one line per event for people."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def tell(self, event: str, record: Trial | None, why: str) -> None:
        if record is None:
            self._say(why)
        elif event == "started":
            again = f", attempt {record.attempt}" if record.attempt > 1 else ""
            overrides = " ".join(to_overrides(record.parameters))
            self._say(f"trial {record.trial} started ({record.generator}{again}): {overrides}")
        else:
            end = _end(self._experiment, record) if event == "ended" else f"dropped: {why}"
            self._say(f"trial {record.trial} {end}")

    def _say(self, line: str) -> None:
        say(line)


class Events(Watcher):
    """Watcher that writes one JSON object per event, for programs."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def tell(self, event: str, record: Trial | None, why: str) -> None:
        line: dict[str, object] = {"time": time.time(), "sweep": self._experiment.space.name, "event": event}
        line |= {} if record is None else {"trial": record.trial}
        if record is not None and event == "started":
            line |= {"attempt": record.attempt, "parameters": dict(record.parameters)}
        elif record is not None and event == "ended":
            last = record.history[-1]
            line |= {"status": record.status, "reason": last.reason, "failure": record.failure}
            line |= {"metrics": dict(record.metrics), "detail": last.detail, **stage_costs(record)}
        else:
            line["why"] = why
        print(escape_json(json.dumps(line, ensure_ascii=False)), file=sys.stderr, flush=True)


class Bar(Lines):
    """Watcher that writes lines above a progress bar of the running trial."""

    def __init__(self, experiment: Experiment, bar: Progress) -> None:
        super().__init__(experiment)
        self._bar = bar
        self._task = bar.add_task("", total=1.0, progress="", visible=False)

    def started(self, record: Trial) -> None:
        super().started(record)
        self._bar.reset(self._task, total=1.0, description=f"trial {record.trial}", progress="", visible=True)

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None:
        stage, step, of = (progress.get(name) for name in ("stage", "step", "of"))
        text = f"stage {shorten(stage)} " if stage is not None else ""
        text += f"step {step}" + (f"/{of}" if of is not None else "")
        if "loss" in progress:
            text += f" loss {shorten(progress['loss'])}"
        if "held_out_loss" in progress:
            text += f" held-out {shorten(progress['held_out_loss'])}"
        done = progress.get("done")
        if done is None and stage is None:  # of a script, which need not know the trainer's `done`
            done = step / of if isinstance(step, int | float) and isinstance(of, int | float) and of else None
        self._bar.update(self._task, completed=done if isinstance(done, int | float) else None, progress=text)

    def ended(self, record: Trial) -> None:
        self._bar.update(self._task, visible=False)
        super().ended(record)

    def _say(self, line: str) -> None:
        self._bar.console.print(printable(f"sweep: {line}"), markup=False, soft_wrap=True)


def _end(experiment: Experiment, record: Trial) -> str:
    if record.status == "pending":
        last = record.history[-1]
        verb = "crashed, to be tried again" if last.reason == "crashed" else "handed back"
        return f"{verb}: {shorten(last.detail)}"
    if record.status == "early_stopped":
        return f"stopped early: {shorten(record.history[-1].detail)}"
    if record.status == "failed":
        return f"failed: {shorten((record.error or '').partition(chr(10))[0])}"
    taken = seconds(record)
    metrics = ", ".join(f"{name} {shorten(record.metrics.get(name))}" for name in experiment.space.metrics())
    shared = f"; {line}" if (line := sharing.trial_line(record)) else ""
    return f"{record.status}: {metrics}" + ("" if taken is None else f" in {taken:.1f} s") + shared
