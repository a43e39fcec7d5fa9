"""Ways to compute the same training compute the same training: by cosines of logits, gradients and weights.

The ternary student makes this hard on purpose: a weight near a rounding edge that falls to the other side is
a large difference. Where the way of computing changes float32 rounding, a few of them do.
"""

from __future__ import annotations

import math

import pytest
import torch
from same_training import BASE, assert_same

from benchmarks.equivalence import Trace, likeness, trace

STAGES = ("stage1_9", "stage2", "stage3")


@pytest.fixture(scope="module")
def plain() -> dict[str, Trace]:
    return {stage: trace(BASE, stage=stage) for stage in STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_way_twice_is_the_same_bit_for_bit(stage: str, plain: dict[str, Trace]) -> None:
    again = trace(BASE, stage=stage)
    assert torch.equal(again.after, plain[stage].after)
    assert torch.equal(again.gradient, plain[stage].gradient)
    assert again.losses == plain[stage].losses
    assert math.isclose(likeness(again, plain[stage]).updates, 1.0)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (["stage2.optimizer.lr=0.012"], "weights"),
        (["stage2.optimizer.beta2=0.5"], "updates"),  # the same first step, another way to go on
        (["stage2.lambda_warmup.enabled=false"], "gradients"),
        (["seed=1"], "logits"),
    ],
)
def test_another_training_is_told_apart(other: list[str], field: str, plain: dict[str, Trace]) -> None:
    """The kit would see what the tests below say is not there."""
    assert getattr(likeness(plain["stage2"], trace([*BASE, *other])), field) < 0.9999


@pytest.mark.parametrize("stage", STAGES)
def test_recomputation_changes_nothing(stage: str, plain: dict[str, Trace]) -> None:
    """Not even a bit on a CPU: the same operations run in the same order, only later."""
    other = trace([*BASE, "device.recompute=true"], stage=stage)
    assert other.losses == plain[stage].losses
    assert torch.equal(other.after, plain[stage].after)


@pytest.mark.parametrize("stage", STAGES)
def test_weights_that_are_not_held_are_the_same(stage: str, plain: dict[str, Trace]) -> None:
    micro = f"{stage}.micro_batch_size=4"
    held, other = (
        trace([*BASE, micro, f"device.hold_weights={hold}"], stage=stage) for hold in ("true", "false")
    )
    assert other.losses == held.losses
    assert torch.equal(other.after, held.after)


@pytest.mark.parametrize("stage", STAGES)
def test_one_batch_of_16_is_four_of_4(stage: str, plain: dict[str, Trace]) -> None:
    micro = trace([*BASE, f"{stage}.micro_batch_size=4"], stage=stage)
    assert_same(plain[stage], micro)


@pytest.mark.parametrize("stage", STAGES)
def test_bfloat16_products_are_those_of_float32_to_two_digits(stage: str, plain: dict[str, Trace]) -> None:
    """8 bits of mantissa: 0.4 % in a product, and ternary weights that fall on the other side of an edge."""
    other = trace([*BASE, "device.dtype=bfloat16"], stage=stage)
    ours = likeness(plain[stage], other)
    assert ours.losses < 0.005, ours
    assert min(ours.gradients, ours.weights) > 0.999, ours
    assert min(ours.logits, ours.updates) > 0.98, ours


@pytest.mark.parametrize("stage", STAGES)
def test_eager_attention_is_torchs_own(stage: str, plain: dict[str, Trace]) -> None:
    other = trace(BASE, stage=stage, attention="sdpa")
    assert (plain[stage].attention, other.attention) == ("eager", "sdpa")
    assert_same(plain[stage], other)


def test_parameters_keep_their_names_whatever_computes_them(plain: dict[str, Trace]) -> None:
    """Checkpoints are written by name, and read by runs that compile or recompute otherwise."""
    assert trace([*BASE, "device.recompute=true"]).parameters == plain["stage2"].parameters
    assert not [name for name in plain["stage2"].parameters if "_orig_mod" in name or "checkpoint" in name]
