"""The cache that a configuration needs. Without torch. Used by `teacher_cache`, `build`, `compatibility`."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import CachedTeacherConfig, Config
from trainer.errors import ConfigError

PATH, ANCHOR = "stage3.teacher.path", "stage3.teacher.anchor"


@dataclass(frozen=True, kw_only=True)
class CacheRequest:
    """A cache that a run needs.

    Args:
        path: a folder or URL.
        key: of `path` in the configuration.
        rows: number of rows that the run takes.
    """

    path: str
    key: str
    rows: int
    teacher: CachedTeacherConfig


def cache_request(config: Config, *, anchor: bool = False) -> CacheRequest:
    """Return the request for the teacher's or the anchor's cache; raise ConfigError if the run has none."""
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
    rows = stage.max_steps * stage.batch_size
    if not anchor:
        return CacheRequest(path=stage.teacher.path, key=PATH, rows=rows, teacher=stage.teacher)
    if stage.teacher.anchored is None:
        raise ConfigError(
            "without a weight the run takes no anchor; give this command the overrides of the run",
            key="stage3.teacher.anchor_weight",
        )
    return CacheRequest(path=stage.teacher.anchored, key=ANCHOR, rows=rows, teacher=stage.teacher)
