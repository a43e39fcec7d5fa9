"""Where each number of the report comes from: the column and the formula, in the page's footer.

`report` calls this. A reader who doubts a number finds here what to recompute from the exported table.
"""

from __future__ import annotations

from analysis.compute import of_column
from analysis.contents import Contents
from analysis.efficiency import STAGE1_9_WEIGHT
from analysis.summary import ParetoResult
from analysis.uncertainty import Uncertainty


def provenance(page: Contents) -> tuple[tuple[str, str], ...]:
    """(what, how) for every number that the page shows, in the page's order."""
    told = [("Trials and counts", "column status of the trials table, one row per trial")]
    if page.best is not None:
        metric = page.objectives[0].metric
        extreme = "smallest" if page.objectives[0].goal == "minimize" else "largest"
        told.append(("Best trial", f"the {extreme} {metric} among completed trials, first of equals"))
        told.append(("±", f"one standard error, column {metric}_sem, where the objective reports it"))
    if page.tradeoff is not None:
        told += _of_tradeoff(page.tradeoff)
    if page.sure is not None:
        told += _of_chances(page.sure, page)
    told += _of_insight(page)
    if page.cost.priced:
        told.append(
            (
                "Costs",
                f"{page.cost.basis}; time is column seconds, of each trial's last attempt; usd as reported",
            )
        )
    if page.best is not None:
        told.append(("Best so far", "running best of the first objective over completed trials, by index"))
    return tuple(told)


def _of_chances(sure: Uncertainty, page: Contents) -> list[tuple[str, str]]:
    told = []
    y = page.tradeoff.y if page.tradeoff else ""
    if sure.draws:
        told.append(
            (
                "Chances",
                f"share of {sure.draws} draws of every {y} from a normal distribution with its {y}_sem; "
                "noise that the standard errors do not cover, such as the seed, is not in them",
            )
        )
        told.append(("Efficiency's ±", f"95 %, from {y}_sem of the trial and of the baseline"))
    if sure.hypervolume is not None:
        told.append(
            (
                "Hypervolume",
                "area that the front dominates within the reference point, which lies a tenth of the range "
                "behind the worst value of each axis: it moves with the worst trial",
            )
        )
    if page.curve is not None:
        told.append(
            (
                "Fitted curve",
                f"least squares through {page.curve.through}; band: 95 % of a parametric bootstrap",
            )
        )
    return told


def _of_insight(page: Contents) -> list[tuple[str, str]]:
    if not page.insight.metrics:
        return []
    return [
        (
            "What mattered",
            "Ax's surrogate (a Gaussian process), fitted once more to all results: Sobol's indices of its "
            "mean over the search space; leave-one-out predictions; means with one parameter moved",
        )
    ]


def _of_tradeoff(result: ParetoResult) -> list[tuple[str, str]]:
    told = [
        (
            "Pareto front",
            f"completed trials that no other one beats in both {result.x} and {result.y}; equals stay",
        ),
        (
            "Knee",
            "the front point farthest from the straight line between the front's ends, both axes scaled to "
            "0..1 (Kneedle, Satopää et al. 2011); needs three different points",
        ),
    ]
    if "effective_steps" in (result.x, result.y):
        told.append(
            (
                "Effective steps",
                f"{STAGE1_9_WEIGHT} × Stage 1.9 steps + Stage 2 steps, and {STAGE1_9_WEIGHT} × any other "
                "step that runs the teacher beside the student (column effective_steps)",
            )
        )
    if result.baseline is None:
        told.append(
            ("Most efficient", "not given: no completed trial has zero steps of Stage 1.9 to compare with")
        )
    else:
        told.append(
            (
                "Most efficient",
                f"highest (baseline − {result.y}) per {of_column(result.x).unit} of {result.x}; the baseline "
                f"is the best {result.y} among completed trials with param.stage1_9.max_steps = 0",
            )
        )
    return told
