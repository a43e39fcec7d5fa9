# ruff: noqa: E402 - torch reads the settings of before_torch() when it is imported
"""What a ternary training step costs over the same model in full precision: `python -m benchmarks.step`.

Both models are trained by the trainer's own loop, in one process, in turns of a few steps, so that whatever
else the machine does falls on both; the medians are compared. Prints one row of a Markdown table.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Iterator

from trainer.environment import before_torch

before_torch()

import torch
from torch import Tensor, nn

from trainer.api import check
from trainer.config import Config, TinyModelConfig
from trainer.device import Device, open_device
from trainer.loop import StagePlan, train
from trainer.model import build_tiny, parameter_count
from trainer.preemption import StopSignal
from trainer.stages.pretrain import cross_entropy
from trainer.stages.subln import make_student

STEPS_PER_TURN = 4  # the first step of a turn allocates optimizer state and is not counted
LIMIT = 1.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides of the trainer, such as device.threads=1"
    )
    arguments = parser.parse_args()
    config = check(arguments.overrides)
    device = open_device(config.device)
    full, ternary = _models(config, device)
    seconds = _measure(config, device, full, ternary, turns=arguments.turns)
    ratio = seconds["ternary"] / seconds["full"]
    print("| model | device | threads | dtype | full precision, ms/step | ternary, ms/step | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print(
        f"| {parameter_count(full) / 1e6:.1f}M, batch {config.stage2.batch_size} x "
        f"{config.data.sequence_length} | {device.name} | {config.device.threads} | {device.dtype} | "
        f"{1000 * seconds['full']:.0f} | {1000 * seconds['ternary']:.0f} | {ratio:.2f} (limit {LIMIT}) |"
    )


def _models(config: Config, device: Device) -> tuple[nn.Module, nn.Module]:
    if not isinstance(config.model, TinyModelConfig):
        raise SystemExit("this benchmark measures model=tiny")
    torch.manual_seed(0)
    length = config.data.sequence_length
    full = build_tiny(
        config.model, vocab_size=config.data.vocab_size, sequence_length=length, attention=device.attention
    ).to(device.torch_device)
    ternary, _ = make_student(
        copy.deepcopy(full), config.stage1, [next(_batches(config))], quant=config.quant, device=device
    )
    return full, ternary


def _measure(
    config: Config, device: Device, full: nn.Module, ternary: nn.Module, *, turns: int
) -> dict[str, float]:
    plan = StagePlan(
        name="benchmark",
        steps=STEPS_PER_TURN,
        optimizer=config.stage2.optimizer,
        schedule=config.stage2.schedule,
    )
    seconds: dict[str, list[float]] = {"full": [], "ternary": []}
    for turn in range(turns + 1):
        for name, model in (("full", full), ("ternary", ternary)):
            steps: list[float] = []
            train(
                plan,
                model,
                cross_entropy(model),
                _batches(config),
                device=device,
                stop=StopSignal(),
                watch=lambda step, steps=steps: steps.append(step.seconds),  # type: ignore[misc]
            )
            if turn:  # the first turn warms up
                seconds[name] += steps[1:]
    return {name: statistics.median(each) for name, each in seconds.items()}


def _batches(config: Config) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (config.stage2.batch_size, config.data.sequence_length)
    while True:
        yield torch.randint(config.data.vocab_size, shape, generator=generator)


if __name__ == "__main__":
    main()
