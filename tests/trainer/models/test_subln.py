"""Stage 1: which modules change, which do not, and that the teacher's function is preserved."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from quant_forms import BITNET
from torch import nn

from trainer.api import check
from trainer.config import Stage1Config, TinyModelConfig
from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.models.causal_lm import build_tiny, run
from trainer.models.subln import SubLN, make_student
from trainer.quant.ternary import TernaryLinear, ternary_layers
from trainer.quant.warmup import Lambda

CONFIG = Stage1Config(subln="calibrated", calibration_batches=1, keep_layers=None)
DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")


@pytest.fixture
def teacher(small: tuple[str, ...]) -> nn.Module:
    config = check(small).model
    assert isinstance(config, TinyModelConfig)
    torch.manual_seed(0)
    return build_tiny(config, vocab_size=300, sequence_length=16, attention="eager")


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(0))


def test_all_linears_but_the_head_are_ternary_two_are_normalised(
    teacher: nn.Module, ids: torch.Tensor
) -> None:
    student, lambda_ = make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)
    assert len(ternary_layers(student)) == 2 * 7
    assert {id(layer.lambda_) for layer in ternary_layers(student)} == {id(lambda_)}
    assert lambda_.complete
    assert type(student.get_output_embeddings()) is nn.Linear
    normed = {name for name, module in student.named_modules() if isinstance(module, SubLN)}
    assert {name.split(".")[-2] for name in normed} == {"o_proj", "down_proj"}
    assert len(normed) == 4


def test_the_teacher_is_left_as_it_was(teacher: nn.Module, ids: torch.Tensor) -> None:
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    student, _ = make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], value) for name, value in teacher.state_dict().items())
    assert not ternary_layers(teacher)


def test_calibration_makes_no_logits(teacher: nn.Module, ids: torch.Tensor) -> None:
    """At long sequences and large vocabularies they would be the largest tensor of a run."""

    def asked(*_: object) -> None:
        raise AssertionError("the head was read")

    teacher.get_output_embeddings().register_forward_hook(asked)  # type: ignore[operator]
    make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)


def test_the_gain_is_the_scale_of_the_projections_input(teacher: nn.Module, ids: torch.Tensor) -> None:
    projected = []
    projection = teacher.get_submodule("model.layers.1.mlp.down_proj")
    handle = projection.register_forward_pre_hook(lambda module, inputs: projected.append(inputs[0]))
    run(teacher, ids)
    handle.remove()
    expected = projected[0].square().mean(-1).sqrt().mean()
    student, _ = make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)
    gain = student.get_submodule("model.layers.1.mlp.down_proj.norm").weight
    torch.testing.assert_close(gain, expected.expand_as(gain))


def test_calibrated_gain_changes_the_model_less_than_ones(teacher: nn.Module, ids: torch.Tensor) -> None:
    expected = run(teacher, ids).logits
    error = {}
    for kind in ("calibrated", "ones"):
        student, lambda_ = make_student(
            teacher, dataclasses.replace(CONFIG, subln=kind), [ids], quant=BITNET, device=DEVICE
        )
        lambda_.set(0.0)
        error[kind] = (run(student, ids).logits - expected).square().mean().item()
    assert error["calibrated"] < 0.5 * error["ones"]


@pytest.mark.parametrize("kind", ["blended", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_lambda_zero_stage1_changes_nothing_bit_for_bit(
    kind: str, dtype: torch.dtype, teacher: nn.Module, ids: torch.Tensor
) -> None:
    device = dataclasses.replace(DEVICE, dtype=dtype)
    config = dataclasses.replace(CONFIG, subln=kind)
    student, lambda_ = make_student(teacher, config, [ids], quant=BITNET, device=device)
    lambda_.set(0.0)
    with device.autocast():
        assert torch.equal(run(student, ids).logits, run(teacher, ids).logits)


def test_at_lambda_one_a_blended_student_is_the_calibrated_one(teacher: nn.Module, ids: torch.Tensor) -> None:
    logits = [
        run(make_student(teacher, config, [ids], quant=BITNET, device=DEVICE)[0], ids).logits
        for config in (CONFIG, dataclasses.replace(CONFIG, subln="blended"))
    ]
    assert torch.equal(logits[0], logits[1])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_blended_subln_agrees_with_autograd(share: float) -> None:
    torch.manual_seed(0)
    lambda_ = Lambda(share)
    mine = SubLN(12, 0.7, torch.empty(0), lambda_=lambda_)
    x = torch.randn(3, 5, 12)
    inputs = [x.clone().requires_grad_(True) for _ in range(2)]
    gain = torch.full((12,), 0.7, requires_grad=True)
    normed = inputs[1] * (inputs[1].square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain
    outputs = [mine(inputs[0]), (1 - share) * inputs[1] + share * normed]
    torch.testing.assert_close(outputs[0], outputs[1])
    for output in outputs:
        output.backward(torch.linspace(-1, 1, x.numel()).view_as(x))
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(mine.weight.grad, gain.grad)


def test_without_subln_there_are_none(teacher: nn.Module, ids: torch.Tensor) -> None:
    config = dataclasses.replace(CONFIG, subln="none")
    student, _ = make_student(teacher, config, [ids], quant=BITNET, device=DEVICE)
    assert not [module for module in student.modules() if isinstance(module, SubLN)]
    assert len(ternary_layers(student)) == 2 * 7


def test_subln_has_the_models_own_eps(teacher: nn.Module, ids: torch.Tensor) -> None:
    teacher.config.rms_norm_eps = 1e-3
    student, _ = make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)
    norms = [module for module in student.modules() if isinstance(module, SubLN)]
    assert {norm.eps for norm in norms} == {1e-3}
    tiny = torch.full((1, 32), 1e-3)
    torch.testing.assert_close(
        norms[0](tiny) / norms[0].weight,
        tiny * (1e-6 + 1e-3) ** -0.5,  # its mean square, and eps
    )


def test_groups_that_do_not_fit_are_refused_with_the_layer_named(
    teacher: nn.Module, ids: torch.Tensor
) -> None:
    quant = dataclasses.replace(BITNET, group_size=32)  # of 32 and 48 inputs
    with pytest.raises(ConfigError, match=r"^quant.group_size: 32 .*48 .*model\.layers\.0\.mlp\.down_proj"):
        make_student(teacher, CONFIG, [ids], quant=quant, device=DEVICE)


def test_subln_agrees_with_torchs_rms_norm_forward_and_backward() -> None:
    torch.manual_seed(0)
    mine, reference = SubLN(12, 0.7, torch.empty(0)), nn.RMSNorm(12, eps=1e-6)
    nn.init.constant_(reference.weight, 0.7)
    x = torch.randn(3, 5, 12)
    upstream = torch.randn(3, 5, 12)
    inputs = [x.clone().requires_grad_(True) for _ in range(2)]
    outputs = [mine(inputs[0]), reference(inputs[1])]
    torch.testing.assert_close(outputs[0], outputs[1])
    for output in outputs:
        output.backward(upstream)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(mine.weight.grad, reference.weight.grad)


def test_a_model_without_the_projections_is_refused_by_name() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_proj = nn.Linear(4, 4)

    with pytest.raises(ConfigError, match=r"Other .*o_proj or down_proj"):
        make_student(Other(), CONFIG, [], quant=BITNET, device=DEVICE)


def test_mixture_of_experts_is_refused(ids: torch.Tensor) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    with pytest.raises(ConfigError, match=r"^model.name: MixtralForCausalLM keeps .*experts.* 3-dimensional"):
        make_student(MixtralForCausalLM(config), CONFIG, [ids], quant=BITNET, device=DEVICE)


@pytest.mark.parametrize("lost", ["self_attn.o_proj", "mlp.down_proj"])
def test_a_layer_without_one_of_the_projections_is_refused(
    lost: str, teacher: nn.Module, ids: torch.Tensor
) -> None:
    inner, _, projection = f"model.layers.1.{lost}".rpartition(".")
    setattr(teacher.get_submodule(inner), projection, nn.Identity())
    with pytest.raises(ConfigError, match=rf"{projection} in model\.layers\.1;"):
        make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)


def test_all_layers_are_built_with_the_linear_layers_own_weights(
    teacher: nn.Module, ids: torch.Tensor
) -> None:
    student, _ = make_student(teacher, CONFIG, [ids], quant=BITNET, device=DEVICE)
    layer = student.get_submodule("model.layers.0.self_attn.o_proj.projection")
    assert isinstance(layer, TernaryLinear)
    assert torch.equal(layer.weight, teacher.get_submodule("model.layers.0.self_attn.o_proj").weight)
