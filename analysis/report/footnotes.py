"""Footnotes of the report: the column and the formula of each number.

Every number on the page has a mark that leads to one of these notes, or names its column when pointed at, so
that a reader can recompute it from the exported table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from analysis.labels import counted, number
from analysis.report.contents import Contents, Tradeoff
from analysis.report.insight_figures import LINES
from analysis.report.style import LOG_RATIO
from analysis.statistics.efficiency import STAGE1_9_WEIGHT
from analysis.summaries.compute import of_column
from analysis.table import PARAMETER, SEM

STEPS = (
    f"{STAGE1_9_WEIGHT} × Stage 1.9 steps + Stage 2 steps, and {STAGE1_9_WEIGHT} × any other step that runs "
    "the teacher beside the student"
)


@dataclass(frozen=True, kw_only=True)
class Note:
    """A footnote: its mark, its subject, and the columns and the formula of the subject's numbers."""

    mark: int
    subject: str
    source: str


@dataclass(frozen=True)
class Definition:
    """A footnote that may be needed.

    Args:
        key: of the note, in the template and in the page's anchors.
        subject: of the numbers.
        source: the columns and the formula, with fields of `_fields`.
        condition: key of `_conditions`, if it is not that of the note; the note is needed if that is true.
    """

    key: str
    subject: str
    source: str
    condition: str = ""


DEFINITIONS = (
    Definition(
        "best",
        "Best trial",
        "the {extreme} value of column {metric} among trials with completed in column status, first of "
        "equals{within}; its parameters are columns {parameter}NAME, its metrics the columns of their "
        "names, as the trial reported them; ± is one standard error, column NAME_sem",
    ),
    Definition(
        "confirmed",
        "Confirmed",
        "a configuration with two or more completed trials with confirm in column generator, which repeat it "
        "with fresh seeds: the mean over these, without the observation that it was selected for; ± and bars "
        "include the spread over seeds (pooled over all repeated configurations, s/√n of n seeds), the 95 % "
        "interval is Student's. Every other point is one observation: the best of many is too good to be "
        "true (winner's curse)",
    ),
    Definition(
        "command",
        "Run it",
        "the best trial's parameters and the sweep's own overrides: field best_command or best_overrides",
    ),
    Definition(
        "counts",
        "Progress",
        "rows of the trials table, counted by column status; the number of trials that are planned is field "
        "run_cap",
    ),
    Definition(
        "front",
        "Pareto front",
        "trials with completed in column status that no other one beats in both column {x} and column {y}; "
        "equals stay{bars}",
        condition="tradeoff",
    ),
    Definition(
        "knee",
        "Knee",
        "the front point farthest from the straight line between the front's ends, column {x} and column "
        "{y} scaled to 0..1 (Kneedle, Satopää et al. 2011); needs three different points",
        condition="tradeoff",
    ),
    Definition("steps", "Effective steps", "column effective_steps: {steps}"),
    Definition(
        "efficient",
        "Most efficient",
        "not given: no completed trial has zero steps of Stage 1.9 (column param.stage1_9.max_steps) to "
        "compare with",
        condition="no baseline",
    ),
    Definition(
        "efficient",
        "Most efficient",
        "highest (baseline − column {y}) per {unit} of column {x}; the baseline is the best {y} among "
        "completed trials with 0 in column param.stage1_9.max_steps",
        condition="baseline",
    ),
    Definition(
        "chances",
        "Chances",
        "share of {draws} draws of every value of column {y} from a normal distribution with {error}; "
        "{paired}; {seeds}. Efficiency's ± is 95 %, from the errors of the trial and of the baseline",
    ),
    Definition(
        "hypervolume",
        "Hypervolume",
        "area over column {x} and column {y} that the front dominates within the reference point, which "
        "lies a tenth of the range behind the worst value of each axis: it moves with the worst trial",
    ),
    Definition(
        "curve",
        "Fitted curve",
        "least squares of column {y} over column {x} through {through}; the band is 95 % of a parametric "
        "bootstrap",
    ),
    Definition(
        "several",
        "Front in all objectives",
        "trials with completed in column status that no other one beats in all of the columns {objectives}; "
        "equals stay. The line in each picture is the front of its two objectives alone. Hypervolume: the "
        "volume that the front dominates within the reference point, a tenth of the range behind the worst "
        "value of each column{all_chances}",
    ),
    Definition(
        "insight",
        "What mattered",
        "field insight: Ax's surrogate (a Gaussian process), fitted once more to the columns of the metrics "
        "and parameters. Bars: Sobol's indices of its mean over the search space. Effects: means with one "
        "column {parameter}NAME moved in all trials. Predictions: each trial left out once",
    ),
    Definition(
        "parallel",
        "Every trial as a line",
        "columns {parameter}NAME and column {metric} of the {lines} best completed trials, each axis from "
        "its least to its largest value, logarithmic beyond a factor of {log_ratio}",
    ),
    Definition(
        "cost",
        "Costs",
        "so far: the sum of {dollars}; expected: trials that are not done count the mean of the completed, "
        "up to field run_cap",
    ),
    Definition(
        "history",
        "The search",
        "column {metric} over column trial, by column generator; best so far: its running best over "
        "completed trials; crosses: failed in column status",
    ),
    Definition(
        "trials",
        "All trials",
        "each cell as the exported table has it: parameters are columns {parameter}NAME, all else is the "
        "column of its head's name; ± is one standard error, column NAME_sem",
    ),
    Definition(
        "failures",
        "Without a result",
        "columns trial, status, attempt and error; reasons are first lines of column error, counted with "
        "their numbers left out",
    ),
)
"""All footnotes, in the order of the page."""


def notes(page: Contents, figures: Collection[str]) -> Mapping[str, Note]:
    """Return the footnotes that the page needs, by key, in the order of the page.

    Args:
        page: the contents.
        figures: names of the figures that are drawn.
    """
    conditions, fields = _conditions(page, figures), _fields(page)
    needed = [definition for definition in DEFINITIONS if conditions[definition.condition or definition.key]]
    return {
        definition.key: Note(
            mark=mark, subject=definition.subject, source=definition.source.format_map(fields)
        )
        for mark, definition in enumerate(needed, start=1)
    }


def column_source(column: str, page: Contents) -> str:
    """Return the source of a cell of the table, and of its error, if it has one."""
    if column == "usd" and page.priced_by_time:
        source = f"column usd: column seconds / 3600 × {page.cost.basis}"
    elif column == "effective_steps":
        source = f"column effective_steps: {STEPS}"
    elif column == "trial":
        source = "column trial: the index under which the sweep keeps it"
    elif column.startswith(PARAMETER):
        source = f"column {column}, as the trial was given it"
    else:
        source = f"column {column}"
    error = f"; ±: one standard error, column {column}{SEM}" if column + SEM in page.table else ""
    return source + error


def _conditions(page: Contents, figures: Collection[str]) -> Mapping[str, bool]:
    """Return by name whether the page has the parts that notes are about."""
    part = page.tradeoff
    return {
        "counts": True,
        "confirmed": bool(page.table.configurations.repeats.runs),
        "best": page.best is not None,
        "command": bool(page.command),
        "tradeoff": part is not None,
        "steps": part is not None and "effective_steps" in (part.result.x, part.result.y),
        "no baseline": part is not None and part.result.baseline is None,
        "baseline": part is not None and part.result.baseline is not None,
        "chances": part is not None and part.uncertainty.draws > 0,
        "hypervolume": part is not None and part.uncertainty.hypervolume is not None,
        "curve": part is not None and part.fit is not None,
        "several": page.many_objectives is not None,
        "insight": bool(page.insight.metrics),
        "parallel": "parallel" in figures,
        "cost": page.cost.priced > 0,
        "history": "history" in figures,
        "trials": page.trials > 0,
        "failures": bool(page.failures),
    }


def _fields(page: Contents) -> Mapping[str, object]:
    """Return the fields of the notes' texts, as far as the page has them."""
    constraints = " (within the sweep's outcome constraints: field best_trial of the export)"
    by_time = "column seconds, the time of each trial's last attempt, at the price"
    fields: dict[str, object] = {
        "parameter": PARAMETER,
        "steps": STEPS,
        "lines": LINES,
        "log_ratio": f"{LOG_RATIO:g}",
        "within": constraints if page.best_was_named else "",
        "dollars": by_time if page.priced_by_time else "column usd, as the trials reported it",
        "objectives": ", ".join(objective.metric for objective in page.objectives),
    }
    if page.objectives:
        first = page.objectives[0]
        fields |= {
            "metric": first.metric,
            "extreme": "smallest" if first.goal == "minimize" else "largest",
        }
    if (part := page.tradeoff) is not None:
        x, y = part.result.x, part.result.y
        sure, error = part.uncertainty, _error_source(part, page)
        bars = f"; bars are {error}, where there is one" if error else ""
        fields |= {"x": x, "y": y, "bars": bars, "unit": of_column(x).unit, "draws": sure.draws}
        fields |= {"error": error, "paired": _pairing(part), "seeds": _seeds(part)}
        fields["through"] = "" if part.fit is None else part.fit.through
    if page.many_objectives is not None:
        draws = page.many_objectives.result.draws
        all_chances = (
            f". Chances: share of {draws} draws of every value from a normal distribution with the error in "
            "its column NAME_sem"
        )
        fields["all_chances"] = all_chances if draws else ""
    return fields


def _error_source(part: Tradeoff, page: Contents) -> str:
    """Return what the errors of y are; "" if there are none."""
    y = part.result.y
    sources = [f"the error in column {y}{SEM}"] if y + SEM in page.table else []
    if (spread := part.uncertainty.spread) is not None:
        sources.append(f"the spread over seeds of column {y}, {number(spread.sd, 2)} for one run")
    return " and ".join(sources)


def _pairing(part: Tradeoff) -> str:
    """Return which errors are drawn together."""
    points, paired = len(part.result.points), part.uncertainty.paired
    if not paired:
        return "each error is drawn by itself; the trainer's leave out what is hard about the common text"
    which = "all trials" if paired == points else f"{paired} of {counted(points, 'trial')}"
    return (
        f"the errors of {which} are drawn together, with the covariance of their losses of each sequence "
        "(field held_out), so that what is hard about the common text cancels"
    )


def _seeds(part: Tradeoff) -> str:
    """Return whether the errors include the seeds."""
    if (spread := part.uncertainty.spread) is None:
        return "noise that the standard errors do not cover, such as the seed, is not in them"
    return (
        "the spread over seeds is pooled over trials that differ in their seed alone "
        f"({counted(spread.freedom, 'degree')} of freedom)"
    )
