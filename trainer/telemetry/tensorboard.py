"""Event files for TensorBoard: each number of `metrics.jsonl` as a scalar `stage/name`. Opened by `run`.

A resumed run writes them anew from the lines of `metrics.jsonl`, so that no step is in them twice. The record
writer of tensorboardX has no thread; whatever it raises is reported once, and training goes on.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sweeps.text.installation import install_command
from sweeps.text.regular_file import open_regular
from sweeps.text.shorten import one_line
from trainer.errors import MachineError
from trainer.text import Lines

FOLDER = "tensorboard"


def require_package() -> None:
    """Raise MachineError if tensorboardX is not installed."""
    if find_spec("tensorboardX") is None:
        raise MachineError(
            f"needs a package that is not here; {install_command('tensorboard')}, or write false",
            key="telemetry.tensorboard",
        )


class TensorBoard:
    """One run's event file."""

    def __init__(self, folder: Path, *, metrics: Path) -> None:
        self._writer: Any = None
        with self._off_after_an_error():
            from tensorboardX.event_file_writer import EventsWriter

            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._writer = EventsWriter(str(folder.resolve() / "events"))
            with open_regular(metrics) as lines:
                for line in lines:
                    self._write(from_json(line))
            self._writer.flush()

    def tag(self, stage: str) -> None:
        """Do nothing: the stage is in the scalars' names."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Write each number of the line, at the step of its stage."""
        if self._writer is not None:
            with self._off_after_an_error():
                self._write(line)
                self._writer.flush()

    def replay(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the lines of the run that this one goes on from."""
        for line in lines:
            self.log(line)

    def summarise(self, metrics: Mapping[str, Any]) -> None:
        """Write the result, as scalars `result/name` at step 0."""
        self.log({"stage": "result", "step": 0} | {k: v for k, v in metrics.items() if v is not None})

    def close(self, status: int) -> None:
        if self._writer is not None:
            with self._off_after_an_error():
                self._writer.close()
        self._writer = None

    def _write(self, line: Mapping[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{line['stage']}/{name}", simple_value=value)
            for name, value in line.items()
            if isinstance(value, int | float) and name not in ("step", "of", "unix_seconds")
        ]
        event = Event(step=line["step"], summary=Summary(value=values))
        if "unix_seconds" in line:
            event.wall_time = line["unix_seconds"]
        self._writer.write_event(event)

    @contextmanager
    def _off_after_an_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run is worth more
            self._writer = None
            warning = f"TensorBoard is off for this run: {one_line(error)}"
            Lines(sys.stderr).write(f"trainer: warning: {warning}")
