"""What a run tells while it trains: `metrics.jsonl`, lines for people, and Weights & Biases if it is on.

Built by `__main__`, fed by `pipeline` through `watch`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TextIO

from trainer.console import Lines
from trainer.device import Device
from trainer.errors import TrainerError
from trainer.loop import Step
from trainer.result import Result
from trainer.wandb_run import WandbRun

_MIB = 2**20


class Telemetry:
    """The channels of one run. Use as a context manager.

    Args:
        path: of `metrics.jsonl`; begun anew, unless `append`.
        every: log each that many steps, and the first and last of a stage.
        wandb: its run, or None.
        out: where people read, or None.
    """

    def __init__(
        self,
        path: Path,
        *,
        every: int,
        append: bool = False,
        wandb: WandbRun | None = None,
        out: TextIO | None = sys.stdout,
    ) -> None:
        self._file = path.open("a" if append else "w", encoding="utf-8")
        self._every, self._wandb, self._people = every, wandb, Lines(out)
        self._total = self._before = 0.0
        self._tokens, self._seconds = 0, 0.0

    def plan(self, total: float) -> None:
        """How much work there is, in the unit of `begin`'s `finished`."""
        self._total = total

    def begin(self, stage: str, *, finished: float, weight: float, device: Device) -> None:
        """A stage begins: `finished` work is behind it, and each of its steps is `weight` more."""
        self._before, self._weight, self._device = finished, weight, device
        self._tokens, self._seconds = 0, 0.0
        if self._wandb:
            self._wandb.tag(stage)

    def watch(self, step: Step) -> None:
        """One step is done; every so often that is a line."""
        self._tokens += step.tokens
        self._seconds += step.seconds
        if step.step % self._every and step.step not in (1, step.of):
            return
        line = self._line(step)
        self._tokens, self._seconds = 0, 0.0
        self._write(line)
        if self._wandb:
            self._wandb.log(line)
        told = (
            f"{name} {line[name]:.4g}"
            for name in ("loss", "lr", "lambda", "tokens_per_second")
            if name in line
        )
        self._people.write(f"{step.stage} {step.step}/{step.of}  {'  '.join(told)}")

    def finish(self, result: Result) -> None:
        """The run is complete."""
        if self._wandb:
            self._wandb.summarise(asdict(result.metrics))
        m = result.metrics
        self._people.write(f"final_loss {m.final_loss:.4f} ± {m.final_loss_sem:.4f} nats per token, lambda 1")

    def close(self, status: int = 0) -> None:
        """Ends the channels; `status` is the run's exit status. May be called twice."""
        try:
            # What a full disk refused is still buffered, and closing tries once more; that was told already.
            with contextlib.suppress(OSError):
                self._file.close()
        finally:
            if self._wandb:
                self._wandb.close(status)

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(0 if error is None else getattr(error, "exit_status", 1))

    def _line(self, step: Step) -> dict[str, float | str]:
        done = (self._before + self._weight * step.step) / self._total if self._total else 1.0
        return {
            "stage": step.stage,
            "step": step.step,
            "of": step.of,
            "done": round(done, 6),
            **step.losses,
            **{
                f"{name}_{index}": value
                for name, values in step.details.items()
                if values.ndim
                for index, value in enumerate(values.tolist(), start=1)
            },
            **step.settings,
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            **{name: value.item() for name, value in step.details.items() if not value.ndim},
            "tokens_per_second": self._tokens / max(self._seconds, 1e-9),
            "memory_mib": self._device.memory_bytes() / _MIB,
        }

    def _write(self, line: Mapping[str, float | str]) -> None:
        # Flushed: whoever follows the file sees each line when it is written.
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrainerError(f"cannot write {self._file.name!r}: {error.strerror}") from error
