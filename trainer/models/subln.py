"""Stage 1: a copy of the teacher becomes a student with SubLN and ternary linear layers. Trains nothing.

SubLN is the normalisation before the attention output and MLP down projections that BitNet needs
(arXiv:2510.13998 §3.1). No gain makes it the identity, as it removes the differences in scale between tokens.
A gain of 1 also changes the scale of the projections' inputs and so damages what the teacher has learnt;
therefore the gain is calibrated to that scale. `Stage1Config.subln` can also blend SubLN in with lambda,
which avoids the remaining damage, or leave it out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.config import QuantConfig, Stage1Config
from trainer.config.model import MasterDtype
from trainer.devices.device import Device
from trainer.distributed.tensor_group import TensorGroup
from trainer.errors import ConfigError
from trainer.models.causal_lm import cast_weights, depth, inputs, is_head
from trainer.models.deferred_weights import copy_without_weights, filled_while_computing
from trainer.models.depth import keep_layers, matched_layers
from trainer.models.host_layers import device_copy
from trainer.quant.activations import Int8Input, without_alias
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda

# Llama's names, which SmolLM, Qwen, Mistral, Gemma and others share.
BEFORE = ("o_proj", "down_proj")
SHARED_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # each group reads one tensor
EPS = 1e-6  # used if the model's own normalisations have none


class _RmsNorm(torch.autograd.Function):
    """RMS normalisation with an explicit gradient.

    On a CPU, torch's own makes a dozen passes over the activations and costs more than the quantisers; this
    one makes five, and a test compares it with `nn.RMSNorm`.
    """

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, gain_I: Tensor, eps: float, group: TensorGroup | None) -> Tensor:
        x32_TI = x_TI.float()
        inverse_T1 = torch.linalg.vector_norm(x32_TI, dim=-1, keepdim=True).square_()
        ctx.group, ctx.features = group, x_TI.shape[-1]
        if group is not None:
            inverse_T1 = group.all_sum(inverse_T1)
            ctx.features *= group.size
        inverse_T1.div_(ctx.features).add_(eps).rsqrt_()
        ctx.save_for_backward(x_TI, gain_I, inverse_T1)
        normed_TI: Tensor = (x32_TI * inverse_T1).mul_(gain_I)
        return without_alias(normed_TI.to(x_TI.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_TI, gain_I, inverse_T1 = ctx.saved_tensors
        unit_TI, grad_TI = x_TI.float() * inverse_T1, grads[0].float()
        grad_gain_I = (grad_TI * unit_TI).flatten(0, -2).sum(dim=0).to(gain_I.dtype)
        scaled_TI = grad_TI * gain_I
        shared_T1 = torch.linalg.vecdot(scaled_TI, unit_TI).unsqueeze(-1)
        if ctx.group is not None:
            shared_T1 = ctx.group.all_sum(shared_T1)
        shared_T1.div_(ctx.features)
        grad_x_TI = scaled_TI.addcmul_(unit_TI, shared_T1, value=-1).mul_(inverse_T1)
        return grad_x_TI.to(x_TI.dtype), grad_gain_I, None, None


class SubLN(nn.Module):
    """RMS normalisation over the last dimension, in float32, times a gain [I].

    Args:
        features: I.
        gain: initial value of the whole gain.
        like: a tensor with the gain's dtype and device.
        eps: added to the mean square; the model's own.
        lambda_: lambda, which interpolates between input and normalised values; None: always 1.
    """

    def __init__(
        self, features: int, gain: float, like: Tensor, *, eps: float = EPS, lambda_: Lambda | None = None
    ) -> None:
        super().__init__()
        self.eps, self.lambda_ = eps, lambda_
        self.group: TensorGroup | None = None  # of the processes that have the other features
        self.weight = nn.Parameter(torch.full((features,), gain, dtype=like.dtype, device=like.device))

    def forward(self, x_TI: Tensor) -> Tensor:
        """Normalise [..., I] to [..., I], in the input's dtype."""
        gain_I = self.weight if self.group is None else self.group.own(self.weight, 0)
        x32_TI = x_TI if self.lambda_ is None else x_TI.float()
        # torch has no annotation for `apply`
        normed_TI = cast(Tensor, _RmsNorm.apply(x32_TI, gain_I, self.eps, self.group))  # type: ignore[no-untyped-call]
        if self.lambda_ is None:
            return normed_TI
        return torch.lerp(x32_TI, normed_TI, self.lambda_.weights.value).to(x_TI.dtype)


def make_student(
    teacher: nn.Module,
    config: Stage1Config,
    calibration: Sequence[Tensor] | None,
    *,
    quant: QuantConfig,
    device: Device,
    master_dtype: MasterDtype = "auto",
) -> tuple[nn.Module, Lambda]:
    """Return a ternary copy of the teacher and the lambda that its layers share, initially 1.

    With FSDP the copy has no weights yet (`models.deferred_weights`): it gets them when it is sharded.

    Args:
        teacher: on the device, or anywhere with FSDP; it is not changed.
        calibration: training batches of token ids [B, T], int64; only read to measure gains. None: all gains
            are 1, for a student whose weights are restored from elsewhere.
        master_dtype: of all the student's weights; `auto`: as the teacher's.

    Raises:
        ConfigError: a part of the model would stay in full precision, a layer would have no SubLN, or scale
            groups do not divide a layer's inputs.
    """
    _check_architecture(teacher)
    defers = device.ranks.parallel == "fsdp"
    if defers:
        student = copy_without_weights(teacher, device.torch_device, master_dtype)
    else:
        student = cast_weights(device_copy(teacher, device).requires_grad_(True), master_dtype)
    if config.keep_layers is not None:
        keep_layers(student, matched_layers(config.keep_layers, depth(student)))
    gains: dict[str, float] = {}
    if calibration is not None and config.subln in ("calibrated", "blended"):
        with filled_while_computing(student, device.torch_device) if defers else nullcontext():
            gains = _input_scales(student, calibration, device)
    elif config.subln != "none":
        gains = dict.fromkeys(normalised_projections(student), 1.0)
    lambda_ = Lambda().to(device.torch_device)
    quantise(student, lambda_, quant, gains, blended=config.subln == "blended")
    return student, lambda_


def quantise(
    model: nn.Module, lambda_: Lambda, quant: QuantConfig, gains: Mapping[str, float], *, blended: bool
) -> None:
    """Replace all linear layers but the head by ternary ones, and put a SubLN before each that has a gain.

    Args:
        model: changed in place.
        gains: initial gain of SubLN, by name of the linear layer.
        blended: interpolate SubLN with lambda.

    Raises:
        ConfigError: scale groups do not divide a layer's inputs.
    """
    eps = float(getattr(model.config, "rms_norm_eps", EPS))
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or is_head(model, module):
            continue
        for error in quant.check_group(name, module.in_features):
            raise ConfigError(error.problem, key=f"quant.{error.key}")
        ternary: nn.Module = TernaryLinear(module, lambda_, quant)
        if name in gains:
            norm = SubLN(
                module.in_features, gains[name], module.weight, eps=eps, lambda_=lambda_ if blended else None
            )
            ternary = nn.Sequential(OrderedDict(norm=norm, projection=ternary))
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, ternary)
    _share_inputs(model)


def _share_inputs(model: nn.Module) -> None:
    """Give layers that read the same tensor one quantiser; if they do not, this costs nothing but time."""
    for module in model.modules():
        for names in SHARED_INPUT:
            layers = [
                layer for name in names if isinstance(layer := getattr(module, name, None), TernaryLinear)
            ]
            if len(layers) > 1:
                shared = Int8Input(layers[0].lambda_.activations, readers=len(layers))
                for layer in layers:
                    layer.quantise_input = shared


def normalised_projections(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that a SubLN goes before, by name. Raises ConfigError if there is none."""
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in BEFORE
    }
    if not found:
        raise ConfigError(
            f"{type(model).__name__} has no linear layers named {' or '.join(BEFORE)}; "
            "take a model of the Llama family",
            key="model.name",
        )
    return found


def _check_architecture(model: nn.Module) -> None:
    """Raise ConfigError for parts that would silently stay in full precision: 3-D experts, other layers."""
    kind = type(model).__name__
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 3:
            raise ConfigError(
                f"{kind} keeps {name} as one {parameter.ndim}-dimensional tensor, which would not go ternary "
                "(a mixture of experts?); take a dense model of the Llama family",
                key="model.name",
            )
    found = list(normalised_projections(model))
    for name in _layers_with(model, found):
        inside = {path.rpartition(".")[2] for path in found if path.startswith(f"{name}.")}
        missing = [each for each in BEFORE if each not in inside]
        if missing:
            raise ConfigError(
                f"{kind} has no linear layer named {' or '.join(missing)} in {name}; "
                "take a model whose layers are all of the Llama family's kind",
                key="model.name",
            )


def _layers_with(model: nn.Module, projections: Sequence[str]) -> Iterator[str]:
    """Yield the decoder layers: the items of the outermost lists that contain any of the projections."""
    outermost: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(f"{outer}.") for outer in outermost):
            continue
        if any(projection.startswith(f"{name}.") for projection in projections):
            outermost.append(name)
            yield from (f"{name}.{index}" for index in range(len(module)))


@torch.no_grad()
def _input_scales(model: nn.Module, batches: Sequence[Tensor], device: Device) -> dict[str, float]:
    """Return the mean over tokens of the root mean square of each projection's input."""
    scales: dict[str, list[Tensor]] = {name: [] for name in normalised_projections(model)}

    def record(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            scales[name].append(inputs[0].float().square().mean(dim=-1).sqrt().mean())

        return hook

    handles = [
        module.register_forward_pre_hook(record(name))
        for name, module in normalised_projections(model).items()
    ]
    try:
        model.eval()
        for ids_BT in batches:
            with device.autocast():
                # Only the decoder: the logits would be the largest tensor of all.
                cast(Any, model).get_decoder()(**inputs(model, device.place(ids_BT)))
            device.end_step()  # one XLA graph per batch, not one for all
    finally:
        for handle in handles:
            handle.remove()
    return {name: float(torch.stack(values).mean()) for name, values in scales.items()}
