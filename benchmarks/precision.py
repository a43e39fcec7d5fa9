# ruff: noqa: E402 - torch reads the settings of before_torch() when it is imported
"""Cost of a training step in each precision: `python -m benchmarks.precision`.

The products of the model (`device.dtype`) and those that orthogonalise Muon's updates (`muon.dtype`), each in
float32 and in bfloat16, on `model=tiny` with its own sizes. All four take turns in one process, and what is
compared is CPU time with one thread, so that other work on the machine matters little. Prints a row of
a Markdown table for each.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

from trainer.devices.environment import before_torch, keep_freed_memory

before_torch()

from benchmarks.equivalence import Stage, trace

STAGES: tuple[Stage, ...] = ("stage1_9", "stage2")
PRECISIONS = tuple(itertools.product(("float32", "bfloat16"), repeat=2))
FEW, MANY = 2, 7  # steps of two runs, whose difference leaves out the construction of models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of the trainer")
    arguments = parser.parse_args()
    keep_freed_memory()
    seconds: dict[tuple[Stage, tuple[str, str]], list[float]] = {}
    for turn in range(arguments.turns + 1):
        for stage, precision in itertools.product(STAGES, PRECISIONS):
            took = _step_seconds(stage, precision, arguments.overrides)
            if turn:  # the first allocates
                seconds.setdefault((stage, precision), []).append(took)
    print("| stage | products | Muon | CPU seconds a step | over float32 |")
    print("| --- | --- | --- | --- | --- |")
    for (stage, precision), each in seconds.items():
        median = statistics.median(each)
        ratio = median / statistics.median(seconds[stage, PRECISIONS[0]])
        print(f"| {stage} | {precision[0]} | {precision[1]} | {median:.3f} | {ratio:.2f} |")


def _step_seconds(stage: Stage, precision: tuple[str, str], overrides: list[str]) -> float:
    products, muon = precision
    settings = [
        *("device=cpu", "device.threads=1", f"device.dtype={products}"),
        *(f"{stage}.optimizer.muon.dtype={muon}", f"{stage}.schedule.warmup_steps=1"),
        *("stage2.lambda_warmup.warmup_steps=1", *overrides),
    ]
    spent = []
    for steps in (FEW, MANY):
        before = time.process_time()
        trace(settings, stage=stage, steps=steps)
        spent.append(time.process_time() - before)
    return (spent[1] - spent[0]) / (MANY - FEW)


if __name__ == "__main__":
    main()
