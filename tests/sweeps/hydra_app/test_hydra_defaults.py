"""An application's own values are the first trial of its sweep."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from forked import Forked

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore

# With a limit they run first, by the worker that has started the fork server for the others.
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def train(
    application: Path,
    environment: dict[str, str],
    forkserver: ForkServerContext,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Return a function that runs `train.py` with these arguments, and returns all that it printed."""
    for name in ("PYTHONPATH", "HYDRA_FULL_ERROR"):
        monkeypatch.setenv(name, environment[name])

    def train(*arguments: str) -> str:
        argv = ["train.py", "-m", "hydra/sweeper=stagesweep", "hydra.sweeper.method=random"]
        argv += ["hydra.sweeper.n_trials=1", *arguments]
        process = Forked(forkserver, "script", argv, cwd=application, folder=application)
        printed = "".join(process.communicate(timeout=100))
        assert process.returncode == 0, printed
        return printed

    return train


@pytest.mark.parametrize(
    ("argument", "first", "says"),
    [
        ("x=range(0,5)", {"x": 0, "model.kind": "a"}, "the first trial has the application's defaults"),
        ("x=range(1,5)", None, "defaults are not the first trial: x is 0, outside"),
        ("hydra.sweeper.baseline=none", None, ""),
    ],
)
def test_first_trial_has_the_applications_values(
    application: Path, train: Callable[..., str], argument: str, first: dict[str, object] | None, says: str
) -> None:
    more = [argument] if argument.startswith("x") else ["x=range(0,5)", argument]
    assert says in train("model.kind=choice(b,a)", *more)
    experiment = Experiment.open(LocalStore(str(application / "sweep-store" / "train")))
    assert experiment.space.baseline == first
    (trial,) = experiment.trials()
    assert (trial.generator == "baseline") == (first is not None)
    assert first is None or dict(trial.parameters) == first


def test_a_groups_default_is_its_choice(application: Path, train: Callable[..., str]) -> None:
    conf = application / "conf"
    for folder in ("db", "db/engine"):
        (conf / folder).mkdir()
        for option in "ab":
            (conf / folder / f"{option}.yaml").write_text(f"name: {option}\n")
    written = (conf / "train.yaml").read_text()
    (conf / "train.yaml").write_text(f"defaults: [db/engine: b, db@backup: b, _self_]\n{written}")
    train("db/engine=choice(a,b)", "db@backup=choice(a,b)")
    experiment = Experiment.open(LocalStore(str(application / "sweep-store" / "train")))
    assert experiment.space.baseline == {"db/engine": "b", "db@backup": "b"}


def test_group_that_the_configuration_lacks_is_searched(application: Path, train: Callable[..., str]) -> None:
    """The usual way of experiments, which are no part of the primary configuration."""
    (application / "conf" / "experiment").mkdir()
    for option, x in (("near", 3), ("far", 5)):
        text = f"# @package _global_\nx: {x}\n"
        (application / "conf" / "experiment" / f"{option}.yaml").write_text(text)
    train("+experiment=near,far", "+model.dropout=interval(0.1,0.5)", "hydra.sweeper.n_trials=3")
    experiment = Experiment.open(LocalStore(str(application / "sweep-store" / "train")))
    assert experiment.space.defaults == "unknown"
    found = {record.parameters["experiment"]: record.metrics["objective"] for record in experiment.trials()}
    assert found == {"near": 1.0, "far": 9.0}
    config = next((application / "sweep-store").glob("train/runs/000000/attempt-1/.hydra/config.yaml"))
    assert f"dropout: {experiment.trials()[0].parameters['model.dropout']!r}\n" in config.read_text()
