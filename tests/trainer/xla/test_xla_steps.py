"""A step on XLA is one graph, compiled in the first steps of a stage and never again; and it is the CPU's step."""

from __future__ import annotations

import pytest
from stage_runs import SMALLEST, run_stage

pytestmark = pytest.mark.xla

# Between a CPU's operations, one by one, and XLA's fused ones. Weights near a rounding edge may quantise
# otherwise, and then the losses of later steps differ more than float32 does.
TOLERANCE = 2e-3
BFLOAT16_TOLERANCE = 1e-2
SALIENCY = "stage1_9.saliency.enabled=true"


@pytest.mark.parametrize(
    ("stage", "optimizer", "overrides"),
    [
        pytest.param(
            "stage1_9", "muon", ("stage1_9.loss_type=mse_normalized", SALIENCY), id="mse_normalized"
        ),
        pytest.param(
            "stage1_9",
            "adamw",
            (*SMALLEST, "stage1_9.loss_type=cosine", "stage1_9.distill_schedule.type=cosine"),
            id="cosine",
        ),
        pytest.param("stage1_9", "apollo", (*SMALLEST, "stage1_9.loss_type=mse"), id="mse"),
        pytest.param(
            "stage1_9", "apollo_mini", (*SMALLEST, "stage1_9.loss_type=inner_product"), id="inner_product"
        ),
        pytest.param("stage1_9", "muonclip", (*SMALLEST, "stage1_9.loss_type=kl"), id="kl"),
        pytest.param("stage2", "adamw", (*SMALLEST, "stage2.micro_batch_size=2"), id="micro-batches"),
        pytest.param("stage2", "muonclip", (*SMALLEST, "stage2.distill.weight=0.5"), id="taught"),
        pytest.param("stage2", "apollo", (*SMALLEST, "device.recompute=true"), id="recomputed"),
        pytest.param("stage2", "muon", (*SMALLEST, "device.dtype=bfloat16"), id="bfloat16"),
        # At the default weight of Stage 3's divergence the rounding of a few steps would be 1 % of that.
        *(
            pytest.param("stage3", name, (*SMALLEST, "stage3.logits_weight=1.0"), id=name)
            for name in ("adamw", "muonclip")
        ),
    ],
)
def test_step_is_one_graph_equal_to_the_cpus(stage: str, optimizer: str, overrides: tuple[str, ...]) -> None:
    """Each stage, and each optimizer at least once: an optimizer sees gradients and no stage, but for MuonClip.

    The first case has two layers and measured gains. Apollo draws a projection at every other step.
    """
    overrides = (f"optimizer@{stage}.optimizer={optimizer}", *overrides)
    if optimizer.startswith("apollo"):
        overrides = (*overrides, f"{stage}.optimizer.{optimizer}.update_interval=2")
    xla, cpu = run_stage(stage, "xla", *overrides), run_stage(stage, "cpu", *overrides)
    assert xla.compiled[2:] == [0] * 5  # in the first step, which is compiled[1], and never again
    # The saliency curriculum observes every other step, in a graph of its own.
    assert xla.launched[1:] == ([2, 1] * 3 if SALIENCY in overrides else [1] * 6)
    assert xla.fallen_back[1:] == [0] * 6
    assert xla.parts.keys() == cpu.parts.keys()
    tolerance = BFLOAT16_TOLERANCE if "device.dtype=bfloat16" in overrides else TOLERANCE
    for name, losses in cpu.parts.items():
        assert xla.parts[name] == pytest.approx(losses, rel=tolerance), name
    assert [step.lr for step in xla.steps] == [step.lr for step in cpu.steps]


@pytest.mark.parametrize(("stage", "more"), [("stage1_9", (SALIENCY,)), ("stage2", ())])
def test_held_out_losses_change_no_step(stage: str, more: tuple[str, ...]) -> None:
    """Lambda warms up for four of six steps; whatever it is, the measurement is the same graph."""
    overrides = (*SMALLEST, f"optimizer@{stage}.optimizer=adamw", "eval.at=[]", "eval.every_steps=1", *more)
    without, xla = (run_stage(stage, "xla", *overrides, measured=measured) for measured in (False, True))
    cpu = run_stage(stage, "cpu", *overrides, measured=True)
    assert xla.parts == without.parts
    assert xla.compiled[3:] == [0] * 4  # those of the second measurement are in the third step's count
    # Three numbers are read for each measurement, both lambdas among them; no operation falls back.
    assert xla.fallen_back[1:] == [0] + [3] * 5
    losses = [point.loss for point in cpu.held_out]
    assert [point.loss for point in xla.held_out] == pytest.approx(losses, rel=TOLERANCE)
    assert [point.step for point in xla.held_out] == [1, 2, 3, 4, 5, 6]
