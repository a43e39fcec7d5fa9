"""Configuration of what accompanies a stage's steps: averaged weights, automatic freezing, checkpoints.

Read by `trainer.training` and `trainer.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from sweeps.text.counted import counted
from trainer.config.fields import STRICT, AboveZero, Count, Decay, FieldError, NonNegative, Positive, Text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AverageConfig:
    """An average of the student's weights over the last stage, which the student has in the end.

    It changes no step: the weights that are trained go on as they are.

    Args:
        type: `none`; `ema`: exponential moving average; `last`: mean over the last steps of the stage (LAWA,
            arXiv:2209.14981).
        decay: of `ema`; until 1/(1-decay) steps are averaged it is their plain mean.
        steps: of `last`, so many.
    """

    type: Literal["none", "ema", "last"]
    decay: Decay
    steps: Positive

    def stage(self, steps: Mapping[str, int]) -> str | None:
        """Return the stage that is averaged: the last that is trained of Stages 2 and 3; None: none is.

        Args:
            steps: of each stage, in the order of the stages.
        """
        trained = [name for name in ("stage2", "stage3") if steps[name]]
        return trained[-1] if trained and self.type != "none" else None

    def check(self, steps: Mapping[str, int]) -> Iterator[FieldError]:
        """Yield a FieldError if there is no stage to average, or too few steps."""
        if self.type == "none":
            return
        name = self.stage(steps)
        if name is None:
            yield FieldError("neither Stage 2 nor Stage 3 is trained; write none", key="type")
        elif self.type == "last" and self.steps > steps[name]:
            yield FieldError(
                f"{self.steps} is more than {name}.max_steps ({steps[name]}); write that at most", key="steps"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AutoFreezeConfig:
    """Automatic freezing: parameters that stop changing are rounded to float16 and frozen for good.

    Steps are counted within each stage and not by the clock, so that a resumed run decides as an
    uninterrupted one does.

    Args:
        enabled: switch for all of it.
        parameters: shell patterns (`*`, `?`, `[ab]`) of the student's parameter names; each must match at
            least one. The defaults are SubLN's gains.
        threshold: largest absolute change of any element between two checks that still counts as unchanged.
        patience: consecutive checks without a change before the parameters are frozen.
        every_steps: optimizer steps between two checks.
        start_step: step of a stage before which nothing is checked.
        dry_run: check and report, but freeze nothing.
    """

    enabled: bool
    parameters: Annotated[tuple[Text, ...], Field(min_length=1)]
    threshold: AboveZero
    patience: Positive
    every_steps: Positive
    start_step: Count
    dry_run: bool

    def check(self, steps: int) -> Iterator[FieldError]:
        """Yield a FieldError if nothing could ever freeze in stages of at most `steps` steps."""
        first = max(1, -(-self.start_step // self.every_steps)) * self.every_steps
        needed = first + self.patience * self.every_steps
        if self.enabled and needed > steps:
            yield FieldError(
                f"the check that may freeze comes at step {needed} of a stage at the earliest, and the "
                f"longest has {counted(steps, 'step')}; write a smaller every_steps, start_step or patience",
                key="every_steps",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """Intervals between checkpoints, whichever ends first; a preempted run writes one in any case.

    Args:
        every_steps: optimizer steps between two, counted over all stages; 0 is never.
        every_seconds: wall time between two; 0 is never.
        keep: newest checkpoints that stay in the run's folder. With 1 there is no fallback if it is damaged.
        format: of checkpoints and of snapshots of stages. `whole`: the first of the processes that share the
            run gathers all tensors and writes them. `sharded`: each writes its own part
            (torch.distributed.checkpoint), so that none has more than that in memory. `auto`: sharded with
            `device.parallel=fsdp`. Either is read by any number of processes.
        notice_seconds: between a preemption's signal and the end, within which its checkpoint is to be
            written. The preflight warns if this disk is too slow for that; 0: it does not.
    """

    every_steps: Count
    every_seconds: NonNegative
    keep: Positive
    format: Literal["auto", "whole", "sharded"]
    notice_seconds: NonNegative

    def is_sharded(self, parallel: str) -> bool:
        """Return whether each process writes its own part, of processes that share the run in this way."""
        return parallel != "none" and (
            self.format == "sharded" or (self.format == "auto" and parallel == "fsdp")
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SnapshotsConfig:
    """Snapshots of finished stages. One that is in the run's folder is used in any case.

    Args:
        write: write one at the end of Stage 1.9, for other runs to start from.
    """

    write: bool
