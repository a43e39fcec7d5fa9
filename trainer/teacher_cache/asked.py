"""What a configuration asks of a cache. Without torch. Used by `__main__`, `build` and `match`."""

from __future__ import annotations

from trainer.config import CachedTeacherConfig, Config
from trainer.errors import ConfigError


def asked_for(config: Config) -> tuple[CachedTeacherConfig, int]:
    """Which cache, and how many of its rows. Raises ConfigError: none."""
    stage = config.stage3
    if stage.teacher.kind != "cached":
        raise ConfigError(
            "a cache is for stage3/teacher=cached; give this command the overrides of the run",
            key="stage3.teacher",
        )
    if not stage.max_steps:
        raise ConfigError(
            "a cache has max_steps * batch_size rows, and there are no steps; write how many the run takes",
            key="stage3.max_steps",
        )
    return stage.teacher, stage.max_steps * stage.batch_size
