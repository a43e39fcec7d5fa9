"""Small runs whose training is compared, and how alike two of them must be."""

from __future__ import annotations

import pytest
from trainer_precision import FLOAT32

from benchmarks.equivalence import Trace, likeness

BASE = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.layers=2",
    "model.heads=2",
    "data.vocab_size=300",
    "data.sequence_length=16",
    "device=cpu",
    "device.threads=1",
    *FLOAT32,
    "device.compile=false",
    "stage1_9.schedule.warmup_steps=1",
    "stage2.schedule.warmup_steps=1",
    "stage3.schedule.warmup_steps=1",
    "stage2.lambda_warmup.warmup_steps=3",
)


def assert_same(plain: Trace, other: Trace) -> None:
    """Assert that two trainings are the same to float32 rounding.

    A weight or an activation that falls on the other side of an edge between two of its levels moves logits and
    later losses by more (one AVX-512 machine had 1e-4 in a sixth step, where AVX2 had 6e-7), but not the first
    loss, which comes before any update, and hardly the weights.
    """
    ours = likeness(plain, other)
    assert other.losses[0] == pytest.approx(plain.losses[0], rel=1e-6)
    assert ours.losses < 5e-4, ours
    assert min(ours.gradients, ours.weights, ours.updates) > 1 - 1e-6, ours
    assert ours.logits > 1 - 1e-4, ours
