"""Auto-freeze: when it inspects, when it freezes, what it leaves of the optimizer, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trainer.api import METRICS_FILE, check
from trainer.checkpoint.state import StateError
from trainer.config import AutoFreezeConfig
from trainer.errors import ConfigError
from trainer.models.causal_lm import build_tiny
from trainer.pipeline import Outcome
from trainer.training.auto_freeze import AutoFreeze, auto_freeze

ALWAYS = AutoFreezeConfig(
    enabled=True, parameters=("*",), threshold=0.5, patience=2, every_steps=1, start_step=0, dry_run=False
)
SOON = (
    "auto_freeze.enabled=true",
    "auto_freeze.every_steps=1",
    "auto_freeze.start_step=2",
    "auto_freeze.patience=1",
    "auto_freeze.threshold=1e9",
)


def watching(config: AutoFreezeConfig, *values: float) -> tuple[AutoFreeze, nn.Parameter, list[int]]:
    """Return auto-freeze of one parameter, the parameter, and a list that grows at each freeze."""
    gain, calls = nn.Parameter(torch.tensor(values)), list[int]()
    watch = AutoFreeze(config, {"gain": gain})
    watch.begin(lambda: calls.append(1))
    return watch, gain, calls


@given(
    changes=st.lists(st.sampled_from([0.0, 0.25, 0.5, 2.0]), max_size=20),
    patience=st.integers(1, 4),
    every=st.integers(1, 3),
    start=st.integers(0, 6),
)
def test_freezes_after_patience_inspections(
    changes: list[float], patience: int, every: int, start: int
) -> None:
    """Against the rule said outright; a change of just the threshold is no rest."""
    config = dataclasses.replace(ALWAYS, patience=patience, every_steps=every, start_step=start)
    watch, gain, calls = watching(config, 1.0, 2.0)
    moved, inspected, stable, expected, found = 0.0, False, 0, None, None
    for step, change in enumerate(changes, start=1):
        with torch.no_grad():
            gain[0] += change
        moved += change
        if step % every == 0 and step >= start and expected is None:
            stable = stable + 1 if inspected and moved < 0.5 else 0
            moved, inspected = 0.0, True
            expected = step if stable == patience else None
        inspection = watch.inspect(step)
        if inspection and inspection.numbers["auto_freeze_frozen"] and found is None:
            found = step
    assert found == expected
    assert (len(calls), gain.requires_grad) == ((1, False) if expected else (0, True))


def test_frozen_parameters_are_rounded_once() -> None:
    watch, gain, _ = watching(ALWAYS, 0.1, -3.00001, 0.0)
    gain.grad = torch.ones(3)
    found = [watch.inspect(step) for step in range(1, 6)]
    assert gain.tolist() == torch.tensor([0.1, -3.00001, 0.0]).half().float().tolist()
    assert gain.grad is None
    assert [each is not None for each in found] == [True, True, True, False, False]
    numbers = [each.numbers for each in found if each]
    assert numbers[0] == {
        "auto_freeze_fp16_distance": pytest.approx(2.4e-5, rel=0.05),
        "auto_freeze_stable": 0,
        "auto_freeze_frozen": 0,
    }
    assert (numbers[2]["auto_freeze_stable"], numbers[2]["auto_freeze_frozen"]) == (2, 1)
    assert "rounded to float16" in found[2].decision  # type: ignore[union-attr]


def test_means_and_largest_changes_are_those_of_all_numbers() -> None:
    one, two = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    watch = AutoFreeze(ALWAYS, {"one": one, "two": two})
    watch.inspect(1)
    with torch.no_grad():
        one[1], two[0] = -2.0, 0.5
    inspection = watch.inspect(2)
    assert inspection is not None
    assert inspection.numbers["auto_freeze_max_change"] == 2.0
    assert inspection.numbers["auto_freeze_mean_change"] == 0.5


@pytest.mark.parametrize("value", [70000.0, float("nan"), float("inf")])
def test_what_no_float16_can_hold_is_not_frozen(value: float) -> None:
    watch, gain, _ = watching(ALWAYS, value)
    found = [each for step in range(1, 5) if (each := watch.inspect(step))]
    assert gain.requires_grad
    assert all(json.dumps(each.numbers, allow_nan=False) for each in found)
    if value == 70000.0:
        assert "no float16 can" in found[-1].decision


def test_a_dry_run_says_once_that_it_would_and_changes_nothing() -> None:
    watch, gain, calls = watching(dataclasses.replace(ALWAYS, dry_run=True), 0.1)
    found = [each for step in range(1, 7) if (each := watch.inspect(step))]
    assert [bool(each.decision) for each in found] == [False, False, True, False, False, False]
    assert "dry run" in found[2].decision
    assert (gain.tolist(), gain.requires_grad, calls) == (torch.tensor([0.1]).tolist(), True, [])


def test_a_stage_begins_without_what_the_one_before_had_seen() -> None:
    watch, _, _ = watching(ALWAYS, 1.0)
    for step in (1, 2):
        watch.inspect(step)
    watch.begin(lambda: None)
    assert [watch.inspect(step).numbers["auto_freeze_frozen"] for step in (1, 2, 3)] == [0, 0, 1]  # type: ignore[union-attr]


def test_a_state_of_other_parameters_is_refused() -> None:
    watch, _, _ = watching(ALWAYS, 1.0)
    watch.inspect(1)
    other = AutoFreeze(ALWAYS, {"bias": nn.Parameter(torch.ones(1))})
    with pytest.raises(StateError, match="other parameters"):
        other.restore(watch.state())


REFUSED = {
    "no such parameter": (["auto_freeze.parameters=['*.nowhere']"], "auto_freeze.parameters: no parameter"),
    "all of them": (["auto_freeze.parameters=['*']"], "nothing would be left"),
    "scaled by muonclip": (
        ["auto_freeze.parameters=['*.k_proj.*']", "stage2.optimizer.type=muonclip"],
        r"muonclip \(stage2.optimizer\) goes on scaling model.layers.0.self_attn.k_proj.weight",
    ),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_frozen_is_refused(overrides: list[str], message: str, small: tuple[str, ...]) -> None:
    config = check([*small, *SOON, *overrides])
    assert config.model.kind == "tiny"
    student = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    with pytest.raises(ConfigError, match=message):
        auto_freeze(config, student)


def test_a_run_freezes_logs_it_and_stays_frozen_to_its_end(
    run_small: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Frozen after step 3 of Stage 1.9, so that Stage 2 has its optimizer without them."""
    student = run_small(*SOON, "log_every=100").student
    frozen = {name: p for name, p in student.named_parameters() if not p.requires_grad}
    assert {name.rpartition("_proj.")[2] for name in frozen} == {"norm.weight"}
    assert len(frozen) == 4
    assert all(torch.equal(p, p.half().float()) for p in frozen.values())
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    looked = [line for line in lines if "auto_freeze_stable" in line]
    assert [(line["stage"], line["step"], line["auto_freeze_frozen"]) for line in looked] == [
        ("stage1_9", 2, 0),
        ("stage1_9", 3, 4),
    ]
