"""Losses of each sequence from the run folders into the export, and the best by fresh seeds."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.table import TrialsTable
from sweeps.export import held_out
from sweeps.export import table as export
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Space
from sweeps.storage.local import LocalStore
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="final_loss"),),
    parameters=(Range(name="lr", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="function", function="m:f"),
)
LOSSES = {"final": [3.5, 3.25], "teacher": [2.5, 2.125]}


def record(index: int, loss: float = 3.4, *, generator: Any = "sobol", **fields: Any) -> Trial:
    parameters = fields.pop("parameters", {"lr": 0.1})
    metrics = {"final_loss": loss, "final_loss_sem": 0.01} | fields.pop("metrics", {})
    return Trial(
        trial=index,
        status=fields.pop("status", "completed"),
        parameters=parameters,
        generator=generator,
        metrics=metrics,
        attempt=fields.pop("attempt", 1),
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "case")


def put_held_out(store: LocalStore, index: int, content: Any = None, *, attempt: int = 1) -> None:
    document = {"schema": 1, "unit": "nats per token", "losses": LOSSES} if content is None else content
    text = content if isinstance(content, str) else json.dumps(document)
    store.create(f"runs/{index:06d}/attempt-{attempt}/held_out.json", text.encode())


class Counting(LocalStore):
    """Remembers what was asked for."""

    asked: tuple[str, ...] = ()

    def read_many(self, keys: Any) -> Any:
        self.asked += tuple(keys)
        return super().read_many(keys)


def test_document_has_the_losses_of_the_completed_attempt(store: LocalStore) -> None:
    put_held_out(store, 0)
    put_held_out(store, 1, {"schema": 1, "losses": {"final": [9.0, 9.0]}})
    put_held_out(store, 1, attempt=2)
    records = [record(0), record(1, attempt=2), record(2)]
    found = held_out.losses(store, SPACE, records)
    assert found == {"0": LOSSES, "1": LOSSES}
    assert export.document(SPACE, store.url, records, found)["held_out"] == found
    assert "held_out" not in export.document(SPACE, store.url, records, {})
    assert "held_out" not in export.document(SPACE, store.url, records)


def test_documents_stand_beside_the_losses(store: LocalStore) -> None:
    labels = list(range(len(LOSSES["final"])))
    put_held_out(store, 0, {"schema": 1, "losses": LOSSES, "documents": {"final": labels}})
    put_held_out(store, 1, {"schema": 1, "losses": LOSSES, "documents": {"final": labels[1:]}})
    found = held_out.losses(store, SPACE, [record(0), record(1)])
    assert found == {"0": LOSSES | {"final_documents": labels}}


def test_only_trials_with_an_error_of_an_objective_are_looked_up(tmp_path: Path) -> None:
    store = Counting(tmp_path / "case")
    plain = Trial(trial=1, status="completed", parameters={}, generator="sobol", metrics={"final_loss": 3.0})
    assert held_out.losses(store, SPACE, [record(0), plain, record(2, status="running")]) == {}
    assert store.asked == ("runs/000000/attempt-1/held_out.json",)


@pytest.mark.parametrize(
    "content",
    [
        "", "[1]", '{"schema": 2, "losses": {}}', '{"schema": 1}',
        '{"schema": 1, "losses": {"final": 3.0}}', '{"schema": 1, "losses": {"final": [3.0, NaN]}}',
        '{"schema": 1, "losses": {"final": [true]}}',
    ],
    ids=["empty", "list", "newer", "no-losses", "number", "nan", "bool"],
)  # fmt: skip
def test_unreadable_losses_are_left_out_with_a_warning(
    store: LocalStore, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    put_held_out(store, 0, content)
    put_held_out(store, 1)
    assert held_out.losses(store, SPACE, [record(0), record(1)]) == {"1": LOSSES}
    assert "runs/000000/attempt-1/held_out.json: " in caplog.text


def test_what_is_no_file_leaves_all_errors_independent(
    store: LocalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_held_out(store, 0)
    pipe = tmp_path / "case/runs/000001/attempt-1/held_out.json"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert held_out.losses(store, SPACE, [record(0), record(1)]) == {}
    assert "independent" in caplog.text


def fresh(index: int, loss: float, seed: int, lr: float = 0.1, **metrics: float) -> Trial:
    parameters = {"lr": lr, "seed": seed, "eval.test": True}
    return record(index, loss, generator="confirm", parameters=parameters, metrics=metrics)


def test_the_best_by_fresh_seeds_is_not_the_luckiest() -> None:
    searched = [
        record(0, 3.0),
        record(1, 3.1, parameters={"lr": 0.2}),
        record(2, 2.0, parameters={"lr": 1.0}),
    ]
    assert export.best_confirmed(SPACE, searched) is None
    runs = [fresh(3, 3.3, 7), fresh(4, 3.4, 8), fresh(5, 3.0, 7, 0.2), fresh(6, 3.4, 8, 0.2)]
    assert export.best_confirmed(SPACE, [*searched, *runs]) == searched[1]
    # Trial 2 has one fresh run, which confirms nothing, however lucky.
    assert export.best_confirmed(SPACE, [*searched, *runs, fresh(7, 1.0, 7, 1.0)]) == searched[1]
    assert export.best_confirmed(SPACE, [*searched, *runs[:3]]) == searched[0]
    # Whoever failed with a fresh seed cannot win; whose machine was lost can.
    other = fresh(7, 1.0, 9, 0.2)
    for failure, best in (("exit_code", searched[0]), ("lost", searched[1])):
        failed = replace(other, status="failed", failure=failure, metrics={})
        records = [*searched, *runs, failed]
        assert export.best_confirmed(SPACE, records) == best
        confirmed = TrialsTable.from_document(export.document(SPACE, "url", records)).configurations
        assert (1 in confirmed.repeats.runs) == (best is searched[1])


@pytest.mark.parametrize(
    "parameters",
    [(), (Fixed(name="random_state", value=0),), (Choice(name="random_state", values=(0, 1)),)],
    ids=["own", "fixed", "searched"],
)
def test_a_seed_may_have_any_name(parameters: tuple[Fixed | Choice, ...]) -> None:
    known = {each.name: 0 for each in parameters}
    searched = [record(at, 3.0 + at, parameters={"lr": 0.1 + 0.1 * at} | known) for at in range(2)]
    runs = [
        record(2 + at, loss, generator="confirm", parameters={"lr": lr, "random_state": 7 + at % 2})
        for at, (loss, lr) in enumerate([(3.3, 0.1), (3.4, 0.1), (3.0, 0.2), (3.4, 0.2)])
    ]
    space = replace(SPACE, parameters=(*SPACE.parameters, *parameters))
    assert export.best_confirmed(space, [*searched, *runs]) == searched[1]


def test_fresh_means_obey_the_outcome_constraints() -> None:
    space = Space(
        name="case",
        objectives=SPACE.objectives,
        parameters=SPACE.parameters,
        program=SPACE.program,
        outcome_constraints=("memory <= 5",),
    )
    searched = [record(0, 3.0), record(1, 3.1, parameters={"lr": 0.2})]
    runs = [fresh(2, 3.0, 7, memory=4.0), fresh(3, 3.0, 8, memory=7.0)]
    runs += [fresh(4, 3.5, 7, 0.2, memory=4.0), fresh(5, 3.5, 8, 0.2, memory=5.5)]
    assert export.best_confirmed(space, [*searched, *runs]) == searched[1]
    assert export.best_confirmed(space, [*searched, *runs[:2]]) is None
