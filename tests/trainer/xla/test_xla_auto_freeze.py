"""Auto-freeze on XLA: looks cost no graph, a freeze costs one, and it is the CPU's freeze."""

from __future__ import annotations

import pytest
from stage_runs import SMALLEST, run_stage

pytestmark = pytest.mark.xla

FREEZE = (
    *SMALLEST,
    "auto_freeze.enabled=true",
    "auto_freeze.every_steps=1",
    "auto_freeze.start_step=2",
    "auto_freeze.patience=1",
    "auto_freeze.threshold=1e9",
    "optimizer@stage2.optimizer=adamw",
)


def test_freeze_compiles_the_step_once_more() -> None:
    """Looks after steps 2 and 3, the second of which freezes: the fourth step is another graph."""
    xla, cpu = run_stage("stage2", "xla", *FREEZE), run_stage("stage2", "cpu", *FREEZE)
    frozen = [step.inspection.froze for step in xla.steps if step.inspection]
    assert frozen == [step.inspection.froze for step in cpu.steps if step.inspection] == [False, True]
    assert xla.parts["loss"] == pytest.approx(cpu.parts["loss"], rel=2e-3)
    # One graph a step; then the freeze itself, which runs none; then steps of another graph.
    assert xla.launched[1:] == [1, 1, 1, 0, 1, 1, 1]
    assert xla.compiled[-2:] == [0, 0]
