"""How long should Stage 1.9 be? `docs/explanation/answer.md` from the records of the sweep that asked it.

The records are answer/cpu.csv, which `answer_sweep` writes. Every number of the page is computed from them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.summaries.paired import Paired, compare
from benchmarks.findings.claims import Finding, Series
from benchmarks.findings.page import markdown_table
from benchmarks.findings.pictures import draw
from benchmarks.real.answer_sweep import (
    CHANGES,
    CPU,
    RATE_1_9,
    RATE_2,
    SALIENCY,
    SETTINGS,
    STEPS,
    TIE,
    Lengths,
    Rates,
    alone,
    best_length,
    lengths_of_change,
    middle_rates,
    rate_trials,
    rates_to_try,
    trained_lengths,
    with_best_rates,
)

RECORDS = Path(__file__).with_name("answer")
PAGE = Path("docs/explanation/answer.md")

NOTEBOOK = {50: 7.52, 100: 6.92, 200: 6.39}
"""Final loss in the research notebook (SmolLM2-135M on an A40, 32 x 512 tokens a step, Muon), by steps of
Stage 1.9 before 200 of Stage 2; 7.83 without. The table is analysis/examples/stage19_length_sweep.csv."""

DOLLARS_PER_HOUR = 0.05
"""A spot price of the machine, an assumption, for scale: two virtual cores of an AMD EPYC and 16 GiB of
memory (Google's C3D: 0.01182 dollars a core and 0.001584 a GiB)."""

WORKERS = 2
"""Workers on the machine."""

TEACHER_LOSS = 3.400
"""The teacher's own loss on the held-out windows of the sweep on a CPU."""

TOKENS_PER_STEP = 8 * 128
"""Tokens of a training step in the sweep on a CPU."""

HELD_OUT_TOKENS = 128 * 128
"""Tokens of its held-out text."""

SAME = 0.01
"""Largest difference of two computes, as a share, that counts as none."""


@dataclass(frozen=True)
class Alone:
    """Stage 2 alone, of some compute.

    Args:
        steps: of Stage 2.
        losses: by seed.
    """

    steps: int
    losses: Mapping[int, float]
    is_interpolated: bool = False


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
        return _paired(self.values(a), self.values(b))

    def alone_with(self, lengths: Lengths, column: str) -> Alone | None:
        """Return Stage 2 alone with the compute of the lengths; None beyond what was trained."""
        return self.alone_at(self.mean(lengths, column), column, self.values(lengths).keys())

    def alone_at(self, goal: float, column: str, seeds: Set[int]) -> Alone | None:
        """Return Stage 2 alone with this compute; None beyond what was trained.

        Without a length of nearly that compute its loss is interpolated, linearly in the compute's logarithm,
        between those that have the seeds.
        """
        every = [each for each in self.lengths if not each.stage1_9]
        known = [each for each in every if seeds <= self.values(each).keys()] or every
        alone = sorted((self.mean(each, column), each) for each in known)
        compute, nearest = min(alone, key=lambda pair: abs(pair[0] - goal))
        if abs(compute / goal - 1) <= SAME:
            return Alone(nearest.stage2, self.values(nearest))
        below = [pair for pair in alone if pair[0] < goal]
        above = [pair for pair in alone if pair[0] > goal]
        if not below or not above:
            return None
        (less, shorter), (more, longer) = below[-1], above[0]
        share = math.log(goal / less) / math.log(more / less)
        first, second = self.values(shorter), self.values(longer)
        losses = {s: first[s] + share * (second[s] - first[s]) for s in first.keys() & second.keys()}
        return Alone(round(shorter.stage2 * goal / less), losses, is_interpolated=True)

    def beside_alone(self, lengths: Lengths, column: str) -> tuple[Paired, Alone] | None:
        """Return the losses less those of Stage 2 alone with the same compute; None without a common seed."""
        alone = self.alone_with(lengths, column)
        if alone is None:
            return None
        pair = _paired(self.values(lengths), alone.losses)
        return None if pair is None else (pair, alone)


def write(page: Path = PAGE, folder: Path = RECORDS) -> None:
    """Write the page and its picture."""
    sweep = pd.read_csv(folder / "cpu.csv")
    pictures = page.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    draw(picture(at_best_rates(sweep), with_saliency(sweep)), pictures / "lengths.svg")
    page.write_text(text(sweep, pictures=pictures.name))


def at_best_rates(sweep: pd.DataFrame) -> Runs:
    """Return the sweep's trials over lengths, each with the rates that are best at its lengths."""
    return Runs(with_best_rates(sweep, each) for each in trained_lengths(sweep))


def with_saliency(sweep: pd.DataFrame) -> Runs:
    """Return the trials of a Stage 1.9 with saliency, and those of Stage 2 alone."""
    return Runs(
        with_best_rates(sweep, each, {SALIENCY: True} if each.stage1_9 else {})
        for each in trained_lengths(sweep)
    )


def picture(runs: Runs, salient: Runs) -> Finding:
    """Return the loss over the compute, with Stage 1.9 and without.

    Args:
        runs: with a Stage 1.9 as it is by default, and without any.
        salient: with a Stage 1.9 with saliency.
    """

    def series(label: str, runs: Runs, lengths: Sequence[Lengths]) -> Series:
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
            series("Stage 1.9 first", runs, _both(runs)),
            series("Stage 2 alone", runs, [e for e in runs.lengths if not e.stage1_9]),
            *([series("Stage 1.9 with saliency first", salient, _both(salient))] if _both(salient) else []),
        ),
        x_title="training compute, 1e14 FLOPs",
        y_title="held-out loss at full quantisation, nats per token",
    )


def verdict(runs: Runs, what: str = "a Stage 1.9") -> str:
    """Return the answer in one sentence: which lengths are below Stage 2 alone with the same FLOPs."""
    gains = {each: found for each in _both(runs) if (found := runs.beside_alone(each, "train_flops"))}
    known = {each.stage1_9: pair for each, (pair, _) in gains.items() if len(pair.differences) > 1}
    if not known:
        return "Not answered yet: no length has two seeds beside Stage 2 alone with the same compute."
    by_seed = {
        each.stage1_9: {
            s: loss - other.losses[s] for s, loss in runs.values(each).items() if s in other.losses
        }
        for each, (_, other) in gains.items()
        if each.stage1_9 in known
    }
    better = [steps for steps, pair in known.items() if pair.interval[1] < 0]
    worse = [steps for steps, pair in known.items() if pair.interval[0] > 0]
    unclear = [steps for steps in known if steps not in (*better, *worse)]
    found = {"is better": better, "is worse": worse, "shows no clear difference": unclear}
    parts = [f"{word} with {_list(steps)} steps" for word, steps in found.items() if steps]
    differences = [f"{_difference(pair)} with {steps}" for steps, pair in known.items()]
    seeds = set.intersection(*(set(each) for each in by_seed.values()))
    if len(known) > 1 and len(seeds) > 1 and len(parts) == 1:  # else the mean is of unlike things
        over_all = {s: statistics.fmean(each[s] for each in by_seed.values()) for s in seeds}
        pair = compare(over_all, dict.fromkeys(seeds, 0.0))
        differences.append(f"{_difference(pair)} as the mean of these lengths")
    counts = sorted({len(pair.differences) for pair in known.values()})
    return (
        f"Against Stage 2 alone with the same FLOPs, {what} before {STEPS} steps of Stage 2 "
        f"{' and '.join(parts)}. Difference of the losses: {'; '.join(differences)} (95 % intervals over "
        f"{' or '.join(map(str, counts))} seeds)."
    )


def _by_effective_steps(runs: Runs) -> list[str]:
    """Say which lengths are clearly better or worse at equal effective steps."""
    found: dict[str, list[int]] = {"better": [], "worse": []}
    for each in _both(runs):
        beside = runs.beside_alone(each, "effective_steps")
        if beside is not None and len(beside[0].differences) > 1:
            low, high = beside[0].interval
            if low > 0 or high < 0:
                found["worse" if low > 0 else "better"].append(each.stage1_9)
    parts = [f"{word} with {_list(steps)}" for word, steps in found.items() if steps]
    if not parts:
        return []
    return [
        "With the same effective steps in place of FLOPs, of which a step of Stage 1.9 counts as two, a "
        f"Stage 1.9 before Stage 2 is {' and '.join(parts)}."
    ]


def _before_stage_2(runs: Runs) -> list[str]:
    """Say where Stage 1.9 by itself is beside Stage 2 alone with its FLOPs."""
    found = []
    second = Lengths(0, STEPS)
    for each in _both(runs) if second in runs.lengths else []:
        flops = runs.mean(each, "train_flops") - runs.mean(second, "train_flops")
        losses = runs.values(each, "stage2_start_loss")
        alone = runs.alone_at(flops, "train_flops", losses.keys())
        pair = None if alone is None else _paired(losses, alone.losses)
        if alone is not None and pair is not None:
            steps = f"{alone.steps} steps" + (", interpolated" if alone.is_interpolated else "")
            mean = statistics.fmean(losses.values())
            found.append(f"{mean:.3f} with {each.stage1_9} steps, {_difference(pair)} beside {steps}")
    if not found:
        return []
    return [
        "Stage 1.9 by itself, without any Stage 2, against Stage 2 alone with its FLOPs: "
        f"{'; '.join(found)}. Half of its loss is cross-entropy on text, too, as in Stage 2."
    ]


def text(sweep: pd.DataFrame, *, pictures: str) -> str:
    """Return the page.

    Args:
        sweep: the records.
        pictures: folder of the pictures.
    """
    runs = at_best_rates(sweep)
    parts = [
        "# How long should Stage 1.9 be?",
        "A full-precision language model, the teacher, becomes one with weights of -1, 0 and 1, the student. "
        "Stage 1.9 aligns the student's layers with the teacher's; Stage 2 then trains it on text "
        "([the stages](stages.md)). Is compute better spent on Stage 1.9, or on a longer Stage 2? A step of "
        "Stage 1.9 costs 4/3 of one of Stage 2, as the teacher runs as well, so 50 steps of it and "
        f"{STEPS} of Stage 2 stand beside {alone(50)} of Stage 2 alone.",
        f"**{verdict(runs)}**",
        *_before_stage_2(runs),
        *_by_effective_steps(runs),
        *_salient_verdict(sweep),
        *_open_rates(sweep),
        _limits(runs),
        f"![held-out loss over compute]({pictures}/lengths.svg)",
        markdown_table(*_rows(runs)),
        "Losses are means over seeds, smallest and largest in brackets; differences are paired by seed, with "
        "their 95 % interval (Student's t). A positive difference: the loss is higher with Stage 1.9. "
        "Losses before Stage 2 are at full quantisation, too. FLOPs are counted by the trainer; effective "
        "steps count the teacher's pass as a whole step. Losses of Stage 2 alone with lengths that were not "
        "trained are interpolated for each seed, linearly in the logarithm of the steps: too high where the "
        "curve bends, which favours Stage 1.9.",
        _text_errors(sweep),
        "## Learning rates",
        _rate_search(runs),
        markdown_table(*_rate_rows(sweep)),
        *_too_high_rates(sweep),
        "## What else there is to set",
        _changes(sweep, runs),
        "## What was run",
        "SmolLM2-135M-Instruct, dequantised from Q4_1 (held-out loss of the teacher itself "
        f"{TEACHER_LOSS:.3f}); 18.2 MB of prose, a handbook and source code, shuffled; 8 x 128 tokens a "
        "step, AdamW, bfloat16 products, compiled layers; lambda from 0.75 to 1 over the first 20 steps of "
        "Stage 2; held-out loss on 128 windows of 128 tokens. Two workers of `sweep worker`, a thread each, "
        "at the lowest priority beside tests, on 2 cores of an AMD EPYC (Zen 5), torch 2.13.0, 2026-11-29 "
        "and 2026-11-30.",
        _cost(sweep),
        "`python -m benchmarks.real sweep --on-cpu --minutes N --workers 2 --records "
        "benchmarks/real/answer/cpu.csv` goes on where the records end, and adds to them; `python -m "
        "benchmarks.real answer` writes this page from them.",
        "## Beside an earlier notebook",
        "A research notebook (SmolLM2-135M on an A40, 32 x 512 tokens a step, Muon, other text; its table is "
        "`analysis/examples/stage19_length_sweep.csv`) had 7.83 without Stage 1.9 and 7.52, 6.92 and 6.39 "
        f"after 50, 100 and 200 steps of it, each before the same {STEPS} steps of Stage 2, so not at equal "
        "compute.",
        *_beside_notebook(runs),
        "## What would change it",
        "Larger batches and a longer Stage 2: the students are far from the teacher. Muon in place of AdamW. "
        "Trainings on an H200 on 2026-11-27 and 2026-11-29 do not count: torch 2.11 compiled their layers "
        "with a wrong gradient ([log](../log.md)).",
    ]
    return "\n\n".join(parts) + "\n"


def _salient_verdict(sweep: pd.DataFrame) -> list[str]:
    """Say the same of a Stage 1.9 with saliency, where two seeds of it were trained at some length."""
    runs = with_saliency(sweep)
    if all(len(runs.values(each)) < 2 for each in _both(runs)):
        return []
    found = verdict(runs, "a Stage 1.9 with saliency")
    return [
        "All that is without [saliency](quantisation.md#saliency), which keeps a tenth of each matrix's "
        f"columns in full precision at first, and none at the end of Stage 1.9. **{found}** The learning "
        "rates are those found without it."
    ]


def _limits(runs: Runs) -> str:
    """Say how short the trainings are, and how far from the teacher."""
    tokens = [(each.stage1_9 + each.stage2) * TOKENS_PER_STEP / 1e6 for each in runs.lengths]
    means = [runs.mean(each, "final_loss") for each in runs.lengths]
    return (
        f"These trainings are very short, {min(tokens):.1f} to {max(tokens):.1f} million tokens: the "
        f"students end at {min(means):.1f} to {max(means):.1f} nats per token, where the teacher has "
        f"{TEACHER_LOSS:.1f}. Nothing follows for trainings of billions of tokens."
    )


def _text_errors(sweep: pd.DataFrame) -> str:
    """Say what the intervals leave out: other held-out text."""
    errors = sweep.loc[sweep["status"] == "completed", "final_loss_text_sem"]
    return (
        f"All runs are measured on the same {HELD_OUT_TOKENS:,} tokens. How other text would move a "
        "difference is in no interval here; of a single loss, that standard error is "
        f"{errors.min():.2f} to {errors.max():.2f}."
    )


def _rate_search(runs: Runs) -> str:
    """Say how the rates were chosen, and how clear such a choice can be."""
    spreads = [
        max(losses) - min(losses) for each in runs.lengths if len(losses := runs.values(each).values()) > 1
    ]
    seeds = f" Seeds of one setting differ by up to {max(spreads):.2f}." if spreads else ""
    return (
        "Every length has rates of its own: those of the lowest held-out loss with seed 0. They are tried in "
        "steps of a factor of 2, until neither half nor twice the best rate of a stage lowers the loss by "
        f"more than {TIE}. One seed cannot tell smaller differences apart: among such rates, those trained "
        "with the most seeds are taken. As the lowest of several, the losses of seed 0 are a little too low."
        f"{seeds} Pairs are of Stage 1.9 and Stage 2."
    )


def _cost(table: pd.DataFrame) -> str:
    """Say what the completed trials took, and what sharing saved of it."""
    trained = table[table["status"] == "completed"]
    paid, nominal = (trained[name].sum() for name in ("cost_paid", "cost_nominal"))
    hours = trained["seconds"].sum() / 3600
    dollars = hours / WORKERS * DOLLARS_PER_HOUR
    return (
        f"{len(trained)} completed trials took {hours:.1f} hours of their workers. "
        f"Of {nominal:,.0f} effective steps {paid:,.0f} were computed; shared stages and trunks saved the "
        f"other {1 - paid / nominal:.0%}. At a spot price of {DOLLARS_PER_HOUR} dollars an hour for the "
        f"machine, an assumption, that is {dollars:.2f} dollars; without sharing, "
        f"{dollars * nominal / paid:.2f}."
    )


def _too_high_rates(sweep: pd.DataFrame) -> list[str]:
    """Say at which rates Stage 2 ends above the loss that it began with, for seed 0."""
    found = []
    for each in _both(at_best_rates(sweep)):
        tried = rate_trials(sweep, each).sort_values(f"param.{RATE_2}")
        worse = tried[tried["final_loss"] > tried["stage2_start_loss"]]
        for before, rows in worse.groupby("stage2_start_loss"):
            after = [
                f"{loss:.3f} at {rate:g}"
                for loss, rate in zip(rows["final_loss"], rows[f"param.{RATE_2}"], strict=True)
            ]
            steps = f"{each.stage1_9} steps of Stage 1.9"
            found.append(f"{before:.3f} after {steps} (seed 0), {_list(after)} after Stage 2")
    if not found:
        return []
    return [f"Where its rate is too high, Stage 2 undoes what Stage 1.9 has gained: {'; '.join(found)}."]


def _left_to_try(sweep: pd.DataFrame) -> dict[Lengths, list[str]]:
    """Return the rates that the search has not tried yet, by lengths, in words."""
    first = middle_rates(sweep, CPU)
    left = {}
    for each in (each for group in CPU.searches for each in group):
        rates = rates_to_try(sweep, each, first[each.stage1_9 > 0])
        if rates:
            left[each] = [_rates_in_words(each, one) for one in rates]
    return left


def _open_rates(sweep: pd.DataFrame) -> list[str]:
    """Say at which lengths the search of rates has not ended."""
    left = [_steps(each) for each in sorted(_left_to_try(sweep))]
    if not left:
        return []
    return [
        f"**Not settled yet**: at {_list(left)} steps not all [learning rates](#learning-rates) that may be "
        "better have been tried."
    ]


def _rates_in_words(lengths: Lengths, rates: Rates) -> str:
    return f"{rates[0]:g} and {rates[1]:g}" if lengths.stage1_9 else f"{rates[1]:g}"


def _steps(lengths: Lengths) -> str:
    return f"{lengths.stage1_9} + {lengths.stage2}"


def _changes(sweep: pd.DataFrame, runs: Runs) -> str:
    """Return the table of trials with one thing changed, beside those without, and what is lower in words."""
    best, trained = best_length(sweep), trained_lengths(sweep)

    def losses(lengths: Lengths, change: Mapping[str, object]) -> dict[int, float]:
        own = with_best_rates(sweep, lengths, change)
        return dict(zip(own["param.seed"].astype(int), own["final_loss"].astype(float), strict=True))

    rows, beside = [], []
    for change in CHANGES:
        name, value = next(iter(change.items()))
        for lengths in (each for each in lengths_of_change(change, best, CPU) if each in trained):
            changed = losses(lengths, change)
            pair = _paired(changed, losses(lengths, {}))
            if pair is None:
                continue
            rows.append([_steps(lengths), f"`{name}`", str(SETTINGS[name]), str(value), _difference(pair)])
            alone = runs.alone_with(lengths, "train_flops")
            without = None if alone is None else _paired(changed, alone.losses)
            is_lower = len(pair.differences) > 1 and pair.interval[1] < 0
            if SALIENCY not in change and is_lower and without is not None:  # of saliency above
                beside.append(
                    f"With `{name}={value}` the loss after {_steps(lengths)} steps, minus that of Stage 2 "
                    f"alone with the same FLOPs, is {_difference(without)}."
                )
    if not rows:
        return (
            "Lambda's start, saliency, the distance and the weight of CE were not varied: all runs above "
            "have " + _list([f"`{name}={value}`" for name, value in SETTINGS.items()]) + "."
        )
    header = ("steps", "key", "default", "changed", "loss, changed minus default")
    return "\n\n".join([markdown_table(header, rows), *beside])


def _rate_rows(sweep: pd.DataFrame) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the table of the search for rates: the best of each length, and what comes next to it."""
    rows = []
    left = _left_to_try(sweep)
    for each in trained_lengths(sweep):
        tried = rate_trials(sweep, each)
        words = [
            _rates_in_words(each, rates)
            for rates in zip(tried[f"param.{RATE_1_9}"], tried[f"param.{RATE_2}"], strict=True)
        ]
        losses = tried["final_loss"].tolist()
        second = f"{words[1]}: {losses[1] - losses[0]:+.3f}" if len(words) > 1 else ""
        to_try = "; ".join(left.get(each, ["none"]))
        rows.append([_steps(each), words[0], f"{losses[0]:.3f}", str(len(words)), second, to_try])
    return ("steps", "best rates", "loss of seed 0", "tried", "closest rival", "left to try"), rows


def _both(runs: Runs) -> list[Lengths]:
    return [each for each in runs.lengths if each.stage1_9]


def _list(values: Sequence[object]) -> str:
    words = [str(value) for value in values]
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
            str(len(losses)),
            f"{runs.mean(each, 'stage2_start_loss'):.3f}" if each.stage1_9 else "",
            f"{statistics.fmean(losses):.3f}"
            + (f" [{min(losses):.3f}, {max(losses):.3f}]" if len(losses) > 1 else ""),
        ]
        for column in ("train_flops", "effective_steps"):
            found = runs.beside_alone(each, column) if each.stage1_9 else None
            if found is None:
                row.append("")
                continue
            pair, other = found
            steps = f"{other.steps} steps" + (", interpolated" if other.is_interpolated else "")
            row.append(f"{_difference(pair)}, {steps}")
        rows.append(row)
    return (
        "Stage 1.9, steps",
        "Stage 2, steps",
        "FLOPs",
        "effective steps",
        "seeds",
        "loss before Stage 2",
        "loss",
        "loss minus that of Stage 2 alone, same FLOPs",
        "loss minus that of Stage 2 alone, same effective steps",
    ), rows


def _beside_notebook(runs: Runs) -> list[str]:
    """Return the same comparison of our runs, as far as there are any."""
    rows = []
    without = next((e for e in runs.lengths if not e.stage1_9 and e.stage2 == STEPS), None)
    for each in _both(runs):
        if each.stage1_9 in NOTEBOOK and without is not None:
            pair = runs.compare(each, without)
            here = "" if pair is None else _difference(pair)
            rows.append([str(each.stage1_9), f"{NOTEBOOK[each.stage1_9] - 7.83:+.2f}", here])
    header = ("Stage 1.9, steps", f"notebook: loss less that of {STEPS} steps of Stage 2 alone", "here")
    return [markdown_table(header, rows)] if rows else []


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired | None:
    """Return the values less the others over the seeds that both have; None without any."""
    both = first.keys() & second.keys()
    return compare({s: first[s] for s in both}, {s: second[s] for s in both}) if both else None


def _difference(pair: Paired) -> str:
    low, high = pair.interval
    spread = f" ({low:+.3f} to {high:+.3f})" if len(pair.differences) > 1 else " (one seed)"
    return f"{pair.mean:+.3f}{spread}"
