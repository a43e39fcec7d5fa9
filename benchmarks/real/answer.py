"""How long should Stage 1.9 be? `docs/explanation/answer.md` from the records of the sweeps that asked it.

The records are the tables that `sweep export` writes of the sweeps `answer_*.yaml`, in the folder `answer`.
Every number of the page is computed from them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.summaries.paired import Paired, compare
from benchmarks.findings.claims import Finding, Series
from benchmarks.findings.page import markdown_table
from benchmarks.findings.pictures import draw

RECORDS = Path(__file__).with_name("answer")
PAGE = Path("docs/explanation/answer.md")

NOTEBOOK = {50: 7.52, 100: 6.92, 200: 6.39}
"""Final loss in the research notebook (SmolLM2-135M on an A40, 32 x 512 tokens a step, Muon), by steps of
Stage 1.9 before 200 of Stage 2; 7.83 without. The table is analysis/examples/stage19_length_sweep.csv."""

DOLLARS_PER_GPU_HOUR = 2.5
"""A spot price of an H200; an assumption, for scale."""

LOANED_HOURS = 409 / 3600
"""The call on the H200 that made the records, its start left out; trials shared the card."""

TEACHER_LOSS = 3.522
"""The teacher's own loss on the first 36 of these held-out windows, float32 on a CPU."""


@dataclass(frozen=True, order=True)
class Lengths:
    """Steps of both stages."""

    stage1_9: int
    stage2: int


class Runs:
    """Completed trials of the sweeps over lengths, by lengths and seed."""

    def __init__(self, tables: Iterable[pd.DataFrame]) -> None:
        self.table = pd.concat(tables, ignore_index=True)
        self._of: dict[Lengths, dict[int, Mapping[str, float]]] = {}
        for row in self.table[self.table["status"] == "completed"].to_dict("records"):
            lengths = Lengths(int(row["param.stage1_9.max_steps"]), int(row["param.stage2.max_steps"]))
            self._of.setdefault(lengths, {})[int(row["param.seed"])] = row

    @property
    def lengths(self) -> list[Lengths]:
        """Return all lengths that were trained, ascending."""
        return sorted(self._of)

    def values(self, lengths: Lengths, column: str = "final_loss") -> dict[int, float]:
        """Return a column's value by seed."""
        return {seed: float(row[column]) for seed, row in sorted(self._of[lengths].items())}

    def mean(self, lengths: Lengths, column: str) -> float:
        return statistics.fmean(self.values(lengths, column).values())

    def compare(self, a: Lengths, b: Lengths) -> Paired | None:
        """Return the losses of a less those of b over the seeds that both have; None without any."""
        first, second = self.values(a), self.values(b)
        both = first.keys() & second.keys()
        return compare({s: first[s] for s in both}, {s: second[s] for s in both}) if both else None

    def alone_with(self, lengths: Lengths, column: str) -> Lengths:
        """Return Stage 2 alone whose compute is nearest to that of the lengths."""
        goal = self.mean(lengths, column)
        alone = [each for each in self.lengths if not each.stage1_9]
        return min(alone, key=lambda each: abs(self.mean(each, column) - goal))


def read(folder: Path = RECORDS) -> Runs:
    """Read the records of the sweeps over lengths."""
    return Runs(pd.read_csv(folder / f"{name}.csv") for name in ("lengths", "alone"))


def write(page: Path = PAGE, folder: Path = RECORDS) -> None:
    """Write the page and its picture."""
    runs = read(folder)
    training = pd.read_csv(folder / "rates_training.csv")
    rates = pd.concat(
        pd.read_csv(folder / f"{name}.csv").merge(training[training["table"] == name], on="trial")
        for name in ("rates", "rates_alone")
    )
    pictures = page.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    draw(picture(runs), pictures / "lengths.svg")
    page.write_text(text(runs, rates, pictures=pictures.name))


def picture(runs: Runs) -> Finding:
    """Return the loss over the compute, with Stage 1.9 and without."""

    def series(label: str, lengths: Sequence[Lengths]) -> Series:
        return Series(
            label=label,
            x=tuple(runs.mean(each, "train_flops") / 1e14 for each in lengths),
            values=tuple(tuple(runs.values(each).values()) for each in lengths),
        )

    return Finding(
        name="lengths",
        claim="",
        verdicts=(),
        header=(),
        rows=(),
        series=(
            series("Stage 1.9, then 200 steps of Stage 2", [e for e in runs.lengths if e.stage1_9]),
            series("Stage 2 alone", [e for e in runs.lengths if not e.stage1_9]),
        ),
        x_title="training compute, 1e14 FLOPs",
        y_title="held-out loss at full quantisation, nats per token",
    )


def verdict(runs: Runs) -> str:
    """Return the answer in one sentence: which lengths are below Stage 2 alone with the same FLOPs."""
    gains = {each: runs.compare(each, runs.alone_with(each, "train_flops")) for each in _both(runs)}
    known = {each: pair for each, pair in gains.items() if pair is not None and len(pair.differences) > 1}
    if not known:
        return "Not answered yet: no length has two seeds beside Stage 2 alone with the same compute."
    better = [each.stage1_9 for each, pair in known.items() if pair.interval[1] < 0]
    worse = [each.stage1_9 for each, pair in known.items() if pair.interval[0] > 0]
    open_ = [each.stage1_9 for each in known if each.stage1_9 not in (*better, *worse)]
    found = {"better": better, "worse": worse, "not different": open_}
    parts = [f"{word} after {_list(steps)}" for word, steps in found.items() if steps]
    return (
        "Beside Stage 2 alone with the same FLOPs, a Stage 1.9 before 200 steps of Stage 2 is "
        f"{', '.join(parts)} steps (95 % intervals over seeds)."
    )


def text(runs: Runs, rates: pd.DataFrame, *, pictures: str) -> str:
    """Return the page."""
    trained = runs.table[runs.table["status"] == "completed"]
    everything = pd.concat([trained, rates[rates["status"] == "completed"]])
    hours = everything["seconds"].sum() / 3600
    paid, nominal = (everything[name].sum() for name in ("cost_paid", "cost_nominal"))
    parts = [
        "# How long should Stage 1.9 be?",
        "**Not answered yet: Stage 2 had another learning rate with a Stage 1.9 before it (5e-4) than "
        "without one (2e-3), and the rate matters more than the length "
        "([below](#rates-and-why-this-is-open)).**",
        verdict(runs),
        f"![held-out loss over compute]({pictures}/lengths.svg)",
        markdown_table(*_rows(runs)),
        "Means over seeds, smallest and largest in brackets; differences are paired by seed, with their "
        "95 % interval (Student's t). FLOPs are counted by the trainer: a step of Stage 1.9 includes the "
        "teacher's forward pass. Effective steps count it twice; a comparison that is not there was not "
        "run. Lengths of 100 and 200 steps did not run: the machine's time was over.",
        "## Rates, and why this is open",
        markdown_table(*_rates(rates)),
        "One seed; the rows have the same FLOPs; training losses are means of the last three logged steps. A "
        "limit of 130 s in the script ended three of six trials with both stages after their last step, "
        "before their evaluation. "
        "So the lengths were trained with Stage 2 at 5e-4, the best that was evaluated, and Stage 2 "
        "alone with 2e-3, the upper end "
        "of what was tried; the training losses say that 2e-3 would have been better in both. By them "
        "Stage 2 alone is ahead by about 0.2 to 0.3 at 2e-3 and 1e-3, and behind by 0.5 at 5e-4: a low "
        "rate is what Stage 1.9 helps with here.",
        _starts(runs),
        "## What was run",
        "SmolLM2-135M-Instruct with a vocabulary of 16,384 tokens and weights of 3.5 bits, a weaker "
        "teacher than the "
        f"original: its own loss on 36 of the held-out windows is {TEACHER_LOSS:.3f}. "
        "9.4 MB of prose, a handbook and source code, shuffled; "
        "12 x 256 tokens a step, Muon, bfloat16 products; lambda from 0.75 to 1 over the first 20 steps "
        "of Stage 2; held-out loss on 256 windows of 256 tokens. "
        "The longest run reads the text about once. An NVIDIA H200 with torch 2.11.0, nine workers of "
        "`sweep worker` at once, 2026-11-27.",
        f"{len(everything)} completed trials took {hours:.1f} hours of their workers in "
        f"{LOANED_HOURS:.2f} hours of the card, "
        f"{LOANED_HOURS * DOLLARS_PER_GPU_HOUR:.2f} dollars at {DOLLARS_PER_GPU_HOUR} dollars an hour, an "
        f"assumption. Shared stages and trunks paid {paid:,.0f} of "
        f"{nominal:,.0f} effective steps ({paid / nominal:.0%}). "
        "Points of the trunks at 35 steps were stored, but the runs of 50 did not start from them.",
        "Sweeps: `benchmarks/real/answer_rates.yaml`, `answer_rates_alone.yaml`, `answer_lengths.yaml` "
        "and `answer_alone.yaml`; "
        "their tables are in `benchmarks/real/answer/`, and `python -m benchmarks.real answer` writes "
        "this page from them.",
        "## Beside the research notebook",
        markdown_table(*_beside_notebook(runs)),
        "The notebook trains 32 x 512 tokens a step, 5.3 times as many, with the original model and "
        "rates of its own (3e-3 and 2.4e-3), on other text.",
        "## What would change it",
        "A search of both rates that ends, up to 8e-3, at both ends of the lengths; the lengths of 100 "
        "and 200; larger batches; a longer Stage 2.",
    ]
    return "\n\n".join(parts) + "\n"


def _starts(runs: Runs) -> str:
    """Say what Stage 2 made of the students that Stage 1.9 left."""
    found = [
        f"{runs.mean(each, 'stage2_start_loss'):.3f} to {runs.mean(each, 'final_loss'):.3f} after "
        f"{each.stage1_9} steps of Stage 1.9"
        for each in _both(runs)
    ]
    return f"Stage 2 took the held-out loss from {'; from '.join(found)}."


def _rates(rates: pd.DataFrame) -> tuple[Sequence[str], list[Sequence[str]]]:
    rows = []
    for row in rates.sort_values("train_loss").to_dict("records"):
        first = f"{row['param.stage1_9.optimizer.lr']:.2g}" if row["param.stage1_9.max_steps"] else ""
        steps = f"{row['param.stage1_9.max_steps']} + {row['param.stage2.max_steps']}"
        loss = f"{row['final_loss']:.3f}" if row["status"] == "completed" else "ended before"
        rows.append(
            [steps, first, f"{row['param.stage2.optimizer.lr']:.2g}", f"{row['train_loss']:.3f}", loss]
        )
    return ("steps", "Stage 1.9's rate", "Stage 2's rate", "training loss", "held-out loss"), rows


def _both(runs: Runs) -> list[Lengths]:
    return [each for each in runs.lengths if each.stage1_9]


def _list(steps: Sequence[int]) -> str:
    words = [str(each) for each in steps]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _rows(runs: Runs) -> tuple[Sequence[str], list[Sequence[str]]]:
    rows = []
    for each in runs.lengths:
        losses = list(runs.values(each).values())
        row = [
            str(each.stage1_9),
            str(each.stage2),
            f"{runs.mean(each, 'train_flops'):.3g}",
            f"{runs.mean(each, 'effective_steps'):.0f}",
            f"{statistics.fmean(losses):.3f} [{min(losses):.3f}, {max(losses):.3f}]",
        ]
        for column in ("train_flops", "effective_steps"):
            other = runs.alone_with(each, column)
            pair = runs.compare(each, other) if each.stage1_9 else None
            # Equal to 5 %, or it is no comparison.
            if abs(runs.mean(other, column) / runs.mean(each, column) - 1) > 0.05:
                pair = None
            row.append("" if pair is None else f"{_difference(pair)}, {other.stage2} steps")
        rows.append(row)
    return (
        "Stage 1.9, steps",
        "Stage 2, steps",
        "FLOPs",
        "effective steps",
        "loss",
        "less Stage 2 alone with the FLOPs",
        "less Stage 2 alone with the effective steps",
    ), rows


def _beside_notebook(runs: Runs) -> tuple[Sequence[str], list[Sequence[str]]]:
    rows = []
    without = next((e for e in runs.lengths if not e.stage1_9 and e.stage2 == 200), None)
    for each in _both(runs):
        if each.stage1_9 in NOTEBOOK and without is not None:
            pair = runs.compare(each, without)
            here = "" if pair is None else _difference(pair)
            rows.append([str(each.stage1_9), f"{NOTEBOOK[each.stage1_9] - 7.83:+.2f}", here])
    return ("Stage 1.9, steps", "notebook: less 200 of Stage 2 alone", "here"), rows


def _difference(pair: Paired) -> str:
    low, high = pair.interval
    spread = f" ({low:+.3f} to {high:+.3f})" if len(pair.differences) > 1 else " (one seed)"
    return f"{pair.mean:+.3f}{spread}"
