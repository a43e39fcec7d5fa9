"""`python -m benchmarks.ladder COMMAND`: do best rate and share of Stage 1.9 move with size and tokens?

Each cell is a sweep of the product: a rung, a rule of scale, and the lengths of the stages, with a grid of
learning rates (one for both stages) and seeds. `train` goes through the cells, seed by seed, and appends
their rows to `benchmarks/ladder.jsonl`; killed, it goes on where it was, on another machine too. `table`
prints the table of docs/explanation/ladder.md from these rows, `figure` draws its picture, and `plan`
compares what `sweeps.plan` says of a rung, by the smaller ones alone, with what was measured there. `tokens`
fits the exponent by which the best rate moves with the tokens of a run.
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

from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no types

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


def train(storage: str, cells: Sequence[Cell], seeds: Iterable[int], rows: Path) -> None:
    """Train what is missing, a cell's rates for one seed after another's, and append the rows."""
    end_last_line(rows)
    for seed in seeds:
        for cell in cells:
            sweep = sweeps.create(cell.space(), storage=storage, skip_if_exists=True)
            append_rows(cell, sweep, rows)
            known = {row["lr"] for row in read_lines(rows) if (row["cell"], row["seed"]) == (cell.name, seed)}
            missing = [rate for rate in RATES if rate not in known]
            if not missing:
                continue
            print(time.strftime("%H:%M:%S"), cell.name, seed, missing, flush=True)
            # Not in the grid's order: on another machine the sweep is new, and the rows say what is left.
            # A process that was killed has left trials that wait or look as if they ran.
            open_now = [
                trial.parameters
                for trial in sweep.experiment.trials()
                if trial.status in ("pending", "running") and trial.parameters["seed"] == seed
            ]
            waiting = {found["stage2.optimizer.lr"] for found in open_now}
            for rate in sorted(set(missing) - waiting):
                sweep.enqueue({"seed": seed, "stage2.optimizer.lr": rate})
            for _ in missing:
                sweep.run(n_trials=1)
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
        found = of_whole_grids([row for row in rows if row["cell"] == cell.name])
        losses = {rate: [row["loss"] for row in found if row["lr"] == rate] for rate in RATES}
        if not found:
            continue
        means = {rate: statistics.fmean(values) for rate, values in losses.items()}
        shown = " | ".join(f"{means[rate]:.3f}" for rate in RATES)
        seeds = min(map(len, losses.values()))
        size, steps = f"{cell.width} x {cell.depth}", f"{cell.stage1_9} + {cell.stage2}"
        lines.append(f"| {size} | {cell.rule} | {steps} | {seeds} | {shown} | {best_rate(means):.1e} |")
    return "\n".join(lines)


def of_whole_grids(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a cell's seeds that have all rates: means over unlike seeds cannot be compared."""
    seeds = [row["seed"] for row in rows]
    return [row for row in rows if seeds.count(row["seed"]) == len(RATES)]


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
        own = of_whole_grids(own) or own
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


def tokens(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line for each rung and seed that has runs of two lengths with the same share of Stage 1.9.

    Each has the best rates, the exponent between them, and by how much the longer run's loss lies above its
    lowest at the shorter one's best rate as it is and carried by the exponent of the literature. The last
    line has the mean exponent, with an interval of 95 % by Student's t.
    """
    short, long, literature = (15, 60), (45, 180), -0.32
    grids: dict[tuple[int, int, int, int], dict[float, float]] = {}
    for row in rows:
        if row["rule"] == "none":
            key = row["width"], row["seed"], row["stage1_9"], row["stage2"]
            grids.setdefault(key, {})[row["lr"]] = row["loss"]
    lines, exponents = [], []
    for (width, seed, *steps), losses in sorted(grids.items()):
        before = grids.get((width, seed, *short), {})
        if tuple(steps) != long or not len(losses) == len(before) == len(RATES):
            continue
        times = sum(long) / sum(short)
        kept, best = best_rate(before), best_rate(losses)
        exponents.append(math.log(best / kept) / math.log(times))
        above = (loss_at(losses, rate) - loss_at(losses, best) for rate in (kept, kept * times**literature))
        shown = " | ".join(f"{each:.4f}" for each in above)
        lines.append(f"| {width} | {seed} | {kept:.1e} | {best:.1e} | {exponents[-1]:.2f} | {shown} |")
    mean, error = statistics.fmean(exponents), statistics.stdev(exponents) / math.sqrt(len(exponents))
    reach = float(stdtrit(len(exponents) - 1, 0.975)) * error
    return "\n".join([*lines, f"mean exponent {mean:.2f} ({mean - reach:.2f} to {mean + reach:.2f})"])


def loss_at(losses: dict[float, float], rate: float) -> float:
    """Return the loss at a rate between those tried: a parabola through the three nearest, over log rates."""
    nearest = sorted(losses, key=lambda tried: abs(math.log(tried / rate)))[:3]
    weights = (
        math.prod(math.log(rate / other) / math.log(each / other) for other in nearest if other != each)
        for each in nearest
    )
    return sum(weight * losses[each] for weight, each in zip(weights, nearest, strict=True))


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
    parser.add_argument("command", choices=["train", "table", "figure", "plan", "tokens"])
    parser.add_argument("--storage", default=".ladder", help="of the sweeps")
    names = [cell.name for cell in CELLS]
    parser.add_argument("--cells", nargs="+", choices=names, default=names, metavar="CELL")
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--rows", type=Path, default=ROWS)
    arguments = parser.parse_args()
    if arguments.command == "train":
        by_name = {cell.name: cell for cell in CELLS}
        cells = [by_name[name] for name in arguments.cells]
        train(arguments.storage, cells, arguments.seeds, arguments.rows)
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
            (288, "none", 1),
        ):
            print(plan(read_lines(arguments.rows), rule, width, seed))
    elif arguments.command == "tokens":
        print("| width | seed | best at 15 + 60 | best at 45 + 180 | exponent | rate kept | times 3^-0.32 |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        print(tokens(read_lines(arguments.rows)))
    else:
        PICTURE.write_text(figure(read_lines(arguments.rows)).to_svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
