"""Small runs whose Stage 3 learns from a cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from trainer_precision import FLOAT32

from trainer.api import METRICS_FILE, quote
from trainer.data.corpus import Corpus
from trainer.teachers.cached.build import BuildResult

VOCABULARY, LENGTH = 300, 16
ON = (
    *(*FLOAT32, "stage1_9.max_steps=2", "stage2.max_steps=4", "stage3.max_steps=4"),
    *("stage3.batch_size=4", "stage3.schedule.warmup_steps=1", "stage3.attention_weight=0.0"),
)
Make = Callable[..., BuildResult]


class Prepared(NamedTuple):
    """Text and teacher of a run."""

    corpus: Corpus
    teacher: nn.Module


def cached(path: object, *, top_k: int = 5, negatives: int = 3) -> tuple[str, ...]:
    """Overrides of a run that learns from the cache in a folder."""
    return (
        *ON,
        *("stage3/teacher=cached", f"stage3.teacher.path={quote(str(path))}"),
        *(f"stage3.teacher.top_k={top_k}", f"stage3.teacher.negatives={negatives}"),
    )


def logged(folder: Path) -> list[dict[str, Any]]:
    """Metrics of Stage 3, one item per line."""
    lines = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    return [line for line in lines if line["stage"] == "stage3"]
