"""Configuration of automatic freezing. Read by `trainer.training.auto_freeze`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from sweeps.text.counted import counted
from trainer.config.fields import STRICT, AboveZero, Count, FieldError, Positive, Text


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
