"""Where each number of the report comes from: the column and the formula, as footnotes.

`report` calls this. Every number on the page stands under a mark of one of these notes, or says its column
itself when pointed at; a reader who doubts it finds here what to recompute from the exported table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from analysis.report.contents import Contents
from analysis.report.insight_figures import LINES
from analysis.report.style import LOG_RATIO
from analysis.statistics.efficiency import STAGE1_9_WEIGHT
from analysis.summaries.compute import of_column
from analysis.summaries.summary import ParetoResult
from analysis.summaries.uncertainty import Uncertainty
from analysis.table import PARAMETER


@dataclass(frozen=True, kw_only=True)
class Note:
    """A footnote: its mark, what it is about, and from which columns and by which formula that comes."""

    mark: int
    what: str
    how: str


def notes(page: Contents, figures: Collection[str]) -> Mapping[str, Note]:
    """The page's footnotes by key, in the order of the page; only those that the page needs.

    Args:
        figures: names of those that are drawn.
    """
    needed = [told for told in _told(page) if told[0] not in DRAWN or told[0] in figures]
    return {key: Note(mark=mark, what=what, how=how) for mark, (key, what, how) in enumerate(needed, start=1)}


def column_how(column: str, page: Contents) -> str:
    """Where a cell of the table comes from, and its error, where there is one."""
    if column == "usd" and page.priced_by_time:
        told = f"column usd: column seconds / 3600 × {page.cost.basis}"
    elif column == "effective_steps":
        told = f"column effective_steps: {STEPS}"
    elif column == "trial":
        told = "column trial: the index under which the sweep keeps it"
    elif column.startswith(PARAMETER):
        told = f"column {column}, as the trial was given it"
    else:
        told = f"column {column}"
    error = f"; ±: one standard error, column {column}_sem" if f"{column}_sem" in page.table.columns else ""
    return told + error


DRAWN = ("parallel", "history")
"""Notes about figures, by the names of the figures."""

STEPS = (
    f"{STAGE1_9_WEIGHT} × Stage 1.9 steps + Stage 2 steps, and {STAGE1_9_WEIGHT} × any other step that "
    "runs the "
    "teacher beside the student"
)


def _told(page: Contents) -> Iterator[tuple[str, str, str]]:
    """(key, what, how), in the page's order."""
    if page.best is not None:
        first = page.objectives[0]
        extreme = "smallest" if first.goal == "minimize" else "largest"
        within = " (within the sweep's outcome constraints: field best_trial of the export)"
        yield (
            "best",
            "Best trial",
            (
                f"the {extreme} value of column {first.metric} among trials with completed in column "
                "status, first of "
                f"equals{within if page.best_was_named else ''}; its parameters are columns "
                f"{PARAMETER}NAME, its metrics "
                "the columns of their names, as the trial reported them; ± is one standard error, column "
                "NAME_sem"
            ),
        )
    if page.command:
        yield (
            "command",
            "Run it",
            "the best trial's parameters and the sweep's own overrides: field best_command or best_overrides",
        )
    yield (
        "counts",
        "Progress",
        (
            "rows of the trials table, counted by column status; the number of trials that are planned is "
            "field run_cap"
        ),
    )
    if page.tradeoff is not None:
        yield from _of_tradeoff(page.tradeoff, has_errors=f"{page.tradeoff.y}_sem" in page.table.columns)
    if page.sure is not None and page.tradeoff is not None:
        yield from _of_chances(page.sure, page.tradeoff)
    if page.curve is not None and page.tradeoff is not None:
        yield (
            "curve",
            "Fitted curve",
            (
                f"least squares of column {page.tradeoff.y} over column {page.tradeoff.x} through "
                f"{page.curve.through}; "
                "the band is 95 % of a parametric bootstrap"
            ),
        )
    if page.several is not None:
        yield from _of_several(page)
    yield from _of_insight(page)
    if page.best is not None:
        yield (
            "parallel",
            "Every trial as a line",
            (
                f"columns {PARAMETER}NAME and column {page.objectives[0].metric} of the {LINES} best "
                "completed trials, each "
                f"axis from its least to its largest value, logarithmic beyond a factor of {LOG_RATIO:g}"
            ),
        )
    if page.cost.priced:
        time = (
            "column seconds, the time of each trial's last attempt, at the price"
            if page.priced_by_time
            else "column usd, as the trials reported it"
        )
        yield (
            "cost",
            "Costs",
            (
                f"so far: the sum of {time}; expected: trials that are not done count the mean of the "
                "completed, up to "
                "field run_cap"
            ),
        )
    if page.best is not None:
        yield (
            "history",
            "The search",
            (
                f"column {page.objectives[0].metric} over column trial, by column generator; best so far: "
                "its running best "
                "over completed trials; crosses: failed in column status"
            ),
        )
    if page.trials:
        yield (
            "trials",
            "All trials",
            (
                f"each cell as the exported table has it: parameters are columns {PARAMETER}NAME, all else "
                "is the column "
                "of its head's name; ± is one standard error, column NAME_sem"
            ),
        )
    if page.failures:
        yield (
            "failures",
            "Without a result",
            (
                "columns trial, status, attempt and error; reasons are first lines of column error, "
                "counted with their "
                "numbers left out"
            ),
        )


def _of_tradeoff(result: ParetoResult, *, has_errors: bool) -> Iterator[tuple[str, str, str]]:
    bars = f"; bars are column {result.y}_sem, where it has values" if has_errors else ""
    yield (
        "front",
        "Pareto front",
        (
            f"trials with completed in column status that no other one beats in both column {result.x} and "
            f"column {result.y}; equals stay{bars}"
        ),
    )
    yield (
        "knee",
        "Knee",
        (
            f"the front point farthest from the straight line between the front's ends, column {result.x} "
            "and column "
            f"{result.y} scaled to 0..1 (Kneedle, Satopää et al. 2011); needs three different points"
        ),
    )
    if "effective_steps" in (result.x, result.y):
        yield "steps", "Effective steps", f"column effective_steps: {STEPS}"
    yield (
        "efficient",
        "Most efficient",
        (
            "not given: no completed trial has zero steps of Stage 1.9 (column param.stage1_9.max_steps) "
            "to compare with"
            if result.baseline is None
            else f"highest (baseline − column {result.y}) per {of_column(result.x).unit} of column "
            f"{result.x}; the baseline "
            f"is the best {result.y} among completed trials with 0 in column param.stage1_9.max_steps"
        ),
    )


def _of_chances(sure: Uncertainty, result: ParetoResult) -> Iterator[tuple[str, str, str]]:
    y = result.y
    if sure.draws:
        yield (
            "chances",
            "Chances",
            (
                f"share of {sure.draws} draws of every value of column {y} from a normal distribution with "
                "the error in "
                f"column {y}_sem; noise that the standard errors do not cover, such as the seed, is not in "
                "them. "
                f"Efficiency's ± is 95 %, from column {y}_sem of the trial and of the baseline"
            ),
        )
    if sure.hypervolume is not None:
        yield (
            "hypervolume",
            "Hypervolume",
            (
                f"area over column {result.x} and column {y} that the front dominates within the reference "
                "point, which lies a "
                "tenth of the range behind the worst value of each axis: it moves with the worst trial"
            ),
        )


def _of_several(page: Contents) -> Iterator[tuple[str, str, str]]:
    names = ", ".join(objective.metric for objective in page.objectives)
    told = page.several
    drawn = (
        f". Chances: share of {told.draws} draws of every value from a normal distribution with the error "
        "in its column NAME_sem"
        if told is not None and told.draws
        else ""
    )
    yield (
        "several",
        "Front in all objectives",
        (
            "trials with completed in column status that no other one beats in all of the columns "
            f"{names}; equals stay. "
            "The line in each picture is the front of its two objectives alone. Hypervolume: the volume "
            "that the front "
            "dominates within the reference point, a tenth of the range behind the worst value of each column"
            + drawn
        ),
    )


def _of_insight(page: Contents) -> Iterator[tuple[str, str, str]]:
    if page.insight.metrics:
        yield (
            "insight",
            "What mattered",
            (
                "field insight: Ax's surrogate (a Gaussian process), fitted once more to the columns of "
                "the metrics and "
                "parameters. Bars: Sobol's indices of its mean over the search space. Effects: means with "
                "one column "
                f"{PARAMETER}NAME moved in all trials. Predictions: each trial left out once"
            ),
        )
