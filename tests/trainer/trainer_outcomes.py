"""What two runs are compared by. Used by the tests of whole runs."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch

from trainer.pipeline import Outcome

TIMES = ("train_seconds", "tokens_per_second", "peak_memory_gib")


def without_times(outcome: Outcome) -> dict[str, Any]:
    metrics = dataclasses.asdict(outcome.result.metrics)
    return {name: value for name, value in metrics.items() if name not in TIMES}


def weights_digest(outcome: Outcome) -> str:
    digest = hashlib.sha256()
    for name, value in outcome.student.state_dict().items():
        digest.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
