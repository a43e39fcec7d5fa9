"""Records for the doctor's tests, and faults to make in them. Test modules of this folder import it."""

from __future__ import annotations

from dataclasses import replace

from sweeps.experiment import Experiment
from sweeps.storage.base import Store
from sweeps.trials import record as trial
from sweeps.trials.record import Attempt, Trial


def healthy(now: float) -> list[Trial]:
    done = replace(
        made(0, x=0.25, now=now),
        status="completed",
        attempt=1,
        metrics={"loss": 1.0},
        started=now,
        ended=now,
        history=(Attempt(attempt=1, worker="w1", start=now, end=now, reason="completed"),),
    )
    return [
        done,
        replace(done, trial=1, parameters={"x": 0.5, "n": 10, "mode": "fast"}),
        made(2, x=0.75, now=now),
    ]


def made(index: int, *, x: float, now: float) -> Trial:
    return Trial(
        trial=index,
        status="pending",
        parameters={"x": x, "n": 10, "mode": "fast"},
        generator="sobol",
        created=now,
    )


def overwrite(store: Store, key: str, data: bytes) -> None:
    store.replace(key, data, store.read(key)[1])


def tear(experiment: Experiment) -> bytes:
    """Cut the record of trial 0 in the middle."""
    data = experiment.store.read(trial.key(0))[0]
    overwrite(experiment.store, trial.key(0), data[: len(data) // 2])
    return data[: len(data) // 2]


def make_gap(experiment: Experiment) -> None:
    experiment.store.delete(trial.key(1), experiment.store.read(trial.key(1))[1])


def make_ownerless(experiment: Experiment) -> None:
    experiment.store.create("runs/000007/attempt-1/log.txt", b"whose?")
