"""Which snapshots stay: what unfinished trials need, and of the rest the best within the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import done, key_of, staged

from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.record import Trial
from sweeps.trials.snapshots import judge, observed_ranks, published

SPACE = staged(
    Space(
        name="toy",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="x", min=0.0, max=1.0, kind="float"),
            Range(name="n", min=1, max=100, kind="int"),
        ),
        program=Program(kind="function", function="m:f"),
    )
)
TWO = replace(SPACE, objectives=(Objective(metric="loss"), Objective(metric="speed", goal="maximize")))


def kept(space: Space, records: list[Trial], **options) -> list[float]:
    """The positions of the snapshots that stay, by `x` in the records, best first."""
    names = {key_of(record.parameters["x"]): record.parameters["x"] for record in records}
    return [names[v.snapshot.key] for v in judge(space, records, **options) if v.kept]


def limited(space: Space, **limits) -> Space:
    return replace(space, snapshots=replace(space.snapshots, **limits))


@st.composite
def sweeps(draw: st.DrawFn) -> list[Trial]:
    """Trials on few prefixes: publishers, users, unfinished ones, some whose snapshot was removed."""
    records: list[Trial] = []
    publishers: dict[float, int] = {}
    for index in range(draw(st.integers(0, 12))):
        x = draw(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]))
        status = draw(st.sampled_from(["completed", "completed", "failed", "running", "pending"]))
        loss = draw(st.sampled_from([1.0, 2.0, 3.0])) if status == "completed" else None
        of = publishers.get(x) if draw(st.booleans()) else None
        record = done(index, x, loss, of=of, snapshot=draw(st.booleans()), status=status)
        if record.stages and of is None:
            publishers.setdefault(x, index)
        records.append(record)
    return records


@given(sweeps(), st.integers(1, 4), st.booleans())
def test_what_is_needed_stays_and_of_the_rest_no_more_than_the_limit_the_best_first(records, keep, ended):
    verdicts = judge(limited(SPACE, keep=keep), records, ended=ended)
    assert {v.snapshot.key for v in verdicts} == {
        run.key for record in records for run in record.stages if run.snapshot
    }
    open_ = {key_of(record.parameters["x"]) for record in records if not record.finished}
    ranks = observed_ranks(SPACE, records)
    rank = {
        v.snapshot.key: min(
            (
                ranks[r.trial]
                for r in records
                for s in r.stages
                if s.key == v.snapshot.key and r.trial in ranks
            ),
            default=99.0,
        )
        for v in verdicts
    }
    for position, verdict in enumerate(verdicts):
        key = verdict.snapshot.key
        assert bool(verdict.snapshot.needed_by) == (key in open_)
        within = position < keep and not (ended and rank[key] > 0)
        assert verdict.kept == (key in open_ or within)
        assert verdict.why
    assert [rank[v.snapshot.key] for v in verdicts] == sorted(rank[v.snapshot.key] for v in verdicts)


@given(sweeps(), st.integers(1, 4), st.floats(0.0, 6.0))
def test_a_wider_limit_never_removes_more_and_bytes_are_bounded(records, keep, gib):
    sizes = {key_of(record.parameters["x"]): 2**30 for record in records}
    narrow = limited(SPACE, keep=keep, keep_gib=gib)
    assert set(kept(narrow, records, sizes=sizes)) <= set(kept(limited(SPACE, keep=keep), records))
    assert set(kept(limited(SPACE, keep=keep), records)) <= set(kept(limited(SPACE, keep=keep + 1), records))
    free = [v for v in judge(narrow, records, sizes=sizes) if v.kept and not v.snapshot.needed_by]
    assert len(free) <= gib


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_ranks_count_by_how_many_each_is_dominated(points):
    records = [
        replace(done(i, 0.5, None), metrics={"loss": float(loss), "speed": float(speed)})
        for i, (loss, speed) in enumerate(points)
    ]
    expected = {
        i: sum(a[0] <= b[0] and a[1] >= b[1] and a != b for a in points) for i, b in enumerate(points)
    }
    assert observed_ranks(TWO, records) == expected


def test_without_snapshots_there_is_nothing_to_judge():
    assert judge(SPACE, []) == []
    assert judge(SPACE, [done(0, 0.5, 1.0, snapshot=False)]) == []


def test_publishers_and_users_are_listed_over_all_incarnations_of_a_key():
    """Published, used, removed, and published again by a later trial."""
    records = [
        done(0, 0.5, 1.0, snapshot=False),
        done(1, 0.5, 2.0, of=0),
        done(2, 0.5, 2.0),
        done(3, 0.5, 2.0),
    ]
    (found,) = published(SPACE, records)
    assert (found.key, found.stage, found.publishers, found.users) == (key_of(0.5), "first", (2, 3), (1,))


def test_a_claimed_trial_keeps_what_its_parameters_lead_to_before_its_record_says_so():
    records = [done(0, 0.1, 1.0), done(1, 0.5, 5.0), done(2, 0.9, 3.0)]
    space = limited(SPACE, keep=1)
    assert kept(space, records) == [0.1]
    claimed = replace(done(3, 0.5, status="running"), stages=())
    assert kept(space, [*records, claimed]) == [0.1, 0.5]
    assert kept(space, [*records, replace(claimed, status="pending", worker=None)]) == [0.1, 0.5]
    assert kept(space, [*records, replace(claimed, parameters={"x": 0.2})]) == [0.1]


def test_a_running_trial_keeps_the_key_that_it_started_from_whatever_its_parameters():
    """The trainer's keys depend on more than parameters: another version of the code has other ones."""
    started = replace(done(2, 0.5, of=1, status="running"), parameters={"x": 0.77, "n": 1})
    records = [done(0, 0.1, 1.0), done(1, 0.5, 5.0), started]
    assert kept(limited(SPACE, keep=1), records) == [0.1, 0.5]


def test_a_stage_that_the_space_does_not_have_is_kept_by_its_key_alone():
    other = [replace(r, stages=tuple(replace(s, name="old") for s in r.stages)) for r in [done(0, 0.5, 1.0)]]
    waiting = replace(done(1, 0.5, status="running"), stages=())
    (found,) = published(SPACE, [*other, waiting])
    assert found.needed_by == ()


def test_of_a_front_the_prefix_with_more_trials_on_it_stays_first():
    def both(index, x, loss, speed, of=None):
        return replace(done(index, x, of=of), metrics={"loss": loss, "speed": speed})

    records = [
        both(0, 0.5, 2.0, 2.0),
        both(1, 0.1, 1.0, 1.0),
        both(2, 0.5, 3.0, 3.0, of=0),
        both(3, 0.9, 3.0, 1.0),
    ]
    assert kept(limited(TWO, keep=1), records) == [0.5]
    assert kept(limited(TWO, keep=3), records) == [0.5, 0.1, 0.9]
    assert kept(TWO, records, ended=True) == [0.5, 0.1]


@pytest.mark.parametrize(
    "worse",
    [
        done(1, 0.5, None, status="failed"),
        done(1, 0.5, None),
        done(1, 0.5, 9.0),
        replace(done(1, 0.5, 0.0), generator="confirm"),
        replace(done(1, 0.5, 0.0), metrics={"loss": 0.0, "memory": 3.0}),
        replace(done(1, 0.5, 0.0), metrics={"loss": 0.0, "memory": None}),
        replace(done(1, 0.5, None), metrics={"loss": None, "memory": 1.0}),
    ],
    ids=["failed", "no-result", "worse", "luck", "infeasible", "unbounded", "not-finite"],
)
def test_a_trial_without_a_good_result_makes_its_snapshot_go_first(worse):
    space = limited(replace(SPACE, outcome_constraints=("memory <= 2",)), keep=1)
    good = replace(done(0, 0.1, 2.0), metrics={"loss": 2.0, "memory": 1.0})
    if "memory" not in worse.metrics and worse.metrics.get("loss") is not None:
        worse = replace(worse, metrics=dict(worse.metrics) | {"memory": 1.0})
    assert kept(space, [good, worse]) == [0.1]


def test_the_caller_may_rank_trials_better_than_their_results_do():
    records = [done(0, 0.1, 1.0), done(1, 0.5, 2.0)]
    assert kept(limited(SPACE, keep=1), records) == [0.1]
    assert kept(limited(SPACE, keep=1), records, ranks={0: 3.0, 1: 0.0}) == [0.5]
    assert kept(SPACE, records, ended=True, ranks={0: 3.0, 1: 0.0}) == [0.5]


def test_every_reason_is_given_in_words():
    def why(space, records, **options):
        return [v.why for v in judge(space, records, **options)]

    records = [done(0, 0.1, 1.0), done(1, 0.5, 2.0), done(2, 0.9, status="failed")]
    assert why(SPACE, records) == ["trial 0, the best", "trial 1, among the best", "there is room"]
    assert why(limited(SPACE, keep=2), records)[2] == "not among the 2 best"
    sizes = dict.fromkeys(map(key_of, (0.1, 0.5, 0.9)), 2**30)
    assert why(limited(SPACE, keep_gib=1.5), records, sizes=sizes)[1] == "beyond 1.5 GiB"
    assert why(SPACE, records, ended=True)[1] == "the sweep has ended, others are better"
    waiting = [replace(done(i, 0.5, status="running"), stages=()) for i in range(3, 8)]
    assert why(SPACE, [*records, *waiting])[1] == "needed by trials 3, 4, 5 and 2 more"
