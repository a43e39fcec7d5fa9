"""Improvement of the best trial over the first one, which has the known defaults or the file's baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeps.export.held_out import Losses
from sweeps.space.definition import Space
from sweeps.text.standard_error import independent, standard_error
from sweeps.trials.record import Trial

NORMAL_95 = 1.959963984540054
"""Half the width of a normal distribution's central 95 %, in standard deviations."""

SEQUENCES = {"final_loss": ("final", "teacher"), "test_loss": ("test", "test_teacher")}
"""Names of the losses of each sequence and of the teacher's, by the metric that is their mean."""

SAME_TEXT = 0.9
"""Least correlation of two teachers' losses on the same text; on different texts they are uncorrelated."""


Source = Literal["text", "errors", "noise", ""]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Difference between the best trial and the first one, in the first objective.

    Args:
        first: index of the first one; imported and enqueued trials come before it.
        difference: how much better the best trial is; negative: worse.
        low, high: 95 % interval of it for these two runs, not for others with fresh seeds; None: unknown.
        by: what the interval is from: the same sequences (`text`), those of one document together, standard
            errors that the trials have reported (`errors`), or the noise that the file states (`noise`).
        over: `defaults`, or another `baseline`.
        below: whether better is lower.
    """

    trial: int
    first: int
    metric: str
    difference: float
    low: float | None
    high: float | None
    by: Source
    over: Literal["defaults", "baseline"]
    below: bool

    def __str__(self) -> str:
        """Return the sentence, such as `0.038 below the defaults (trial 0), 95 % 0.021 to 0.055, …`."""
        over = f"the {self.over} (trial {self.first})"
        if self.trial == self.first:
            return f"no trial is better than {over} so far"
        side = "below" if self.below == (self.difference >= 0) else "above"
        # Two significant digits of the largest number, and as many places of the others.
        size = max(abs(self.difference), abs(self.low or 0.0), abs(self.high or 0.0))
        places = max(0, 1 - math.floor(math.log10(size))) if size > 0 else 0
        text = f"{abs(self.difference):.{places}f} {side} {over}"
        if self.low is None or self.high is None:
            return f"{text}, one run of each"
        sign = 1.0 if self.difference >= 0 else -1.0
        low, high = sorted((sign * self.low, sign * self.high))
        source = {
            "text": "paired on the same text",
            "errors": "from their standard errors",
            "noise": "from search.noise",
        }[self.by]
        return f"{text}, 95 % {low:.{places}f} to {high:.{places}f}, {source}; one run of each"


def gain(
    space: Space,
    records: Sequence[Trial],
    best: Trial | None,
    by_sequence: Mapping[str, Losses] | None,
) -> Gain | None:
    """Return what the best trial has gained; None with several objectives, or without a first trial's result.

    Losses on the same sequences are compared in pairs: what is hard about the text cancels.

    Args:
        by_sequence: see `held_out.losses`; None: not read. Then the trainer's results have no interval: that
            from their standard errors would be too wide, as the text is the same.
    """
    first = next((r for r in records if r.generator == "baseline" and r.status == "completed"), None)
    if first is None or best is None or len(space.objectives) > 1:
        return None
    metric, sign = space.objectives[0].metric, space.objectives[0].sign
    ours, theirs = best.metrics.get(metric), first.metrics.get(metric)
    if ours is None or theirs is None:
        return None
    difference = sign * (theirs - ours)
    sem: float | None = None
    deviations = NORMAL_95
    by: Source = ""
    if not math.isfinite(difference):  # the first of two finite numbers less the second may be none
        return None
    own, teachers = SEQUENCES.get(metric, ("", ""))
    (a, ta), (b, tb) = (
        (losses.get(own, []), losses.get(teachers, []))
        for losses in ((by_sequence or {}).get(str(record.trial), {}) for record in (best, first))
    )
    errors = [record.metrics.get(f"{metric}_sem") for record in (best, first)]
    known = [error for error in errors if error is not None]
    if best.trial == first.trial:
        pass
    elif len(a) == len(b) >= 2 and _on_same_text(ta, tb):
        from scipy.special import stdtrit  # `sweep status` does without

        pairs = [y - x for x, y in zip(a, b, strict=True)]
        documents = by_sequence[str(best.trial)].get(f"{own}_documents", []) if by_sequence else []
        sem, by = standard_error(pairs, documents), "text"
        deviations = float(stdtrit(independent(len(pairs), documents) - 1, 0.975))
    elif len(known) == 2 and by_sequence is None and space.program.kind == "trainer":
        pass
    elif len(known) == 2:
        sem, by = math.hypot(*known), "errors"
    elif isinstance(space.search.noise, float):
        sem, by = math.sqrt(2) * space.search.noise, "noise"
    return Gain(
        trial=best.trial,
        first=first.trial,
        metric=metric,
        difference=difference,
        low=None if sem is None else difference - deviations * sem,
        high=None if sem is None else difference + deviations * sem,
        by=by,
        over="defaults" if space.defaults == "first" else "baseline",
        below=sign > 0,
    )


def _on_same_text(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two runs' teachers were measured on the same sequences."""
    if len(one) != len(other) or len(one) < 2:
        return False
    try:
        return statistics.correlation(one, other) >= SAME_TEXT
    except statistics.StatisticsError:  # all sequences have the same loss
        return one == other
