"""Averages of weights: their values, what they leave alone, and going on with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trainer.api import check, stage_keys, stage_trunks
from trainer.config import sha256
from trainer.config.training import AverageConfig
from trainer.pipeline import Outcome
from trainer.training.train_step import TrainStep
from trainer.training.weight_average import WeightAverage

Run = Callable[..., Outcome]
EMA = ("average.type=ema", "average.decay=0.6")
LAST = ("average.type=last", "average.steps=3")


def averaged(
    kind: Literal["ema", "last"], values: list[float], *, decay: float = 0.5, steps: int = 1
) -> float:
    """Return the average of a model of one weight that has these values after its steps."""
    model = nn.Linear(1, 1, bias=False)
    config = AverageConfig(type=kind, decay=decay, steps=steps)
    average = WeightAverage(model, config, stage="stage2", steps=len(values))
    average.begin()
    for number, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, value)
        average.after(number)
    average.apply()
    return model.weight.item()


VALUES = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(values=VALUES, data=st.data())
def test_last_is_the_mean_of_the_last_steps(values: list[float], data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, len(values)))
    expected = sum(values[-steps:]) / steps
    assert averaged("last", values, steps=steps) == pytest.approx(expected, abs=1e-4)


@settings(max_examples=50, deadline=None)
@given(values=VALUES, decay=st.floats(0, 0.99))
def test_ema_begins_as_a_mean_and_goes_on_with_its_decay(values: list[float], decay: float) -> None:
    expected = 0.0
    for number, value in enumerate(values, start=1):
        kept = min(decay, 1 - 1 / number)
        expected = kept * expected + (1 - kept) * value
    assert averaged("ema", values, decay=decay) == pytest.approx(expected, abs=1e-4)


def test_constant_weights_are_their_own_average_bit_for_bit() -> None:
    value = float(torch.tensor(0.1))
    assert averaged("ema", [value] * 9, decay=0.9) == value
    assert averaged("last", [value] * 9, steps=7) == value


def test_the_average_of_bfloat16_weights_is_kept_in_float32() -> None:
    model = nn.Linear(4, 4, bias=False).bfloat16()
    average = WeightAverage(model, AverageConfig(type="ema", decay=0.999, steps=1), stage="stage2", steps=2)
    average.begin()
    average.after(1)
    assert {each.dtype for each in average.state().tensors.values()} == {torch.float32}
    average.apply()
    assert model.weight.dtype == torch.bfloat16


@torch.no_grad()
def test_weights_that_were_frozen_meanwhile_are_not_averaged() -> None:
    model = nn.Linear(1, 1)
    average = WeightAverage(model, AverageConfig(type="ema", decay=0.9, steps=1), stage="stage2", steps=2)
    average.begin()
    for step in (1, 2):
        for parameter in model.parameters():
            parameter.fill_(step)
        average.after(step)
        model.bias.requires_grad_(False)
    average.apply()
    assert (model.weight.item(), model.bias.item()) == (1.5, 2.0)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Return the list that the trained weights are appended to after each step of Stage 2."""
    weights, call = list[dict[str, Tensor]](), TrainStep.__call__

    def step(self: TrainStep, *arguments: object, number: int) -> object:
        result = call(self, *arguments, number=number)  # type: ignore[arg-type]
        if self.plan.name == "stage2":
            weights.append({name: each.detach().clone() for name, each in self._model.named_parameters()})
        return result

    monkeypatch.setattr(TrainStep, "__call__", step)
    return weights


def test_the_student_has_the_average_and_training_is_what_it_was(
    run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_small()
    weights = recorded(monkeypatch)
    outcome = run_small(*LAST)
    for name, parameter in outcome.student.named_parameters():
        mean = torch.stack([each[name] for each in weights[-3:]]).mean(dim=0)
        torch.testing.assert_close(parameter, mean)
    ours, theirs = outcome.result.metrics, plain.result.metrics
    assert ours.unaveraged_loss == theirs.final_loss
    assert ours.final_loss != theirs.final_loss
    assert ours.stage2_train_loss == theirs.stage2_train_loss
    assert "unaveraged_loss" in outcome.result.document()["metrics"]
    assert "unaveraged_loss" not in plain.result.document()["metrics"]


def test_the_last_stage_is_averaged(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = list[str](), WeightAverage.begin
    monkeypatch.setattr(WeightAverage, "begin", lambda self: (begun.append(self.stage), begin(self))[1])
    run_small(*EMA, "stage3.max_steps=2", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")
    run_small(*EMA)
    assert begun == ["stage3", "stage2"]


def test_averaged_stage_has_no_trunk() -> None:
    plain, with_average = [], list(EMA)
    assert stage_keys(plain) == stage_keys(with_average)
    assert stage_trunks(plain).keys() == {"stage1_9", "stage2"}
    assert stage_trunks(with_average) == {"stage1_9": stage_trunks(plain)["stage1_9"]}
    stage3 = ["stage3.max_steps=10"]
    assert stage_trunks([*with_average, *stage3]) == stage_trunks([*plain, *stage3])


def test_settings_without_an_average_are_not_pinned() -> None:
    assert sha256(check(["average.decay=0.5"])) == sha256(check([]))
    assert sha256(check([*EMA])) != sha256(check([]))


@pytest.mark.parametrize("average", [EMA, LAST], ids=["ema", "last"])
def test_the_saved_student_and_the_lines_have_the_average(
    average: tuple[str, ...], run_small: Run, tmp_path: Path
) -> None:
    metrics = run_small(*average, "eval.at=[0.5,1.0]", "eval.part_batches=2").result.metrics
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "held_out_loss" in line][-1]
    assert last["held_out_loss"] == pytest.approx(metrics.final_loss, abs=1e-5)
