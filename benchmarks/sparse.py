# ruff: noqa: E402 - torch reads the settings of before_torch() when it is imported
"""Memory and time of Stage 3 with all logits and with sparse ones: `python -m benchmarks.sparse`.

One forward and backward pass of the stage's own objective, over a student of few and narrow layers, with a
long sequence and a large vocabulary, so that logits dominate. Tensors are counted as torch creates them, not
sampled; seconds are those of a second pass without the counting. Overrides of the trainer choose another
shape. Prints a row of a Markdown table for each variant.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack

from trainer.devices.environment import before_torch

before_torch()

import torch

from benchmarks.tensor_memory import most_bytes
from trainer.api import check
from trainer.config import CachedTeacherConfig, Config
from trainer.devices.device import open_device
from trainer.losses.sparse import Sample, Targets
from trainer.models.causal_lm import build_tiny, embedding_count, freeze
from trainer.models.subln import make_student
from trainer.stages import distill
from trainer.stages.distill import from_cache

SHAPE = (
    "model.hidden_size=64",
    "model.intermediate_size=160",
    "model.layers=2",
    "model.heads=2",
    "data.vocab_size=151936",
    "data.sequence_length=1024",
    "stage1.subln=ones",
    "stage3.max_steps=1",
    "stage3.batch_size=1",
    "stage3.schedule.warmup_steps=0",
    "stage3.attention_weight=0.0",
    "device.dtype=float32",
    "device.threads=1",
)
CACHED = ("stage3/teacher=cached", "stage3.teacher.path=none")
WAYS = {
    "all logits": (),
    "candidates": CACHED,
    "candidates, exact CE": (*CACHED, "stage3.teacher.cross_entropy=exact"),
    "candidates, float16": (*CACHED, "stage3.teacher.dtype=float16"),
}
_MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides of the trainer, such as device.threads=2"
    )
    arguments = parser.parse_args()
    print("| way | its logits | largest tensor | most at once | seconds of a pass |\n|---|---|---|---|---|")
    for way in arguments.ways:
        config = check([*SHAPE, *WAYS[way], *arguments.overrides])
        work, logits = prepared(config)
        most = most_bytes(work)
        started = time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        figures = " | ".join(f"{size / _MIB:,.2f} MiB" for size in (logits, most.largest, most.at_once))
        print(f"| {way} | {figures} | {seconds:.2f} |", flush=True)


def prepared(config: Config) -> tuple[Callable[[], None], int]:
    """Return a forward and backward pass of Stage 3, and the bytes of the student's logits at float32."""
    device, stage, length = open_device(config.device), config.stage3, config.data.sequence_length
    if config.model.kind != "tiny":
        raise SystemExit("benchmarks.sparse needs model=tiny, whose shape its keys set")
    torch.manual_seed(config.seed)
    teacher = freeze(
        build_tiny(
            config.model,
            vocab_size=config.data.vocab_size,
            sequence_length=length,
            attention=device.attention_for(length),
        ).to(device.torch_device)
    )
    student, lambda_ = make_student(teacher, config.stage1, [], quant=config.quant, device=device)
    lambda_.set(1.0)
    vocabulary, rows = embedding_count(student), stage.micro_batch_size or stage.batch_size
    ids_BT = torch.randint(vocabulary, (rows, length), device=device.torch_device)
    if stage.teacher.kind == "cached":
        targets = Targets(teacher=sample(stage.teacher, rows, length, vocabulary)).placed(device.place)
        objective = from_cache(student, lambda count: targets, stage, stage.teacher)
        width = stage.teacher.top_k + stage.teacher.negatives
    else:
        objective = distill.from_teacher(student, teacher, stage, ExitStack())
        width = vocabulary

    def work() -> None:
        student.zero_grad()
        with device.autocast():
            objective(ids_BT)["loss"].backward()  # type: ignore[no-untyped-call]

    return work, 4 * rows * length * width


def sample(teacher: CachedTeacherConfig, rows: int, length: int, vocabulary: int) -> Sample:
    """Return random candidates and logits: neither memory nor time depends on their values."""
    shape = rows, length - 1, teacher.top_k + teacher.negatives
    logits = torch.randn(shape).to({"float32": torch.float32, "float16": torch.float16}[teacher.dtype])
    return Sample(ids=torch.randint(vocabulary, shape, dtype=torch.int32), logits=logits)


if __name__ == "__main__":
    main()
