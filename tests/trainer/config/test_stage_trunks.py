"""Trunks: what runs of several lengths share before their decay, and which stages share nothing."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.text.step_key import step_key
from trainer import api
from trainer.api import stage_trunks
from trainer.config import ScheduleConfig
from trainer.config.compose import compose_config
from trainer.config.run import leaves
from trainer.config.stage_key import StageTrunk
from trainer.losses.hidden_state_loss import distill_weight_at
from trainer.quant.saliency import k_at

STAGES = ("stage1_9", "stage2")
TAIL = ("max_steps=150", "schedule.decay_fraction=0.1", "schedule.final_lr_ratio=0.5", "trunk_every=7")
OTHERS = {
    "stage1_9": (
        "seed=1",
        "stage1_9.optimizer.lr=0.5",
        "stage1_9.schedule.warmup_steps=6",
        "data.max_bytes=9",
    ),
    "stage2": (
        *(
            "seed=1",
            "stage1_9.max_steps=50",
            "stage1_9.schedule.decay_fraction=0.1",
            "stage2.optimizer.lr=0.5",
        ),
        *(
            "stage2.schedule.warmup_steps=6",
            "stage2.lambda_warmup.warmup_steps=7",
            "stage2.micro_batch_size=4",
        ),
        *("stage2.distill.weight=1.0", "device.auto_micro_batch=true"),
    ),
}


def trunk(stage: str, *overrides: str) -> StageTrunk:
    return stage_trunks(overrides)[stage]


@pytest.mark.parametrize("override", TAIL)
@pytest.mark.parametrize("stage", STAGES)
def test_only_the_decay_differs_between_runs_of_one_trunk(stage: str, override: str) -> None:
    before = trunk(stage)
    after = trunk(stage, f"{stage}.{override}")
    assert after.key == before.key
    if not override.startswith(("schedule.final", "trunk")):
        assert after.until != before.until


@pytest.mark.parametrize(("stage", "override"), [(s, o) for s in STAGES for o in OTHERS[s]])
def test_whatever_else_the_steps_depend_on_is_another_trunk(stage: str, override: str) -> None:
    assert trunk(stage, override).key != trunk(stage).key


@pytest.mark.parametrize(
    "override",
    ["eval.batches=3", "stage3.max_steps=5", "recovery.max_steps=5", "wandb.name=a", "device.parallel=ddp"],
)
@pytest.mark.parametrize("stage", STAGES)
def test_what_no_step_reads_is_the_same_trunk(stage: str, override: str) -> None:
    assert trunk(stage, override) == trunk(stage)


def test_optimizer_keys_split_a_trunk_if_read() -> None:
    momentum = "stage2.optimizer.momentum=0.5"
    assert trunk("stage2", momentum).key != trunk("stage2").key
    adamw = "stage2.optimizer.type=adamw"
    assert trunk("stage2", adamw, momentum) == trunk("stage2", adamw)


def test_trunk_keys_differ_between_stages_and_ends() -> None:
    keys = [each.key for each in stage_trunks([]).values()] + list(api.stage_keys([]).values())
    assert len({*keys, *(step_key(key, 3) for key in keys)}) == 2 * len(keys)


@pytest.mark.parametrize(
    ("overrides", "left"),
    [
        (["stage1_9.saliency.enabled=true"], ["stage2"]),
        (["stage1_9.distill_schedule.type=linear"], ["stage2"]),
        (["stage1_9.optimizer.weight_decay_until=0.5"], ["stage2"]),
        (["stage2.optimizer.weight_decay_until=0.5"], ["stage1_9"]),
        (
            ["stage2.optimizer.weight_decay_until=0.5", "stage2.optimizer.weight_decay=0.0"],
            ["stage1_9", "stage2"],
        ),
        (["stage1_9.optimizer.base_tokens=1000"], ["stage2"]),
        (["stage2.optimizer.base_tokens=1000"], ["stage1_9"]),
        (["stage2.optimizer.base_batch_tokens=1000"], ["stage1_9", "stage2"]),
        (["stage1_9.max_steps=0"], ["stage2"]),
        (["stage2.max_steps=0"], ["stage1_9"]),
    ],
)
def test_stages_without_a_trunk(overrides: list[str], left: list[str]) -> None:
    assert list(stage_trunks(overrides)) == left


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 40),
    st.floats(0, 1),
)
def test_no_schedule_differs_between_lengths_before_the_decay(
    steps: int, other: int, decay: float, another: float, warmup: int, final: float
) -> None:
    config = compose_config([])
    schedules = [
        ScheduleConfig(warmup_steps=warmup, decay_fraction=share, final_lr_ratio=end)
        for share, end in ((decay, final), (another, 0.0))
    ]
    shared = min(schedules[0].decay_start(steps), schedules[1].decay_start(other))
    constant = config.stage1_9.distill_schedule
    for step in range(shared):
        assert schedules[0].lr_factor(step, steps) == schedules[1].lr_factor(step, other)
        assert distill_weight_at(constant, step, steps) == distill_weight_at(constant, step, other)


def test_the_schedules_of_excluded_stages_differ_between_lengths() -> None:
    salient = compose_config(["stage1_9.saliency.enabled=true"]).stage1_9.saliency
    assert k_at(salient, 5, 50) != k_at(salient, 5, 60)
    ramp = compose_config(["stage1_9.distill_schedule.type=linear"]).stage1_9.distill_schedule
    assert distill_weight_at(ramp, 5, 50) != distill_weight_at(ramp, 5, 60)


def test_the_tail_is_keys_of_the_configuration() -> None:
    known = dict(leaves(asdict(compose_config([]))))
    assert {f"{stage}.{override.partition('=')[0]}" for stage in STAGES for override in TAIL} <= known.keys()


def test_a_wrong_override_is_refused_as_by_check() -> None:
    with pytest.raises(api.ConfigError, match=r"did you mean 'stage1_9\.max_steps'"):
        stage_trunks(["stage1_9.max_stps=3"])
