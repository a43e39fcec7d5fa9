"""Where each number of the report comes from: the column and the formula, in the page's footer.

`report` calls this. A reader who doubts a number finds here what to recompute from the exported table.
"""

from __future__ import annotations

from analysis.contents import Contents
from analysis.efficiency import STAGE1_9_WEIGHT
from analysis.summary import ParetoResult


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
    if page.best is not None:
        told.append(("Best so far", "running best of the first objective over completed trials, by index"))
    return tuple(told)


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
                f"highest (baseline − {result.y}) / ({result.x} / 100); the baseline is the best {result.y} "
                "among completed trials with param.stage1_9.max_steps = 0",
            )
        )
    return told
