"""The teacher's held-out loss: measured once, and the same to the bit from the cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainer import pipeline
from trainer.config.compose import compose_config
from trainer.devices.device import open_device
from trainer.errors import DivergedError
from trainer.outcome import Outcome
from trainer.teachers.teacher_loss import teacher_loss
from trainer.training.evaluation import HeldOutLoss

LOSS = HeldOutLoss(mean=3.0000000000000004, by_sequence=(0.1, 5.900000000000001))
BATCHES = [torch.arange(8).reshape(2, 4)]


class Counted:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> HeldOutLoss:
        self.calls += 1
        return LOSS


@pytest.fixture
def asked(small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Asks for the loss, with other things changed, and returns how often it has been measured so far."""
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    measure = Counted()

    def ask(*more: str, batches=BATCHES, dtype: str = "float32", sha256: str = "0" * 64) -> int:
        config = compose_config([*small, *more])
        device = open_device(config.device)
        found = teacher_loss(measure, config, batches, device=device, dtype=dtype, sha256=lambda: sha256)
        assert found == LOSS
        return measure.calls

    return ask


def test_what_was_measured_once_comes_from_the_cache_to_the_bit(asked: Callable[..., int]) -> None:
    assert [asked(), asked(), asked("seed=7", "stage2.optimizer.lr=0.1")] == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"batches": [torch.arange(8, 16).reshape(2, 4)]},
        {"batches": [torch.arange(8).reshape(4, 2)]},
        {"dtype": "bfloat16"},
        {"sha256": "1" * 64},
    ],
)
def test_another_teacher_text_or_dtype_is_measured(asked: Callable[..., int], change) -> None:
    assert [asked(), asked(**change), asked()] == [1, 2, 2]


@pytest.mark.parametrize("override", ["data.document_masks=true", "device.threads=2"])
def test_other_ways_to_compute_it_are_measured(asked: Callable[..., int], override: str) -> None:
    try:
        assert [asked(), asked(override), asked()] == [1, 2, 2]
    finally:
        torch.set_num_threads(1)


def test_unwritable_cache_measures_each_time(
    asked: Callable[..., int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("no folder")
    with caplog.at_level(logging.INFO):
        assert [asked(), asked()] == [1, 2]
    assert "cannot use the cache" in caplog.text


def test_a_damaged_one_is_measured_again(asked: Callable[..., int], tmp_path: Path) -> None:
    asked()
    (path,) = (tmp_path / "cache").glob("teacher_losses/*/losses.json")
    path.write_text("{")
    assert asked() == 2


def test_a_loss_that_is_not_finite_is_an_error_and_not_kept(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    config = compose_config(list(small))

    def diverges() -> HeldOutLoss:
        raise DivergedError(quantity="held-out loss", value=float("nan"), stage="here", step=0)

    with pytest.raises(DivergedError):
        teacher_loss(
            diverges, config, BATCHES, device=open_device(config.device), dtype="float32", sha256=lambda: "0"
        )
    assert not list((tmp_path / "cache").glob("teacher_losses/*/losses.json"))


def test_second_run_takes_the_cached_loss(
    run_small: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    measured: list[str] = []
    evaluate = pipeline.held_out_loss
    monkeypatch.setattr(
        pipeline,
        "held_out_loss",
        lambda *given, stage, **named: measured.append(stage) or evaluate(*given, stage=stage, **named),
    )
    first = run_small("seed=4")
    assert "the teacher's evaluation" in measured
    measured.clear()
    second = run_small("seed=5")
    assert measured
    assert "the teacher's evaluation" not in measured
    assert second.held_out.reference == first.held_out.reference
    again = run_small("seed=4")
    assert again.held_out == first.held_out
