"""optuna-dashboard opens the exported journal: its own application serves the data of its pages."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from sweeps.export import optuna_journal
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Space
from sweeps.trials.record import Trial

optuna = pytest.importorskip("optuna")
optuna_dashboard = pytest.importorskip("optuna_dashboard")

Get = Callable[[str], tuple[str, bytes]]
SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"), Objective(metric="score", goal="maximize")),
    program=Program(kind="function", function="m:f"),
    parameters=(
        Range(name="stage1_9.lr", min=1e-3, max=1e-1, kind="float", log=True),
        Range(name="steps", min=1, max=100, kind="int", log=False),
        Choice(name="schedule", values=("linear", "cosine")),
        Fixed(name="seed", value=0),
    ),
)


def record(index: int, status: str = "completed", **fields: Any) -> Trial:
    defaults: dict[str, Any] = {
        "parameters": {"stage1_9.lr": 1e-2, "steps": 7 + index, "schedule": "cosine", "seed": 0},
        "generator": "sobol",
        "created": 5.0,
        "started": None if status == "pending" else 10.0,
        "ended": None if status in ("pending", "running") else 20.0,
    }
    if status == "completed":
        defaults["metrics"] = {"loss": 3.0 - index, "score": 0.5 - index / 10, "loss_sem": 0.25}
    return Trial(trial=index, status=status, **(defaults | fields))


@pytest.fixture(scope="module")
def get(tmp_path_factory: pytest.TempPathFactory) -> Get:
    """What the dashboard answers to a GET of a path, in this process: (status, body)."""
    journal = tmp_path_factory.mktemp("dashboard") / "journal.log"
    records = [
        record(0, curve=((10.0, 4.0), (20.0, 3.5))),
        record(1),
        record(2, "failed", error="diverged at step 3\nlast words"),
        record(3, "running", worker="w"),
        record(4, "pending"),
        record(5, "early_stopped"),
    ]
    optuna_journal.write(Path(journal), SPACE, records)
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    application = optuna_dashboard.wsgi(optuna.storages.JournalStorage(backend))

    def ask(path: str) -> tuple[str, bytes]:
        environ: dict[str, Any] = {"PATH_INFO": path, "REQUEST_METHOD": "GET", "wsgi.errors": io.StringIO()}
        setup_testing_defaults(environ)
        answered: list[str] = []
        parts = application(environ, lambda status, headers, exc=None: answered.append(status))
        try:
            return answered[0], b"".join(parts)
        finally:
            # As a server does; else an open file is left to the collector.
            getattr(parts, "close", lambda: None)()

    return ask


@pytest.fixture(scope="module")
def study(get: Get) -> dict[str, Any]:
    """The detail page's data of the one study that the list names."""
    status, body = get("/api/studies")
    assert status == "200 OK"
    (listed,) = json.loads(body)["study_summaries"]
    assert (listed["study_name"], listed["directions"]) == ("case", ["minimize", "maximize"])
    status, body = get(f"/api/studies/{listed['study_id']}")
    assert status == "200 OK"
    return dict(json.loads(body))


def test_its_page_opens(get: Get) -> None:
    status, body = get("/dashboard")
    assert status == "200 OK"
    assert b"<title>Optuna Dashboard" in body


def test_it_shows_the_goals_by_our_names_and_the_front(study: dict[str, Any]) -> None:
    assert study["directions"] == ["minimize", "maximize"]
    assert study["objective_names"] == ["loss", "score"]
    # 0 has the higher score, 1 the lower loss.
    assert sorted(trial["number"] for trial in study["best_trials"]) == [0, 1]


def test_it_shows_every_trial_in_its_state_with_its_values(study: dict[str, Any]) -> None:
    states = ["Complete", "Complete", "Fail", "Running", "Waiting", "Pruned"]
    assert [trial["state"] for trial in study["trials"]] == states
    first, second, failed, *_ = study["trials"]
    assert (first["values"], second["values"]) == ([3.0, 0.5], [2.0, 0.4])
    values = {param["name"]: param["param_external_value"] for param in second["params"]}
    assert values == {"stage1_9.lr": "0.01", "steps": "8", "schedule": "cosine", "seed": "0"}
    words = {word["key"]: word["value"] for word in failed["user_attrs"]}
    assert (words["status"], words["error"]) == ("failed", "diverged at step 3")
    assert {word["key"]: word["value"] for word in first["user_attrs"]}["loss_sem"] == "0.25"


def test_it_shows_the_ranges_and_the_learning_curve(study: dict[str, Any]) -> None:
    first = study["trials"][0]
    ranges = {param["name"]: param["distribution"] for param in first["params"]}
    assert ranges["stage1_9.lr"] | {"step": None} == {
        "type": "FloatDistribution",
        "low": 1e-3,
        "high": 1e-1,
        "step": None,
        "log": True,
    }
    assert (ranges["steps"]["type"], ranges["steps"]["low"], ranges["steps"]["high"]) == (
        "IntDistribution",
        1,
        100,
    )
    assert [choice["value"] for choice in ranges["schedule"]["choices"]] == ["linear", "cosine"]
    assert study["has_intermediate_values"] is True
    assert first["intermediate_values"] == [{"step": 10, "value": 4.0}, {"step": 20, "value": 3.5}]
