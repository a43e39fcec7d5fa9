"""Two bits a weight: what is packed comes out again, for us and for transformers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_forms import BITNET
from students import student
from transformers.integrations.bitnet import unpack_weights

from trainer.errors import ConfigError
from trainer.export.target import choose
from trainer.export.tensors import pack, tensors, unpack
from trainer.quant.ternary import ternary_layers
from trainer.quant.weights import ternary_weight

bounded = settings(deadline=None)


@bounded
@given(st.integers(1, 13), st.integers(1, 9), st.integers(0, 2**16))
def test_codes_come_out_as_they_went_in(rows: int, columns: int, seed: int) -> None:
    codes = torch.randint(-1, 2, (rows, columns), generator=torch.Generator().manual_seed(seed))
    before = codes.clone()
    packed = pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.shape == (-(-rows // 4), columns)
    assert torch.equal(unpack(packed, rows).long(), codes)
    assert torch.equal(codes, before), "packing changed its argument"


@bounded
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**16))
def test_transformers_unpacks_the_same(quarter: int, columns: int, seed: int) -> None:
    shape = (4 * quarter, columns)
    codes = torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(unpack_weights(pack(codes), dtype=torch.float32), codes.float())


def test_bit_order_equals_published_checkpoints() -> None:
    column = torch.tensor(
        [[-1], [0], [1], [0], [0], [-1], [1], [1]]
    )  # rows 0 2 4 6 and 1 3 5 7, plus 1: 0211 1102
    assert pack(column).flatten().tolist() == [0b10_01_10_00, 0b10_00_01_01]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_student_has_two_bits_a_weight(dtype: torch.dtype) -> None:
    made = student("Llama", dtype=dtype)
    found = tensors(made, choose(made), form="packed")
    packed = {name: tensor for name, tensor in found.items() if tensor.dtype == torch.uint8}
    layers = ternary_layers(made)
    assert len(packed) == len(layers) == 14
    assert 8 * sum(tensor.nbytes for tensor in packed.values()) == 2 * sum(
        layer.weight.numel() for layer in layers
    )
    layer = made.get_submodule("model.layers.1.mlp.down_proj.projection")
    name = "model.layers.1.mlp.down_proj"
    values = unpack(found[f"{name}.weight"], 32).to(dtype) * found[f"{name}.weight_scale"]
    assert torch.equal(values, ternary_weight(layer.weight.float(), "absmean", None).to(dtype))


@pytest.mark.parametrize(
    ("architecture", "change", "sizes", "problem"),
    [
        ("Llama", {"group_size": 8}, {}, "has one scale per matrix, and quant.group_size=8 has many"),
        ("Llama", {"activations": "none"}, {}, "is for layers .*, and quant.activations=none leaves them"),
        ("Qwen2", {}, {}, r"cannot hold model\.layers\.0\.self_attn\.q_proj: .*bias"),
        ("Llama", {}, {"intermediate_size": 46}, r"cannot hold .*gate_proj: its 46 outputs are no multiple of 4"),
    ],
    ids=["groups", "activations", "bias", "odd size"],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused_by_name(
    architecture: str, change: dict[str, object], sizes: dict[str, object], problem: str
) -> None:
    made = student(architecture, quant=dataclasses.replace(BITNET, **change), **sizes)
    with pytest.raises(ConfigError, match=rf"^--format: packed {problem}.*; write --format dense$"):
        tensors(made, choose(made), form="packed")
