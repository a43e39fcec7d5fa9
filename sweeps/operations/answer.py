"""What the surrogate says of the best trial and of further ones, as a value: `Sweep.answer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeps.experiment import Experiment
from sweeps.export import optimum
from sweeps.space.definition import to_plain
from sweeps.trials.redaction import redact_trials


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the surrogate says, as `sweep best` shows it.

    Args:
        trial: the one with the best posterior mean.
        noise: standard deviation of one run's result around the true value.
        chance: probability that the true value is within `noise` of the best in the space.
        expected_gain: by how much they are expected to improve the choice; positive whatever the goal.
    """

    trial: int
    parameters: Mapping[str, Any]
    metric: str
    mean: float
    sd: float
    measured: float
    noise: float
    chance: float
    more: int
    expected_gain: float
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        """Return the sentences, one a line."""
        return "\n".join(self.sentences)


def answer_of(experiment: Experiment) -> Answer | None:
    """Return the answer for a sweep, or None where there is none; see `Sweep.answer`."""
    records = redact_trials(experiment.readable_trials()[0])
    found = optimum.optimum(experiment.space, records)
    if found is None:
        return None
    record = next(each for each in records if each.trial == found["trial"])
    same = ("trial", "metric", "mean", "sd", "measured", "noise", "chance", "more")
    return Answer(
        **{name: found[name] for name in same},
        parameters={name: to_plain(value) for name, value in record.parameters.items()},
        expected_gain=found["gain"],
        sentences=tuple(found["sentences"]),
    )
