"""Sizes of the errors of a final loss, beside its spread over seeds. Pure."""

from __future__ import annotations

import statistics
from itertools import combinations

import numpy as np

from benchmarks.findings.claims import Finding, Runs
from benchmarks.findings.runs import Run
from benchmarks.findings.setting import Setting
from sweeps.text.standard_error import standard_error


def errors(setting: Setting, runs: Runs) -> Finding:
    """Return what a standard error of one run covers, compared with repeats under other seeds."""
    conditions = setting.conditions()
    losses_CS = np.array([runs.list(condition, lambda run: run.final) for condition in conditions])
    by_condition = [list(runs.by_seed(condition).values()) for condition in conditions]
    text, paired = (
        [statistics.median(runs.list(condition, value)) for condition in conditions]
        for value in (lambda run: run.text_sem, lambda run: run.sem)
    )
    pairs = [
        statistics.fmean(_difference_sem(a, b) for a, b in zip(ones, others, strict=True))
        for ones, others in combinations(by_condition, 2)
    ]
    spread = losses_CS.std(axis=1, ddof=1).tolist()
    kinds = {
        "over texts (`final_loss_text_sem`)": text,
        "of the difference to the teacher on the same text (`final_loss_sem`)": paired,
        "of the difference between two conditions of one seed, on the same text": pairs,
        "standard deviation over seeds": spread,
        "standard deviation over seeds, without what a seed does to all conditions": _residual(losses_CS),
    }
    medians = {kind: statistics.median(values) for kind, values in kinds.items()}
    over_texts, to_teacher, _, over_seeds, _ = medians.values()
    return Finding(
        name="errors",
        claim="How large are the errors of a final loss?",
        verdicts=(
            f"The error over texts is {over_texts / over_seeds:.1f} times the standard deviation over seeds: "
            "what is hard about the text is hard for every run, and cancels between runs.",
            f"The error of the difference to the teacher is {to_teacher / over_seeds:.1f} times it. Neither "
            "knows of the seed, so a search infers its noise unless it is given.",
        ),
        header=("error of a final loss", "median", "smallest", "largest"),
        rows=tuple(
            (kind, f"{medians[kind]:.4f}", f"{min(values):.4f}", f"{max(values):.4f}")
            for kind, values in kinds.items()
        ),
        series=(),
        x_title="",
        y_title="",
    )


def _difference_sem(a: Run, b: Run) -> float:
    """Return the standard error over documents of the difference of two runs on the same text."""
    return standard_error(np.subtract(a.by_sequence, b.by_sequence).tolist(), a.documents)


def _residual(losses_CS: np.ndarray) -> list[float]:
    """Return each condition's standard deviation over seeds once the mean of each seed is taken out."""
    conditions, seeds = losses_CS.shape
    residuals_CS = losses_CS - losses_CS.mean(axis=0) - losses_CS.mean(axis=1, keepdims=True)
    residuals_CS += losses_CS.mean()
    freedom = (seeds - 1) * (conditions - 1) / conditions
    deviations: list[float] = np.sqrt((residuals_CS**2).sum(axis=1) / freedom).tolist()
    return deviations
