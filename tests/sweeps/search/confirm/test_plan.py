"""`confirm.json`: what is written can be read, what was edited badly is refused, and one of many plans wins."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from memory_store import MemoryStore

from sweeps.errors import AlreadyExists, DamagedObject
from sweeps.search.confirm.plan import KEY, Finalist, Plan, decoded, encoded, store_plan, stored_plan
from sweeps.storage.local import LocalStore

GOLDEN = Path(__file__).parents[3] / "golden" / "confirm_v1.json"

PLAN = Plan(
    metric="final_loss",
    goal="minimize",
    finalists=(
        Finalist(trial=12, parameters={"lr": 0.003, "mode": "fast", "seed": 0}, first=3.165, predicted=3.182),
        Finalist(trial=3, parameters={"lr": 0.004, "mode": "slow", "seed": 0}, first=3.2, predicted=3.19),
    ),
    seed_name="seed",
    seeds=(97880, 199713, 275113),
    fixed={"eval.test": True},
    top=5,
    trials=6,
    within={"effective_steps": 3000.0},
    created=1_700_000_000.0,
)


def test_a_plan_is_read_as_it_was_written():
    assert decoded(encoded(PLAN)) == PLAN
    assert PLAN.test_metric == "test_loss"


def test_the_format_of_version_1_is_kept():
    """A stored plan must open for ever: change the sample only with the schema."""
    assert decoded(GOLDEN.read_bytes()) == PLAN


def test_repeat_has_parameters_with_its_seed():
    assert list(PLAN.repeat(3, 7).items()) == [
        ("lr", 0.004), ("mode", "slow"), ("seed", 7), ("eval.test", True),
    ]  # fmt: skip


def test_no_plan_is_none():
    assert stored_plan(MemoryStore()) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "schema is 2, this version reads 1"),
        ({"seeds": [1]}, "seeds are not two or more integers"),
        ({"seeds": [1, "2"]}, r"seeds\[1\] is '2', not an integer"),
        ({"seeds": [2, 1]}, "seeds do not ascend"),
        ({"seeds": [1, 1]}, "seeds do not ascend"),
        ({"seeds": 3}, "seeds is 3, not a list"),
        ({"finalists": []}, "finalists are not two or more trials"),
        ({"goal": "least"}, "goal is 'least'"),
        ({"error_rate": 1}, "error_rate is not between 0 and 1"),
        ({"trials": 2.5}, "trials is 2.5, not an integer"),
        ({"seed_name": None}, "seed_name is None, not a text"),
        ({"colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_a_plan_that_was_edited_badly_is_refused_with_its_place(change, reason):
    store = MemoryStore()
    store.create(KEY, json.dumps(json.loads(encoded(PLAN)) | change).encode())
    with pytest.raises(DamagedObject, match=reason) as caught:
        stored_plan(store)
    assert KEY in str(caught.value)


def test_of_many_who_plan_at_once_one_wins(tmp_path):
    store, outcomes = LocalStore(tmp_path / "sweep"), []
    start = threading.Barrier(8)

    def plan(top: int) -> None:
        start.wait()
        try:
            store_plan(store, Plan(**{**vars(PLAN), "top": top}), None)
            outcomes.append(top)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=plan, args=(top,)) for top in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stored_plan(store)
    assert found is not None
    assert [found[0].top] == outcomes
