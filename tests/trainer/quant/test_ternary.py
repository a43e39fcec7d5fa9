"""The ternary layer against nn.Linear and against its definition."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from quant_forms import BITNET, FORMS
from torch import nn

from trainer.quant.activations import int8_activation
from trainer.quant.saliency import ColumnSaliency, Share
from trainer.quant.ternary import TernaryLinear, as_deployed, fully_quantised, ternary_layers
from trainer.quant.warmup import Lambda
from trainer.quant.weights import ternary_weight

DTYPES = (torch.float32, torch.bfloat16)


def layer(
    dtype: torch.dtype = torch.float32, *, bias: bool = True, outputs: int = 16
) -> tuple[nn.Linear, TernaryLinear]:
    torch.manual_seed(0)
    linear = nn.Linear(24, outputs, bias=bias).to(dtype)
    return linear, TernaryLinear(copy.deepcopy(linear), Lambda(), BITNET)


def absmean(weight: torch.Tensor) -> torch.Tensor:
    return ternary_weight(weight, "absmean", None)


def test_ternary_weights_match_the_papers_definition() -> None:
    weight = torch.tensor([[0.1, -0.9, 0.5], [0.4, 0.0, -2.0]])
    scale = (0.1 + 0.9 + 0.5 + 0.4 + 2.0) / 6  # 0.65: 0.1/0.65 → 0, 0.5/0.65 → 1, 0.4/0.65 → 1
    expected = scale * torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0]])
    torch.testing.assert_close(absmean(weight), expected)


def test_a_median_is_the_lower_of_two_in_the_middle() -> None:
    weight = torch.tensor([[0.1, -0.3], [0.5, 2.0]])
    expected = torch.tensor([[0.0, -0.3], [0.3, 0.3]])  # 0.1 / 0.3 → 0
    torch.testing.assert_close(ternary_weight(weight, "absmedian", None), expected)


def test_each_group_of_inputs_has_its_own_scale_in_each_row() -> None:
    weight = torch.tensor([[1.0, 3.0, 0.1, -0.1], [8.0, 2.0, 0.0, 0.0]])
    expected = torch.tensor(
        [[0.0, 2.0, 0.1, -0.1], [5.0, 0.0, 0.0, 0.0]]
    )  # means 2, 0.1, 5, 0; 1 / 2 → 0, to even
    torch.testing.assert_close(ternary_weight(weight, "absmean", 2), expected)


def test_unquantised_activations_leave_weights_alone() -> None:
    linear, _ = layer()
    ternary = TernaryLinear(linear, Lambda(), FORMS["absmean, one scale, none"])
    x = torch.randn(3, 24)
    assert torch.equal(ternary(x), nn.functional.linear(x, absmean(linear.weight), linear.bias))


def test_activations_have_255_levels_and_keep_the_largest() -> None:
    x = torch.randn(5, 4000)
    quantised = int8_activation(x)
    for row, original in zip(quantised, x, strict=True):
        assert row.unique().numel() <= 255
        torch.testing.assert_close(row.abs().max(), original.abs().max())
    assert (quantised - x).abs().amax() <= x.abs().amax() / 127 / 2 * 1.0001


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_at_lambda_zero_it_is_bit_equal_to_a_linear_layer(dtype: torch.dtype, bias: bool) -> None:
    linear, ternary = layer(dtype, bias=bias)
    ternary.lambda_.set(0.0)
    x = torch.randn(3, 5, 24, dtype=dtype)
    assert torch.equal(ternary(x), linear(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_at_lambda_one_weights_have_exactly_three_values(dtype: torch.dtype) -> None:
    linear, ternary = layer(dtype, outputs=4096)
    weight = ternary.effective_weight()
    assert torch.equal(weight, absmean(linear.weight.float()).to(dtype))  # the codes that an export packs
    values = weight.unique()
    assert values.numel() == 3
    assert values[1] == 0
    assert values[0] == -values[2]


def test_between_zero_and_one_weights_are_the_blend() -> None:
    linear, ternary = layer()
    ternary.lambda_.set(0.25)
    expected = 0.75 * linear.weight + 0.25 * absmean(linear.weight)
    torch.testing.assert_close(ternary.effective_weight(), expected)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_gradients_pass_straight_through_both_quantisers(lambda_: float) -> None:
    _, ternary = layer()
    ternary.lambda_.set(lambda_)
    x = torch.randn(7, 24, requires_grad=True)
    upstream = torch.randn(7, 16)
    ternary(x).backward(upstream)
    blended = x + lambda_ * (int8_activation(x) - x)
    torch.testing.assert_close(ternary.weight.grad, upstream.T @ blended.detach())
    torch.testing.assert_close(x.grad, upstream @ ternary.effective_weight().detach())


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(poison: float) -> None:
    _, ternary = layer()
    x = torch.randn(2, 24)
    x[0, 3] = poison
    out = ternary(x)
    assert not out[0].isfinite().any()
    assert out[1].isfinite().all()
    with torch.no_grad():
        ternary.weight[0, 0] = poison
    assert not ternary(torch.randn(2, 24)).isfinite().all()


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(int8_activation(torch.zeros(2, 8)), torch.zeros(2, 8))
    assert torch.equal(absmean(torch.zeros(2, 8)), torch.zeros(2, 8))


def test_layers_share_one_lambda_after_copy_and_move() -> None:
    lambda_ = Lambda()
    model = nn.Sequential(*(TernaryLinear(nn.Linear(8, 8), lambda_, BITNET) for _ in range(3)))
    for moved in (model, copy.deepcopy(model), copy.deepcopy(model).to(torch.bfloat16)):
        layers = ternary_layers(moved)
        layers[0].lambda_.set(0.3)
        for part in ("weights", "activations"):
            values = [getattr(each.lambda_, part).value for each in layers]
            assert len({id(value) for value in values}) == 1
            assert values[2].dtype == torch.float32
            assert values[2] == torch.tensor(0.3)
    assert not [name for name in model.state_dict() if "lambda" in name]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lambdas_of_weights_and_activations_are_separate(dtype: torch.dtype) -> None:
    linear, ternary = layer(dtype)
    x = torch.randn(3, 24, dtype=dtype)
    ternary.lambda_.set(0.0, activations=False)
    assert torch.equal(ternary(x), linear(int8_activation(x.float()).to(dtype)))
    ternary.lambda_.set(1.0)
    ternary.lambda_.set(0.0, weights=False)
    weight = absmean(linear.weight.float()).to(dtype)
    assert torch.equal(ternary(x), nn.functional.linear(x, weight, linear.bias))
    assert not ternary.lambda_.complete


def test_the_salient_variant_does_not_forget_lambda() -> None:
    """The notebook's bug: SaliencyAwareBitLinear quantised its other columns fully whatever lambda was."""
    linear, ternary = layer()
    ternary.saliency = ColumnSaliency(ternary.weight, Share(0.25), ema_decay=0.9)
    x = torch.randn(3, 24)
    ternary.lambda_.set(0.0)
    assert torch.equal(ternary(x), linear(x))
    ternary.lambda_.set(0.5)
    kept = ternary.saliency.mask
    assert int(kept.sum()) == 6
    blend = torch.lerp(linear.weight, absmean(linear.weight), 0.5)
    torch.testing.assert_close(ternary.effective_weight()[:, ~kept], blend[:, ~kept])
    assert torch.equal(ternary.effective_weight()[:, kept], linear.weight[:, kept])


def test_salient_columns_stay_in_full_precision_at_lambda_one() -> None:
    linear, ternary = layer()
    ternary.saliency = ColumnSaliency(ternary.weight, Share(0.5), ema_decay=0.9)
    kept = ternary.saliency.mask
    assert torch.equal(ternary.effective_weight()[:, kept], linear.weight[:, kept])
    assert ternary.effective_weight()[:, ~kept].unique().numel() == 3


@pytest.mark.parametrize("activations", [0.3, 1.0])
@pytest.mark.parametrize("leave", [False, True], ids=["", "by an error"])
def test_as_deployed_quantises_fully_and_restores(activations: float, leave: bool) -> None:
    linear, ternary = layer()
    deployed = TernaryLinear(linear, Lambda(), BITNET)
    ternary.saliency = saliency = ColumnSaliency(ternary.weight, Share(0.5), ema_decay=0.9)
    ternary.lambda_.set(0.1, activations=False)
    ternary.lambda_.set(activations, weights=False)

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return nn.functional.linear(x, weight, bias) + 1

    ternary.linear = product  # as of 8-bit floats, which evaluation never has
    x, model = torch.randn(3, 24), nn.Sequential(ternary)
    before = model(x)
    with contextlib.suppress(KeyError), as_deployed(model):
        assert fully_quantised(model)
        assert torch.equal(model(x), deployed(x))
        if leave:
            raise KeyError
    assert not fully_quantised(model)
    assert torch.equal(model(x), before)
    assert ternary.saliency is saliency
    assert float(ternary.lambda_.weights.value) == torch.tensor(0.1).item()
    assert ternary.linear is product
    assert (deployed.lambda_.weights.last_set, ternary.lambda_.weights.last_set) == (1.0, 0.1)
