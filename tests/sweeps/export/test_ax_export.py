"""The exported file opens in Ax's own client and agrees with the records."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweeps.errors import InputError
from sweeps.export import ax_export
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Space
from sweeps.trials.record import Trial

SPACE = Space(
    name="case",
    objectives=(Objective(metric="final_loss"),),
    outcome_constraints=("peak_memory_gib <= 40",),
    program=Program(kind="function", function="m:f"),
    parameters=(
        Range(name="stage2.optimizer.lr", min=1e-3, max=1e-1, kind="float", log=True),
        Range(name="stage2.max_steps", min=1, max=100, kind="int", log=False),
        Choice(name="saliency", values=(True, False), when=((True, ("saliency.k",)),)),
        Choice(name="saliency.k", values=(0.05, 0.1, 0.2), ordered=True),
        Fixed(name="seed", value=0),
    ),
)


def record(index: int, status: str = "completed", **parameters: Any) -> Trial:
    point = {"stage2.optimizer.lr": 1e-2, "stage2.max_steps": 7 + index, "saliency": False, "seed": 0}
    return Trial(
        trial=index,
        status=status,  # type: ignore[arg-type]  # a table of cases
        parameters=point | parameters,
        generator="sobol",
        worker="w" if status == "running" else None,
        metrics={"final_loss": 3.0 + index, "final_loss_sem": 0.1, "peak_memory_gib": 2.0}
        if status == "completed"
        else {},
    )


RECORDS = [
    record(0),
    record(1, **{"saliency": True, "saliency.k": 0.1}),
    record(2, "failed"),
    record(3, "running"),
    record(4, "abandoned"),
    record(5, **{"stage2.optimizer.lr": 7.0}),
    record(6, "pending"),
    Trial(trial=7, status="pending", parameters={"stage2.max_steps": 3}, generator="imported"),
]


def opened(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and Ax's dependencies use it at import
        from ax.api.client import Client

        return Client.load_from_json_file(str(path))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("ax") / "ax.json"
    assert ax_export.write(path, SPACE, RECORDS) == [7]
    assert [file.name for file in path.parent.iterdir()] == ["ax.json"]
    return opened(path)


def test_ax_opens_it_with_space_goal_and_constraint(client: Any) -> None:
    experiment = client._experiment
    assert experiment.name == "case"
    assert set(experiment.search_space.parameters) == {
        *("stage2__optimizer__lr", "stage2__max_steps", "saliency", "saliency__k"),
    }
    lr = experiment.search_space.parameters["stage2__optimizer__lr"]
    assert (lr.lower, lr.upper, lr.log_scale) == (1e-3, 1e-1, True)
    config = experiment.optimization_config
    assert config.objective.minimize
    assert [str(c.metric_names if hasattr(c, "metric_names") else c) for c in config.outcome_constraints]


@pytest.mark.filterwarnings("ignore")  # pandas', of how Ax reads its own data
def test_every_trial_is_there_under_its_index(client: Any) -> None:
    trials = {t.arm.name: t for t in client._experiment.trials.values()}
    assert {name: t.status.name for name, t in trials.items()} == {
        "trial-0": "COMPLETED",
        "trial-1": "COMPLETED",
        "trial-2": "FAILED",
        "trial-3": "RUNNING",
        "trial-4": "ABANDONED",
        "trial-5": "COMPLETED",
        "trial-6": "RUNNING",
    }
    assert trials["trial-1"].arm.parameters == {
        "stage2__optimizer__lr": 1e-2,
        "stage2__max_steps": 8,
        "saliency": True,
        "saliency__k": 0.1,
    }
    data = client._experiment.lookup_data().df
    first = data[data["arm_name"] == "trial-0"].set_index("metric_name")
    assert first.loc["final_loss", ["mean", "sem"]].tolist() == [3.0, 0.1]
    assert first.loc["peak_memory_gib", "mean"] == 2.0


def test_a_space_that_ax_refuses_is_one_line(tmp_path: Path) -> None:
    narrow = Range(name="lr", min=1.0, max=1.0 + 1e-9, kind="float")
    with pytest.raises(InputError, match="Ax refuses") as caught:
        ax_export.write(
            tmp_path / "ax.json", replace(SPACE, parameters=(narrow,), outcome_constraints=()), []
        )
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_repeats_of_a_configuration_are_trials_of_one_arm(tmp_path: Path) -> None:
    repeats = [record(i, **{"stage2.max_steps": 7, "seed": i}) for i in range(3)]
    assert ax_export.write(tmp_path / "ax.json", SPACE, [*repeats, record(3)]) == []
    trials = opened(tmp_path / "ax.json")._experiment.trials.values()
    assert [trial.arm.name for trial in trials] == ["trial-0", "trial-0", "trial-0", "trial-3"]
