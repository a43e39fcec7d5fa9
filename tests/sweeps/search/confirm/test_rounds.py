"""Which repeat of a confirmation comes next: a function of the plan and the records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.confirm.plan import Finalist, Plan
from sweeps.search.confirm.rounds import losses, standing
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.record import Trial, has_failed

SPACE = Space(
    name="case",
    objectives=(Objective(metric="final_loss"),),
    program=Program(kind="function", function="m:f"),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
)
SEARCHED = 20
"""Index of the first repeat."""


def plan(finalists: int = 3, seeds: int = 5, **rest) -> Plan:
    return Plan(
        metric="final_loss",
        goal="minimize",
        finalists=tuple(
            Finalist(trial=i, parameters={"x": i / 10, "seed": 0}, first=3.0) for i in range(finalists)
        ),
        seed_name="seed",
        seeds=tuple(100 + seed for seed in range(seeds)),
        fixed={"eval.test": True},
        top=finalists,
        **rest,
    )


def repeat(of: Plan, index: int, key: tuple[int, int], loss: float | None = None, **rest) -> Trial:
    status = {} if loss is None else {"metrics": {"final_loss": loss}}
    fields = {"status": "pending" if loss is None else "completed", **status, **rest}
    return Trial(trial=index, parameters=of.repeat(*key), generator="confirm", **fields)


def run(of: Plan, outcome, space: Space = SPACE) -> list[Trial]:
    """Run every repeat that is due, one after another; `outcome` returns the fields of (finalist, seed)."""
    records: list[Trial] = []
    while due := standing(space, of, records).due:
        records.append(repeat(of, SEARCHED + len(records), due[0], **outcome(*due[0])))
    return records


def by_quality(trial: int, seed: int) -> dict[str, float]:
    """Finalist 1 is the best by far, 0 and 2 are much worse; seeds matter to all alike."""
    return {"loss": 3.0 + (0.0 if trial == 1 else 0.5) + 0.01 * (seed % 3) + 1e-4 * ((7 * trial + seed) % 5)}


def alike(trial: int, seed: int) -> dict[str, float]:
    return {"loss": 3.0 + 0.01 * ((31 * trial + 17 * seed) % 7)}


def keys(of: Plan, records) -> list[tuple[int, int]]:
    index = {record.trial: key for key, record in of.repeats(records).items()}
    return [index[record.trial] for record in records]


class TestRounds:
    def test_third_round_waits_for_first_two(self):
        first = standing(SPACE, plan(), [])
        assert first.due == tuple((trial, seed) for seed in (100, 101) for trial in range(3))
        assert (first.round, first.racing, first.finished) == (2, (0, 1, 2), False)
        records = [repeat(plan(), 20 + i, key, **alike(*key)) for i, key in enumerate(first.due)]
        records[3] = replace(records[3], status="running", metrics={}, worker="w")
        waiting = standing(SPACE, plan(), records)
        assert (waiting.due, waiting.open, waiting.round) == ((), (records[3],), 2)
        records[3] = repeat(plan(), 23, first.due[3], **alike(*first.due[3]))
        assert standing(SPACE, plan(), records).due == ((0, 102), (1, 102), (2, 102))

    def test_losers_leave_and_last_runs_all_seeds(self):
        of = plan()
        records = run(of, by_quality)
        end = standing(SPACE, of, records)
        assert end.finished
        assert end.racing == (1,)
        assert set(end.left) == {0, 2}
        assert all("could not win any more after round" in why for why in end.left.values())
        assert {seed for trial, seed in keys(of, records) if trial == 1} == set(of.seeds)
        assert len(records) < len(of.finalists) * len(of.seeds)
        judged = max(seed for trial, seed in keys(of, records) if trial == 0)
        alone = [key for key in keys(of, records) if key[1] > judged]
        after = standing(
            SPACE, of, [r for r, key in zip(records, keys(of, records), strict=True) if key not in alone]
        )
        assert list(after.due) == alone

    def test_equals_run_all_rounds(self):
        of = plan()
        records = run(of, lambda trial, seed: {"loss": 3.0 + 0.01 * ((trial + seed) % 3)})
        assert len(records) == 15
        assert standing(SPACE, of, records).racing == (0, 1, 2)

    @pytest.mark.parametrize(
        ("status", "failure", "leaves"),
        [
            ("failed", "diverged", True),
            ("failed", "crashed", True),
            ("failed", "out_of_memory", True),
            ("failed", "lost", False),
            ("abandoned", None, False),
            ("early_stopped", None, False),
        ],
    )
    def test_a_finalist_leaves_if_it_fails_by_its_own_parameters(self, status, failure, leaves):
        of = plan()

        def outcome(trial, seed):
            if (trial, seed) == (1, 101):
                return {"status": status, "failure": failure, "error": "so it goes"}
            return alike(trial, seed)

        end = standing(SPACE, of, run(of, outcome))
        assert end.finished
        assert (1 in end.left) == leaves
        if leaves:
            assert end.left[1] == "failed with seed 101 (trial 24)"

    @pytest.mark.parametrize("seed", [100, 101, 102, 104])
    def test_nobody_leaves_because_of_a_finalist_that_failed(self, seed):
        of = plan()

        def outcome(trial, at):
            if (trial, at) == (1, seed):  # the best by far, without which 0 and 2 are alike
                return {"status": "failed", "failure": "diverged", "error": "loss is nan"}
            return by_quality(trial, at)

        records = run(of, outcome)
        end = standing(SPACE, of, records)
        assert (end.racing, set(end.left), end.why) == ((0, 2), {1}, "")
        assert {key for key in keys(of, records) if key[0] != 1} == {
            (i, at) for i in (0, 2) for at in of.seeds
        }
        assert max(at for trial, at in keys(of, records) if trial == 1) == max(seed, 100)

    @pytest.mark.parametrize("last", [100, 102])
    def test_nobody_leaves_because_of_a_finalist_outside_of_the_constraints(self, last):
        """Finalist 1 is the best by far; until `last` it is within them."""
        of, space = plan(), replace(SPACE, outcome_constraints=("ms <= 10",))

        def outcome(trial, seed):
            ms = 9.0 if trial != 1 or seed < last else 20.0
            metrics = {"final_loss": by_quality(trial, seed)["loss"], "ms": ms}
            return {"status": "completed", "metrics": metrics}

        records = run(of, outcome, space)
        end = standing(space, of, records)
        assert (end.racing, end.left) == ((0, 1, 2), {})
        assert len(records) == 15
        inside = run(
            of, lambda *key: outcome(*key) | {"metrics": outcome(*key)["metrics"] | {"ms": 9.0}}, space
        )
        assert set(standing(space, of, inside).left) == {0, 2}

    def test_it_ends_only_once_the_repeats_of_failed_finalists_have(self):
        of = plan()
        failed = {"status": "failed", "failure": "crashed", "error": "x"}
        records = [repeat(of, 20 + i, (i, 100), **failed) for i in range(3)]
        running = repeat(of, 23, (0, 101), status="running", worker="w")
        now = standing(SPACE, of, [*records, running])
        assert (now.finished, now.due, now.open) == (False, (), (running,))

    def test_when_all_of_them_fail_nobody_is_left(self):
        of = plan()
        records = run(
            of, lambda trial, seed: {"status": "failed", "failure": "crashed", "error": "no such key"}
        )
        end = standing(SPACE, of, records)
        assert (len(records), end.finished, end.racing, end.due) == (3, True, (), ())
        assert end.why == "no finalist is left"
        again = [replace(record, status="pending", error=None, failure=None) for record in records]
        assert not standing(SPACE, of, again).finished, "after `sweep retry` it goes on"

    def test_a_round_that_does_not_fit_the_budget_is_not_begun(self):
        of = plan(trials=8)
        records = run(of, alike)
        end = standing(SPACE, of, records)
        assert (len(records), end.finished, end.round) == (6, True, 2)
        assert "budget of 8" in end.why

    def test_the_last_finalist_has_what_the_budget_leaves(self):
        of = plan(trials=10, seeds=8)
        records = run(of, by_quality)
        assert standing(SPACE, of, records).racing == (1,)
        assert len(records) == 10

    def test_trials_of_another_kind_are_no_repeats(self):
        of = plan()
        same = replace(repeat(of, 5, (0, 100), 1.0), generator="imported")
        other = replace(repeat(of, 6, (0, 100), 1.0), parameters={**of.repeat(0, 100), "x": 0.7})
        assert len(standing(SPACE, of, [same, other]).due) == 6

    def test_a_goal_to_maximize_races_the_other_way(self):
        of = replace(plan(), goal="maximize")
        end = standing(SPACE, of, run(of, by_quality))
        assert 1 in end.left
        assert losses(of, end.records, "final_loss")[0][100] < 0


@given(
    st.integers(2, 5),
    st.integers(2, 6),
    st.none() | st.integers(10, 30),
    st.randoms(use_true_random=False),
)
def test_whatever_happens_it_ends_and_no_repeat_runs_twice(finalists, seeds, budget, random):
    of = plan(finalists, seeds, trials=budget)

    def outcome(trial, seed):
        match random.randrange(8):
            case 0:
                return {"status": "failed", "failure": random.choice(["diverged", "lost"]), "error": "x"}
            case 1:
                return {"status": "abandoned"}
        return {"loss": 3.0 + random.gauss(0.1 * trial, 0.02)}

    records: list[Trial] = []
    while not (now := standing(SPACE, of, records)).finished:
        assert now.due
        assert {trial for trial, _ in now.due} <= set(now.racing)
        assert not {trial for trial, _ in now.due} & set(now.left)
        key = random.choice(now.due)  # whichever worker was faster
        records.append(repeat(of, SEARCHED + len(records), key, **outcome(*key)))
        gone = set(now.due) - {key} - set(standing(SPACE, of, records).due)
        assert all(has_failed(records[-1]) and trial == key[0] for trial, _ in gone)
    found = keys(of, records)
    assert len(found) == len(set(found)) <= min(finalists * seeds, budget or 99)
    assert standing(SPACE, of, records[::-1]) == standing(SPACE, of, records), (
        "the order of the results is no matter"
    )
    assert set(now.racing) | set(now.left) == set(range(finalists))
    assert not set(now.racing) & set(now.left)
