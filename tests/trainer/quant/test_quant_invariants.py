"""Invariants of quantisation for all weights, with hypothesis and against numpy."""

from __future__ import annotations

import copy

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_forms import FORMS, GROUP
from torch import Tensor, nn

from trainer.config import QuantConfig
from trainer.quant.activations import int8_activation
from trainer.quant.saliency import ColumnSaliency, Share
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda
from trainer.quant.weights import EPS, ternary_weight

HUGE = float(np.float32(1e30))
TINY = float(np.float32(1e-40))  # subnormal

bounded = settings(deadline=None)  # torch loads parts of itself at the first use
forms = st.sampled_from(list(FORMS.values()))
dtypes = st.sampled_from([torch.float32, torch.bfloat16])
entries = st.one_of(
    st.floats(-HUGE, HUGE, width=32),
    st.floats(-1, 1, width=32),
    st.floats(-TINY, TINY, width=32),
    st.sampled_from([0.0, -0.0, EPS, TINY, HUGE, -HUGE]),
)
shapes = st.tuples(st.integers(1, 5), st.integers(1, 3).map(lambda groups: groups * GROUP))


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """Weights [O, I], mostly of one magnitude, as in models, or of all magnitudes."""
    shape = draw(shapes)
    if draw(st.booleans()):
        return torch.from_numpy(draw(hnp.arrays(np.float32, shape, elements=entries)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    return torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-38, 30))


def quantise(weight: Tensor, form: QuantConfig) -> Tensor:
    return ternary_weight(weight, form.weight_scale, form.group_size)


def in_groups(weight: Tensor, form: QuantConfig) -> Tensor:
    """[groups, weights of one group]."""
    return weight.reshape(1, -1) if form.group_size is None else weight.reshape(-1, form.group_size)


def layer_of(weight: Tensor, form: QuantConfig, *, salient: bool = False) -> tuple[nn.Linear, TernaryLinear]:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
    ternary = TernaryLinear(copy.deepcopy(linear), Lambda(), form)
    if salient:
        ternary.saliency = ColumnSaliency(ternary.weight, Share(0.25), ema_decay=0.9)
    return linear, ternary


def inputs_of(weight: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(weight.shape[1])
    return torch.randn(3, weight.shape[1], generator=generator).to(weight.dtype)


@bounded
@given(matrices(), forms)
def test_scale_groups_hold_three_symmetric_values(weight: Tensor, form: QuantConfig) -> None:
    for group in in_groups(quantise(weight, form), form):
        magnitudes = group.abs().unique()
        assert magnitudes.isfinite().all()
        assert (magnitudes > 0).sum() <= 1


@bounded
@given(matrices(), forms)
def test_the_values_are_those_of_a_reference_in_double_precision(weight: Tensor, form: QuantConfig) -> None:
    groups = in_groups(weight, form).double().numpy()
    ordered = np.sort(np.abs(groups), axis=1)
    statistic = (
        ordered.mean(axis=1) if form.weight_scale == "absmean" else ordered[:, (ordered.shape[1] - 1) // 2]
    )
    scale = np.maximum(statistic, EPS)[:, None]
    expected = np.clip(np.round(groups / scale), -1, 1) * scale
    undecided = np.abs(np.abs(groups / scale) - 0.5) < 1e-5  # float32 may round it either way
    given_values = in_groups(quantise(weight, form), form).double().numpy()
    np.testing.assert_allclose(
        np.where(undecided, 0, given_values), np.where(undecided, 0, expected), rtol=1e-5
    )


@bounded
@given(matrices(), forms)
def test_quantisation_is_odd(weight: Tensor, form: QuantConfig) -> None:
    assert torch.equal(quantise(-weight, form), -quantise(weight, form))


@bounded
@given(shapes, forms, st.floats(0, 2**-20, width=32))
def test_weights_below_the_scales_floor_become_zero(
    shape: tuple[int, int], form: QuantConfig, size: float
) -> None:
    assert torch.equal(quantise(torch.full(shape, size), form), torch.zeros(shape))


@bounded
@given(matrices(), forms, st.data(), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_infinite_weight_spoils_only_its_group(
    weight: Tensor, form: QuantConfig, data: st.DataObject, poison: float
) -> None:
    weight = weight.clone()
    row = data.draw(st.integers(0, weight.shape[0] - 1))
    column = data.draw(st.integers(0, weight.shape[1] - 1))
    weight[row, column] = poison
    spoilt = (~in_groups(weight, form).isfinite()).any(dim=1)
    quantised = in_groups(quantise(weight, form), form)
    assert quantised[~spoilt].isfinite().all()
    position = in_groups(torch.arange(weight.numel()).view_as(weight) == row * weight.shape[1] + column, form)
    assert not quantised[position].isfinite().any()


@bounded
@given(matrices(), forms, dtypes, st.booleans())
def test_lambda_zero_is_bit_equal_to_the_full_precision_layer(
    weight: Tensor, form: QuantConfig, dtype: torch.dtype, salient: bool
) -> None:
    weight = weight.to(dtype)
    linear, ternary = layer_of(weight, form, salient=salient)
    ternary.lambda_.set(0.0)
    x = inputs_of(weight)
    assert torch.equal(ternary.effective_weight(), linear.weight)
    assert torch.equal(ternary(x), linear(x))


@bounded
@given(matrices(), forms, st.booleans())
def test_lambda_zero_is_bit_equal_under_bfloat16_autocast(
    weight: Tensor, form: QuantConfig, salient: bool
) -> None:
    linear, ternary = layer_of(weight, form, salient=salient)
    ternary.lambda_.set(0.0)
    x = inputs_of(weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ternary(x), linear(x))


@bounded
@given(matrices(), forms, dtypes)
def test_lambda_one_is_exactly_the_ternary_weights(
    weight: Tensor, form: QuantConfig, dtype: torch.dtype
) -> None:
    weight = weight.to(dtype)
    _, ternary = layer_of(weight, form)
    assert torch.equal(ternary.effective_weight(), quantise(weight.float(), form).to(dtype))


@bounded
@given(matrices(), forms, dtypes, st.sampled_from([0.0, 0.3, 1.0]))
def test_salient_columns_are_master_weights(
    weight: Tensor, form: QuantConfig, dtype: torch.dtype, lambda_: float
) -> None:
    weight = weight.to(dtype)
    _, plain = layer_of(weight, form)
    _, ternary = layer_of(weight, form, salient=True)
    assert ternary.saliency is not None
    kept = ternary.saliency.mask
    assert int(kept.sum()) == round(0.25 * weight.shape[1])
    for layer in (plain, ternary):
        layer.lambda_.set(lambda_)
    assert torch.equal(ternary.effective_weight()[:, kept], weight[:, kept])
    assert torch.equal(ternary.effective_weight()[:, ~kept], plain.effective_weight()[:, ~kept])


@bounded
@given(matrices(), forms, st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_effective_gradient_reaches_master_weights(
    weight: Tensor, form: QuantConfig, lambda_: float, salient: bool
) -> None:
    _, ternary = layer_of(weight, form, salient=salient)
    ternary.lambda_.set(lambda_)
    upstream = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    ternary.effective_weight().backward(upstream)
    assert torch.equal(ternary.weight.grad, upstream)  # type: ignore[arg-type]


@bounded
@given(matrices())
def test_activation_error_is_half_a_level(x: Tensor) -> None:
    quantised = int8_activation(x)
    level = x.abs().amax(dim=1, keepdim=True).clamp(min=EPS) / 127
    assert ((quantised - x).abs() <= level * 0.50001).all()
    assert ((quantised / level).abs() <= 127.001).all()
    for row in quantised:
        assert row.unique().numel() <= 255


@bounded
@given(matrices(), st.data())
def test_infinite_token_spoils_only_itself(x: Tensor, data: st.DataObject) -> None:
    x = x.clone()
    row = data.draw(st.integers(0, x.shape[0] - 1))
    x[row, data.draw(st.integers(0, x.shape[1] - 1))] = data.draw(st.sampled_from([np.nan, np.inf]))
    spoilt = torch.arange(x.shape[0]) == row
    quantised = int8_activation(x)
    assert not quantised[spoilt].isfinite().any()
    assert quantised[~spoilt].isfinite().all()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_zero_input_gives_the_bias(form: QuantConfig) -> None:
    ternary = TernaryLinear(nn.Linear(2 * GROUP, 3), Lambda(), form)
    assert torch.equal(ternary(torch.zeros(4, 2 * GROUP)), ternary.bias.expand(4, 3))


@bounded
@given(st.integers(0, 2**16), dtypes)
def test_an_outlier_moves_the_mean_but_not_the_median(seed: int, dtype: torch.dtype) -> None:
    weight = torch.randn(4, 2 * GROUP, generator=torch.Generator().manual_seed(seed)).to(dtype).float()
    spoilt = weight.clone()
    spoilt[0, weight[0].abs().argmax()] *= 1e4
    calm = FORMS["absmedian, one scale, int8"]
    assert torch.equal(quantise(weight, calm), quantise(spoilt, calm))
    assert (quantise(spoilt, FORMS["absmean, one scale, int8"]) == 0).sum() >= weight.numel() - 1
