"""A NaN among the weights ends training at its step, whatever layer and form of quantisation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pytest
import torch
from quant_forms import FORMS

from trainer.api import check
from trainer.config import Config, TinyModelConfig
from trainer.devices.device import Device
from trainer.errors import DivergedError
from trainer.models.causal_lm import build_tiny
from trainer.models.subln import make_student
from trainer.quant.saliency import ColumnSaliency, Share
from trainer.quant.ternary import TernaryLinear
from trainer.stages.pretrain import cross_entropy
from trainer.training.context import StageContext, StagePlan
from trainer.training.loop import train

DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
LAYERS = ("self_attn.k_proj", "self_attn.o_proj.projection", "mlp.gate_proj", "mlp.down_proj.projection")


@pytest.fixture(scope="module")
def config() -> Config:
    sizes = ["model.hidden_size=32", "model.intermediate_size=48", "model.heads=2"]
    return check([*sizes, "stage1.subln=ones", "stage2.optimizer.type=adamw"])


def stream() -> Iterator[torch.Tensor]:
    while True:
        yield torch.arange(64).reshape(4, 16)


@pytest.mark.parametrize("form", ["absmean, one scale, int8", "absmedian, groups of 8, none"])
@pytest.mark.parametrize("lambda_", [0.0, 1.0])
@pytest.mark.parametrize(
    ("name", "poison"), [*zip(LAYERS, (math.nan, math.inf, math.nan, -math.inf), strict=True)]
)
def test_training_ends_at_the_step_that_met_it(
    form: str, lambda_: float, name: str, poison: float, config: Config
) -> None:
    assert isinstance(config.model, TinyModelConfig)
    torch.manual_seed(0)
    teacher = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    student, blend = make_student(teacher, config.stage1, [], quant=FORMS[form], device=DEVICE)
    layer = student.get_submodule(f"model.layers.1.{name}")
    assert isinstance(layer, TernaryLinear)
    layer.saliency = ColumnSaliency(layer.weight, Share(0.25), ema_decay=0.9)
    blend.set(lambda_)

    def prepare(step: int) -> Mapping[str, float]:
        if step == 1:
            with torch.no_grad():
                layer.weight[3, 7] = poison
        return {}

    plan = StagePlan(
        name="stage2", steps=3, optimizer=config.stage2.optimizer, schedule=config.stage2.schedule
    )
    with pytest.raises(DivergedError, match="nan at step 2 of stage2"):
        train(plan, student, cross_entropy(student), stream(), StageContext(device=DEVICE), prepare=prepare)
