"""The rule by curves: who is stopped, who never, the numbers of the reason, several objectives, odd records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.search.curve_rule import judge
from sweeps.space.definition import Choice, EarlyTerminate, Objective, Program, Range, Search, Space
from sweeps.trials.record import Trial

EARLY = EarlyTerminate(type="curve", min_trials=5, min_step=10.0)
SPACE = Space(
    name="toy",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="x", min=0.0, max=1.0, kind="float"),
        Choice(name="kind", values=("a", "b")),
    ),
    program=Program(kind="command", command=("true", "${overrides}")),
    early_terminate=EARLY,
)
TWO = replace(SPACE, objectives=(Objective(metric="loss"), Objective(metric="steps")))
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def curve(floor: float, length: int = 100, upto: float = 1.0):
    """A loss that falls to its floor by 2 over the length, whatever that is, at eight equal shares."""
    points = [(length * k / 8, floor + 2.0 * (1 - k / 8)) for k in range(1, 8)]
    return tuple(point for point in points if point[0] <= upto * length)


def completed(index: int, floor: float, *, length: int = 100, **changes) -> Trial:
    fields = {
        "parameters": {"x": (index * 0.37) % 1.0, "kind": "ab"[index % 2]},
        "metrics": {"loss": floor, "steps": float(length)},
        "curve": curve(floor, length),
        "progress": {"stage": "stage2", "of": length},
    }
    return Trial(trial=index, status="completed", generator="sobol", **(fields | changes))


def running(floor: float, *, upto: float = 0.5, length: int = 100, **changes) -> Trial:
    fields = {
        "parameters": {"x": 0.5, "kind": "a"},
        "curve": curve(floor, length, upto),
        "progress": {"stage": "stage2", "of": length},
    }
    return Trial(trial=99, status="running", generator="botorch", worker="w", **(fields | changes))


def others(count: int = 12, **changes) -> list[Trial]:
    return [completed(i, 3.0 + 0.1 * ((i * 5) % 12), **changes) for i in range(count)]


def verdict(record: Trial, records: list[Trial], space: Space = SPACE, early: EarlyTerminate = EARLY):
    return judge(space, early, record, records, records)


class TestOneObjective:
    def test_hopeless_trial_is_stopped_with_numbers(self):
        stop = verdict(running(4.0), others())
        assert stop.reason.startswith("predicted loss 4 ± ")
        assert stop.reason.endswith(" (sd) at step 50 of 100 against the best 3")
        assert stop.predicted["loss"] == pytest.approx(4.0, abs=0.05)
        assert stop.predicted["loss_sem"] > 0

    @pytest.mark.parametrize("floor", [2.5, 3.0, 3.01])
    def test_one_that_may_win_goes_on(self, floor):
        assert verdict(running(floor), others()) is None

    def test_longer_trial_is_compared_at_same_share(self):
        """At step 50 it is above all others, which are nearly done then."""
        late = running(3.0, length=400, upto=0.125)
        short = others(length=60)
        assert late.curve[-1][0] == 50
        assert late.curve[-1][1] > max(r.curve[-1][1] for r in short)
        assert verdict(late, [*short, *(replace(r, trial=r.trial + 20) for r in others(length=400))]) is None

    def test_a_maximised_objective_is_predicted_in_its_own_sign(self):
        space = replace(SPACE, objectives=(Objective(metric="accuracy", goal="maximize"),))
        records = [replace(r, metrics={"accuracy": 5.0 - r.metrics["loss"]}) for r in others()]
        stop = verdict(running(4.0), records, space)
        assert stop.predicted["accuracy"] == pytest.approx(1.0, abs=0.05)
        assert stop.predicted["accuracy_sem"] > 0
        assert stop.reason.endswith("against the best 2")
        assert verdict(running(3.0), records, space) is None

    @pytest.mark.parametrize(("margin", "stops"), [(0.0, True), (0.005, True), (0.4, False)])
    def test_the_margin_spares_those_near_the_best(self, margin, stops):
        stop = verdict(running(4.0), others(), early=replace(EARLY, margin=margin))
        assert (stop is not None) is stops

    @pytest.mark.parametrize("noise", [0.5, "reported"])
    def test_given_noise_widens_the_error(self, noise):
        space = replace(SPACE, search=Search(noise=noise))
        records = [replace(r, metrics={**r.metrics, "loss_sem": 0.5}) for r in others()]
        assert verdict(running(4.0), records, space) is None

    def test_infeasible_trials_are_no_incumbents(self):
        space = replace(SPACE, outcome_constraints=("peak <= 1",))
        records = [replace(r, metrics={**r.metrics, "peak": 2.0}) for r in others()]
        assert verdict(running(4.0), records, space) is None
        records[0] = replace(records[0], metrics={**records[0].metrics, "peak": 1.0})
        assert verdict(running(4.0), records, space) is not None  # trial 0 has the best loss, 3.0


class TestInDoubt:
    @pytest.mark.parametrize(("count", "stops"), [(4, False), (12, True)])
    def test_min_trials_must_be_completed(self, count, stops):
        assert (verdict(running(4.0), others(count)) is not None) is stops

    @pytest.mark.parametrize(("min_step", "stops"), [(50.0, True), (51.0, False)])
    def test_nothing_is_stopped_before_the_first_step_that_counts(self, min_step, stops):
        assert (verdict(running(4.0), others(), early=replace(EARLY, min_step=min_step)) is not None) is stops

    def test_a_setting_like_none_that_completed_is_spared(self):
        records = [replace(r, parameters={**r.parameters, "kind": "b"}) for r in others()]
        assert verdict(running(4.0), records) is None
        assert verdict(running(4.0, parameters={"x": 0.5, "kind": "b"}), records) is not None

    def test_unknown_length_needs_a_common_last_step(self):
        unknown = running(4.0, progress={})
        assert verdict(unknown, others()) is None
        bare = [replace(r, progress={}) for r in others()]
        assert verdict(unknown, bare) is not None
        assert verdict(unknown, [*bare[1:], replace(bare[0], curve=curve(3.0, 120))]) is None

    def test_the_length_of_another_stage_is_not_its_own(self):
        assert verdict(running(4.0, progress={"stage": "stage3", "of": 100}), others()) is None
        of_trainer = {"x": 0.5, "kind": "a", "stage2.max_steps": 100}
        other = running(4.0, progress={"stage": "stage3", "of": 70}, parameters=of_trainer)
        assert verdict(other, others()) is not None

    def test_trials_without_objective_or_curve_do_not_count(self):
        broken = [replace(r, metrics={"loss": None}) for r in others()]
        assert verdict(running(4.0), broken) is None
        assert verdict(running(4.0), [replace(r, curve=curve(3.0, 100, 0.2)) for r in others()]) is None

    @settings(deadline=None)
    @given(
        curves=st.lists(st.dictionaries(FINITE, FINITE, min_size=1, max_size=5), min_size=6, max_size=8),
        finals=st.lists(FINITE, min_size=8, max_size=8),
        of=st.none() | FINITE,
    )
    def test_no_finite_numbers_upset_it(self, curves, finals, of):
        progress = {} if of is None else {"of": of}
        made = [tuple(sorted(points.items())) for points in curves]
        records = [
            completed(i, final, curve=points, progress=progress)
            for i, (points, final) in enumerate(zip(made[1:], finals, strict=False))
        ]
        stop = verdict(running(4.0, curve=made[0], progress=progress), records)
        assert stop is None or "\n" not in stop.reason

    def test_the_order_of_the_records_does_not_matter(self):
        assert verdict(running(4.0), others()) == verdict(running(4.0), others()[::-1])


class TestSeveralObjectives:
    def mixed(self) -> list[Trial]:
        """A front: the longer, the lower the loss; and trials behind it."""
        lengths = [100, 150, 200, 250, 300] * 5
        return [
            completed(i, 5.0 - length / 100 + 0.15 * (i // 5), length=length)
            for i, length in enumerate(lengths)
        ]

    def test_trial_far_behind_front_is_stopped(self):
        stop = verdict(running(4.0, length=200, upto=0.75), self.mixed(), TWO)
        assert "loss 4" in stop.reason
        assert "against trial " in stop.reason
        assert stop.predicted["steps"] == pytest.approx(200, rel=0.02)

    @pytest.mark.parametrize(("floor", "length"), [(4.0, 100), (3.0, 200), (2.9, 200), (2.0, 300)])
    def test_one_that_may_reach_the_front_goes_on(self, floor, length):
        assert verdict(running(floor, length=length, upto=0.75), self.mixed(), TWO) is None

    def test_cheapest_trial_continues_despite_high_loss(self):
        assert verdict(running(4.5, length=50, upto=0.75), self.mixed(), TWO) is None
