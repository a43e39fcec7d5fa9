"""`python -m benchmarks.ladder train|table|figure|plan`: do best rate and share of Stage 1.9 move with size?

Each cell is a sweep of the product: a rung, a rule of scale, and the lengths of the stages, with a grid of
learning rates (one for both stages) and seeds. `train` goes through the cells, seed by seed, and appends
their rows to `benchmarks/ladder.jsonl`; killed, it goes on where it was, on another machine too. `table`
prints the table of docs/explanation/ladder.md from these rows, `figure` draws its picture, and `plan`
compares what `sweeps.plan` says of a rung, by the smaller ones alone, with what was measured there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sweeps
from analysis.report.figure import Figure
from analysis.report.style import BLUE, GREEN, ORANGE, PURPLE, scale
from analysis.report.vega_lite import Axis, Drawing, Series
from benchmarks.json_lines import end_last_line, read_lines

RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
SEEDS = (0, 1)
BASE = (64, 2)  # what the rules of scale start from: the smallest rung
ROWS = Path(__file__).with_name("ladder.jsonl")
PARAMETERS = {64: 238_400, 128: 1_117_312, 192: 3_275_712, 288: 10_310_112}  # by width
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "ladder.svg"
COMMON = (
    *("data=stdlib", "device=cpu", "device.threads=1", "eval.at=[]", "eval.batches=8"),
    "samples.enabled=false",
    *("model=ladder", "model.teacher.max_steps=200", "model.teacher.batch_size=8"),
    *("stage1_9.batch_size=8", "stage2.batch_size=8", "stage2.lambda_warmup.warmup_steps=10"),
    "stage1_9.optimizer.lr=${stage2.optimizer.lr}",
)


@dataclasses.dataclass(frozen=True, order=True)
class Cell:
    """One sweep: a model, a rule, and the steps of both stages."""

    width: int
    depth: int
    rule: str
    stage1_9: int
    stage2: int

    @property
    def name(self) -> str:
        return f"ladder-{self.width}x{self.depth}-{self.rule}-{self.stage1_9}-{self.stage2}"

    def space(self) -> dict[str, Any]:
        rule = () if self.rule == "none" else (
            f"scale_rule={self.rule}",
            f"scale_rule.base_width={BASE[0]}",
            f"scale_rule.base_depth={BASE[1]}",
        )  # fmt: skip
        own = (f"model.width={self.width}", f"model.depth={self.depth}")
        return {
            "name": self.name,
            "objectives": [{"metric": "final_loss"}],
            "program": {"trainer": {"overrides": [*COMMON, *own, *rule]}},
            "parameters": {
                "seed": {"values": list(SEEDS)},
                "stage2.optimizer.lr": {"values": list(RATES)},
                "stage1_9.max_steps": {"value": self.stage1_9},
                "stage2.max_steps": {"value": self.stage2},
            },
            "search": {"method": "grid", "reuse": "none"},
        }


CELLS = (
    Cell(64, 2, "none", 15, 60),
    Cell(128, 4, "none", 15, 60),
    Cell(128, 4, "mup", 15, 60),
    Cell(64, 2, "none", 0, 90),
    Cell(64, 2, "none", 30, 30),
    Cell(64, 2, "none", 45, 180),
    Cell(192, 6, "none", 15, 60),
    Cell(192, 6, "mup", 15, 60),
    Cell(128, 4, "none", 0, 90),
    Cell(128, 4, "none", 30, 30),
    Cell(128, 4, "none", 45, 180),
    Cell(288, 9, "none", 15, 60),
)
"""The most telling come first: of a run that ends early these are there."""


def train(storage: str, rules: Sequence[str], seeds: Iterable[int], rows: Path) -> None:
    """Train what is missing, a cell's rates for one seed after another's, and append the rows."""
    end_last_line(rows)
    for seed in seeds:
        for cell in CELLS:
            if cell.rule not in rules:
                continue
            sweep = sweeps.create(cell.space(), storage=storage, skip_if_exists=True)
            append_rows(cell, sweep, rows)
            known = {row["lr"] for row in read_lines(rows) if (row["cell"], row["seed"]) == (cell.name, seed)}
            missing = [rate for rate in RATES if rate not in known]
            # Not in the grid's order: on another machine the sweep is new, and the rows say what is left.
            for rate in missing:
                sweep.enqueue({"seed": seed, "stage2.optimizer.lr": rate})
            if missing:
                print(time.strftime("%H:%M:%S"), cell.name, seed, missing, flush=True)
                sweep.run(n_trials=len(missing))
            append_rows(cell, sweep, rows)


def append_rows(cell: Cell, sweep: sweeps.Sweep, rows: Path) -> None:
    """Append the rows of a sweep's completed trials that are not there yet."""
    known = {(row["cell"], row["seed"], row["lr"]) for row in read_lines(rows)}
    table = sweep.trials()
    with rows.open("a", encoding="utf-8") as lines:
        for _, trial in table[table.status == "completed"].iterrows():
            row = {
                "cell": cell.name,
                **dataclasses.asdict(cell),
                "seed": int(trial["param.seed"]),
                "lr": float(trial["param.stage2.optimizer.lr"]),
                "loss": float(trial["final_loss"]),
                "seconds": round(float(trial["train_seconds"]), 1),
            }
            if (row["cell"], row["seed"], row["lr"]) not in known:
                lines.write(json.dumps(row) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each cell: losses by rate, mean over seeds, and the best rate between those tried."""
    rates = " | ".join(f"{rate:g}" for rate in RATES)
    lines = [f"| model | rule | steps | seeds | {rates} | best rate |", "| --- " * (len(RATES) + 5) + "|"]
    for cell in CELLS:
        found = [row for row in rows if row["cell"] == cell.name]
        losses = {rate: [row["loss"] for row in found if row["lr"] == rate] for rate in RATES}
        if not all(losses.values()):
            continue
        means = {rate: statistics.fmean(values) for rate, values in losses.items()}
        shown = " | ".join(f"{means[rate]:.3f}" for rate in RATES)
        seeds = min(map(len, losses.values()))
        size, steps = f"{cell.width} x {cell.depth}", f"{cell.stage1_9} + {cell.stage2}"
        lines.append(f"| {size} | {cell.rule} | {steps} | {seeds} | {shown} | {best_rate(means):.1e} |")
    return "\n".join(lines)


def best_rate(losses: dict[float, float]) -> float:
    """Return where the parabola through the lowest loss and its two neighbours is lowest, over log rates.

    At an end of the range it is the end.
    """
    rates = sorted(losses)
    at = min(range(len(rates)), key=lambda index: losses[rates[index]])
    if at in (0, len(rates) - 1):
        return rates[at]
    left, low, right = (losses[rates[at + step]] for step in (-1, 0, 1))
    shift = (left - right) / (2 * (left - 2 * low + right))
    return rates[at] * math.exp(shift * math.log(rates[at + 1] / rates[at]))


def figure(rows: Sequence[dict[str, Any]]) -> Figure:
    """Return the loss over the rate of each rung at 15 + 60 steps, without the rule and with it.

    Triangles at the lower edge stand at the best rates.
    """
    colours = {64: BLUE, 128: GREEN, 192: ORANGE, 288: PURPLE}
    found = [row for row in rows if (row["stage1_9"], row["stage2"]) == (15, 60)]
    losses = [row["loss"] for row in found]
    drawing = Drawing(
        x=Axis(title="learning rate", scale=scale(RATES, log=True)),
        y=Axis(title="held-out loss, nats per token", scale=scale(losses, linear=True)),
        height=300,
        zoom=False,
    )
    for cell in CELLS:
        own = [row for row in found if row["cell"] == cell.name]
        if not own:
            continue
        is_plain = cell.rule == "none"
        series = Series(
            name=f"{cell.width} x {cell.depth}{'' if is_plain else f', {cell.rule}'}",
            colour=colours[cell.width],
            shape="circle" if is_plain else "square",
            filled=is_plain,
            dash=() if is_plain else (4, 3),
        )
        tried = sorted({row["lr"] for row in own})
        means = {rate: statistics.fmean(row["loss"] for row in own if row["lr"] == rate) for rate in tried}
        points: list[dict[str, Any]] = [{"x": rate, "y": loss} for rate, loss in means.items()]
        drawing.line(series, points)
        drawing.points(series, points)
        if len(tried) == len(RATES):
            mark = dataclasses.replace(series, shape="triangle-down", dash=())
            drawing.points(mark, [{"x": best_rate(means)}], listed=False, bottom=True)
    return drawing.figure()


def plan(rows: Sequence[dict[str, Any]], rule: str, width: int = 192, seed: int = SEEDS[0]) -> str:
    """Return a line: rate and loss that the smaller rungs plan for this width, and the measured ones."""
    losses: dict[int, dict[float, float]] = {}
    for row in rows:
        own = "none" if row["width"] == BASE[0] else rule  # at the base the rule changes nothing
        if (row["rule"], row["seed"], row["stage1_9"], row["stage2"]) == (own, seed, 15, 60):
            losses.setdefault(row["width"], {})[row["lr"]] = row["loss"]
    smaller = [each for each in sorted(losses) if each < width]
    with tempfile.TemporaryDirectory() as folder:
        sources = [imported(f"w{each}", losses[each], folder) for each in smaller]
        found = sweeps.plan(sources, PARAMETERS[width], sizes=[PARAMETERS[each] for each in smaller])
    rate, loss, there = found.settings["lr"], found.loss, losses[width]
    low, high = rate.interval or (math.nan, math.nan)
    best = (
        f"{best_rate(there):.2g}"
        if len(there) == len(RATES)
        else f"of {len(there)}: {min(there, key=there.__getitem__):.2g}"
    )
    return (
        f"| {width} | {rule} | {seed} | {rate.value:.2g} ({low:.2g} to {high:.2g}) | {best} "
        f"| {loss.value:.3f} ({loss.low:.3f} to {loss.high:.3f}) | {min(there.values()):.3f} |"
    )


def imported(name: str, losses: dict[float, float], folder: str) -> sweeps.Sweep:
    """Return a sweep with these results by learning rate."""
    rates = {"min": RATES[0], "max": RATES[-1], "distribution": "log_uniform_values"}
    space = {"name": name, "objectives": [{"metric": "final_loss"}], "parameters": {"lr": rates}}
    sweep = sweeps.create(space, storage=folder)
    for rate in losses:
        sweep.enqueue({"lr": rate})
    sweep.run(
        lambda found: losses[min(losses, key=lambda rate: abs(rate - found["lr"]))], n_trials=len(losses)
    )
    return sweep


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["train", "table", "figure", "plan"])
    parser.add_argument("--storage", default=".ladder", help="of the sweeps")
    parser.add_argument("--rules", nargs="+", choices=["none", "mup"], default=["none", "mup"])
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    if arguments.command == "train":
        train(arguments.storage, arguments.rules, arguments.seeds, arguments.rows)
    elif arguments.command == "table":
        print(table(read_lines(arguments.rows)))
    elif arguments.command == "plan":
        print("| width | rule | seed | planned rate (95 %) | best rate | planned loss (95 %) | lowest loss |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for width, rule, seed in (
            (192, "none", 0),
            (192, "none", 1),
            (192, "mup", 0),
            (192, "mup", 1),
            (288, "none", 0),
        ):
            print(plan(read_lines(arguments.rows), rule, width, seed))
    else:
        PICTURE.write_text(figure(read_lines(arguments.rows)).to_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
