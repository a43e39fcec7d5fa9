"""A short seeded run of `benchmarks/chaos.py`, and tests of the check that it ends with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import chaos
from benchmarks.fleet import loss_of
from sweeps.trials.record import Attempt, Trial

PARAMETERS = {"seconds": 1.5}


def ended(attempt: int, worker: str, reason: str) -> Attempt:
    return Attempt(attempt=attempt, worker=worker, start=1.0, end=2.0, reason=reason)


@pytest.fixture
def record() -> Trial:
    """Return a trial that w1 lost and w2 completed."""
    return Trial(
        trial=3,
        status="completed",
        parameters=PARAMETERS,
        generator="sobol",
        attempt=2,
        metrics={"loss": loss_of(PARAMETERS)},
        history=(ended(1, "w1", "expired"), ended(2, "w2", "completed")),
    )


def report(worker: str, attempt: int, loss: float) -> dict[str, object]:
    return {"worker": worker, "attempt": attempt, "metrics": {"loss": loss}}


GOOD = report("w2", 2, 4.0)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_every_trial_ends_exactly_once_in_bad_weather(request, scheme):
    if scheme == "s3":
        request.getfixturevalue("s3")  # skips where there is no server
    found = chaos.run(faults=16, seed=3, workers=4, trials=16, gap_s=0.3, scheme=scheme)
    assert found.problems == []
    assert found.trials >= 16
    assert found.faults.total() == 16
    assert found.workers > 4


def test_a_sound_trial_is_not_complained_of(record):
    assert chaos.problems_of(record, [GOOD]) == []
    assert chaos.problems_of(record, []) == []  # its worker was killed between the report and the event log


@pytest.mark.parametrize(
    ("change", "reports"),
    [
        ({"status": "failed"}, []),
        ({"metrics": {"loss": 0.0}}, []),
        ({"attempt": 3}, []),
        ({"history": (ended(1, "w1", "completed"), ended(2, "w2", "completed"))}, []),
        ({"history": (ended(1, "w1", "expired"), ended(2, "w2", "expired"))}, []),
        ({}, [GOOD, report("w1", 1, 4.0)]),
        ({}, [report("w1", 1, 4.0)]),
        ({}, [report("w2", 2, 5.0)]),
    ],
    ids=[
        "failed",
        "wrong-result",
        "an-attempt-without-history",
        "ended-twice",
        "never-reported",
        "two-accepted-reports",
        "result-of-a-worker-lost",
        "result-lost",
    ],
)
def test_the_judge_notices(record, change, reports):
    assert chaos.problems_of(replace(record, **change), reports) != []
