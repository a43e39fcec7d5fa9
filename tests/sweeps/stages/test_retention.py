"""Which snapshots stay: what unfinished trials need, and of the rest the best within the limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import done, key_of, staged

from sweeps.space.definition import Choice, Fidelity, Fixed, Objective, Program, Range, Space, Stage, Trunk
from sweeps.stages.retention import judge, observed_ranks, stored_checkpoints
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

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
    return [names[v.checkpoint.key] for v in judge(space, records, **options) if v.kept]


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
def test_needed_stay_and_best_up_to_limit(records, keep, ended):
    verdicts = judge(limited(SPACE, keep=keep), records, ended=ended)
    assert {v.checkpoint.key for v in verdicts} == {
        run.key for record in records for run in record.stages if run.snapshot
    }
    open_ = {key_of(record.parameters["x"]) for record in records if not record.finished}
    ranks = observed_ranks(SPACE, records)
    rank = {
        v.checkpoint.key: min(
            (
                ranks[r.trial]
                for r in records
                for s in r.stages
                if s.key == v.checkpoint.key and r.trial in ranks
            ),
            default=99.0,
        )
        for v in verdicts
    }
    for position, verdict in enumerate(verdicts):
        key = verdict.checkpoint.key
        assert bool(verdict.checkpoint.needed_by) == (key in open_)
        within = position < keep and not (ended and rank[key] > 0)
        assert verdict.kept == (key in open_ or within)
        assert verdict.why
    assert [rank[v.checkpoint.key] for v in verdicts] == sorted(rank[v.checkpoint.key] for v in verdicts)


@given(sweeps(), st.integers(1, 4), st.floats(0.0, 6.0))
def test_a_wider_limit_never_removes_more_and_bytes_are_bounded(records, keep, gib):
    sizes = {key_of(record.parameters["x"]): 2**30 for record in records}
    narrow = limited(SPACE, keep=keep, keep_gib=gib)
    assert set(kept(narrow, records, sizes=sizes)) <= set(kept(limited(SPACE, keep=keep), records))
    assert set(kept(limited(SPACE, keep=keep), records)) <= set(kept(limited(SPACE, keep=keep + 1), records))
    free = [v for v in judge(narrow, records, sizes=sizes) if v.kept and not v.checkpoint.needed_by]
    assert len(free) <= gib


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_ranks_count_by_how_many_each_is_dominated(points):
    """Metrics may be integers, as effective steps are."""
    records = [
        replace(done(i, 0.5, None), metrics={"loss": float(loss), "speed": speed})
        for i, (loss, speed) in enumerate(points)
    ]
    expected = {
        i: sum(a[0] <= b[0] and a[1] >= b[1] and a != b for a in points) for i, b in enumerate(points)
    }
    assert observed_ranks(TWO, records) == expected


def test_without_snapshots_there_is_nothing_to_judge():
    assert judge(SPACE, []) == []
    assert judge(SPACE, [done(0, 0.5, 1.0, snapshot=False)]) == []


def test_what_goes_takes_no_room_from_what_follows():
    records = [done(0, 0.1, 1.0), done(1, 0.5, 2.0), done(2, 0.9, 3.0)]
    sizes = {key_of(0.1): 2**30, key_of(0.5): 5 * 2**30, key_of(0.9): 2**30}
    assert kept(limited(SPACE, keep_gib=2.0), records, sizes=sizes) == [0.1, 0.9]


def test_of_equally_good_ends_the_latest_stays():
    assert kept(limited(SPACE, keep=1), [done(0, 0.1, 1.0), done(1, 0.5, 1.0)]) == [0.5]


def test_publishers_and_users_of_a_key_are_listed():
    """Published, used, removed, and published again by a later trial."""
    records = [
        done(0, 0.5, 1.0, snapshot=False),
        done(1, 0.5, 2.0, of=0),
        done(2, 0.5, 2.0),
        done(3, 0.5, 2.0),
    ]
    (found,) = stored_checkpoints(SPACE, records)
    assert (found.key, found.stage, found.publishers, found.users) == (key_of(0.5), "first", (2, 3), (1,))


def test_trial_uses_only_what_it_started_from():
    """It started from a point of the second stage: nobody fetched the ends of the stages before."""
    trunk = Trunk(length="n", decay=0.5)
    space = replace(SPACE, stages=(SPACE.stages[0], replace(SPACE.stages[1], trunk=trunk)))
    publisher, user = done(0, 0.5, 1.0), done(1, 0.5, 1.0, of=0)
    point = StageRun(name="second", key=key_of(9.0), step=5, cost=5.0, snapshot=True)
    took = replace(point, snapshot=False, reused_from=0)
    records = [replace(publisher, points=(point,)), replace(user, points=(took,)), done(2, 0.5, of=0)]
    assert {each.label: each.users for each in stored_checkpoints(space, records)} == {
        "first": (2,),
        "second@5": (1,),
    }


def test_claimed_trial_needs_what_its_parameters_lead_to():
    records = [done(0, 0.1, 1.0), done(1, 0.5, 5.0), done(2, 0.9, 3.0)]
    space = limited(SPACE, keep=1)
    assert kept(space, records) == [0.1]
    claimed = replace(done(3, 0.5, status="running"), stages=())
    assert kept(space, [*records, claimed]) == [0.1, 0.5]
    assert kept(space, [*records, replace(claimed, status="pending", worker=None)]) == [0.1, 0.5]
    assert kept(space, [*records, replace(claimed, parameters={"x": 0.2})]) == [0.1]


def test_running_trial_needs_the_key_it_started_from():
    """The trainer's keys depend on more than parameters: another version of the code has other ones."""
    started = replace(done(2, 0.5, of=1, status="running"), parameters={"x": 0.77, "n": 1})
    records = [done(0, 0.1, 1.0), done(1, 0.5, 5.0), started]
    assert kept(limited(SPACE, keep=1), records) == [0.1, 0.5]


def test_unknown_stage_is_kept_by_key():
    other = [replace(r, stages=tuple(replace(s, name="old") for s in r.stages)) for r in [done(0, 0.5, 1.0)]]
    waiting = replace(done(1, 0.5, status="running"), stages=())
    (found,) = stored_checkpoints(SPACE, [*other, waiting])
    assert found.needed_by == ()


def test_of_a_front_the_most_used_end_stays_first():
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
def test_checkpoint_of_poor_trial_is_removed_first(worse):
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


def test_cheap_trials_come_after_those_at_the_target():
    """By two objectives of which one is the cost, they alone were never dominated."""
    objectives = (Objective(metric="loss"), Objective(metric="cost"))
    parameters = (SPACE.parameters[0], Choice(name="n", values=(1, 16), ordered=True))
    space = replace(SPACE, objectives=objectives, parameters=parameters, fidelity=(Fidelity(parameter="n"),))
    results = [(1, 5.0, 1.9), (1, 4.8, 2.0), (1, 4.6, 1.8), (16, 3.0, 17.0), (16, 3.4, 17.1)]
    records = [
        replace(
            done(i, (1 + i) / 10),
            parameters={"x": (1 + i) / 10, "n": n},
            metrics={"loss": loss, "cost": cost},
        )
        for i, (n, loss, cost) in enumerate(results)
    ]
    assert observed_ranks(space, records) == {0: 3, 1: 3, 2: 2, 3: 0, 4: 1}
    assert kept(space, records, ended=True) == [0.4]
    assert kept(space, records[:3], ended=True) == [0.3]


def test_every_reason_is_given_in_words():
    def why(space, records, **options):
        return [v.why for v in judge(space, records, **options)]

    records = [done(0, 0.1, 1.0), done(1, 0.5, 2.0), done(2, 0.9, status="failed")]
    assert why(SPACE, records) == ["trial 0, the best", "trial 1, among the best", "there is room"]
    assert why(limited(SPACE, keep=2), records)[2] == "not among the 2 best"
    sizes = dict.fromkeys(map(key_of, (0.1, 0.5, 0.9)), 2**30)
    assert why(limited(SPACE, keep_gib=1.5), records, sizes=sizes)[1] == "beyond 1.5 GiB"
    grid = {"to_come": [{"x": 0.9, "n": 1, "mode": "fast"}] * 2, "sizes": sizes}
    assert why(limited(SPACE, keep_gib=1.5), records, **grid)[0] == "for 2 trials to come"
    assert why(limited(SPACE, keep_gib=0.5), records, **grid)[0] == "beyond 0.5 GiB"
    assert why(SPACE, records, ended=True)[1] == "the sweep has ended, others are better"
    waiting = [replace(done(i, 0.5, status="running"), stages=()) for i in range(3, 8)]
    assert why(SPACE, [*records, *waiting])[1] == "needed by trials 3, 4, 5 and 2 more"


# ---- points of trunks

LENGTHS = replace(
    SPACE,
    parameters=(
        Choice(name="x", values=(0.1, 0.5)),
        Choice(name="steps", values=(100, 200, 400)),
        Range(name="n", min=1, max=100, kind="int"),
    ),
    stages=(
        Stage(
            name="first",
            parameters=("x", "mode", "steps"),
            cost="steps",
            trunk=Trunk(length="steps", decay=0.5),
        ),
        Stage(name="second", parameters=("n",), cost="100"),
    ),
)


def on_trunk(index: int, x: float, steps: int, loss: float | None, *points: int, status="completed") -> Trial:
    """A trial that has published these points of the trunk of `x`, and no end of a stage."""
    record = done(index, x, loss, snapshot=False, status=status)
    stored = tuple(
        StageRun(name="first", key=key_of(x + step), step=step, cost=float(step), snapshot=True)
        for step in points
    )
    return replace(record, parameters={"x": x, "steps": steps, "n": 1}, stages=(), points=stored)


def stay(space: Space, records: list[Trial], **options) -> list[tuple[float, int]]:
    """The points that stay, best first, by the `x` and step in the records."""
    names = {p.key: (r.parameters["x"], p.step) for r in records for p in r.points}
    return [names[v.checkpoint.key] for v in judge(space, records, **options) if v.kept]


def test_steps_superseded_for_all_lengths_are_removed():
    """Trials of 100, 200 and 400 steps leave the trunk at 50, 100 and 200."""
    records = [on_trunk(0, 0.1, 400, 1.0, 25, 50, 75, 100, 150, 175)]
    assert stay(LENGTHS, records) == [(0.1, 175), (0.1, 100), (0.1, 50)]
    assert {v.why for v in judge(LENGTHS, records) if not v.kept} == {"a later point serves every length"}
    one_length = replace(LENGTHS, parameters=(LENGTHS.parameters[0], Fixed(name="steps", value=200)))
    assert stay(one_length, records) == [(0.1, 100)]
    free = replace(
        LENGTHS, parameters=(LENGTHS.parameters[0], Range(name="steps", min=1, max=400, kind="int"))
    )
    assert len(stay(free, records)) == 6


@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=8),
    st.sets(st.integers(2, 80), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.15, 0.5]),
)
def test_what_goes_as_useless_no_listed_length_would_start_from(steps, lengths, decay):
    space = replace(
        LENGTHS,
        parameters=(LENGTHS.parameters[0], Choice(name="steps", values=tuple(sorted(lengths)))),
        stages=(
            replace(LENGTHS.stages[0], trunk=Trunk(length="steps", decay=decay)),
            *LENGTHS.stages[1:],
        ),
    )
    ends = {length - round(decay * length) for length in lengths}
    used = {max((step for step in steps if step <= end), default=None) for end in ends} - {None}
    assert {step for _, step in stay(space, [on_trunk(0, 0.1, 80, 1.0, *sorted(steps))])} == used


def test_trunk_counts_once_with_rank_of_its_best_trial():
    """Also if that trial has computed it in full, and left no point."""
    records = [
        on_trunk(0, 0.1, 400, 3.0, 50, 100, 200),
        on_trunk(1, 0.5, 400, 2.0, 50, 100),
        on_trunk(2, 0.1, 100, 1.0),
    ]
    assert stay(limited(LENGTHS, keep=1), records) == [(0.1, 200), (0.1, 100), (0.1, 50)]
    assert stay(LENGTHS, records, ended=True) == [(0.1, 200), (0.1, 100), (0.1, 50)]
    assert len(stay(limited(LENGTHS, keep=2), records)) == 5
    sizes = {point.key: 2**30 for record in records for point in record.points}
    assert stay(limited(LENGTHS, keep_gib=2.5), records, sizes=sizes) == [(0.1, 200), (0.1, 100)]


def test_unfinished_trial_needs_latest_step_before_decay():
    records = [on_trunk(0, 0.1, 400, 9.0, 50, 100, 200), on_trunk(1, 0.5, 400, 1.0, 200)]
    space = limited(LENGTHS, keep=1)
    assert stay(space, records) == [(0.5, 200)]
    waiting = on_trunk(2, 0.1, 200, None, status="pending")
    assert stay(space, [*records, waiting]) == [(0.5, 200), (0.1, 100)]
    elsewhere = replace(waiting, parameters={"x": 0.5, "steps": 100, "n": 1})
    assert stay(space, [*records, elsewhere]) == [(0.5, 200)]


def test_running_trial_needs_its_steps():
    began = replace(on_trunk(0, 0.1, 400, None, 100).points[0], snapshot=False, reused_from=0)
    running = on_trunk(1, 0.1, 400, None, 150, 175, status="running")
    running = replace(running, points=(began, *running.points))
    records = [on_trunk(0, 0.1, 200, 9.0, 100), running, on_trunk(2, 0.5, 400, 1.0, 200)]
    assert stay(limited(LENGTHS, keep=1), records) == [(0.5, 200), (0.1, 175), (0.1, 100), (0.1, 150)]
    (found,) = (each for each in stored_checkpoints(LENGTHS, records) if each.key == key_of(0.1 + 100))
    assert (found.publishers, found.users, found.label) == ((0,), (1,), "first@100")


def test_steps_of_stage_without_trunk_are_kept_by_key():
    """As in a sweep that was created anew over old records."""
    records = [on_trunk(0, 0.1, 400, 1.0, 25, 50)]
    assert stay(SPACE, records) == [(0.1, 50), (0.1, 25)]
    assert stay(limited(SPACE, keep=1), records) == [(0.1, 50)]
