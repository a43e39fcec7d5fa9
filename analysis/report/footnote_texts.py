"""Texts of the report's footnotes, in the order of the page; `footnotes` chooses and completes them."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.statistics.efficiency import STAGE1_9_WEIGHT

STEPS = (
    f"{STAGE1_9_WEIGHT} × Stage 1.9 steps + Stage 2 steps, and {STAGE1_9_WEIGHT} × any other step that runs "
    "the teacher beside the student"
)


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
        "nominal",
        "Nominal compute",
        "column {x} is that of the configuration, in the front, its knee and the efficiency: a stage that "
        "the trial reused counts as if it had computed it{trunk}, so that trials compare whatever they found",
    ),
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
        "reuse",
        "Shared stages",
        "column cost_paid of cost_nominal, summed over all trials but imported ones; reused: entries with a "
        "trial in reused_from, in column stages{branches}{fallback}{unknown}. Stages that were cut short do "
        "not count",
    ),
    Definition(
        "paid curve",
        "Best for the compute",
        "running best of column {metric} over completed trials, against the running sum of column cost_paid "
        "(dotted: of cost_nominal) over all trials of the search in the order of column trial",
    ),
    Definition(
        "trunks",
        "Trunks and branches",
        "trials are on one trunk if one is the other's branched_from in column stages, or if they have the "
        "same key there or in column trunk_points. Points: cost in column trunk_points; hollow: snapshot is "
        "false. A branch leaves at the last point that its trials had, or at saved, and ends at cost; the "
        "value is the {extreme} of column {metric} among its trials",
    ),
    Definition(
        "lengths",
        "Lengths",
        "column {metric} of completed trials of the search over column {parameter}STAGE.max_steps, or over "
        "cost in column stages; lines: the best at each length, for each trunk with several",
    ),
    Definition(
        "prefixes",
        "Prefixes",
        "trials with the same key in column stages have that stage in common; the shared stage: its cost, as "
        "often as it was computed; later stages: what these trials computed beyond it; saved: its cost for "
        "the trials with reused_from{parts}",
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
