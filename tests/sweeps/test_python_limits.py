"""Errors of `import sweeps` speak of functions and arguments, as people read them: tests/golden/messages.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import golden_messages
import pytest

import sweeps

SPACE = {
    "name": "demo",
    "objectives": [{"metric": "loss"}],
    "parameters": {"lr": {"min": 1e-4, "max": 1e-1}},
    "search": {"method": "random"},
    "run_cap": 3,
}
OTHER = SPACE | {"parameters": {"lr": {"min": 1e-4, "max": 1.0}}}
RENAMED = SPACE | {"parameters": {"rate": {"min": 1e-4, "max": 1e-1}}}


@pytest.fixture
def mistakes(tmp_path, monkeypatch) -> list[tuple[str, Callable[[], object]]]:
    monkeypatch.chdir(tmp_path)
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        monkeypatch.delenv(name, raising=False)
    before: list[tuple[str, Callable[[], object]]] = [
        ("sweeps.open()", sweeps.open),
        ('sweeps.create(SPACE, storage="")', lambda: sweeps.create(SPACE, storage="")),
        ("sweeps.create([])", lambda: sweeps.create([])),
        (
            'sweeps.create(SPACE | {"objective": "loss"})',
            lambda: sweeps.create(SPACE | {"objective": "loss"}),
        ),
        ('sweeps.create(SPACE | {"run_cap": 0})', lambda: sweeps.create(SPACE | {"run_cap": 0})),
    ]
    return before


def after(sweep: sweeps.Sweep) -> list[tuple[str, Callable[[], object]]]:
    return [
        ("sweeps.create(SPACE)", lambda: sweeps.create(SPACE)),
        ("sweeps.create(another space, skip_if_exists=True)", lambda: sweeps.create(OTHER, skip_if_exists=True)),
        ("sweeps.create(another name of a parameter, skip_if_exists=True)",
         lambda: sweeps.create(RENAMED, skip_if_exists=True)),
        ("sweeps.create(run_cap 2 in place of 3, skip_if_exists=True)",
         lambda: sweeps.create(SPACE | {"run_cap": 2}, skip_if_exists=True)),
        ('sweeps.open("sweep-store", "demmo")', lambda: sweeps.open("sweep-store", "demmo")),
        ('sweeps.open("sweep-store/demo", "other")', lambda: sweeps.open("sweep-store/demo", "other")),
        ("sweep.run()", lambda: sweep.run()),
        ("sweep.best_value", lambda: sweep.best_value),
        ('sweep.enqueue({"lr": 5})', lambda: sweep.enqueue({"lr": 5})),
        ("sweep.extend()", lambda: sweep.extend()),
        ("sweep.extend(run_caps=5)", lambda: sweep.extend(run_caps=5)),
        ("sweep.extend(run_cap=2.5)", lambda: sweep.extend(run_cap=2.5)),
        ("sweep.extend(usd=-1)", lambda: sweep.extend(usd=-1)),
        ("sweep.extend(until=datetime(2020, 1, 1))", lambda: sweep.extend(until=datetime(2020, 1, 1, tzinfo=UTC))),
        ('sweep.extend(until="tomorrow")', lambda: sweep.extend(until="tomorrow")),
        ("sweep.confirm()", lambda: sweep.confirm()),
        ('sweep.confirm(seed_name="lr", top=1)', lambda: sweep.confirm(seed_name="lr", top=1)),
        ('sweep.confirm(seed_name="lr")', lambda: sweep.confirm(seed_name="lr")),
        ('sweep.confirm(seed_name="s", at_most=3)', lambda: sweep.confirm(seed_name="s", at_most=3)),
        ('sweep.confirm(seed_name="s")', lambda: sweep.confirm(seed_name="s")),
        ('sweep.confirm(seed_name="s", again=True)', lambda: sweep.confirm(seed_name="s", again=True)),
        ("sweeps.plan(sweep, 8)", lambda: sweeps.plan(sweep, 8)),
        ("sweeps.plan([sweep], 8)", lambda: sweeps.plan([sweep], 8)),
        ('sweeps.plan([sweep, "sweep-store/demo"], "8")', lambda: sweeps.plan([sweep, "sweep-store/demo"], "8")),
        ("sweeps.plan([sweep, sweep], 8, sizes=3)", lambda: sweeps.plan([sweep, sweep], 8, sizes=3)),
        ("sweeps.plan([sweep, sweep], 8, sizes=[1])", lambda: sweeps.plan([sweep, sweep], 8, sizes=[1])),
    ]  # fmt: skip


def full(sweep: sweeps.Sweep) -> list[tuple[str, Callable[[], object]]]:
    return [
        ("sweep.ask(), after the last trial", sweep.ask),
        ('sweep.enqueue({"lr": 0.01}), after the last trial', lambda: sweep.enqueue({"lr": 0.01})),
        (
            'sweep.confirm(seed_name="s", objective="los")',
            lambda: sweep.confirm(seed_name="s", objective="los"),
        ),
        (
            'sweep.confirm(seed_name="s", top=3, budget=2)',
            lambda: sweep.confirm(seed_name="s", top=3, budget=2),
        ),
        ("sweeps.plan([sweep, sweep], 8), of 3 trials", lambda: sweeps.plan([sweep, sweep], 8)),
    ]


def answer(call: Callable[[], object]) -> str:
    with pytest.raises(sweeps.SweepError) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_errors_speak_python(mistakes) -> None:
    answers = [(f"`{title}`", answer(call)) for title, call in mistakes]
    sweep = sweeps.create(SPACE)
    answers += [(f"`{title}`", answer(call)) for title, call in after(sweep)]
    sweep.run(lambda parameters: parameters["lr"])
    answers += [(f"`{title}`", answer(call)) for title, call in full(sweep)]
    golden_messages.compare("From Python", answers)
    said = "\n".join(message for _, message in answers)
    assert re.findall(r"--\w+", said) == []
    assert re.findall(r"`sweep (?!quickstart)\w+", said) == []
    assert re.findall(r"sweeps\.\w+:\d", said) == []


def test_limits_are_extended_and_lifted(tmp_path) -> None:
    sweep = sweeps.create(SPACE, storage=tmp_path)
    until = datetime(2199, 1, 1)
    assert sweep.extend(run_cap=5, device_hours=2, until=until)["until"] == until.timestamp()
    now = sweep.extend(device_hours=None, until=None)
    assert (now["run_cap"], now["device_hours"], now["until"]) == (5, None, None)
    assert sweeps.open(tmp_path).status()["run_cap"] == 5


def test_a_reached_limit_is_said(tmp_path, capsys) -> None:
    sweep = sweeps.create(SPACE, storage=tmp_path)
    sweep.run(lambda parameters: parameters["lr"], n_trials=2)
    sweep.extend(run_cap=1)
    assert "run_cap is 1, and there are 2 trials" in capsys.readouterr().err


SEEDED = SPACE | {
    "parameters": {"lr": {"values": [1, 2, 3]}, "seed": {"value": 0}},
    "search": {"method": "grid"},
}


def test_a_confirmation_is_run_once_and_answered_again(tmp_path) -> None:
    sweep = sweeps.create(SEEDED, storage=tmp_path)
    calls = []

    def loss(parameters):
        calls.append(parameters["seed"])
        return parameters["lr"] + parameters["seed"] % 1000 / 1e6

    sweep.run(loss)
    found = sweep.confirm(loss, top=2, seeds=3)
    assert found.parameters["lr"] == 1
    assert found.trial == sweep.best.trial
    assert 0.99 < found.low <= found.mean <= found.high < 1.01
    assert found.seeds == 3
    repeats = len(calls) - 3
    assert 4 <= repeats <= 6
    assert len(set(calls)) == 4  # 0, and three fresh seeds
    assert sweep.confirm(loss) == found
    assert len(calls) == repeats + 3


def test_a_confirmation_without_its_function_plans_nothing(tmp_path) -> None:
    sweep = sweeps.create(SEEDED, storage=tmp_path)

    def loss(parameters):
        return parameters["lr"] + parameters["seed"] % 1000 / 1e6

    sweep.run(loss)
    with pytest.raises(sweeps.InputError, match=r"nothing was planned; call `sweep\.confirm\(function\)`$"):
        sweep.confirm()
    assert sweep.run(loss) == {}
    confirmed = sweep.confirm(loss, top=2, seeds=3)  # no plan with other numbers is in the way
    assert sweep.confirm() == confirmed  # to repeat the answer it needs no function


def test_a_confirmation_without_any_result_is_an_error(tmp_path) -> None:
    sweep = sweeps.create(SEEDED, storage=tmp_path)
    sweep.run(lambda parameters: parameters["lr"])
    with pytest.raises(sweeps.SweepError, match="finished without a winner"):
        sweep.confirm(lambda parameters: float("nan"), top=2, seeds=2)


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_a_value_is_reported_as_in_optuna(tmp_path, goal, recwarn) -> None:
    sweep = sweeps.create(SPACE | {"objectives": [{"metric": "score", "goal": goal}]}, storage=tmp_path)
    with sweep.ask() as trial:
        trial.report(0.5, step=1)
        trial.report(0.25, 2)
        with pytest.raises(sweeps.InputError, match=r"one of the two"):
            trial.report(0.5, step=3, loss=0.5)
        with pytest.raises(sweeps.InputError, match=r"say which step"):
            trial.report(0.5)
        sweep.tell(trial, 1)
    assert sweep.experiment.trial(0).curve == ((1, 0.5), (2, 0.25))
    hints = {str(warning.message) for warning in recwarn}
    assert all("score is maximised; write report(loss=" in hint for hint in hints)
    assert len(hints) == (goal == "maximize")  # the same for every value, so that a loop says it once
    assert {warning.filename for warning in recwarn} <= {__file__}
