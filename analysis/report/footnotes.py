"""Sources of the report's numbers: the columns and the formula of each.

Each part of the page ends in the notes on its numbers, folded, and every number names its column when pointed
at, so that a reader can recompute it from the exported table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from analysis.labels import number
from analysis.report.contents import Contents
from analysis.report.parallel_figure import LINES
from analysis.report.style import LOG_RATIO
from analysis.statistics.efficiency import STAGE1_9_WEIGHT
from analysis.summaries.compute import NOMINAL_COLUMNS, OWN_SECONDS, measure_of
from analysis.summaries.reuse import STEPS as STEPS_COLUMN
from analysis.summaries.reuse import Reuse
from analysis.table import HOSTS, MACHINE_SECONDS, PARAMETER, SEM, TrialsTable
from sweeps.text.counted import counted

STEPS = (
    f"{STAGE1_9_WEIGHT} × Stage 1.9 steps + Stage 2 steps, and {STAGE1_9_WEIGHT} × any other step that runs "
    "the teacher beside the student"
)


@dataclass(frozen=True)
class Note:
    """A note: its subject, and the columns and the formula of the subject's numbers.

    Args:
        key: of the note in the template.
        subject: of the numbers.
        source: the columns and the formula, with fields that `_texts` fills.
        condition: key of `_conditions`, if it is not that of the note; the note is needed if that is true.
    """

    key: str
    subject: str
    source: str
    condition: str = ""


NOTES = (
    Note(
        "best",
        "Best trial",
        "the {choice} of column {metric} among trials with completed in column status, first of "
        "equals{within}; its parameters are columns {parameter}NAME, its metrics the columns of their "
        "names, as the trial reported them; ± is one standard error, column NAME_sem",
    ),
    Note(
        "answer",
        "By the model",
        "field insight: Ax's surrogate (a Gaussian process), fitted to all results; the best trial has its "
        "best posterior mean, as single results are chosen for their luck. Chances, intervals and shares are "
        "those of joint draws of its posterior over the search space, without the noise of a run; the "
        "expected gain is the mean of simulated searches",
    ),
    Note(
        "confirmed",
        "Confirmed",
        "a configuration with two or more completed trials with confirm in column generator, which repeat it "
        "with fresh seeds, and none that failed (but for lost in column failure): the mean over these, "
        "without the observation that it was selected for; ± and bars include the spread over seeds (pooled "
        "over all repeated configurations, s/√n of n seeds), the 95 % interval is Student's. "
        "Every other point is one observation: the best of many is too good to be true (winner's curse)",
    ),
    Note(
        "command",
        "Run it",
        "the best trial's parameters and the sweep's own overrides: field best_command",
    ),
    Note(
        "counts",
        "Progress",
        "rows of the trials table, counted by column status; the number of trials that are planned is field "
        "run_cap, without those with fidelity, imported or confirm in column generator",
    ),
    Note(
        "front",
        "Pareto front",
        "trials with completed in column status{feasible} that no other one beats in both column {x} and "
        "column {y}; equals stay{bars}",
        condition="tradeoff",
    ),
    Note(
        "knee",
        "Knee",
        "the front point farthest from the straight line between the front's ends, column {x} and column "
        "{y} scaled to 0..1 (Kneedle, Satopää et al. 2011); needs three different points",
        condition="tradeoff",
    ),
    Note("steps", "Effective steps", "column effective_steps: {steps}"),
    Note(
        "nominal",
        "Nominal compute",
        "column {x} is that of the configuration, in the front, its knee and the efficiency: a stage that "
        "the trial reused counts as if it had computed it{trunk}, so that trials compare whatever they found",
    ),
    Note(
        "efficient",
        "Most efficient",
        "not given: no completed trial has zero steps of Stage 1.9 (column param.stage1_9.max_steps) to "
        "compare with",
        condition="no baseline",
    ),
    Note(
        "efficient",
        "Most efficient",
        "highest ({gain}) per {unit} of column {x}; the baseline is the best {y} among "
        "completed trials with 0 in column param.stage1_9.max_steps",
        condition="baseline",
    ),
    Note(
        "chances",
        "Chances",
        "share of {draws} draws of every value of column {y} from a normal distribution with {error}; "
        "{paired}; {seeds}. Efficiency's ± is 95 %, from the errors of the trial and of the baseline",
    ),
    Note(
        "hypervolume",
        "Hypervolume",
        "area over column {x} and column {y} that the front dominates within the reference point, which "
        "lies a tenth of the range behind the worst value of each axis: it moves with the worst trial",
    ),
    Note(
        "curve",
        "Fitted curve",
        "least squares of column {y} over column {x} through {through}; the band is 95 % of a parametric "
        "bootstrap",
    ),
    Note(
        "several",
        "Front in all objectives",
        "trials with completed in column status{feasible} that no other one beats in all of the columns "
        "{objectives}; equals stay. The line in each picture is the front of its two objectives alone. "
        "Hypervolume: the volume that the front dominates within the reference point, a tenth of the range "
        "behind the worst value of each column{all_chances}",
    ),
    Note(
        "reuse",
        "Shared stages",
        "column cost_paid of cost_nominal, summed over all trials but imported ones; reused: entries with a "
        "trial in reused_from, in column stages{branches}{fallback}{unknown}. Of stages that were cut "
        "short those count in which a trial was stopped early, by the share that it did",
    ),
    Note(
        "paid curve",
        "Best for the compute",
        "running best of column {metric} over completed trials, against the running sum of column cost_paid "
        "(dotted: of cost_nominal) over all trials of the search in the order of column trial",
    ),
    Note(
        "trunks",
        "Trunks and branches",
        "trials are on one trunk if one is the other's branched_from in column stages, or if they have the "
        "same key there or in column trunk_points. Points: cost in column trunk_points; hollow: snapshot is "
        "false. A branch leaves at the last point that its trials had, or at saved, and ends at cost; the "
        "value is the {extreme} of column {metric} among its trials",
    ),
    Note(
        "lengths",
        "Lengths",
        "column {metric} of completed trials of the search over column {parameter}STAGE.max_steps, or over "
        "cost in column stages; lines: the best at each length, for each trunk with several",
    ),
    Note(
        "prefixes",
        "Prefixes",
        "trials with the same key in column stages have that stage in common; the shared stage: its cost, as "
        "often as it was computed; later stages: what these trials computed beyond it; saved: its cost for "
        "the trials with reused_from{parts}",
    ),
    Note(
        "insight",
        "What mattered",
        "field insight: Ax's surrogate (a Gaussian process), fitted once more to the columns of the metrics "
        "and parameters. Bars: Sobol's indices of its mean over the search space. Effects: means with one "
        "column {parameter}NAME moved in all trials, or two of them. Predictions: each trial left out once",
    ),
    Note(
        "parallel",
        "Every trial as a line",
        "columns {parameter}NAME and column {metric} of trials with completed in column status{feasible} of "
        "which the {lines} best are drawn; each axis from its least to its largest value, logarithmic "
        "beyond a factor of {log_ratio} and in field log_parameters",
    ),
    Note(
        "cost",
        "Costs",
        "so far: the sum of {dollars}; expected: trials that are not done count the mean of the completed, "
        "or what they have cost if that is more, up to field run_cap; if field search_ended is true, none is "
        "added",
    ),
    Note(
        "history",
        "The search",
        "column {metric} over column trial, by column generator; best so far: its running best over "
        "completed trials; crosses: failed in column status",
    ),
    Note(
        "trials",
        "All trials",
        "each cell as the exported table has it: parameters are columns {parameter}NAME, all else is the "
        "column of its head's name; ± is one standard error, column NAME_sem",
    ),
    Note(
        "failures",
        "Without a result",
        "columns trial, status, attempt and error; reasons are first lines of column error; those "
        "that differ in numbers alone count as one",
    ),
)
"""All notes, in the order of the page."""


def notes(page: Contents, figures: Collection[str]) -> Mapping[str, Note]:
    """Return the notes that the page needs, by key, in the order of the page."""
    conditions, fields = _conditions(page, figures), _texts(page)
    return {
        note.key: replace(note, source=note.source.format_map(fields))
        for note in NOTES
        if conditions[note.condition or note.key]
    }


def column_source(column: str, page: Contents) -> str:
    """Return the source of a cell of the table, and of its error, if it has one."""
    if column == "usd" and page.priced_by_time:
        taken = f"column {next(name for name in OWN_SECONDS if name in page.table)}"
        if page.reuse is not None:
            hosts = " × column hosts" if HOSTS in page.table else ""
            taken = f"({taken} + seconds of {_reused_source(page.reuse)}{hosts})"
        source = f"column usd: {taken} / 3600 × {page.cost.basis}"
    elif column == "effective_steps":
        source = f"column effective_steps: {STEPS}"
    elif column == MACHINE_SECONDS:
        source = f"column {column}: seconds of all attempts of the trial, times its hosts"
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
        "answer": page.answer is not None,
        "command": bool(page.command),
        "tradeoff": part is not None,
        "steps": part is not None and "effective_steps" in (part.result.x, part.result.y),
        "nominal": part is not None and page.reuse is not None and part.result.x in NOMINAL_COLUMNS,
        "reuse": page.reuse is not None,
        "trunks": page.reuse is not None and bool(page.reuse.trunks),
        "lengths": page.reuse is not None and bool(page.reuse.lengths),
        "prefixes": "prefixes" in figures,
        "paid curve": "paid" in figures,
        "no baseline": part is not None and part.result.baseline is None and page.from_trainer,
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


def _texts(page: Contents) -> Mapping[str, object]:
    """Return what stands for the fields of the notes, as far as the page has the parts."""
    constraints = " (within the sweep's outcome constraints: field best_trial of the export)"
    by_time = (
        "field machine_seconds (all attempts of a trial, on all its hosts), or column seconds where there "
        "was one of each, at the price"
    )
    fields: dict[str, object] = {
        "parameter": PARAMETER,
        "steps": STEPS,
        "lines": LINES,
        "log_ratio": f"{LOG_RATIO:g}",
        "within": constraints if page.best_was_named else "",
        "feasible": ", but for those of field infeasible," if page.table.infeasible else "",
        "dollars": by_time if page.priced_by_time else "column usd, as the trials reported it",
        "objectives": ", ".join(objective.metric for objective in page.objectives),
    }
    if page.objectives:
        first = page.objectives[0]
        fields |= {"metric": first.metric, "extreme": "smallest" if first.goal == "minimize" else "largest"}
        fields["choice"] = f"{fields['extreme']} value"
        if page.answer is not None:
            fields["choice"] = "best posterior mean (field insight)"
    if (part := page.tradeoff) is not None:
        x, y = part.result.x, part.result.y
        chances, points = part.uncertainty, len(part.result.points)
        errors = [f"the error in column {y}{SEM}"] if y + SEM in page.table else []
        seeds = "noise that the standard errors do not cover, such as the seed, is not in them"
        if (spread := chances.spread) is not None:
            errors.append(f"the spread over seeds of column {y}, {number(spread.sd, 2)} for one run")
            seeds = (
                "the spread over seeds is pooled over trials that differ in their seed alone "
                f"({counted(spread.freedom, 'degree')} of freedom)"
            )
        paired = "each error is drawn by itself; the trainer's leave out what is hard about the common text"
        if chances.paired:
            which = (
                "all trials"
                if chances.paired == points
                else f"{chances.paired} of {counted(points, 'trial')}"
            )
            paired = (
                f"the errors of {which} are drawn together, with the covariance of their losses of each "
                "sequence (field held_out), so that what is hard about the common text cancels"
            )
        error = " and ".join(errors)
        fields |= {"x": x, "y": y, "unit": measure_of(x).unit, "draws": chances.draws, "error": error}
        fields |= {"paired": paired, "seeds": seeds, "through": "" if part.fit is None else part.fit.through}
        ends = ["baseline", f"column {y}"]
        fields["gain"] = " − ".join(ends if part.result.y_goal == "minimize" else reversed(ends))
        fields["bars"] = f"; bars are {error}, where there is one" if error else ""
    if page.reuse is not None:
        fields |= _reuse_texts(page.table, page.reuse)
        if not page.priced_by_time:
            fields["dollars"] = f"{fields['dollars']}, less the usd of {_reused_source(page.reuse)}"
    if page.many_objectives is not None:
        fields["all_chances"] = ""
        if draws := page.many_objectives.result.draws:
            fields["all_chances"] = (
                f". Chances: share of {draws} draws of every value from a normal distribution with the error "
                "in its column NAME_sem"
            )
    return fields


def _reused_source(reuse: Reuse) -> str:
    """Return where it stands what trials did not compute themselves."""
    saved = " and of saved parts, in proportion to the cost" if reuse.branches else ""
    return f"reused stages in column stages{saved}"


def _reuse_texts(table: TrialsTable, reuse: Reuse) -> Mapping[str, str]:
    """Return the fields about costs: some trials have no stages, no known cost, or began on a trunk."""
    texts = dict.fromkeys(("fallback", "unknown", "branches", "parts", "trunk"), "")
    if STEPS_COLUMN in table and any(not stages for stages in table.stages):
        texts["fallback"] = f"; trials without stages count column {STEPS_COLUMN}"
    if reuse.unknown:
        texts["unknown"] = f"; the costs of {counted(reuse.unknown, 'trial')} are not known"
    if reuse.branches:
        texts["branches"] = "; branches: entries with a trial in branched_from, whose part saved was not paid"
        texts["parts"] = ", and the parts saved of those with branched_from"
        texts["trunk"] = ", and so does the part from a trunk"
    return texts
