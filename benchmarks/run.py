"""Overhead of a run besides its training steps, in real trainer processes: `python -m benchmarks.run`.

    start        process start to the first step of Stage 2, with warm caches
    checkpoints  throughput with a checkpoint every 20 steps, over that without any, in turns
    data         time that steps wait for text, of the same runs
    resume       process start to the first new step after a SIGTERM, less `start`

At about ten million parameters, unless overrides say otherwise. Prints rows of a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.api import EXIT_DONE, EXIT_PREEMPTED, METRICS_FILE, command, prepare

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
STAGE = "stage2 "
ALWAYS = (
    "stage1_9.max_steps=0",
    "stage2.lambda_warmup.enabled=false",
    "model.teacher.max_steps=5",
    "model.teacher.schedule.warmup_steps=1",
    "stage2.schedule.warmup_steps=0",
    "eval.batches=2",
    "eval.at=[]",
    "log_every=1",
)
WARM_STEPS = 5  # not counted: the first ones allocate
EVERY = 20


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Time of each step's line, in seconds after the process was started."""

    steps: dict[int, float]

    @property
    def first(self) -> float:
        return min(self.steps.values())

    def per_second(self) -> float:
        """Return steps a second, without the first few."""
        begin, end = min(self.steps) + WARM_STEPS, max(self.steps)
        return (end - begin) / (self.steps[end] - self.steps[begin])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=65, help="of each run whose throughput is measured")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of the trainer")
    args = parser.parse_args()
    common = (*TEN_MILLION, *ALWAYS, *args.overrides)
    prepare([*common, "stage2.max_steps=2"])
    with tempfile.TemporaryDirectory(prefix="benchmark-run-") as folder:
        runs = _folders(Path(folder))
        start = statistics.median(_run(common, 2, next(runs)).first for _ in range(args.repeats))
        print("| what | result | limit |\n|---|---|---|")
        print(f"| start to first step | {start:.1f} s | 8 s |", flush=True)
        rates: dict[bool, list[float]] = {False: [], True: []}
        waits: list[float] = []
        for _ in range(args.repeats):
            for checkpoints, each in rates.items():
                every = (
                    f"checkpoint.every_steps={EVERY if checkpoints else 0}",
                    "checkpoint.every_seconds=0",
                )
                folder_of_run = next(runs)
                each.append(_run((*common, *every), args.steps, folder_of_run).per_second())
                waits.append(_waiting(folder_of_run))
        without, with_them = (statistics.median(each) for each in rates.values())
        print(
            f"| throughput, a checkpoint every {EVERY} steps | {with_them:.3f} of {without:.3f} steps/s: "
            f"{100 * (1 - with_them / without):.1f} % less | 5 % |",
            flush=True,
        )
        waited = 100 * statistics.median(waits)
        print(f"| waiting for text, share of step time | {waited:.2f} % | 1 % |", flush=True)
        resumed = statistics.median(_resume(common, next(runs)) for _ in range(args.repeats))
        print(f"| resume to first new step, less the start | {resumed - start:+.1f} s | 2 s |")


def _folders(root: Path) -> Iterator[Path]:
    number = 0
    while True:
        yield root / str(number)
        number += 1


def _run(overrides: tuple[str, ...], steps: int, folder: Path) -> StepTimes:
    with _trainer((*overrides, f"stage2.max_steps={steps}"), folder) as (trainer, lines):
        times = StepTimes(steps=dict(lines))
    if trainer.returncode != EXIT_DONE:
        raise SystemExit(f"benchmark: a run ended with {trainer.returncode}")
    return times


def _waiting(folder: Path) -> float:
    """Return the share of the steps' time spent waiting for a batch, without the first few."""
    lines = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    steps = [line for line in lines if line.get("step", 0) > WARM_STEPS]
    data, compute = (sum(line[name] for line in steps) for name in ("data_seconds", "compute_seconds"))
    return float(data / (data + compute))


def _resume(overrides: tuple[str, ...], folder: Path) -> float:
    overrides = (*overrides, "stage2.max_steps=12", "checkpoint.every_steps=5")
    with _trainer(overrides, folder) as (trainer, lines):
        for step, _ in lines:
            if step == 8:
                trainer.send_signal(signal.SIGTERM)
    if trainer.returncode != EXIT_PREEMPTED:
        raise SystemExit(f"benchmark: a run that got SIGTERM ended with {trainer.returncode}")
    with _trainer(overrides, folder) as (trainer, lines):
        times = StepTimes(steps=dict(lines))
    if trainer.returncode != EXIT_DONE or min(times.steps) < 9:
        raise SystemExit("benchmark: a run was not resumed where it was stopped")
    return times.first


@contextmanager
def _trainer(
    overrides: tuple[str, ...], folder: Path
) -> Iterator[tuple[subprocess.Popen[str], Iterator[tuple[int, float]]]]:
    began = time.monotonic()
    trainer = subprocess.Popen(
        command(list(overrides), folder),
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert trainer.stdout is not None
    with trainer:
        yield (
            trainer,
            (
                (int(line.split()[1].partition("/")[0]), time.monotonic() - began)
                for line in trainer.stdout
                if line.startswith(STAGE)
            ),
        )


if __name__ == "__main__":
    main()
