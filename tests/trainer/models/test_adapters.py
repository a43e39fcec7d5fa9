"""Adapters: B·A·x times alpha over rank beside a ternary layer that stays as it is."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest
import torch
from torch import nn

from sweeps.text.installation import install_command
from trainer.api import check
from trainer.devices.device import Device
from trainer.errors import ConfigError, MachineError
from trainer.models.adapters import (
    Adapters,
    adapters_for,
    adapters_of,
    add_adapters,
    parameter_count,
    remove_adapters,
    require_package,
)
from trainer.models.causal_lm import build_tiny, matmul_parameters
from trainer.models.subln import make_student
from trainer.quant.ternary import ternary_layers

pytest.importorskip("peft")

SIZES = ("model.hidden_size=16", "model.intermediate_size=24", "model.layers=2", "model.heads=2")
CPU = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
IDS = torch.arange(12).view(2, 6)
RANK, ALPHA = 3, 7.5


def student(*overrides: str) -> nn.Module:
    config = check([*SIZES, *overrides])
    torch.manual_seed(0)
    teacher = build_tiny(config.model, vocab_size=50, sequence_length=8, attention="eager")
    return make_student(
        teacher, config.stage1, None, quant=config.quant, device=CPU, master_dtype=config.model.master_dtype
    )[0]


def adapted(seed: int = 0, targets: str = "all", *overrides: str) -> nn.Module:
    made = student(*overrides)
    recovery = dataclasses.replace(check([]).recovery, rank=RANK, alpha=ALPHA, targets=targets)
    add_adapters(made, adapters_for(made, recovery), seed=seed)
    return made


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def test_new_adapter_changes_nothing_and_alone_is_trained() -> None:
    before, made = student(), adapted()
    assert torch.equal(before(input_ids=IDS).logits, made(input_ids=IDS).logits)
    assert len(trained(made)) == 2 * 14
    assert all(".lora_" in name for name in trained(made))
    sizes = sum(p.numel() for p in trained(made).values())
    layer = 4 * (16 + 16) + 3 * (16 + 24)
    assert sizes == RANK * 2 * layer
    found = adapters_of(made)
    assert found is not None
    assert parameter_count(made, found) == parameter_count(before, found) == sizes
    assert matmul_parameters(made) == matmul_parameters(before)


def test_adapted_layer_is_ternary_layer_plus_low_rank_product() -> None:
    made = adapted()
    layer = made.get_submodule("model.layers.1.self_attn.o_proj.projection")
    torch.manual_seed(1)
    x_TI = torch.randn(5, 16)
    with torch.no_grad():
        for parameter in trained(made).values():
            parameter.normal_()
        a_RI, b_OR = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        expected = layer.base_layer(x_TI) + ALPHA / RANK * x_TI @ a_RI.T @ b_OR.T
        torch.testing.assert_close(layer(x_TI), expected)
    assert layer.base_layer in ternary_layers(made)
    assert layer.base_layer.effective_weight().unique().numel() == 3


def test_where_they_begin_depends_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = trained(adapted(seed=3))
    torch.manual_seed(5)
    add_adapters(
        made := student(), Adapters(rank=1, alpha=1.0, modules=("model.layers.0.mlp.up_proj",)), seed=9
    )
    torch.rand(100)
    again = trained(adapted(seed=3))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = trained(adapted(seed=4))
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert len(trained(made)) == 2
    torch.set_rng_state(state)
    bare = student()
    before = torch.get_rng_state()
    add_adapters(bare, Adapters(rank=1, alpha=1.0, modules=("model.layers.0.mlp.up_proj",)), seed=9)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_states_of_devices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters begin on the CPU, and what recovery draws on a GPU follows from the run's seed."""
    made, seeds = student(), list[int]()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    add_adapters(made, Adapters(rank=1, alpha=1.0, modules=("model.layers.0.mlp.up_proj",)), seed=9)
    assert seeds == []


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("attention", {"q_proj", "k_proj", "v_proj", "o_proj.projection"}),
        ("mlp", {"gate_proj", "up_proj", "down_proj.projection"}),
    ],
)
def test_targets(targets: str, names: set[str]) -> None:
    found = adapters_of(adapted(0, targets))
    assert found is not None
    assert {name.split(".", 4)[4] for name in found.modules} == names
    assert (found.rank, found.alpha, len(found.modules)) == (RANK, ALPHA, 2 * len(names))


def test_adapters_are_float32_on_weights_that_are_not() -> None:
    made = adapted(0, "all", "model.master_dtype=bfloat16")
    assert {p.dtype for p in trained(made).values()} == {torch.float32}
    plain = trained(adapted())  # and not rounded on the way
    assert all(torch.equal(plain[name], value) for name, value in trained(made).items())
    assert made(input_ids=IDS).logits.dtype == torch.bfloat16


def test_removed_they_leave_the_student_as_it_was() -> None:
    made, before = adapted(), student()
    with torch.no_grad():
        for parameter in trained(made).values():
            parameter.normal_()
    assert not torch.equal(before(input_ids=IDS).logits, made(input_ids=IDS).logits)
    remove_adapters(made)
    assert adapters_of(made) is None
    assert torch.equal(before(input_ids=IDS).logits, made(input_ids=IDS).logits)
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in before.named_parameters()]


def test_a_student_without_such_layers_is_refused_in_one_line() -> None:
    made = student()
    for layer in made.model.layers:
        layer.mlp = nn.Identity()
    recovery = dataclasses.replace(check([]).recovery, targets="mlp")
    with pytest.raises(ConfigError, match=r"^recovery.targets: LlamaForCausalLM .* ga"):
        adapters_for(made, recovery)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MachineError, match=rf"^a.key: .*{re.escape(install_command('lora'))}$"):
        require_package("a.key")
