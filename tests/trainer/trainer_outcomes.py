"""What two runs are compared by. Used by the tests of whole runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from trainer.pipeline import Outcome

TIMES = ("train_seconds", "tokens_per_second", "peak_memory_gib", "eval_seconds")
LINE_TIMES = (
    *("tokens_per_second", "data_seconds", "compute_seconds", "save_seconds", "unix_seconds", "mfu"),
    *("held_out_seconds", "memory_mib", "peak_memory_mib", "reserved_memory_mib"),
)


def without_times(outcome: Outcome) -> dict[str, Any]:
    metrics = dataclasses.asdict(outcome.result.metrics)
    return {name: value for name, value in metrics.items() if name not in TIMES}


def weights_digest(outcome: Outcome) -> str:
    digest = hashlib.sha256()
    for name, value in outcome.student.state_dict().items():
        digest.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def lines_without_times(metrics: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in LINE_TIMES} for line in lines]
