"""Held-out losses within stages: what they are, when they are measured, and that training knows nothing of them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from trainer_outcomes import lines_without_times, weights_digest, without_times

from trainer.api import METRICS_FILE, check
from trainer.config import sha256
from trainer.data.inputs import prepare_inputs
from trainer.devices.device import open_device
from trainer.errors import DivergedError
from trainer.pipeline import Outcome
from trainer.quant.ternary import as_deployed, ternary_layers
from trainer.training import evaluation
from trainer.training.evaluation import HeldOutLoss, held_out_loss

Run = Callable[..., Outcome]
STAGE3 = ("stage3.max_steps=4", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")
# All that a measurement must put aside and bring back: lambda, salient columns, hooks on attention.
EVERYTHING = (
    "stage1_9.saliency.enabled=true",
    "stage1_9.saliency.initial_k=0.5",
    "stage1_9.saliency.update_interval=2",
    "stage2.optimizer.type=muonclip",
    "stage2.optimizer.muonclip.tau=0.001",
    "device.recompute=true",
    *STAGE3,
)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def measured(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if "held_out_loss" in line]


def test_training_is_the_same_to_the_bit_with_and_without_them(run_small: Run, tmp_path: Path) -> None:
    without = run_small(*EVERYTHING)
    known = lines_without_times(tmp_path / METRICS_FILE)
    measuring = run_small(*EVERYTHING, "eval.every_steps=1", "eval.part_batches=1")
    assert weights_digest(measuring) == weights_digest(without)
    assert without_times(measuring) == without_times(without)
    assert measuring.held_out == without.held_out
    ours = lines_without_times(tmp_path / METRICS_FILE)
    assert [line for line in ours if "held_out_loss" not in line] == known
    assert len(measured(tmp_path)) == 6 + 6 + 4
    assert measuring.result.metrics.eval_seconds > 0 == without.result.metrics.eval_seconds


def test_loss_is_that_of_the_deployed_student(
    run_small: Run, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a copy is measured at with lambda 1 and no salient column; the student itself gets back what it had."""
    config = check(small)
    device, part = open_device(config.device), prepare_inputs(config).held_out[:1]
    known, states = list[float](), list[list[tuple[float, bool, bool]]]()

    def state(student: nn.Module) -> list[tuple[float, bool, bool]]:
        layers = ternary_layers(student)
        return [(float(each.lambda_.weights.value), each.saliency is None, each.training) for each in layers]

    @contextmanager
    def spying(student: nn.Module) -> Iterator[None]:
        states.append(state(student))
        alone = copy.deepcopy(student)
        for layer in ternary_layers(alone):
            layer.lambda_.set(1.0)
            layer.saliency = None
        known.append(held_out_loss(alone, part, device=device, stage="here").mean)
        with as_deployed(student):
            yield
        assert state(student.train()) == states[-1]

    monkeypatch.setattr(evaluation, "as_deployed", spying)
    run_small("stage1_9.saliency.enabled=true", "eval.at=[0.3,0.5]", "eval.part_batches=1")
    assert [line["held_out_loss"] for line in measured(tmp_path)] == known
    assert len(set(known)) == 4
    salient, ramp = (1.0, False, True), [5 / 6, 11 / 12]
    assert [each[0] for each in states[:2]] == [salient, salient]
    assert [each[0] for each in states[2:]] == [(pytest.approx(value), True, True) for value in ramp]


def test_last_stage_ends_with_the_final_loss(
    run_small: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()

    def spying(*args: Any, stage: str, **kwargs: Any) -> HeldOutLoss:
        calls.append(stage)
        return held_out_loss(*args, stage=stage, **kwargs)

    monkeypatch.setattr(evaluation, "held_out_loss", spying)
    outcome = run_small("eval.at=[1.0]", "eval.part_batches=1")
    assert calls == ["step 6 of 6 in stage1_9"]
    first, last = measured(tmp_path)
    assert (first["stage"], last["stage"], last["step"], last["done"]) == ("stage1_9", "stage2", 6, 1.0)
    assert last["held_out_loss"] == sum(outcome.held_out.final.by_sequence[:4]) / 4
    assert (first["held_out_sequences"], last["held_out_sequences"]) == (4, 4)
    assert last["held_out_seconds"] == 0
    assert lines(tmp_path)[-1] == last


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ("eval.at=[]", []),
        ("eval.at=[0.5]", [3]),
        ("eval.at=[0.01,0.5,0.5,0.51]", [1, 3]),
        ("eval.at=[1]", [6]),
        ("eval.every_steps=4", [4]),
        ("eval.every_steps=7", []),
        ("eval.every_steps=3 eval.at=[0.5,0.7]", [3, 4, 6]),
    ],
)
def test_when_it_is_measured(settings: str, steps: list[int]) -> None:
    config = check(["eval.at=[]", *settings.split()]).eval
    assert [step for step in range(1, 7) if config.measures_after(step, 6)] == steps
    assert config.measures_within(6) == bool(steps)
    assert not config.measures_within(0)


def test_a_share_of_any_stage_is_one_of_its_steps() -> None:
    config = check(["eval.at=[1e-9,0.3333,1.0]"]).eval
    for of in (1, 2, 3, 10, 20_000):
        after = [step for step in range(1, of + 1) if config.measures_after(step, of)]
        assert after == sorted({1, max(1, round(0.3333 * of)), of})


def test_lines_are_in_the_order_of_the_steps_whatever_is_logged(run_small: Run, tmp_path: Path) -> None:
    run_small("eval.every_steps=2", "log_every=100", "telemetry.dense_steps=1")
    assert [(line["stage"], line["step"], "loss" in line) for line in lines(tmp_path)] == [
        (stage, step, trained)
        for stage in ("stage1_9", "stage2")
        for step, trained in ((1, True), (2, False), (4, False), (6, True), (6, False))
    ]


def test_a_loss_that_is_not_finite_is_null_and_ends_no_run(
    run_small: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = weights_digest(run_small())

    def diverging(*args: Any, stage: str, **kwargs: Any) -> HeldOutLoss:
        held_out_loss(*args, stage=stage, **kwargs)
        raise DivergedError(quantity="held-out loss", value=math.nan, stage=stage, step=0)

    monkeypatch.setattr(evaluation, "held_out_loss", diverging)
    assert weights_digest(run_small("eval.at=[0.5]")) == known
    assert [line["held_out_loss"] for line in measured(tmp_path)] == [None, None]


def test_what_is_measured_on_the_way_is_no_part_of_what_a_run_is(small: tuple[str, ...]) -> None:
    """A run may be gone on with at other points, and runs with others share a teacher."""
    digest = sha256(check(small))
    for setting in ("eval.at=[0.1]", "eval.every_steps=3", "eval.part_batches=1"):
        assert sha256(check([*small, setting])) == digest
    assert sha256(check([*small, "eval.batches=3"])) != digest


def test_default_costs_below_three_percent() -> None:
    """A forward pass for each measured sequence; a training step has three for each of its own, or more."""
    config = check([])
    part = config.eval.part_batches * config.eval.batch_size
    for stage in (config.stage1_9, config.stage2):
        times = sum(
            config.eval.measures_after(step, stage.max_steps) for step in range(1, stage.max_steps + 1)
        )
        assert times * part < 0.03 * 3 * stage.batch_size * stage.max_steps
