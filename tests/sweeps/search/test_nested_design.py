"""First design of a sweep whose trials share a stage: when a fresh first stage is asked, and when which one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.encoding import Encoding
from sweeps.search.nested_design import by_new_options, first_stages, next_shared
from sweeps.search.outcomes import Outcomes
from sweeps.search.shared_stages import FEWEST, SharedStages
from sweeps.space.definition import Objective, Program, Range, Space, Stage, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Status, Trial
from sweeps.trials.stage_run import StageRun

SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"), Objective(metric="score", goal="maximize")),
    parameters=(
        Range(name="first", min=0.0, max=1.0, kind="float"),
        Range(name="second", min=0.0, max=1.0, kind="float"),
    ),
    program=Program(kind="function", function="m:f"),
    stages=(Stage(name="one", parameters=("first",)), Stage(name="two", parameters=("second",))),
)
SHARED = SharedStages(SPACE, Encoding(Domain(SPACE)))


def trial(
    index: int,
    first: float,
    loss: float | None = None,
    score: float = 0.0,
    *,
    snapshot: bool = True,
    status: Status = "completed",
) -> Trial:
    return Trial(
        trial=index,
        status="running" if loss is None and status == "completed" else status,
        parameters={"first": first, "second": 0.5},
        generator="sobol",
        metrics={} if loss is None else {"loss": loss, "score": score},
        stages=(StageRun(name="one", key="", cost=1.0, snapshot=snapshot),),
    )


def chosen(records: Sequence[Trial], wanted: int = 2, found: Sequence[Hashable] = ()) -> int | None:
    prefix = next_shared(wanted, SHARED, Outcomes(SPACE), records, found)
    return None if prefix is None else prefix.trial


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_the_dearer_the_first_stage_the_fewer_are_tried(trials: int, share: float, other: float):
    stages = first_stages(trials, share)
    assert min(trials, FEWEST) <= stages <= trials
    assert first_stages(trials, 0.0) == trials
    assert first_stages(trials, max(share, other)) <= first_stages(trials, min(share, other))


def test_every_option_of_the_first_stage_gets_one():
    assert first_stages(12, 0.9, options=6) == 6
    assert first_stages(5, 0.9, options=6) == 5


@given(
    st.lists(st.sampled_from("xyz"), min_size=1, max_size=12), st.lists(st.sampled_from("xyz"), max_size=6)
)
def test_options_that_were_asked_least_come_first(drawn: list[str], asked: list[str]):
    sequence: list[dict[str, Value]] = [{"first": at, "kind": kind} for at, kind in enumerate(drawn)]
    found = by_new_options(sequence, {"kind", "inactive"}, [{"first": 0.5, "kind": kind} for kind in asked])
    assert sorted(each["first"] for each in found) == list(range(len(drawn)))
    keys = [(asked.count(str(each["kind"])), each["first"]) for each in found]
    assert keys == sorted(keys)


def test_an_option_that_was_never_asked_comes_before_a_balance():
    asked: list[dict[str, Value]] = [{"kind": "x", "mode": "fast"}] * 3 + [{"kind": "y", "mode": "slow"}]
    new, balanced = {"kind": "z", "mode": "fast"}, {"kind": "y", "mode": "slow"}
    assert by_new_options([balanced, new], {"kind", "mode"}, asked) == [new, balanced]


def test_branches_with_fewer_choices_are_not_preferred():
    """Of two options that were asked equally often, one has two choices of its own."""
    asked: list[dict[str, Value]] = [{"kind": "x", "a": 1, "b": 1}, {"kind": "x", "a": 2, "b": 2}]
    asked += [{"kind": "y"}] * 2
    drawn: list[dict[str, Value]] = [{"kind": "x", "a": 1, "b": 2}, {"kind": "y"}]
    assert by_new_options(drawn, {"kind", "a", "b"}, asked) == drawn


def test_first_stages_are_fresh_until_there_are_enough():
    assert chosen([]) is None
    assert chosen([trial(0, 0.1, 1.0)]) is None
    assert chosen([trial(0, 0.1, 1.0), trial(1, 0.1, 0.9)]) is None
    assert chosen([trial(0, 0.1, 1.0), trial(1, 0.2, 2.0)]) == 0


def test_one_that_was_asked_but_has_no_record_yet_counts():
    other = SHARED.identity({"first": 0.9, "second": 0.1})
    assert chosen([trial(0, 0.1, 1.0)], found=[other]) == 0
    assert chosen([trial(0, 0.1, 1.0)], found=[SHARED.identity({"first": 0.1})]) is None


def test_workers_begin_with_own_first_stages():
    running = [trial(index, index / 10, snapshot=False) for index in range(8)]
    assert chosen(running) is None
    assert chosen([*running[:5], replace(running[5], stages=trial(5, 0.5).stages), *running[6:]]) == 5


def test_best_first_stage_in_all_objectives_is_shared():
    assert chosen([trial(0, 0.1, 2.0), trial(1, 0.2, 1.0), trial(2, 0.3, 3.0)]) == 1
    assert chosen([trial(0, 0.1, 1.0, 1.0), trial(1, 0.2, 1.0, 2.0)]) == 1
    again = [trial(0, 0.1, 3.0), trial(1, 0.2, 2.0), trial(2, 0.1, 1.0, snapshot=False)]
    assert chosen(again) == 0
    assert chosen([trial(0, 0.1, 1.0), trial(1, 0.2, 2.0), trial(2, 0.1, 3.0, snapshot=False)]) == 0


def test_unstored_best_is_passed_over():
    assert chosen([trial(0, 0.1, 2.0), trial(1, 0.2, 1.0, snapshot=False)]) == 0


def test_without_results_workers_spread_over_the_published():
    assert chosen([trial(0, 0.1), trial(1, 0.2), trial(2, 0.1, snapshot=False)]) == 1


def test_failed_and_abandoned_trials_are_none_of_the_design():
    failed = trial(1, 0.2, status="failed")
    assert chosen([trial(0, 0.1, 1.0), failed]) is None
    assert chosen([trial(0, 0.1, 1.0), trial(1, 0.2, status="abandoned")]) is None
