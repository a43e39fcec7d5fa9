"""Names of the files in a run's folder, the metrics of its result, and what preparing a run returns.

Loads neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from trainer.result import Metrics

RESULT_FILE = "result.json"
METRICS_FILE = "metrics.jsonl"
HELD_OUT_FILE = "held_out.json"
HEARTBEAT_FILE = "heartbeat.json"
MEMORY_FILE = "memory.jsonl"
SAMPLES_FILE = "samples.json"
WANDB_ID_FILE = "wandb_id.txt"
MODEL_FOLDER = "model"
SNAPSHOTS_FOLDER = "snapshots"
METRICS = tuple(field.name for field in fields(Metrics))
"""Names of the metrics that a finished run reports; the docs define each."""

Progress = Callable[[str, float | None], None]
"""Called with the name of what is being prepared, and its finished share (0 to 1) where that is known."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Artifacts that runs of one configuration share.

    Args:
        data_sha256: of the corpus and its tokenizer.
        teacher: folder of the trained teacher, or the name that `model=hf` was given.
        teacher_loss: its held-out loss in nats per token; None where it was not trained here.
    """

    data_sha256: str
    tokenizer: Path
    teacher: str
    teacher_loss: float | None
