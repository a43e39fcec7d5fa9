# ruff: noqa: E402 - torch reads the settings of before_torch() when it is imported
"""Tokens a second of our steps and of a plain transformers loop: `python -m benchmarks.throughput`.

    --shape cpu           ten million parameters, 8 x 256 tokens; for any machine
    --shape smollm2_135m  SmolLM2-135M's shape with random weights, 8 x 2,048 tokens; for a GPU
    --shape llama_1b      Llama 3.2 1B's, 4 x 2,048 tokens, where 8-bit products pay; for a GPU

All kinds take turns in one process, and medians are compared. `plain` is the loop that a user of transformers
would write for the same model in full precision: autocast, AdamW, clipping. Ours have AdamW too.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import cast

from trainer.devices.environment import before_torch, keep_freed_memory

before_torch()

import torch
from torch import Tensor, nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from trainer.api import check
from trainer.config import Config
from trainer.cost.flops import forward_cost
from trainer.devices.device import Device, open_device
from trainer.devices.dtypes import multiplies_float8
from trainer.losses.hidden_state_loss import DistillWeight
from trainer.models.causal_lm import parameter_count
from trainer.models.subln import make_student
from trainer.optim.build import build_optimizer
from trainer.quant.fp8 import fp8_products
from trainer.stages.layerwise import alignment
from trainer.stages.pretrain import cross_entropy
from trainer.training.context import StagePlan
from trainer.training.train_step import TrainStep

WARM_TURNS, STEPS_PER_TURN = 2, 3
KINDS = ("plain", "full precision", "stage 2 eager", "stage 2", "stage 2 fp8", "stage 1.9")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape of a model and its batch."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    batch: int
    tokens: int

    def build(self, attention: str) -> nn.Module:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.tokens,
            tie_word_embeddings=True,
            attn_implementation=attention,
        )
        return cast(nn.Module, LlamaForCausalLM(config)).train()


SHAPES = {
    "cpu": Shape(
        hidden=256, intermediate=768, layers=8, heads=4, kv_heads=4, vocabulary=8192, batch=8, tokens=256
    ),
    "smollm2_135m": Shape(
        hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, vocabulary=49152, batch=8, tokens=2048
    ),
    "llama_1b": Shape(
        hidden=2048,
        intermediate=8192,
        layers=16,
        heads=32,
        kv_heads=8,
        vocabulary=128256,
        batch=4,
        tokens=2048,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="cpu")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--peak-tflops", type=float, help="of the device in its dtype, for MFU")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of the trainer, such as device=cpu")
    args = parser.parse_args()
    keep_freed_memory()
    shape = SHAPES[args.shape]
    # The plain loop's optimizer: what is compared is the step, not Muon.
    config = check(
        [
            f"data.sequence_length={shape.tokens}",
            "optimizer@stage2.optimizer=adamw",
            *args.overrides,
        ]
    )
    device = open_device(config.device)
    kinds = [kind for kind in args.kinds if kind != "stage 2 fp8" or multiplies_float8(device.torch_device)]
    seconds = _measure(kinds, shape, config, device, turns=args.turns)

    model = shape.build(device.attention)
    flops = 3 * forward_cost(model, shape.tokens).flops_per_token
    tokens, plain = shape.batch * shape.tokens, seconds.get("plain")
    print(
        f"\n{args.shape}: {parameter_count(model) / 1e6:.0f}M parameters, "
        f"batch {shape.batch} x {shape.tokens}, "
        f"{device.name}, {device.dtype}, torch {torch.__version__}, compile={device.compile}\n"
    )
    print("| step | ms | tokens/s | student's MFU | plain loop's time / its time |\n|---|---|---|---|---|")
    for kind, took in seconds.items():
        mfu = f"{100 * flops * tokens / took / args.peak_tflops / 1e12:.1f} %" if args.peak_tflops else "–"
        faster = f"{plain / took:.2f}" if plain else "–"
        print(f"| {kind} | {1000 * took:.0f} | {tokens / took:,.0f} | {mfu} | {faster} |")


def _measure(
    kinds: list[str], shape: Shape, config: Config, device: Device, *, turns: int
) -> dict[str, float]:
    """Return median seconds of a step of each kind."""
    batches = _batches(shape)
    steps = {kind: _step_of(kind, shape, next(batches), config, device) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(WARM_TURNS + turns):
        for kind, take_step in steps.items():
            for _ in range(STEPS_PER_TURN):
                ids_BT = device.place(next(batches))
                device.synchronize()
                start = time.perf_counter()
                take_step(ids_BT)
                device.synchronize()
                if turn >= WARM_TURNS:
                    seconds[kind].append(time.perf_counter() - start)
    return {kind: statistics.median(each) for kind, each in seconds.items()}


def _step_of(
    kind: str, shape: Shape, calibration: Tensor, config: Config, device: Device
) -> Callable[[Tensor], object]:
    model = shape.build(device.attention).to(device.torch_device)
    if kind == "plain":
        return _plain(model, config, device)
    stage2, objective = config.stage2, cross_entropy(model)
    if kind != "full precision":
        teacher = model.eval().requires_grad_(False)
        model, _ = make_student(teacher, config.stage1, [calibration], quant=config.quant, device=device)
        weight = DistillWeight(1.0).to(device.torch_device)
        on_text = cross_entropy(model)
        objective = alignment(model, teacher, weight, config.stage1_9) if kind == "stage 1.9" else on_text
    step = TrainStep(
        dataclasses.replace(StagePlan.of("benchmark", stage2), micro_batch_size=None),
        model.train(),
        objective,
        build_optimizer(model, stage2.optimizer),
        dataclasses.replace(device, compile=device.compile and kind != "stage 2 eager"),
    )

    def take(ids_BT: Tensor) -> None:
        with fp8_products(model) if kind == "stage 2 fp8" else nullcontext():
            step(ids_BT, number=1)

    return take


def _plain(model: nn.Module, config: Config, device: Device) -> Callable[[Tensor], object]:
    """Return the step that a user of transformers would write."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.stage2.optimizer.lr)

    def take(ids_BT: Tensor) -> float:
        with device.autocast():
            loss = model(input_ids=ids_BT, labels=ids_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return take


def _batches(shape: Shape) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(shape.vocabulary, (shape.batch, shape.tokens), generator=generator)


if __name__ == "__main__":
    main()
