# ruff: noqa: E402 - torch reads the settings of before_torch() when it is imported
"""Cost of a ternary training step over the same model in full precision: `python -m benchmarks.step`.

Both models take the trainer's own step, in one process, in turns of a few steps, so that other load on the
machine affects both; the medians are compared. Three variants: operation by operation, compiled,
and with eight micro-batches a step. Overrides of the trainer choose another model or device; the default has
about ten million parameters. Prints a row of a Markdown table for each.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

from trainer.devices.environment import before_torch, keep_freed_memory

before_torch()

import torch
from torch import Tensor, nn

from trainer.api import check
from trainer.config import Config, TinyModelConfig
from trainer.devices.device import Device, open_device
from trainer.models.causal_lm import build_tiny, parameter_count
from trainer.models.subln import make_student
from trainer.optim.build import build_optimizer
from trainer.stages.pretrain import cross_entropy
from trainer.training.context import StagePlan
from trainer.training.train_step import TrainStep

TEN_MILLION = (
    "model.hidden_size=256",
    "model.intermediate_size=768",
    "model.layers=8",
    "model.heads=4",
    "data.vocab_size=8192",
    "data.sequence_length=256",
    "stage1_9.batch_size=8",
    "stage2.batch_size=8",
    "optimizer@stage2.optimizer=adamw",  # Muon is a third of a step on a CPU, and would hide the rest
)
STEPS_PER_TURN, MICRO_BATCHES = 4, 8
LIMITS = {"eager": 1.10, "compiled": 1.00, "accumulation": 1.20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--ways", nargs="*", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides of the trainer, such as device.threads=1"
    )
    arguments = parser.parse_args()
    keep_freed_memory()
    config = check([*TEN_MILLION, *arguments.overrides])
    device = open_device(config.device)
    batch, length = config.stage2.batch_size, config.data.sequence_length
    print("| step | model | device | threads | dtype | full precision, ms | ternary, ms | ratio | limit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for way in arguments.ways:
        full, ternary = _models(config, device)
        size = f"{parameter_count(full) / 1e6:.1f}M, batch {batch} x {length}"
        steps = {"full": _step(way, full, config, device), "ternary": _step(way, ternary, config, device)}
        ms = _measure(steps, config, device, turns=arguments.turns)
        print(
            f"| {way} | {size} | {device.name} | {config.device.threads} | {device.dtype} | {ms['full']:.0f} "
            f"| {ms['ternary']:.0f} | {ms['ternary'] / ms['full']:.3f} | {LIMITS[way]:.2f} |",
            flush=True,
        )


def _models(config: Config, device: Device) -> tuple[nn.Module, nn.Module]:
    if not isinstance(config.model, TinyModelConfig):
        raise SystemExit("this benchmark measures model=tiny")
    torch.manual_seed(0)
    length = config.data.sequence_length
    full = build_tiny(
        config.model,
        vocab_size=config.data.vocab_size,
        sequence_length=length,
        attention=device.attention_for(length),
    ).to(device.torch_device)
    ternary, _ = make_student(
        copy.deepcopy(full), config.stage1, [next(_batches(config))], quant=config.quant, device=device
    )
    return full.train(), ternary.train()


def _step(way: str, model: nn.Module, config: Config, device: Device) -> TrainStep:
    micro = config.stage2.batch_size // MICRO_BATCHES if way == "accumulation" else None
    return TrainStep(
        dataclasses.replace(StagePlan.from_config("benchmark", config.stage2), micro_batch_size=micro),
        model,
        cross_entropy(model),
        build_optimizer(model, config.stage2.optimizer),
        dataclasses.replace(device, compile=way == "compiled"),
    )


def _measure(steps: dict[str, TrainStep], config: Config, device: Device, *, turns: int) -> dict[str, float]:
    """Return median milliseconds of a step."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    batches = _batches(config)
    for turn in range(turns + 1):
        for name, take_step in steps.items():
            for _ in range(STEPS_PER_TURN):
                took = _timed(take_step, device.place(next(batches)), device)
                if turn:  # the first turn compiles, and allocates optimizer state
                    seconds[name].append(took)
    return {name: 1000 * statistics.median(each) for name, each in seconds.items()}


def _timed(take_step: Callable[..., object], ids_BT: Tensor, device: Device) -> float:
    device.synchronize()
    start = time.perf_counter()
    take_step(ids_BT, number=1)
    device.synchronize()
    return time.perf_counter() - start


def _batches(config: Config) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (config.stage2.batch_size, config.data.sequence_length)
    while True:
        yield torch.randint(config.data.vocab_size, shape, generator=generator)


if __name__ == "__main__":
    main()
