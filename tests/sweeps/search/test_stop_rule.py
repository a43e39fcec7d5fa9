"""`search: {stop: …}`: when a search ends by itself, who says so, and how it goes on."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from memory_store import MemoryStore

from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.search.optimizer import Optimizer
from sweeps.search.stop_rule import FEWEST, KEY, MOST, Expectation, Standing, applies
from sweeps.space.definition import Search, Space, Stop
from sweeps.trials import lifecycle
from sweeps.trials.record import Trial

pytestmark = pytest.mark.usefixtures("fewer_points")

STOP = Stop(expected_gain=0.004)


@pytest.fixture
def space(space):
    """A space whose trials are all Sobol's, which are quick to make."""
    return replace(space, search=Search(sobol=200, seed=3, stop=STOP), run_cap=60)


class Gains(list):
    """Gains that the surrogate states in turn, the last one again and again; `asked`: of how many results."""

    def __init__(self) -> None:
        super().__init__([0.0])
        self.asked: list[int] = []

    def optimum(self, candidates, *, more, **options):
        self.asked.append(len(list(candidates)))
        gain = self[0] if len(self) == 1 else self.pop(0)
        if isinstance(gain, Exception):
            raise gain
        return SimpleNamespace(gains=tuple(gain * (at + 1) / more for at in range(more)))


@pytest.fixture
def gains(monkeypatch) -> Gains:
    stated = Gains()
    monkeypatch.setattr(
        Optimizer, "optimum", lambda self, *given, **options: stated.optimum(*given, **options)
    )
    return stated


def test_enough_results_and_not_too_many_trials_are_judged(space):
    def done(index: int) -> Trial:
        parameters = {"x": 0.5, "n": 3, "mode": "fast"}
        metrics = {"loss": 1.0, "memory": 1.0}
        return Trial(
            trial=index, status="completed", parameters=parameters, generator="sobol", metrics=metrics
        )

    records = [done(index) for index in range(FEWEST)]
    assert applies(space, records)
    for none in ({"generator": "confirm"}, {"status": "early_stopped"}, {"metrics": {"loss": None}}):
        assert not applies(space, [*records[1:], replace(records[0], **none)])
    assert not applies(replace(space, outcome_constraints=("memory <= 2",)), records)
    assert applies(space, [done(index) for index in range(MOST)])
    assert not applies(space, [done(index) for index in range(MOST + 1)])


def run(experiment: Experiment, count: int, worker: str = "w") -> int:
    """Run up to so many trials, and return how many there were."""
    for done in range(count):
        record = experiment.ask(worker)
        if record is None:
            return done
        complete(experiment, record)
    return count


def complete(experiment: Experiment, record: Trial) -> None:
    loss = (float(record.parameters["x"]) - 0.3) ** 2 + 0.01 * random.Random(record.trial).gauss(0, 1)
    end = lifecycle.Complete(worker=record.worker, attempt=record.attempt, metrics={"loss": loss})
    experiment.apply(record.trial, end)


def test_search_ends_at_30_results_and_not_before(experiment, gains) -> None:
    assert run(experiment, 100) == FEWEST
    assert gains.asked == [FEWEST]
    assert experiment.is_full(experiment.trials())
    line = experiment.why_done()
    assert "12 more trials are expected to gain" in line
    assert "(30 results)" in line
    assert "sweep extend --expected-gain none" in line
    assert "\n" not in line


def test_it_goes_on_while_more_is_expected(experiment, gains) -> None:
    gains[:] = [0.02, 0.005, 0.0041, 0.0039]
    assert run(experiment, 100) == FEWEST + 3
    assert gains.asked == [30, 31, 32, 33]
    assert experiment.standing().found.gain == pytest.approx(0.0039)


def test_a_new_worker_neither_fits_again_nor_gets_a_trial(experiment, gains) -> None:
    run(experiment, 100)
    for _ in range(2):
        other = Experiment.open(experiment.store)
        assert other.ask("other") is None
    assert gains.asked == [30]


def test_the_same_results_are_judged_once_by_all_workers(experiment, gains) -> None:
    gains[:] = [0.02]
    run(experiment, FEWEST)
    first, second = Experiment.open(experiment.store), Experiment.open(experiment.store)
    assert first.ask("a") is not None  # no result is new for the second, nor for the first one again
    assert second.ask("b") is not None
    assert first.ask("a") is not None
    assert gains.asked == [30]


def test_results_that_come_later_do_not_open_it_again(experiment, gains) -> None:
    late = experiment.ask("late")
    run(experiment, 100)
    gains[:] = [0.5]
    complete(experiment, late)
    assert experiment.ask("w") is None


@pytest.mark.parametrize("gain", [0.001, None])
def test_extend_goes_on(experiment, gains, gain) -> None:
    gains[:] = [0.003]
    assert run(experiment, 100) == FEWEST
    Experiment.open(experiment.store).extend({"expected_gain": gain}, by="ada")
    assert run(experiment, 3) == 3
    assert Experiment.open(experiment.store).why_done() == ""
    assert gains.asked == ([30, 31, 32] if gain else [30])


def test_extend_can_end_a_search_that_had_no_stop(space, clock, gains) -> None:
    bare = replace(space, search=replace(space.search, stop=None))
    experiment = Experiment.create(MemoryStore(clock=clock), bare)
    assert run(experiment, FEWEST) == FEWEST
    assert gains.asked == []
    experiment.extend({"expected_gain": 0.01}, by="ada")
    assert experiment.ask("w") is None
    assert gains.asked == [30]


def test_extend_is_refused_where_the_rule_means_nothing(space, clock) -> None:
    search = replace(space.search, method="random", stop=None)
    experiment = Experiment.create(MemoryStore(clock=clock), replace(space, search=search))
    with pytest.raises(InputError, match="method: random"):
        experiment.extend({"expected_gain": 0.01}, by="ada")
    assert experiment.extend({"expected_gain": None}, by="ada").number == 1


def test_smaller_gain_extends_and_a_larger_one_is_refused(experiment, space) -> None:
    def with_stop(stop: Stop | None) -> Space:
        return replace(space, search=replace(space.search, stop=stop))

    def resume(stop: Stop | None) -> Experiment:
        return Experiment.create(experiment.store, with_stop(stop), skip_if_exists=True)

    assert resume(STOP).raise_limits(with_stop(STOP), by="ada") is None
    smaller = Stop(expected_gain=0.002)
    assert resume(smaller).raise_limits(with_stop(smaller), by="ada").changes == {"expected_gain": 0.002}
    with pytest.raises(InputError, match=r"sweep extend --expected-gain 0\.01 .*raises it"):
        resume(STOP).raise_limits(with_stop(Stop(expected_gain=0.01)), by="ada")
    assert resume(None).raise_limits(with_stop(None), by="ada").changes == {"expected_gain": None}
    with pytest.raises(InputError, match="another search space"):
        resume(Stop(expected_gain=0.004, trials=6))


def test_enqueued_trials_run_after_the_end(experiment, gains) -> None:
    run(experiment, 100)
    experiment.enqueue([{"x": 0.31, "n": 7, "mode": "fast"}], "ada")
    assert run(experiment, 5) == 1
    assert experiment.ask("w") is None


def test_without_an_answer_of_the_surrogate_it_goes_on(experiment, gains, caplog) -> None:
    gains[:] = [ValueError("not positive definite"), 0.0]
    assert run(experiment, 100) == FEWEST + 1
    assert "search.stop waits" in caplog.text


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"schema": 2}', b'{"schema": 1, "gain": "0"}', b"\xff"])
def test_what_cannot_be_read_is_found_anew(experiment, gains, data: bytes) -> None:
    run(experiment, 100)
    store = experiment.store
    store.replace(KEY, data, store.read(KEY)[1])
    other = Experiment.open(store)
    assert other.why_done() == ""
    assert other.ask("w") is None
    assert other.why_done() != ""
    assert gains.asked == [30, 30]


def test_the_surrogate_says_the_same_of_the_same_results(space, clock) -> None:
    """Fits twice: with a trial that runs meanwhile, and without."""
    found = []
    for running in (False, True):
        experiment = Experiment.create(MemoryStore(clock=clock), space)
        run(experiment, FEWEST - 1)
        last = experiment.ask("w")
        if running:
            assert experiment.ask("slow").trial == FEWEST
        complete(experiment, last)
        experiment.ask("w")
        found.append(json.loads(experiment.store.read(KEY)[0]))
    assert found[0] == found[1]
    assert found[0]["results"] == FEWEST
    assert 0 <= found[0]["gain"] < 0.5


def expectation(gain: float, trials: int = 12) -> Expectation:
    return Expectation(gain=gain, trials=trials, results=33, digest="")


@pytest.mark.parametrize(
    ("stop", "found", "ended", "words"),
    [
        (STOP, None, False, "judged from 30 results to 400 trials"),
        (
            STOP,
            expectation(0.0123),
            False,
            "expected to gain 0.012 (33 results); up to 400 trials, the search is done at 0.004",
        ),
        (STOP, expectation(0.0031), True, "the search is done: 12 more trials are expected to gain 0.0031"),
        (STOP, expectation(0.004), True, "gain 0.004, no more than search.stop's 0.004"),
        (STOP, expectation(1e-9), True, "less than 4e-05"),
        (STOP, expectation(0.0, trials=3), False, "judged from"),  # the file was changed by hand
        (Stop(expected_gain=0.1, trials=1), expectation(0.2, 1), False, "1 more trial is expected"),
    ],
)
def test_standing_in_words_and_as_data(stop, found, ended: bool, words: str) -> None:
    standing = Standing(stop=stop, found=found)
    assert standing.ended is ended
    assert words in str(standing)
    document = standing.document()
    assert (document["ended"], document["expected_gain"]) == (ended, stop.expected_gain)
    assert document["gain"] is None or math.isfinite(document["gain"])
