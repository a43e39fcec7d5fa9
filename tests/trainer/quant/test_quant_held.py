"""Weights that are quantised once for several passes give the same numbers with less work."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from quant_forms import FORMS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import QuantConfig
from trainer.quant import ternary as ternary_module
from trainer.quant.saliency import ColumnSaliency, Share
from trainer.quant.ternary import TernaryLinear, held_weights
from trainer.quant.warmup import Lambda
from trainer.quant.weights import ternary_weight

# What torch's compiler itself does with an autograd.Function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

PASSES = 3


def two_layers(form: QuantConfig, value: float, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    lambda_ = Lambda(value)
    first, second = (TernaryLinear(nn.Linear(24, 24).to(dtype), lambda_, form) for _ in range(2))
    first.saliency = ColumnSaliency(first.weight, Share(0.25), ema_decay=0.9)
    return nn.Sequential(first, second)


def passes(model: nn.Module, dtype: torch.dtype) -> None:
    inputs = torch.Generator().manual_seed(1)
    for _ in range(PASSES):
        model(torch.randn(5, 24, generator=inputs).to(dtype)).square().mean().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_held_weights_give_the_same_gradients_bit_for_bit(
    form: QuantConfig, value: float, dtype: torch.dtype
) -> None:
    plain, held = two_layers(form, value, dtype), two_layers(form, value, dtype)
    passes(plain, dtype)
    with held_weights(held):
        passes(held, dtype)
    for ours, theirs in zip(held.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_each_weight_is_quantised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def count(w_OI: Tensor, *form: object) -> Tensor:
        made.append(w_OI.shape)
        return ternary_weight(w_OI, *form)  # type: ignore[arg-type]

    monkeypatch.setattr(ternary_module, "ternary_weight", count)
    model = two_layers(next(iter(FORMS.values())), 1.0, torch.float32)
    with held_weights(model):
        passes(model, torch.float32)
    assert len(made) == 2
    passes(model, torch.float32)
    assert len(made) == 2 + 2 * PASSES


def test_gradients_are_added_to_those_that_are_there() -> None:
    form = next(iter(FORMS.values()))
    plain, held = two_layers(form, 1.0, torch.float32), two_layers(form, 1.0, torch.float32)
    passes(plain, torch.float32)
    passes(plain, torch.float32)
    for _ in range(2):
        with held_weights(held):
            passes(held, torch.float32)
    for ours, theirs in zip(held.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_held_weights_are_released_after_a_failure() -> None:
    model = two_layers(next(iter(FORMS.values())), 1.0, torch.float32)
    twin, frozen = copy.deepcopy(model), model[1]
    frozen.weight.requires_grad_(False)

    def fail() -> None:
        with held_weights(model):
            passes(model, torch.float32)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert frozen.weight.grad is None
    with torch.no_grad():
        for each in (frozen, twin[1]):
            each.weight.mul_(2)
        x = torch.randn(5, 24)
        assert torch.equal(model(x), twin(x))  # nothing of the old weights is left


def test_held_weights_are_one_graph_for_all_steps() -> None:
    model = two_layers(next(iter(FORMS.values())), 0.0, torch.float32)
    plain, graphs = copy.deepcopy(model), []

    def count(module: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    for value in (0.0, 0.5, 1.0):
        for each in (model, plain):
            each.zero_grad()
            each[0].lambda_.set(value)
        with held_weights(model):
            passes(compiled, torch.float32)
        passes(plain, torch.float32)
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    torch._dynamo.reset()
    assert len(graphs) == 1


class WeightCasts(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotations here
    """Count the casts of a layer's weights to bfloat16."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.count += result.dtype == torch.bfloat16 and result.shape == (24, 24)
        return result


@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_autocast_takes_held_weights_as_they_are(value: float) -> None:
    form = next(iter(FORMS.values()))
    plain, held = (two_layers(form, value, torch.float32) for _ in range(2))
    x = torch.randn(5, 24)
    gradients, casts = [], []
    for model, context in ((plain, nullcontext()), (held, held_weights(held, dtype=torch.bfloat16))):
        with WeightCasts() as counted, context:
            for _ in range(PASSES):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(x).square().mean()
                loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        casts.append(counted.count)
    assert casts == [2 * PASSES, 2]
    for ours, theirs in zip(*gradients, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


def test_8_bit_products_scale_the_weights_uncast() -> None:
    model = two_layers(next(iter(FORMS.values())), 1.0, torch.float32)
    seen = []
    model[0].linear = lambda x, w, b: seen.append(w.dtype) or nn.functional.linear(x, w, b)
    with held_weights(model, dtype=torch.bfloat16):
        model[0](torch.randn(5, 24))
    assert seen == [torch.float32]
