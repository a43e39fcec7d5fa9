"""Our ternary layer against transformers' BitNet layers with the same weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_forms import BITNET
from torch import Tensor, nn
from transformers.integrations.bitnet import AutoBitLinear, BitLinear

from trainer.export.tensors import pack
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda
from trainer.quant.weights import ternary_codes

OUTPUTS, INPUTS = 12, 40

# Both sides sum the same products of numbers that were rounded to the same levels: what may differ is the
# rounding of each product and sum, in units of the dtype's last place, and that of the scale before or after.
TOLERANCE = {torch.float32: 2**-20, torch.bfloat16: 2**-6}


def layers(kind: str, dtype: torch.dtype, seed: int) -> tuple[TernaryLinear, nn.Module]:
    torch.manual_seed(seed)
    linear = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=dtype)
    codes, scale = ternary_codes(linear.weight.detach().float(), "absmean", None)
    if kind == "packed":
        theirs: nn.Module = BitLinear(INPUTS, OUTPUTS, bias=False, dtype=dtype)
        theirs.weight, theirs.weight_scale = pack(codes), (1 / scale).reshape(1).to(dtype)  # it divides by it
    else:
        theirs = AutoBitLinear(INPUTS, OUTPUTS, bias=False, dtype=dtype, online_quant=kind == "online")
        theirs.weight = nn.Parameter(linear.weight.detach().clone() if kind == "online" else codes.to(dtype))
        if kind == "offline":
            theirs.weight_scale = scale.reshape(1).to(dtype)
    return TernaryLinear(linear, Lambda(), BITNET), theirs


def inputs(seed: int, size: float, dtype: torch.dtype) -> Tensor:
    """Tokens that no rounding takes to a neighbouring level: at most a third of a level off their own."""
    generator = torch.Generator().manual_seed(seed)
    levels = torch.randint(-126, 127, (5, INPUTS), generator=generator).float()
    levels += torch.rand(levels.shape, generator=generator) * 0.6 - 0.3
    levels[:, 0] = 127
    if dtype == torch.bfloat16:
        levels = levels.round()  # a level has up to 7 bits, and so have they
    return (levels * size).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["online", "offline", "packed"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), exponent=st.integers(-10, 10))
def test_equals_transformers_layer(kind: str, dtype: torch.dtype, seed: int, exponent: int) -> None:
    ours, theirs = layers(kind, dtype, seed)
    x = inputs(seed, 2.0**exponent, dtype)
    with torch.no_grad():
        expected, got = theirs(x).float(), ours(x).float()
    sum_of_magnitudes = x.float().abs() @ ours.effective_weight().detach().float().abs().T
    assert ((got - expected).abs() <= TOLERANCE[dtype] * sum_of_magnitudes).all()


def test_a_wrong_scale_would_not_pass() -> None:
    ours, theirs = layers("offline", torch.float32, 0)
    theirs.weight_scale *= 1.001
    x = inputs(0, 1.0, torch.float32)
    assert not torch.allclose(ours(x), theirs(x), rtol=1e-4)


def test_any_input_differs_by_few_levels_at_most() -> None:
    """transformers multiplies by 127 / max, we divide by max / 127: values halfway between levels may part."""
    ours, theirs = layers("online", torch.float32, 3)
    x = torch.randn(4000, INPUTS)
    with torch.no_grad():
        differences = (ours(x) - theirs(x)).abs().amax(dim=1)
        level = x.abs().amax(dim=1) / 127 * ours.effective_weight().abs().max()
    assert (differences <= 1.01 * level + 1e-5).all()
    assert (differences <= 1e-5).float().mean() > 0.99
