"""The models, batches and kinds of training that are measured. Called by `benchmarks.gpu`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.gpu.observer import Observer, Result
from trainer.api import check
from trainer.config import Config
from trainer.cost.flops import flops_per_token
from trainer.cost.peak_flops import peak_flops_per_second
from trainer.devices.device import Device, open_device
from trainer.devices.dtypes import multiplies_float8
from trainer.devices.environment import keep_freed_memory
from trainer.models.causal_lm import parameter_count
from trainer.models.subln import make_student
from trainer.quant.warmup import Lambda
from trainer.stages.layerwise import align
from trainer.stages.pretrain import pretrain
from trainer.training.context import StageContext

COMPARED_STEPS = 3
"""Steps whose losses are compared between the cases of a shape, which begin from the same weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape of a model and of the batches that it is trained on.

    Args:
        batch: sequences of a step.
        micro: of these, sequences that are computed at once.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    batch: int
    micro: int
    tokens: int

    def build(self, attention: str) -> nn.Module:
        """Return the model with seeded random weights, on torch's default device."""
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import AutoModelForCausalLM

        torch.manual_seed(0)
        config = CONFIG_MAPPING[self.architecture](
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.tokens,
            tie_word_embeddings=True,
        )
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
        return cast(nn.Module, model)


SHAPES = {
    "cpu": Shape(
        architecture="llama", hidden=256, intermediate=768, layers=8, heads=4, kv_heads=4, head_dim=64,
        vocabulary=8192, batch=8, micro=8, tokens=256,
    ),
    "smollm2_135m": Shape(
        architecture="llama", hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64,
        vocabulary=49152, batch=32, micro=32, tokens=512,
    ),
    "qwen3_0_6b": Shape(
        architecture="qwen3", hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, head_dim=128,
        vocabulary=151936, batch=32, micro=16, tokens=512,
    ),
    "qwen3_1_7b": Shape(
        architecture="qwen3", hidden=2048, intermediate=6144, layers=28, heads=16, kv_heads=8, head_dim=128,
        vocabulary=151936, batch=32, micro=16, tokens=512,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and how it is computed."""

    kind: str
    compile: bool

    @property
    def name(self) -> str:
        return f"{self.kind}, {'compiled' if self.compile else 'eager'}"


CASES = (
    Case(kind="plain", compile=False),
    *(
        Case(kind=kind, compile=on)
        for kind in ("full precision", "ternary", "stage 1.9")
        for on in (False, True)
    ),
    Case(kind="ternary fp8", compile=True),
    Case(kind="ternary fp8 forward too", compile=True),
)


def run(shape: Shape, case: Case, overrides: Sequence[str], measure: float) -> Result:
    """Train one case for about `measure` seconds after its first steps, and return what was seen of it."""
    keep_freed_memory()
    config = check(
        [
            f"data.sequence_length={shape.tokens}",
            *(f"{stage}.{key}" for stage in ("stage1_9", "stage2") for key in (
                "max_steps=100000", f"batch_size={shape.batch}", f"micro_batch_size={shape.micro}")),
            "force=true",  # a long run in name only: the observer ends it
            "stage1_9.saliency.enabled=false",
            "stage2.lambda_warmup.enabled=false",
            f"device.compile={'layers' if case.compile else 'false'}",
            *(["stage2.fp8=true"] if "fp8" in case.kind else []),
            *(["stage2.fp8_recipe.products=all"] if "forward too" in case.kind else []),
            *overrides,
        ]
    )  # fmt: skip
    device = open_device(config.device)
    if "fp8" in case.kind and not multiplies_float8(device.torch_device):
        return {"error": "the device has no products of 8-bit floats"}
    observer = Observer(device, measure)
    with torch.device(device.torch_device):
        model = shape.build(device.attention_for(shape.tokens))
    parameters = parameter_count(model)
    flops = _train(case, model, shape, config, device, observer)
    peak = peak_flops_per_second(device)
    tokens_per_second = shape.batch * shape.tokens / observer.seconds_per_step
    return {
        "device": device.name,
        "dtype": str(device.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "parameters": parameters,
        "batch": f"{shape.batch} x {shape.tokens}",
        "ms": 1000 * observer.seconds_per_step,
        "tokens_per_second": tokens_per_second,
        "mfu": None if peak is None else tokens_per_second * flops / peak,
        "compile_seconds": observer.compile_seconds,
        "peak_gib": device.peak_memory_bytes() / 2**30,
        **observer.parts(),
        "losses": observer.losses[:COMPARED_STEPS],
        "steps": observer.measured,
    }


def _train(
    case: Case, model: nn.Module, shape: Shape, config: Config, device: Device, observer: Observer
) -> float:
    """Train until the observer has enough; return the trainer's estimate of operations per token."""
    batches = _batches(shape)
    context = StageContext(device=device, watch=observer)
    if case.kind == "plain":
        flops = flops_per_token(config, "stage2", model, model)
        with observer.observing():
            _plain(model.train(), config, device, batches, observer)
        return flops
    student, lambda_ = model, Lambda().to(device.torch_device)
    if case.kind != "full precision":
        calibration = [next(batches)[: min(shape.micro, 4)]]
        student, lambda_ = make_student(model, config.stage1, calibration, quant=config.quant, device=device)
    stage = "stage1_9" if case.kind == "stage 1.9" else "stage2"
    flops = flops_per_token(config, stage, student, model)
    if stage == "stage1_9":
        teacher = model.eval().requires_grad_(False).to(device.dtype)
        with observer.observing():
            align(student, teacher, lambda_, config.stage1_9, batches, context)
    else:
        del model
        with observer.observing():
            pretrain(student, student, lambda_, config.stage2, batches, context)
    return flops


def _plain(
    model: nn.Module, config: Config, device: Device, batches: Iterator[Tensor], observer: Observer
) -> None:
    """Train as a user of transformers would."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.stage2.optimizer.lr)
    for number, ids_BT in enumerate(batches, start=1):
        parts = device.place_micro_batches(ids_BT, config.stage2.micro_batch_size)
        total = torch.zeros((), device=device.torch_device)
        for ids_bT in parts:
            with device.autocast():
                loss = model(input_ids=ids_bT, labels=ids_bT).loss / len(parts)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        observer.stepped(number, float(total))


def _batches(shape: Shape) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(shape.vocabulary, (shape.batch, shape.tokens), generator=generator)
