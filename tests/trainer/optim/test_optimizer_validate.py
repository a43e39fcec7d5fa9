"""An optimizer that cannot work here is refused before any stage, and only where its stage is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainer.api import check
from trainer.devices.device import open_device
from trainer.errors import ConfigError
from trainer.optim import build
from trainer.optim.build import optimizers, require_device, require_model, require_student


def test_every_optimizer_is_found_by_its_key() -> None:
    found = dict(optimizers(check(["stage2.optimizer.lr=0.5"])))
    assert {"model.teacher.optimizer", "stage1_9.optimizer", "stage2.optimizer"} <= set(found)
    assert found["stage2.optimizer"].lr == 0.5


def test_stages_that_are_left_out_are_not_asked() -> None:
    config = check(["stage1_9.max_steps=0", "stage1_9.schedule.warmup_steps=0"])
    assert "stage1_9.optimizer" not in dict(optimizers(config))


@pytest.mark.parametrize("stage", ["stage1_9", "stage2"])
def test_the_key_of_a_refusal_is_the_stages(stage: str) -> None:
    from torch import nn

    config = check([f"{stage}.optimizer.type=muonclip"])
    with pytest.raises(ConfigError, match=rf"^{stage}\.optimizer\.type: Identity "):
        require_model(config, nn.Identity())


def test_second_stages_optimizer_is_checked_before_training(
    run_small: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: object, *, key: str) -> None:
        raise ConfigError("no", key=key)

    monkeypatch.setattr(build, "clippable_attentions", refuse)
    with pytest.raises(ConfigError, match=r"^stage2\.optimizer: no"):
        run_small("stage2.optimizer.type=muonclip")
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_rounding_is_refused_for_the_tiny_teacher() -> None:
    config = check(["model.teacher.optimizer.stochastic_rounding=true", "device=cpu"])
    with pytest.raises(ConfigError, match=r"^model\.teacher\.optimizer\.stochastic_rounding: .*write false$"):
        require_device(config, open_device(config.device))


def test_rounding_is_refused_on_xla() -> None:
    config = check(["stage2.optimizer.stochastic_rounding=true", "device=cpu"])
    device = dataclasses.replace(open_device(config.device), torch_device=torch.device("xla"))
    with pytest.raises(ConfigError, match=r"^stage2\.optimizer\.stochastic_rounding: .* XLA"):
        require_device(config, device)


def test_rounding_is_refused_for_a_float32_student() -> None:
    config = check(["stage2.optimizer.stochastic_rounding=true"])
    require_student(config, torch.nn.Linear(2, 2).bfloat16())
    with pytest.raises(ConfigError, match=r"^stage2\.optimizer\.stochastic_rounding: .* float32"):
        require_student(config, torch.nn.Linear(2, 2))
