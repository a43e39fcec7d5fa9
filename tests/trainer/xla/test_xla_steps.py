"""A step on XLA is one graph, compiled in the first steps of a stage and never again; and it is the CPU's step."""

from __future__ import annotations

import pytest
from stage_runs import run_stage

pytestmark = pytest.mark.xla

# Between a CPU's operations, one by one, and XLA's fused ones. Weights near a rounding edge may quantise
# otherwise, and then the losses of later steps differ more than float32 does.
TOLERANCE = 2e-3
BFLOAT16_TOLERANCE = 1e-2
ADAMW19, MUON19 = ("optimizer@stage1_9.optimizer=adamw",), ("optimizer@stage1_9.optimizer=muon",)


@pytest.mark.parametrize(
    ("stage", "overrides"),
    [
        ("stage1_9", ("stage1_9.loss_type=mse_normalized", *MUON19, "stage1_9.saliency.enabled=true")),
        (
            "stage1_9",
            (
                "stage1_9.loss_type=cosine",
                *ADAMW19,
                "model.layers=1",
                "stage1_9.distill_schedule.type=cosine",
            ),
        ),
        ("stage1_9", ("stage1_9.loss_type=mse", *ADAMW19, "model.layers=1")),
        ("stage1_9", ("stage1_9.loss_type=inner_product", *ADAMW19, "model.layers=1")),
        ("stage1_9", ("stage1_9.loss_type=kl", *MUON19)),
        ("stage2", ("optimizer@stage2.optimizer=adamw", "stage2.micro_batch_size=2")),
        ("stage2", ("optimizer@stage2.optimizer=muonclip", "stage2.distill.weight=0.5")),
        ("stage2", ("optimizer@stage2.optimizer=adamw", "device.recompute=true")),
        ("stage2", ("optimizer@stage2.optimizer=muon", "device.dtype=bfloat16")),
        ("stage3", ("optimizer@stage3.optimizer=adamw",)),
        ("stage3", ("optimizer@stage3.optimizer=muon",)),
    ],
    ids=[
        "mse_normalized",
        "cosine",
        "mse",
        "inner_product",
        "kl",
        "micro-batches",
        "taught",
        "recomputed",
        "bfloat16",
        "adamw",
        "muon",
    ],
)
def test_a_step_is_one_graph_that_is_compiled_once_and_computes_what_a_cpu_does(
    stage: str, overrides: tuple[str, ...]
) -> None:
    xla, cpu = run_stage(stage, "xla", *overrides), run_stage(stage, "cpu", *overrides)
    assert xla.compiled[2:] == [0] * 5  # in the first step, which is compiled[1], and never again
    # The saliency curriculum observes every other step, in a graph of its own.
    assert xla.launched[1:] == ([2, 1] * 3 if "stage1_9.saliency.enabled=true" in overrides else [1] * 6)
    assert xla.fallen_back[1:] == [0] * 6
    assert xla.parts.keys() == cpu.parts.keys()
    tolerance = BFLOAT16_TOLERANCE if "device.dtype=bfloat16" in overrides else TOLERANCE
    for name, losses in cpu.parts.items():
        assert xla.parts[name] == pytest.approx(losses, rel=tolerance), name
    assert [step.lr for step in xla.told] == [step.lr for step in cpu.told]
