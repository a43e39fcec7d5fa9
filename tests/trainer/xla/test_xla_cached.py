"""Stage 3 from caches of a teacher and an anchor on XLA: one graph without [B, T, V], and the CPU's losses."""

from __future__ import annotations

import pytest
from stage_runs import SMALLEST
from xla_cached_runs import run_cached

pytestmark = pytest.mark.xla

TOLERANCE = 2e-3  # as in test_xla_steps


@pytest.mark.parametrize("cross_entropy", ["sampled", "exact"])
def test_cached_step_is_one_graph_equal_to_the_cpus(
    cross_entropy: str,
) -> None:
    """With two micro-batches a step: the rows that each takes of its batch are no reason for another graph."""
    overrides = (f"stage3.teacher.cross_entropy={cross_entropy}", "stage3.micro_batch_size=2")
    xla, cpu = (
        run_cached(kind, *SMALLEST, "optimizer@stage3.optimizer=adamw", *overrides) for kind in ("xla", "cpu")
    )
    assert xla.compiled[3:] == [0] * 4
    assert xla.launched[1:] == [1] * 6
    assert xla.fallen_back[1:] == [0] * 6
    assert xla.parts.keys() == cpu.parts.keys() == {"loss", "ce", "logits_kl", "anchor_kl"}
    for name, losses in cpu.parts.items():
        assert xla.parts[name] == pytest.approx(losses, rel=TOLERANCE), name
