"""When parameters that have come to rest are frozen. Read by `trainer.training.auto_freeze`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, AboveZero, Count, FieldError, Positive, Text
from trainer.text import counted


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AutoFreezeConfig:
    """Some parameters are looked at every so often; once they have come to rest they are rounded to float16
    and trained no further, for the rest of the run.

    Steps are those of each stage, by themselves: what is decided must not hang on the clock by which
    checkpoints are written, or a run that was ended would come to another result than one that was not.

    Args:
        enabled: whether there is any of it.
        parameters: patterns of the student's parameter names, as the shell has them (`*`, `?`, `[ab]`); each
            must match at least one. The defaults are SubLN's gains.
        threshold: the largest change of any of these numbers between two looks that still counts as rest.
        patience: looks in a row that find rest, before anything is frozen.
        every_steps: between two looks.
        start_step: of a stage, before which nobody looks.
        dry_run: look and tell; freeze nothing.
    """

    enabled: bool
    parameters: Annotated[tuple[Text, ...], Field(min_length=1)]
    threshold: AboveZero
    patience: Positive
    every_steps: Positive
    start_step: Count
    dry_run: bool

    def check(self, steps: int) -> None:
        """Refuses what could never freeze anything in stages of at most so many steps. Raises FieldError."""
        first = max(1, -(-self.start_step // self.every_steps)) * self.every_steps
        needed = first + self.patience * self.every_steps
        if self.enabled and needed > steps:
            raise FieldError(
                f"the look that may freeze comes at step {needed} of a stage at the earliest, and the "
                f"longest has {counted(steps, 'step')}; write a smaller every_steps, start_step or patience",
                key="every_steps",
            )
