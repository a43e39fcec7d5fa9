"""The notebook's findings as questions to the runs. Pure: runs in, tables and verdicts out.

A verdict is read off the pairs, never written by hand: `holds` where every seed agrees with the claim,
`mostly holds` where all but one do, `reversed` where every seed (or all but one) says the opposite, else
`does not show`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from analysis.summaries.paired import Paired, compare, mean_and_range
from benchmarks.findings.runs import Run
from benchmarks.findings.setting import Condition, Setting

Value = Callable[[Run], float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Line of a picture: a label, and at each x the values of all seeds."""

    label: str
    x: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Claim with its table, its picture and its verdicts.

    Args:
        name: of the picture's file.
        verdicts: one for each part of the claim, in its words.
        ticks: labels of the x axis where x is no number.
    """

    name: str
    claim: str
    verdicts: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    series: tuple[Series, ...]
    x_title: str
    y_title: str
    ticks: tuple[str, ...] = ()


class Runs:
    """All runs, by condition and seed."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._of: dict[Condition, dict[int, Run]] = {}
        for run in runs:
            self._of.setdefault(run.condition, {})[run.seed] = run

    def of(self, condition: Condition, value: Value) -> dict[int, float]:
        """Return one number of every seed's run. Raises KeyError for a condition that was not run."""
        return {seed: value(run) for seed, run in self.by_seed(condition).items()}

    def by_seed(self, condition: Condition) -> dict[int, Run]:
        """Return the runs of a condition, by ascending seed. Raises KeyError for one that was not run."""
        return dict(sorted(self._of[condition].items()))

    def list(self, condition: Condition, value: Value) -> tuple[float, ...]:
        """Return the same values without the seeds."""
        return tuple(self.of(condition, value).values())

    def compare(self, a: Condition, b: Condition, value: Value) -> Paired:
        """Return a - b by seed."""
        return compare(self.of(a, value), self.of(b, value))


def judge(pairs: Paired, *, expected: str) -> str:
    """Return the verdict on a claim that a is `expected` (`lower` or `higher`) than b."""
    if pairs.verdict == expected:
        return "holds"
    if pairs.verdict == f"mostly {expected}":
        return "mostly holds"
    return "does not show" if pairs.verdict == "no difference" else f"reversed ({pairs.verdict})"


def start(run: Run) -> float:
    return run.start


def early(run: Run) -> float:
    return run.early


def final(run: Run) -> float:
    return run.final


def findings(setting: Setting, runs: Runs) -> tuple[Finding, ...]:
    """Return all findings in the notebook's order."""
    return (
        _value_of_alignment(setting, runs),
        length_finding(setting, runs),
        _lambda_warmup(setting, runs),
        _saliency(setting, runs),
        *(_equal_compute(setting, runs, budget) for budget in setting.budgets),
        *(_balance(setting, runs, steps) for steps in setting.common_splits()),
    )


def _value_of_alignment(setting: Setting, runs: Runs) -> Finding:
    without, aligned = setting.condition(0), setting.condition(setting.usual)
    at_start, at_end = (runs.compare(aligned, without, value) for value in (start, final))
    return Finding(
        name="alignment",
        claim=(
            f"Stage 1.9 ({setting.usual} steps) lowers the fully quantised loss at the start of Stage 2, and "
            f"the final one after the same Stage 2 ({setting.stage2_steps} steps)."
        ),
        verdicts=(
            f"At the start of Stage 2: {judge(at_start, expected='lower')}; {at_start.describe()}.",
            f"At the end: {judge(at_end, expected='lower')}; {at_end.describe()}. The compute is not the "
            f"same: Stage 1.9 comes on top. See the last findings for equal compute.",
        ),
        header=("Stage 1.9, steps", "loss at the start of Stage 2", "final loss"),
        rows=tuple(
            (str(length), mean_and_range(runs.list(c, start)), mean_and_range(runs.list(c, final)))
            for length, c in ((0, without), (setting.usual, aligned))
        ),
        series=tuple(
            Series(label=label, x=(0, 1), values=tuple(runs.list(c, value) for c in (without, aligned)))
            for label, value in (("start of Stage 2", start), ("final", final))
        ),
        ticks=("without Stage 1.9", f"{setting.usual} steps of it"),
        x_title="",
        y_title="held-out loss at lambda 1, nats per token",
    )


def length_finding(setting: Setting, runs: Runs) -> Finding:
    """Return what a longer Stage 1.9 does before the same Stage 2."""
    of = {length: setting.condition(length) for length in (0, *setting.lengths)}
    steps = list(zip(setting.lengths, setting.lengths[1:], strict=False))
    longer = [runs.compare(of[long], of[short], final) for short, long in steps]
    gains = [
        {
            seed: -difference / (long - short)
            for seed, difference in enumerate(runs.compare(of[long], of[short], final).differences)
        }
        for short, long in steps
    ]
    diminishing = compare(gains[-1], gains[0])
    base = statistics.fmean(runs.list(of[0], final))
    rows = []
    for length in (0, *setting.lengths):
        losses = runs.list(of[length], final)
        effective = 2 * length + setting.stage2_steps
        efficiency = (base - statistics.fmean(losses)) / (effective / 100)
        rows.append(
            (str(length), str(effective), mean_and_range(losses), "" if not length else f"{efficiency:.3f}")
        )
    return Finding(
        name="length",
        claim="A longer Stage 1.9 is better, with diminishing returns.",
        verdicts=(
            *(
                f"{long} steps against {short}: {judge(pair, expected='lower')}; {pair.describe()}."
                for (short, long), pair in zip(steps, longer, strict=True)
            ),
            f"Diminishing: the gain per step from {steps[-1][0]} to {steps[-1][1]} against that from "
            f"{steps[0][0]} to {steps[0][1]}: {judge(diminishing, expected='lower')} "
            f"(smaller in {diminishing.lower} of {len(diminishing.differences)} seeds, "
            f"p = {diminishing.p:.2g}).",
        ),
        header=("Stage 1.9, steps", "effective steps", "final loss", "gain per 100 effective steps"),
        rows=tuple(rows),
        series=(
            Series(
                label="final loss",
                x=tuple(float(2 * length + setting.stage2_steps) for length in of),
                values=tuple(runs.list(c, final) for c in of.values()),
            ),
        ),
        x_title="effective steps (2 x Stage 1.9 + Stage 2)",
        y_title="final loss at lambda 1, nats per token",
    )


def _lambda_warmup(setting: Setting, runs: Runs) -> Finding:
    pairs = {
        (length, name): runs.compare(
            setting.condition(length), setting.condition(length, warmup=False), value
        )
        for length in (0, setting.usual)
        for name, value in (("early", early), ("final", final))
    }
    rows = [
        (
            str(length),
            "yes" if warmup else "no",
            mean_and_range(runs.list(setting.condition(length, warmup=warmup), early)),
            mean_and_range(runs.list(setting.condition(length, warmup=warmup), final)),
        )
        for length in (0, setting.usual)
        for warmup in (False, True)
    ]
    verdicts = []
    for length in (0, setting.usual):
        where = f"After {length} steps of Stage 1.9" if length else "Without Stage 1.9"
        at_start, at_end = pairs[length, "early"], pairs[length, "final"]
        verdicts.append(
            f"{where}, training loss at the start: {judge(at_start, expected='lower')}; "
            f"{at_start.describe()}."
        )
        verdicts.append(f"{where}, final loss at lambda 1: {at_end.verdict}; {at_end.describe()}.")
    return Finding(
        name="lambda",
        claim=(
            f"Lambda warmup ({setting.lambda_steps} steps) lowers the training loss at the start of Stage 2 "
            f"(mean of its first {setting.early_steps} steps); and what does it do to the final loss?"
        ),
        verdicts=tuple(verdicts),
        header=("Stage 1.9, steps", "lambda warmup", "training loss at the start", "final loss"),
        rows=tuple(rows),
        series=tuple(
            Series(
                label=label,
                x=(0, 1, 2, 3),
                values=tuple(
                    runs.list(setting.condition(length, warmup=warmup), value)
                    for length in (0, setting.usual)
                    for warmup in (False, True)
                ),
            )
            for label, value in (("start of Stage 2, training", early), ("final", final))
        ),
        ticks=tuple(
            f"{length} steps,\n{'with' if warmup else 'no'} warmup"
            for length in (0, setting.usual)
            for warmup in (False, True)
        ),
        x_title="",
        y_title="loss, nats per token",
    )


def _saliency(setting: Setting, runs: Runs) -> Finding:
    def at(*, warmup: bool, saliency: bool) -> Condition:
        return setting.condition(setting.usual, warmup=warmup, saliency=saliency)

    only_lambda = at(warmup=True, saliency=False)
    only_saliency, both = at(warmup=False, saliency=True), at(warmup=True, saliency=True)
    neither = at(warmup=False, saliency=False)
    worse = runs.compare(only_saliency, only_lambda, final)
    together = runs.compare(both, only_lambda, final)
    low, high = together.interval
    little = low <= 0 <= high
    named = (
        ("neither", neither),
        ("lambda warmup", only_lambda),
        ("saliency", only_saliency),
        ("both", both),
    )
    return Finding(
        name="saliency",
        claim=(
            f"After {setting.usual} steps of Stage 1.9: saliency without lambda warmup is worse than lambda "
            f"warmup without saliency; both together bring little."
        ),
        verdicts=(
            f"Saliency only against lambda only: {judge(worse, expected='higher')}; {worse.describe()}.",
            f"Both against lambda only: {'holds' if little else 'does not show'}; {together.describe()}; "
            f"95 % interval {low:+.3f} to {high:+.3f}.",
        ),
        header=("Stage 1.9 with", "loss at the start of Stage 2", "final loss"),
        rows=tuple(
            (name, mean_and_range(runs.list(c, start)), mean_and_range(runs.list(c, final)))
            for name, c in named
        ),
        series=(
            Series(label="final loss", x=(0, 1, 2, 3), values=tuple(runs.list(c, final) for _, c in named)),
        ),
        ticks=tuple(name for name, _ in named),
        x_title="",
        y_title="final loss at lambda 1, nats per token",
    )


def _equal_compute(setting: Setting, runs: Runs, budget: int) -> Finding:
    tried = setting.budgets[budget]
    of = {steps: setting.split(budget, steps) for steps in tried}
    means = {steps: statistics.fmean(runs.list(c, final)) for steps, c in of.items()}
    best = min(means, key=lambda steps: means[steps])
    others = [steps for steps in tried if steps != best]
    pairs = {steps: runs.compare(of[best], of[steps], final) for steps in others}
    share = 2 * best / budget
    return Finding(
        name=f"compute-{budget}",
        claim=f"With {budget} effective steps in all, how much Stage 1.9 is best?",
        verdicts=(
            f"Lowest mean: {best} steps of Stage 1.9, {share:.0%} of the compute.",
            *(
                f"{best} steps against {steps}: {pair.verdict}; {pair.describe()}."
                for steps, pair in pairs.items()
            ),
        ),
        header=("Stage 1.9, steps", "Stage 2, steps", "final loss"),
        rows=tuple(
            (str(steps), str(budget - 2 * steps), mean_and_range(runs.list(c, final)))
            for steps, c in of.items()
        ),
        series=(
            Series(
                label=f"{budget} effective steps",
                x=tuple(float(steps) for steps in tried),
                values=tuple(runs.list(c, final) for c in of.values()),
            ),
        ),
        x_title=f"steps of Stage 1.9 (Stage 2 has {budget} minus twice as many)",
        y_title="final loss at lambda 1, nats per token",
    )


def _balance(setting: Setting, runs: Runs, steps: int) -> Finding:
    """Return the cost of a length of Stage 1.9 at each budget that it was tried with."""
    budgets = sorted(setting.budgets)
    pairs = {
        budget: runs.compare(setting.split(budget, steps), setting.split(budget, 0), final)
        for budget in budgets
    }
    pays = [budget for budget, pair in pairs.items() if pair.mean < 0]
    return Finding(
        name=f"balance-{steps}",
        claim=f"Where does the balance turn? What {steps} steps of Stage 1.9 do to the final loss, "
        "against none, with the same effective steps in all.",
        verdicts=(
            *(
                f"{budget} effective steps: {pair.verdict}; {pair.describe()}."
                for budget, pair in pairs.items()
            ),
            *(
                f"From {less} to {more} effective steps the difference falls: "
                f"{judge(_change(pairs[more], pairs[less]), expected='lower')}; "
                f"{_change(pairs[more], pairs[less]).describe()}."
                for less, more in pairwise(budgets)
            ),
            f"The balance turns at {pays[0]} effective steps or before."
            if pays
            else f"It turns nowhere up to {budgets[-1]} effective steps; what lies beyond was not tried.",
        ),
        header=("effective steps", f"final loss after {steps} steps of Stage 1.9, less that without"),
        rows=tuple((str(budget), mean_and_range(pair.differences)) for budget, pair in pairs.items()),
        series=(
            Series(
                label=f"{steps} steps of Stage 1.9 against none",
                x=tuple(float(budget) for budget in budgets),
                values=tuple(tuple(pair.differences) for pair in pairs.values()),
            ),
        ),
        x_title="effective steps in all",
        y_title="difference of final losses, nats per token",
    )


def _change(of: Paired, since: Paired) -> Paired:
    """Return how a difference has changed, seed by seed."""
    return compare(dict(enumerate(of.differences)), dict(enumerate(since.differences)))
