"""Start of a trial to the end of its first step, and overhead per trial: `python -m benchmarks.start`.

Each trial's trainer is started by its command (cold) and forked from a process with its imports done (warm),
as `sweep worker` does with STAGESWEEP_WARM_START=0 and 1, in turns. The model is the tiny one, and text and
teacher are there. Prints Markdown tables:

    phases      CPU and wall seconds of each part of a start, beside `python -c "import torch, transformers"`
    sweeps      a worker with 12 trials of 6 + 6 steps: how long until the first of them, and besides all

CPU seconds are steadier than wall seconds on a machine that does other work as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.start_phases import FILE, PHASES
from sweeps.experiment import Experiment
from sweeps.programs import process
from sweeps.programs.warm_start import VARIABLE, WarmStarts
from sweeps.space.definition import Objective, Program, Range, Search, Space
from sweeps.storage.local import LocalStore
from trainer import api

PROGRAM = "benchmarks.start_phases"
SHORT = (
    "model=tiny",
    "data=stdlib",
    "stage1_9.max_steps=6",
    "stage1_9.schedule.warmup_steps=1",
    "stage2.max_steps=6",
    "stage2.schedule.warmup_steps=1",
    "stage2.lambda_warmup.warmup_steps=2",
    "device=cpu",
    "device.threads=1",
    "log_every=1",
    "eval.batches=2",
    "eval.at=[]",
)
WAYS = ("cold", "warm")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="starts of each kind; 0: none (default: 5)")
    parser.add_argument("--trials", type=int, default=12, help="of each sweep; 0: no sweeps (default: 12)")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of the trainer")
    args = parser.parse_args()
    overrides = [*SHORT, *args.overrides]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each cold start compiles this checkout anew
    api.prepare(overrides)
    with tempfile.TemporaryDirectory(prefix="benchmark-start-") as folder:
        if args.repeats:
            _phases(overrides, args.repeats, Path(folder))
        if args.trials:
            _sweeps(overrides, args.trials, Path(folder))


def _phases(overrides: list[str], repeats: int, folder: Path) -> None:
    imports = [_timed([sys.executable, "-c", "import torch, transformers"]) for _ in range(repeats + 1)][1:]
    starts: dict[str, list[dict[str, list[float]]]] = {way: [] for way in WAYS}
    with WarmStarts(PROGRAM, preload="trainer.preload", common=overrides) as warm:
        for number in range(repeats + 1):
            for way in WAYS:
                starts[way].append(
                    _start(overrides, folder / f"{way}-{number}", warm if way == "warm" else None)
                )
    print(f"| seconds of CPU (wall) | {' | '.join(WAYS)} |\n|---|---|---|")
    cpu, wall = (statistics.median(each[kind] for each in imports) for kind in (1, 0))
    print(f'| `python -c "import torch, transformers"` | {cpu:.2f} ({wall:.2f}) | |')
    for phase in (*PHASES, "all"):
        cells = [_median([start[phase] for start in starts[way][1:]]) for way in WAYS]
        print(f"| {phase} | {' | '.join(cells)} |")
    sys.stdout.flush()


def _start(overrides: Sequence[str], folder: Path, warm: WarmStarts | None) -> dict[str, list[float]]:
    """Return wall and CPU seconds of each phase of one start, and of all together."""
    folder.mkdir()
    command = api.command(list(overrides), folder)
    command[command.index("-m") + 1] = PROGRAM
    began = time.monotonic()
    status = process.run(
        command,
        log_file=folder / "log.txt",
        env={"SWEEP_RUN_DIR": str(folder)},
        should_stop=lambda: False,
        warm=warm,
    )
    took = time.monotonic() - began
    if status:
        raise SystemExit(
            f"benchmark: a trainer ended with {status}: {process.last_lines(folder / 'log.txt', 1)}"
        )
    phases: dict[str, list[float]] = json.loads((folder / FILE).read_text())
    return phases | {"all": [took, sum(cpu for _, cpu in phases.values())]}


def _median(seconds: Sequence[Sequence[float]]) -> str:
    wall, cpu = (statistics.median(each[kind] for each in seconds) for kind in (0, 1))
    return f"{cpu:.2f} ({wall:.2f})"


def _timed(command: Sequence[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of a command."""
    began, before = time.monotonic(), _cpu_of_children()
    subprocess.run(command, check=True)
    return time.monotonic() - began, _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sweeps(overrides: Sequence[str], trials: int, folder: Path) -> None:
    rows = [
        f"\n| worker with {trials} trials | {' | '.join(WAYS)} |",
        "wall seconds",
        "CPU seconds",
        "claim to the end of the first step (median, without the first trial)",
        "claim to report, less the training steps (likewise)",
        "report to the next claim (likewise)",
    ]
    for way in WAYS:
        cells = _sweep(overrides, trials, folder / way, switch="1" if way == "warm" else "0")
        rows = [rows[0], *(f"{row} | {cell:.1f}" for row, cell in zip(rows[1:], cells, strict=True))]
    print(rows[0], "|---|---|---|", *(f"| {row} |" for row in rows[1:]), sep="\n")


def _sweep(overrides: Sequence[str], trials: int, folder: Path, *, switch: str) -> list[float]:
    store = LocalStore(folder)
    space = Space(
        name="short",
        objectives=(Objective(metric="final_loss"),),
        parameters=(Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float"),),
        program=Program(kind="trainer", overrides=tuple(overrides)),
        search=Search(method="random", seed=1),
        run_cap=trials,
    )
    Experiment.create(store, space)
    environment = {**os.environ, VARIABLE: switch}
    began, before = time.monotonic(), _cpu_of_children()
    command = [sys.executable, "-m", "sweeps", "worker", "--storage", store.url]
    subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    wall, cpu = time.monotonic() - began, _cpu_of_children() - before
    records = Experiment.open(store).trials()
    later = [(record, record.started or 0) for record in records[1:]]
    first_steps = [_first_step(folder, record.trial) - claimed for record, claimed in later]
    besides = [
        (record.ended or 0) - claimed - (record.metrics["train_seconds"] or 0) for record, claimed in later
    ]
    asks = [after - (before.ended or 0) for before, (_, after) in zip(records, later, strict=False)]
    return [wall, cpu, *map(statistics.median, (first_steps, besides, asks))]


def _first_step(folder: Path, trial: int) -> float:
    """Return the Unix time at which the trial's first step ended."""
    (file,) = folder.glob(f"runs/{trial:06d}/*/{api.METRICS_FILE}")
    with file.open() as lines:
        return float(json.loads(next(lines))["unix_seconds"])


if __name__ == "__main__":
    main()
