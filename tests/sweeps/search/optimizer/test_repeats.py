"""Repeats of one configuration with other seeds are one arm of the surrogate, with several observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeps.search.optimizer import Optimizer
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="repeats",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"), Fixed(name="mode", value="fast")),
    program=Program(kind="function", function="objectives_for_tests:noisy"),
    search=Search(sobol=4, seed=1, noise=0.2),
)
NOISE = (0.11, -0.15, 0.05, -0.02, 0.13, -0.09, 0.01, -0.12)


def done(index: int, x: float, loss: float, generator="sobol", **parameters) -> Trial:
    return Trial(
        trial=index,
        status="completed",
        parameters={"x": x, "mode": "fast", **parameters},
        generator=generator,
        metrics={"loss": loss},
    )


def searched(**parameters) -> list[Trial]:
    return [done(i, i / 7, (i / 7 - 0.4) ** 2 + noise, **parameters) for i, noise in enumerate(NOISE)]


def repeated(count: int, **parameters) -> list[Trial]:
    """Repeats of trial 3, and their own noise."""
    return [
        done(8 + i, 3 / 7, (3 / 7 - 0.4) ** 2 + NOISE[i], "confirm", seed=900 + i, **parameters)
        for i in range(count)
    ]


def spread(space: Space, records: list[Trial]) -> float:
    """Return the posterior's standard deviation at trial 3, relative to that at trial 5."""
    optimizer = Optimizer(space)
    optimizer.observe(records)
    (_, at_3), (_, at_5) = optimizer.view().predict([optimizer.points()[3], optimizer.points()[5]])["loss"]
    return at_3 / at_5


@pytest.mark.parametrize("noise", ["inferred", 0.2])
def test_repeats_reduce_predicted_variance(noise):
    space = replace(SPACE, search=replace(SPACE.search, noise=noise))
    once, often = spread(space, searched()), spread(space, searched() + repeated(8))
    assert often < 0.85 * once


def test_repeats_share_point_and_arm_of_their_trial():
    optimizer = Optimizer(SPACE)
    records = [*searched(), *repeated(2, **{"eval.test": True, "other.key": 3})]
    optimizer.observe(records)
    points = optimizer.points()
    assert points[8] == points[9] == points[3]
    arms = [trial.arm.name for trial in optimizer.experiment.trials.values()]
    assert arms[8] == arms[9] == arms[3]
    assert len(set(arms)) == 8


@pytest.mark.parametrize("key", ["seed", "data.seed", "eval.test"])
def test_an_imported_trial_with_another_seed_is_a_repeat_too(key):
    space = replace(SPACE, parameters=(*SPACE.parameters, Fixed(name=key, value=0)))
    imported = [done(8 + i, 3 / 7, 0.1, "imported", **{key: i + 1}) for i in range(2)]
    optimizer = Optimizer(space)
    optimizer.observe([*searched(**{key: 0}), *imported])
    assert optimizer.points()[8] == optimizer.points()[3]


def test_another_fixed_parameter_still_makes_a_foreign_trial():
    optimizer = Optimizer(SPACE)
    optimizer.observe([*searched(), done(8, 0.5, 0.1, "imported", mode="slow")])
    assert 8 not in optimizer.points()


def test_inactive_parameters_do_not_set_repeats_apart():
    """The surrogate gets a random value for a switched-off parameter: the same for all repeats."""
    space = replace(
        SPACE,
        parameters=(
            *SPACE.parameters,
            Choice(name="on", values=(True, False), when=((True, ("y",)),)),
            Range(name="y", min=0.0, max=1.0, kind="float"),
        ),
    )
    optimizer = Optimizer(space)
    optimizer.observe([*searched(on=False), *repeated(3, on=False)])
    points = optimizer.points()
    assert len(points[3]) == 3
    assert points[8] == points[9] == points[10] == points[3]


def test_leave_one_out_leaves_out_all_repeats_of_a_configuration():
    """The repeats would otherwise predict one another, though nothing like them were known."""
    outlier = [done(8 + i, 0.99, 5.0, "confirm", seed=900 + i) for i in range(4)]
    records = [*searched()[:7], done(7, 0.99, 5.0), *outlier]
    optimizer = Optimizer(SPACE)
    optimizer.observe(records)
    rows = {
        trial: (observed, predicted)
        for trial, _, observed, predicted, _ in optimizer.view().cross_validated()
    }
    assert set(rows) == set(range(12))
    for trial in (7, 8, 9, 10, 11):
        assert rows[trial][0] == 5.0
        assert rows[trial][1] < 3.0


def test_repeats_do_not_end_the_first_phase_of_the_search():
    space = replace(SPACE, search=replace(SPACE.search, sobol=10))
    optimizer = Optimizer(space)
    optimizer.observe([*searched(), *repeated(8)])
    (candidate,) = optimizer.generate()
    assert candidate.generator == "sobol"
