"""What goes on beside the steps of a stage, where it was asked for. Made by `pipeline`, used by `loop`."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.memory_log.log import MemoryLog
from trainer.training.auto_freeze import AutoFreeze


@dataclass(frozen=True, kw_only=True)
class StageHooks:
    """Each is None where nobody asked for it.

    Args:
        freeze: looks at the model after every step, and may end the training of some parameters.
        memory: told of every step.
    """

    freeze: AutoFreeze | None = None
    memory: MemoryLog | None = None


NO_HOOKS = StageHooks()
