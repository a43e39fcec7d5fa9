"""Lines of `metrics.jsonl`. Used by `run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.cost.peak_flops import peak_flops_per_second
from trainer.devices.device import Device
from trainer.training.evaluation import HeldOutPoint
from trainer.training.loop import Step

MIB = 2**20

Line = dict[str, Any]


@dataclass(kw_only=True)
class StepTotals:
    """Sums over the steps since the last line."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0
    save_seconds: float = 0.0
    compile_seconds: float = 0.0

    def add(self, step: Step) -> None:
        self.steps += 1
        self.tokens += step.tokens
        self.seconds += step.seconds
        self.data_seconds += step.data_seconds
        self.save_seconds += step.save_seconds
        self.compile_seconds += step.compile_seconds

    def line(self, flops_per_token: float, peak: float | None) -> Line:
        """Return the rates, and the means per step.

        Args:
            flops_per_token: operations of training per token.
            peak: operations per second of the devices at most; None: not known.
        """
        steps, tokens_per_second = max(self.steps, 1), self.tokens / max(self.seconds, 1e-9)
        line: Line = {
            "tokens_per_second": tokens_per_second,
            "data_seconds": self.data_seconds / steps,
            "compute_seconds": (self.seconds - self.data_seconds) / steps,
            "save_seconds": self.save_seconds / steps,
        }
        if self.compile_seconds:
            line["compile_seconds"] = self.compile_seconds
        return line if peak is None else line | {"mfu": tokens_per_second * flops_per_token / peak}


@dataclass(frozen=True, kw_only=True)
class StageLines:
    """Lines of one stage.

    Args:
        before: work of the run before the stage, in effective steps.
        weight: work of one of its steps, in effective steps.
        total: work of the run, in effective steps; 0: not known.
        flops_per_token: operations of training per token in this stage.
    """

    device: Device
    before: float
    weight: float
    total: float
    flops_per_token: float

    def line(self, step: Step, totals: StepTotals, *, now: float) -> Line:
        """Return the line of a step; `totals` are over the steps since the last line, `now` since 1970."""
        return {
            **self._position(step),
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
            **(step.inspection.numbers if step.inspection else {}),
            **totals.line(self.flops_per_token, self._peak()),
            **memory_mib(self.device),
            "unix_seconds": round(now, 3),
        }

    def held_out(self, point: HeldOutPoint, *, now: float) -> Line:
        """Return the line of a held-out loss within the stage; `now` is in seconds since 1970."""
        return {
            **self._position(point),
            "held_out_loss": point.loss,
            "held_out_sequences": point.sequences,
            "held_out_seconds": point.seconds,
            "unix_seconds": round(now, 3),
        }

    def _position(self, at: Step | HeldOutPoint) -> Line:
        done = share_done(self.before, self.weight * at.step, self.total)
        return {"stage": at.stage, "step": at.step, "of": at.of, "done": done}

    def _peak(self) -> float | None:
        """Return the peak rate of the devices of all processes."""
        one = peak_flops_per_second(self.device)
        return None if one is None else one * self.device.ranks.world * self.device.chips


def share_done(before: float, within: float, total: float) -> float:
    """Return the share of a run's work that is done, all in effective steps; of no work, all."""
    return round((before + within) / total, 6) if total else 1.0


def memory_mib(device: Device) -> dict[str, float]:
    """Return memory now and at its peak, and what the allocator reserves, if there is one, in MiB."""
    reserved, now = device.reserved_memory_bytes(), device.memory_bytes()
    return {
        "memory_mib": now / MIB,
        # The kernel updates a process's peak a little later than its present use.
        "peak_memory_mib": max(now, device.peak_memory_bytes()) / MIB,
        **({} if reserved is None else {"reserved_memory_mib": reserved / MIB}),
    }
