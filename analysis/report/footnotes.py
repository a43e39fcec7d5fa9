"""Footnotes of the report: the column and the formula of each number.

Every number on the page has a mark that leads to one of these notes, or names its column when pointed at, so
that a reader can recompute it from the exported table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from analysis.labels import number
from analysis.report.contents import Contents, Tradeoff
from analysis.report.footnote_texts import DEFINITIONS, STEPS
from analysis.report.parallel_figure import LINES
from analysis.report.style import LOG_RATIO
from analysis.summaries.compute import NOMINAL_COLUMNS, of_column
from analysis.summaries.reuse import STEPS as STEPS_COLUMN
from analysis.summaries.reuse import Reuse
from analysis.table import PARAMETER, SEM, TrialsTable
from sweeps.text.counted import counted

LESS = ", less the usd of reused stages in column stages"
BRANCHES = " and of saved parts, in proportion to the cost"


@dataclass(frozen=True, kw_only=True)
class Note:
    """A footnote: its mark, its subject, and the columns and the formula of the subject's numbers."""

    mark: int
    subject: str
    source: str


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
        "nominal": part is not None and page.reuse is not None and part.result.x in NOMINAL_COLUMNS,
        "reuse": page.reuse is not None,
        "trunks": page.reuse is not None and bool(page.reuse.trunks),
        "lengths": page.reuse is not None and bool(page.reuse.lengths),
        "prefixes": "prefixes" in figures,
        "paid curve": "paid" in figures,
        "no baseline": part is not None and part.result.baseline is None and page.of_trainer,
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
    if page.reuse is not None:
        fields |= _reuse_fields(page.table, page.reuse)
        less = LESS + (BRANCHES if page.reuse.branches else "")
        fields["dollars"] = f"{fields['dollars']}{'' if page.priced_by_time else less}"
    if page.many_objectives is not None:
        draws = page.many_objectives.result.draws
        all_chances = (
            f". Chances: share of {draws} draws of every value from a normal distribution with the error in "
            "its column NAME_sem"
        )
        fields["all_chances"] = all_chances if draws else ""
    return fields


def _reuse_fields(table: TrialsTable, reuse: Reuse) -> Mapping[str, str]:
    """Return what the costs of trials without stages are."""
    without = sum(not stages for stages in table.stages)
    fallback = ""
    if STEPS_COLUMN in table and without:
        fallback = f"; trials without stages count column {STEPS_COLUMN}"
    trials = counted(reuse.unknown, "trial")
    unknown = f"; the costs of {trials} are not known" if reuse.unknown else ""
    branches = "; branches: entries with a trial in branched_from, whose part saved was not paid"
    parts = ", and the parts saved of those with branched_from" if reuse.branches else ""
    return {
        "fallback": fallback,
        "unknown": unknown,
        "branches": branches if reuse.branches else "",
        "parts": parts,
        "trunk": ", and so does the part from a trunk" if reuse.branches else "",
    }


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
