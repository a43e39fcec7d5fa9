"""An input that several layers read is quantised once, with the same results and gradients as without."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from trainer.config import QuantConfig
from trainer.models.subln import quantise
from trainer.quant import activations
from trainer.quant.activations import Int8Input, int8_activation
from trainer.quant.ternary import ternary_layers
from trainer.quant.warmup import Lambda, SharedScalar

LAYERS = 2
QUANT = QuantConfig(weight_scale="absmean", group_size=None, activations="int8")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the tensors that were quantised."""
    shapes: list[torch.Size] = []

    def count(x_TI: Tensor, group: None) -> Tensor:
        shapes.append(x_TI.shape)
        return int8_activation(x_TI)

    monkeypatch.setattr(activations, "int8_activation", count)
    return shapes


@pytest.fixture(scope="module")
def student() -> tuple[nn.Module, Lambda]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=2
    )
    model, lambda_ = LlamaForCausalLM(config), Lambda()
    quantise(model, lambda_, QUANT, {}, blended=False)
    return model, lambda_


def apart(model: nn.Module, lambda_: Lambda) -> nn.Module:
    """The same model with a quantiser for each layer."""
    for layer in ternary_layers(model):
        layer.quantise_input = Int8Input(layer.lambda_.activations)
    return model


def gradients(model: nn.Module) -> Iterator[Tensor]:
    return (parameter.grad for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("value", [0.3, 1.0])
def test_llama_layer_quantises_four_inputs_not_seven(
    value: float, student: tuple[nn.Module, Lambda], counted: list[torch.Size]
) -> None:
    model, _ = copy.deepcopy(student)
    for layer in ternary_layers(model):
        layer.lambda_.set(value)
    ids = torch.randint(32, (2, 5))
    shared = model(ids).logits
    assert len(counted) == 4 * LAYERS
    shared.square().mean().backward()
    with_sharing = [gradient.clone() for gradient in gradients(model)]

    counted.clear()
    model.zero_grad()
    unshared = apart(model, student[1])(ids).logits
    assert len(counted) == 7 * LAYERS
    unshared.square().mean().backward()
    assert torch.equal(shared, unshared)
    for ours, theirs in zip(with_sharing, gradients(model), strict=True):
        assert torch.equal(ours, theirs)


def test_at_lambda_zero_nothing_is_quantised(
    student: tuple[nn.Module, Lambda], counted: list[torch.Size]
) -> None:
    model, _ = copy.deepcopy(student)
    for layer in ternary_layers(model):
        layer.lambda_.set(0.0)
    model(torch.randint(32, (2, 5)))
    assert not counted


def test_new_and_changed_inputs_are_quantised_again(counted: list[torch.Size]) -> None:
    quantiser, x = Int8Input(SharedScalar(1.0), readers=3), torch.randn(3, 8)
    first = quantiser(x)
    assert quantiser(x) is first
    assert torch.equal(quantiser(other := torch.randn(3, 8)), int8_activation(other))
    assert torch.equal(quantiser(x.mul_(2)), int8_activation(x))
    assert torch.equal(quantiser(x.mul_(2)), int8_activation(x))
    assert len(counted) == 4


def test_nothing_is_kept_when_all_readers_had_it() -> None:
    quantiser, x = Int8Input(SharedScalar(1.0), readers=2), torch.randn(3, 8)
    quantised = [weakref.ref(quantiser(x)), weakref.ref(quantiser(x))]
    given = weakref.ref(x)
    del x
    gc.collect()
    assert given() is None
    assert all(each() is None for each in quantised)
