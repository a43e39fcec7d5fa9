"""Early stopping: the trials compared, when none is stopped yet, and a worker that stops a program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore
from silent_watcher import Silent

from sweeps.experiment import Experiment
from sweeps.export.table import best
from sweeps.programs.signals import Stop
from sweeps.search.optimizer import Optimizer, PercentileEarlyStoppingStrategy, falls_behind
from sweeps.search.outcomes import Outcomes
from sweeps.space.definition import EarlyTerminate, Lease, Objective, Program, Range, Search, Space, Stage
from sweeps.trials.record import Trial
from sweeps.worker import loop
from sweeps.worker.early_stopping import should_stop

pytestmark = pytest.mark.usefixtures("few_starts")

EARLY = EarlyTerminate(percentile=50.0, min_trials=3, min_step=10.0)


TOY = Space(
    name="toy",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="command", command=("true", "${overrides}")),
)
STEPS = st.integers(0, 12).map(float)
LOSSES = st.integers(0, 9).map(float)
ANY = st.floats(allow_nan=False, allow_infinity=False)


def descent(last_step: int, floor: float, every: int = 5) -> tuple[tuple[float, float], ...]:
    """A loss that falls from 10 above its floor, logged every few steps."""
    return tuple((float(step), floor + 10.0 / (1 + step)) for step in range(0, last_step + 1, every))


def trial(index: int, status: str, curve, **changes) -> Trial:
    parameters = {"x": index / 100, "n": 7, "mode": "fast"}
    held = {"worker": "w", "heartbeat": 1.0} if status == "running" else {}
    metrics = {"loss": curve[-1][1]} if status == "completed" else {}
    fields = {
        "parameters": parameters,
        "generator": "sobol",
        "curve": curve,
        "metrics": metrics,
        "attempt": 1,
    }
    return Trial(trial=index, status=status, **(fields | held | changes))


@pytest.fixture
def stopping(space):
    return replace(space, early_terminate=EARLY)


def five(status: str = "completed", last_step: int = 50) -> list[Trial]:
    """Trials 0 to 4, the lower the better."""
    return [trial(index, status, descent(last_step, floor=float(index))) for index in range(5)]


LENGTH_AND_LOSS = replace(
    TOY,
    objectives=(Objective(metric="loss"), Objective(metric="effective_steps")),
    parameters=(Range(name="steps", min=10, max=1000, kind="int"),),
    stages=(Stage(name="a", parameters=(), cost="10"), Stage(name="b", parameters=("steps",), cost="steps")),
)


def long_trial(index: int, steps: int, floor: float, status: str = "completed", last_step: int = 50) -> Trial:
    """A trial whose second objective is the cost of its stages."""
    curve = descent(last_step, floor)
    metrics = {"loss": floor, "effective_steps": steps + 10.0} if status == "completed" else {}
    return trial(index, status, curve, parameters={"steps": steps}, metrics=metrics)


class TestTwoObjectives:
    @pytest.fixture(params=["percentile", "hyperband"])
    def rule(self, request: pytest.FixtureRequest) -> EarlyTerminate:
        return replace(EARLY, type=request.param)

    def test_a_trial_is_compared_with_those_that_cost_no_more(self, rule: EarlyTerminate):
        space = replace(LENGTH_AND_LOSS, early_terminate=rule)
        cheap = [long_trial(i, 100 + i, floor=5.0 + i) for i in range(4)]
        dear = [long_trial(10 + i, 500 + i, floor=float(i)) for i in range(4)]
        short = long_trial(9, 200, floor=4.5, status="running", last_step=20)
        long = long_trial(9, 900, floor=6.5, status="running", last_step=20)
        assert should_stop(space, short, cheap + dear) is None  # the best of its length
        assert should_stop(space, long, cheap + dear) is not None

    def test_where_the_other_objective_is_no_cost_all_go_on(self, rule: EarlyTerminate):
        space = replace(LENGTH_AND_LOSS, early_terminate=rule)
        others = [
            replace(each, metrics={"loss": 1.0, "effective_steps": 7.0 * i})
            for i, each in enumerate(long_trial(i, 100 + i, floor=1.0 + i) for i in range(6))
        ]
        assert should_stop(space, long_trial(9, 900, 99.0, "running", 20), others) is None


@pytest.mark.parametrize("kind", ["percentile", "hyperband"])
@pytest.mark.parametrize("space", [TOY, LENGTH_AND_LOSS], ids=["one", "two"])
def test_no_trial_stops_because_of_those_outside_of_the_constraints(space: Space, kind: str) -> None:
    """Trials 0 to 3 have the lowest losses, and none of them can be the best."""

    def completed_trial(index: int, ms: float) -> Trial:
        done = long_trial(index, 100 + index, floor=float(index))
        return replace(done, metrics={**done.metrics, "ms": ms})

    space = replace(space, early_terminate=replace(EARLY, type=kind))
    others = [completed_trial(index, 20.0 if index < 4 else 5.0) for index in range(8)]
    judged = long_trial(9, 200, floor=4.5, status="running", last_step=20)
    assert should_stop(space, judged, others) is not None
    assert should_stop(replace(space, outcome_constraints=("ms <= 10",)), judged, others) is None
    worse = long_trial(9, 200, floor=9.5, status="running", last_step=20)
    assert should_stop(replace(space, outcome_constraints=("ms <= 10",)), worse, others) is not None


class TestHyperband:
    RUNGS = EarlyTerminate(type="hyperband", min_trials=3, min_step=10.0, eta=3.0)

    def stopped(self, space: Space, judged: Trial, others: list[Trial]) -> bool:
        return should_stop(replace(space, early_terminate=self.RUNGS), judged, others) is not None

    @pytest.mark.parametrize(("others", "go_on"), [(5, 2), (8, 3), (11, 4)])
    def test_one_of_eta_goes_on(self, space: Space, others: int, go_on: int):
        others_ = [trial(i, "completed", descent(50, floor=float(i))) for i in range(others)]
        verdicts = [
            self.stopped(space, trial(99, "running", descent(20, floor=i - 0.5)), others_)
            for i in range(others + 1)
        ]
        assert verdicts == [False] * go_on + [True] * (others + 1 - go_on)

    def test_between_rungs_the_loss_at_the_last_rung_counts(self, space: Space):
        good_at_ten = ((0.0, 10.0), (10.0, 0.0), (25.0, 99.0))
        assert not self.stopped(space, trial(9, "running", good_at_ten), five())
        assert self.stopped(space, trial(9, "running", (*good_at_ten, (30.0, 99.0))), five())

    def test_trial_continues_before_the_first_rung(self, space: Space):
        assert not self.stopped(space, trial(9, "running", descent(5, floor=99.0)), five())
        assert not self.stopped(space, trial(9, "running", descent(20, floor=99.0)), five()[:2])
        assert not self.stopped(space, trial(9, "running", descent(20, floor=99.0)), five("running"))
        late = trial(9, "running", descent(50, floor=99.0))
        assert not self.stopped(space, late, five(last_step=25))
        assert not self.stopped(space, late, [*five(last_step=25), *five()[:2]])
        assert self.stopped(space, late, [*five(last_step=25), *five()[2:]])
        assert self.stopped(space, late, five(last_step=30))
        resumed = trial(9, "running", descent(50, floor=99.0)[7:])  # from step 35: nothing is known of 30
        assert not self.stopped(space, resumed, five())

    def test_the_reason_names_loss_step_and_share(self, space: Space):
        stopping = replace(space, early_terminate=self.RUNGS)
        why = should_stop(stopping, trial(9, "running", descent(20, floor=4.5)), five())
        assert why.reason.startswith("loss 5.4091 at step 10 is not among the best 1/3 of 6 ")


class TestNotFinite:
    @pytest.mark.parametrize("rule", ["percentile", "hyperband", "curve"])
    def test_it_is_stopped_where_another_would_be_judged(self, space: Space, rule: str):
        stopping = replace(space, early_terminate=replace(EARLY, type=rule))
        judged = trial(9, "running", ())
        assert should_stop(stopping, judged, five(), not_finite=20.0) is not None
        assert should_stop(stopping, judged, five(), not_finite=9.0) is None  # before min_step
        assert should_stop(stopping, judged, five(), not_finite=60.0) is None  # nobody has come as far
        assert should_stop(stopping, judged, five()[:2], not_finite=20.0) is None
        assert should_stop(stopping, judged, five("running"), not_finite=20.0) is None
        assert should_stop(stopping, judged, five(), not_finite=None) is None

    def test_two_objectives_do_not_excuse_it(self):
        others = [
            replace(each, metrics={"loss": 1.0, "effective_steps": 7.0 * i})
            for i, each in enumerate(long_trial(i, 100 + i, floor=1.0 + i) for i in range(6))
        ]
        space = replace(LENGTH_AND_LOSS, early_terminate=EARLY)
        assert should_stop(space, long_trial(9, 900, 1.0, "running", 20), others, not_finite=20.0) is not None

    def test_without_early_terminate_it_goes_on(self, space: Space):
        assert should_stop(space, trial(9, "running", ()), five(), not_finite=20.0) is None


class TestWhoIsStopped:
    def test_trial_among_the_worst_half_is_stopped(self, stopping):
        why = should_stop(stopping, trial(9, "running", descent(20, floor=4.5)), five())
        assert why.reason.startswith("loss 4.9762 at step 20 is among the worst 50 % of 6 ")

    def test_one_among_the_better_half_goes_on(self, stopping):
        assert should_stop(stopping, trial(9, "running", descent(20, floor=0.5)), five()) is None

    @pytest.mark.parametrize(("percentile", "stopped"), [(10.0, 1), (25.0, 2), (50.0, 3), (90.0, 5)])
    def test_the_percentile_says_how_many_of_the_worst_are_stopped(self, stopping, percentile, stopped):
        space = replace(stopping, early_terminate=replace(EARLY, percentile=percentile))
        floors = [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
        verdicts = [should_stop(space, trial(9, "running", descent(20, floor)), five()) for floor in floors]
        assert [why is not None for why in verdicts] == [False] * (6 - stopped) + [True] * stopped

    def test_losses_are_compared_at_the_same_step_and_not_at_the_end(self, stopping):
        slow = trial(
            9, "running", ((0.0, 10.0), (10.0, 3.0))
        )  # all others end below 3, but were above it here
        others = [trial(index, "completed", ((0.0, 10.0), (10.0, 5.0), (50.0, 1.0))) for index in range(5)]
        assert should_stop(stopping, slow, others) is None

    def test_between_logged_steps_the_others_losses_are_interpolated(self, stopping):
        others = [
            trial(i, "completed", ((0.0, 10.0), (9.0, 9.0), (29.0, 5.0), (60.0, 0.0))) for i in range(5)
        ]
        for loss, stops in ((7.01, True), (6.99, False)):  # the others' line is at 7 in step 19
            judged = trial(9, "running", ((0.0, 9.0), (19.0, loss)))
            assert (should_stop(stopping, judged, others) is not None) is stops

    def test_a_maximised_objective_does_not_turn_the_loss_around(self, stopping):
        space = replace(
            stopping, objectives=(replace(stopping.objectives[0], metric="acc", goal="maximize"),)
        )
        assert should_stop(space, trial(9, "running", descent(20, floor=0.5)), five()) is None
        assert should_stop(space, trial(9, "running", descent(20, floor=4.5)), five()) is not None

    def test_early_stopped_and_running_trials_are_compared_with_too(self, stopping):
        good = [trial(10 + i, "completed", descent(50, floor=1.0)) for i in range(3)]
        bad = [
            trial(20 + i, status, descent(20, 8.0))
            for i, status in enumerate(["early_stopped", "running"] * 3)
        ]
        judged = trial(9, "running", descent(20, floor=3.0))
        assert should_stop(stopping, judged, good) is not None
        assert should_stop(stopping, judged, good + bad) is None

    def test_losses_of_failed_and_pending_trials_do_not_count(self, stopping):
        bad = [
            trial(20 + i, s, descent(20, 90.0)) for i, s in enumerate(["failed", "pending", "abandoned"] * 4)
        ]
        judged = trial(9, "running", descent(20, floor=4.5))
        assert should_stop(stopping, judged, five() + bad) == should_stop(stopping, judged, five())

    @pytest.mark.parametrize(
        ("rule", "loss"),
        [
            (EarlyTerminate(type="percentile", percentile=60.0), 1.25),
            (EarlyTerminate(type="hyperband"), 1.25),
            (EarlyTerminate(type="curve"), 5.0),
        ],
        ids=["percentile", "hyperband", "curve"],
    )
    def test_repeats_of_a_confirmation_are_no_rivals(self, space, rule, loss):
        """The five best of twelve, with five seeds each: the third best of the search would be among the worst."""

        def at(index: int, final: float, status: str = "completed", generator: str = "sobol") -> Trial:
            curve = ((10.0, final + 1.0), (50.0, final))
            return trial(index, status, curve, parameters={"x": 0.5}, generator=generator)

        stopping, judged = replace(space, early_terminate=rule), at(37, loss, "running")
        search = [at(index, 1.0 + 0.1 * index) for index in range(12)]
        repeats = [at(12 + k, 1.0 + 0.1 * (k % 5) + 0.01 * (k // 5), generator="confirm") for k in range(25)]
        found = should_stop(stopping, judged, search)
        assert (found is not None) is (rule.type == "curve")
        assert should_stop(stopping, judged, search + repeats) == found


class TestHeldOutLosses:
    """Four points a trial, at shares of its steps."""

    SHARES = (0.25, 0.5, 0.75, 1.0)
    STAGE2 = "held_out_loss in stage2"

    def measured(self, index, status, steps, floor, until=1.0, of=STAGE2):
        points = tuple((steps * s, floor + 1 / s) for s in self.SHARES if s <= until)
        return trial(index, status, points, curve_of=of)

    def others(self, **more):
        return [self.measured(index, "completed", 200, float(index), **more) for index in range(5)]

    @pytest.mark.parametrize(("floor", "stops"), [(0.5, False), (4.5, True)])
    @pytest.mark.parametrize("steps", [200, 100, 160])
    def test_few_points_are_enough(self, stopping, floor, stops, steps):
        judged = self.measured(9, "running", steps, floor, until=0.5)
        assert (should_stop(stopping, judged, self.others()) is not None) is stops

    def test_a_trial_beyond_all_measured_steps_goes_on(self, stopping):
        judged = self.measured(9, "running", 1000, 50.0, until=0.25)
        assert should_stop(stopping, judged, self.others()) is None

    @pytest.mark.parametrize("of", ["loss", "held_out_loss in stage3", "held_out_loss"])
    def test_losses_of_another_kind_or_stage_are_not_compared(self, stopping, of):
        judged = self.measured(9, "running", 200, 50.0, until=0.5)
        assert should_stop(stopping, judged, self.others(of=of)) is None
        mixed = [*self.others(of=of), *self.others()[:2]]
        assert should_stop(stopping, judged, mixed) is None
        assert should_stop(stopping, replace(judged, curve_of=of), self.others(of=of)) is not None


class TestWhenNobodyIsStopped:
    BAD = trial(9, "running", descent(20, floor=50.0))

    def test_without_early_terminate_nothing_is_stopped(self, space):
        assert should_stop(space, self.BAD, five()) is None

    def test_without_a_loss_nothing_is_stopped(self, stopping):
        assert should_stop(stopping, trial(9, "running", ()), five()) is None

    @pytest.mark.parametrize(("last", "stops"), [(5, False), (10, True), (15, True)])
    def test_nothing_is_stopped_before_the_first_step_that_counts(self, stopping, last, stops):
        assert (should_stop(stopping, trial(9, "running", descent(last, 50.0)), five()) is not None) is stops

    @pytest.mark.parametrize(("completed", "stops"), [(2, False), (3, True)])
    def test_min_trials_must_be_completed(self, stopping, completed, stops):
        others = five()[:completed] + [trial(20 + i, "running", descent(50, 1.0)) for i in range(5)]
        assert (should_stop(stopping, self.BAD, others) is not None) is stops

    @pytest.mark.parametrize(("as_far", "stops"), [(2, False), (3, True)])
    def test_min_trials_others_must_have_come_as_far(self, stopping, as_far, stops):
        others = five()[:as_far] + [trial(20 + i, "completed", descent(15, 1.0)) for i in range(5)]
        assert (should_stop(stopping, self.BAD, others) is not None) is stops

    def test_its_own_record_among_the_others_is_not_one_of_them(self, stopping):
        others = [*five()[:2], replace(self.BAD, status="completed")]
        assert should_stop(stopping, self.BAD, others) is None

    def test_one_that_has_logged_nothing_yet_is_not_compared(self, stopping):
        silent = [trial(20, "running", ()), replace(five()[0], trial=21, curve=())]
        assert should_stop(stopping, self.BAD, [*five()[:2], *silent]) is None
        assert should_stop(stopping, self.BAD, [*five(), *silent]) is not None

    def test_by_curve_nothing_imports_torch_or_ax(self):
        code = (
            "import sys\nfrom sweeps.worker.early_stopping import should_stop\n"
            "from sweeps.space.definition import EarlyTerminate, Objective, Program, Space\nfrom sweeps.trials.record import Trial\n"
            "space = Space(name='a', objectives=(Objective(metric='l'),), parameters=(), "
            "program=Program(kind='command'), early_terminate=EarlyTerminate(type='curve'))\n"
            "one = lambda i, status, level: Trial(trial=i, status=status, parameters={}, generator='sobol', "
            "metrics={'l': level}, curve=((50.0, level), (100.0, level)))\n"
            "records = [one(i, 'completed', 3 + i / 9) for i in range(12)]\n"
            "stop = should_stop(space, one(99, 'running', 4.0), records)\n"
            "print(stop is not None, {'torch', 'ax', 'pandas'} & set(sys.modules))"
        )
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert process.stdout == "True set()\n"

    def test_neither_torch_nor_ax_is_imported_too_early(self):
        code = (
            "import sys\nfrom sweeps.worker.early_stopping import should_stop\n"
            "from sweeps.space.definition import EarlyTerminate, Objective, Program, Space\nfrom sweeps.trials.record import Trial\n"
            "space = Space(name='a', objectives=(Objective(metric='l'),), parameters=(), "
            "program=Program(kind='command'), early_terminate=EarlyTerminate())\n"
            "record = Trial(trial=1, status='running', parameters={}, generator='sobol', curve=((50.0, 1.0),))\n"
            "print(should_stop(space, record, [record]), {'torch', 'ax', 'pandas'} & set(sys.modules))"
        )
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert process.stdout == "None set()\n"


class TestAtEveryHeartbeat:
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_points_around_the_step_decide_as_full_curves_do(self, data):
        """Ax gets two points of each curve; given all of them, it decides the same."""
        curves = data.draw(st.lists(st.dictionaries(STEPS, LOSSES, min_size=1), min_size=4, max_size=8))
        others = {i: tuple(sorted(curve.items())) for i, curve in enumerate(curves)}
        judged = tuple(sorted(data.draw(st.dictionaries(STEPS, LOSSES, min_size=1)).items()))
        early = replace(EARLY, percentile=data.draw(st.sampled_from([20.0, 50.0, 80.0])), min_step=0.0)
        space = replace(TOY, early_terminate=early)
        records = [trial(i, "completed", curve) for i, curve in others.items()]
        as_far = sum(curve[0][0] <= judged[-1][0] <= curve[-1][0] for curve in others.values())
        stops = as_far >= early.min_trials and falls_behind(early, 9, others | {9: judged}, set(others))
        assert (should_stop(space, trial(9, "running", judged), records) is not None) is stops

    @settings(deadline=None)
    @given(curves=st.lists(st.dictionaries(ANY, ANY, min_size=1, max_size=6), min_size=2, max_size=5))
    def test_no_finite_losses_upset_it(self, curves):
        judged, *others = (tuple(sorted(curve.items())) for curve in curves)
        space = replace(TOY, early_terminate=replace(EARLY, min_trials=1, min_step=0.0))
        records = [trial(index, "completed", curve) for index, curve in enumerate(others)]
        why = should_stop(space, trial(9, "running", judged), records)
        assert why is None or ("\n" not in why.reason and len(why.reason) < 150)

    def test_what_ax_cannot_judge_goes_on_with_a_warning(self, stopping, monkeypatch, caplog):
        def refuse(*_):
            raise RuntimeError("no idea")

        monkeypatch.setattr(PercentileEarlyStoppingStrategy, "should_stop_trials_early", refuse)
        assert should_stop(stopping, trial(9, "running", descent(20, floor=50.0)), five()) is None
        assert "trial 9 continues: " in caplog.text

    def test_the_same_records_give_the_same_answer(self, stopping):
        judged = trial(9, "running", descent(20, floor=4.5))
        assert should_stop(stopping, judged, five()) == should_stop(stopping, judged, five()[::-1])

    def test_it_costs_little_with_a_hundred_trials(self, stopping):
        others = [
            trial(i, "completed", tuple((k * 9.0 + i % 7, 5 - k / 50) for k in range(50))) for i in range(100)
        ]
        judged = trial(200, "running", descent(200, floor=50.0))
        should_stop(stopping, judged, others)  # the first call may import Ax
        start = time.thread_time()
        assert should_stop(stopping, judged, others) is not None
        assert time.thread_time() - start < 1.0  # 0.08 s where nothing else runs


class TestTheSearch:
    def test_last_loss_of_a_stopped_trial_is_no_result(self, space):
        stopped = trial(0, "early_stopped", descent(20, floor=1.0))
        outcomes = Outcomes(space)
        assert outcomes.means(stopped) == {}
        assert outcomes.missing(stopped) == list(outcomes.names.values())
        assert outcomes.survival([stopped, trial(1, "failed", ())]) == [(trial(1, "failed", ()), 0.0)]

    def test_prediction_enters_the_search_with_its_error(self, space):
        predicted = {"loss": 5.0, "loss_sem": 0.25}
        stopped = trial(1, "early_stopped", descent(20, floor=4.0), predicted=predicted)
        records = [trial(0, "completed", descent(50, floor=1.0)), stopped]
        outcomes = Outcomes(space)
        assert outcomes.means(stopped) == {}
        assert outcomes.missing(stopped) == ["m0"]
        assert [row[0].trial for row in outcomes.table(records)] == [0]  # inferred noise takes no errors
        rows = [(r.trial, mean, error) for r, _, mean, error in outcomes.table(records, {"m0": 0.1})]
        assert rows == [(0, records[0].metrics["loss"], 0.1), (1, 5.0, 0.25)]
        known = Outcomes(replace(space, search=Search(noise=0.2)))
        rows = [(r.trial, mean, error) for r, _, mean, error in known.table(records, {})]
        assert rows == [(0, records[0].metrics["loss"], 0.2), (1, 5.0, 0.25)]

    @pytest.mark.parametrize("noise", ["inferred", pytest.param(0.1, marks=pytest.mark.slow)])
    def test_a_predicted_trial_moves_the_next_candidate(self, space, noise):
        search = Search(method="bayes", sobol=2, seed=1, noise=noise)
        ended = [trial(i, "completed", descent(50, floor=float(i))) for i in range(4)]
        candidates = []
        for predicted in ({}, {"loss": 9.0, "loss_sem": 0.1}, {"loss": 0.2, "loss_sem": 0.1}):
            optimizer = Optimizer(replace(space, search=search))
            parameters = {"x": 0.6, "n": 7, "mode": "fast"}
            stopped = trial(4, "early_stopped", descent(20, 9.0), predicted=predicted, parameters=parameters)
            optimizer.observe([*ended, stopped])
            candidates.append(optimizer.generate()[0])
        assert {candidate.generator for candidate in candidates} == {"botorch"}
        assert candidates[0] != candidates[1] != candidates[2] != candidates[0]

    def test_stopped_trial_stays_a_pending_point(self, space):
        space = replace(space, search=Search(method="bayes", sobol=2, seed=1))
        ended = [trial(i, "completed", descent(50, floor=float(i))) for i in range(4)]
        candidates = []
        for open_ in (
            trial(4, "running", descent(5, floor=1.0)),
            trial(4, "early_stopped", descent(20, floor=9.0)),
            trial(4, "early_stopped", descent(20, floor=0.0)),
        ):
            optimizer = Optimizer(space)
            optimizer.observe([*ended, open_])
            (candidate,) = optimizer.generate()
            candidates.append(candidate)
        assert candidates[0].generator == "botorch"
        assert candidates[0] == candidates[1] == candidates[2]


PROGRAM = """
loss=1; last=8
if [ "$SWEEP_TRIAL" = 3 ]; then loss=9; last=4; fi
for step in $(seq $last); do
  echo "{\\"step\\": $step, \\"loss\\": $loss}" >> "$SWEEP_RUN_DIR/metrics.jsonl"
done
if [ "$SWEEP_TRIAL" = 3 ]; then echo $$ > "$PID_FILE"; exec sleep 600; fi
sleep 0.5
echo '{"loss": 1}' > "$SWEEP_RUN_DIR/result.json"
"""


class TestAWorker:
    def test_worker_stops_the_program_of_a_trial_that_falls_behind(
        self, command_space, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
        space = replace(
            command_space,
            program=Program(kind="command", command=("sh", "-c", PROGRAM, "${overrides}")),
            lease=Lease(heartbeat_s=0.1, expire_s=60),
            early_terminate=replace(EARLY, min_step=3.0),
            run_cap=6,
        )
        experiment = Experiment.create(MemoryStore(), space)
        tally = loop.work(experiment, stop=Stop(), watcher=Silent())
        records = experiment.trials()
        assert [record.status for record in records] == ["completed"] * 3 + ["early_stopped"] + [
            "completed"
        ] * 2
        assert tally.ended == {"completed": 5, "early_stopped": 1}
        (attempt,) = records[3].history
        assert (attempt.reason, attempt.worker != "") == ("early_stopped", True)
        assert attempt.detail.startswith("loss 9 at step 4 ")
        assert (records[3].curve[-1], dict(records[3].metrics)) == ((4.0, 9.0), {})
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)

    def test_curve_rule_stores_the_prediction(self, command_space, tmp_path):
        program = """
        floor=$((3 + SWEEP_TRIAL)); last=8
        if [ "$SWEEP_TRIAL" = 6 ]; then floor=30; last=4; fi
        for step in $(seq $last); do
          echo "{\\"step\\": $step, \\"of\\": 8, \\"loss\\": $((floor + 8 - step))}" >> "$SWEEP_RUN_DIR/metrics.jsonl"
        done
        sleep 0.5
        if [ "$SWEEP_TRIAL" = 6 ]; then exec sleep 600; fi
        echo "{\\"loss\\": $floor}" > "$SWEEP_RUN_DIR/result.json"
        """
        space = replace(
            command_space,
            parameters=(Range(name="x", min=0.0, max=1e-9, kind="float"),),
            search=Search(method="random", seed=1),
            program=Program(kind="command", command=("sh", "-c", program, "${overrides}")),
            lease=Lease(heartbeat_s=0.1, expire_s=60),
            early_terminate=EarlyTerminate(type="curve", min_step=3.0),
            run_cap=7,
        )
        experiment = Experiment.create(MemoryStore(), space)
        loop.work(experiment, stop=Stop(), watcher=Silent())
        *done, stopped = experiment.trials()
        assert [record.status for record in done[:5]] == ["completed"] * 5
        assert stopped.status == "early_stopped"
        assert dict(stopped.metrics) == {}
        assert stopped.predicted["loss"] > 7
        assert stopped.predicted["loss_sem"] > 0
        assert stopped.history[-1].detail.startswith(f"predicted loss {stopped.predicted['loss']:.4g} ± ")
        assert best(space, [*done, stopped]).trial == 0
