"""docs/how-to/python.md, docs/how-to/coming-from.md and the docstrings of `import sweeps`: their code is run as it stands."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import random
import re
from pathlib import Path

import pytest

import sweeps

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("how-to/python.md", "how-to/coming-from.md")
SPACE = {
    "name": "example",
    "objectives": [{"metric": "loss"}],
    "parameters": {"x": {"min": 0.0, "max": 1.0}},
    "search": {"method": "random"},
}
"""What the examples of the docstrings call SPACE."""


def sections(page: str) -> dict[str, list[str]]:
    """The Python blocks of each section with any, by its title."""
    text = (DOCS / page).read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    found = {
        part.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", part, re.M | re.S) for part in parts
    }
    return {title: blocks for title, blocks in found.items() if blocks}


GUIDE, OTHERS = (sections(page) for page in PAGES)
_TOP = (DOCS / PAGES[1]).read_text(encoding="utf-8").partition("\n## ")[0]
(COMMON,) = re.findall(r"^```python\n(.*?)^```", _TOP, re.M | re.S)
"""The search space of all of ours."""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SWEEP_STORAGE", "SWEEP_NAME"):
        monkeypatch.delenv(name, raising=False)


def run(block: str) -> dict:
    names: dict = {"__name__": "__main__"}
    exec(compile(block, "block", "exec"), names)
    return names


def test_the_guide_is_a_script(capsys):
    """Its sections follow one another: the later ones read the sweeps of the earlier."""
    assert len(GUIDE) == 5
    names = [run(block) for blocks in GUIDE.values() for block in blocks]
    assert {record.status for record in sweeps.open("sweep-store", "first").experiment.trials()} == {
        "completed"
    }
    assert len(sweeps.open("sweep-store", "loop").experiment.trials()) == 4
    results = next(each for each in names if "table" in each)
    assert results["best"].metrics["loss"] == results["table"]["loss"].min()
    assert names[-1]["winner"].trial == names[-1]["sweep"].best.trial
    assert "Result(trial=" in capsys.readouterr().out


@pytest.mark.parametrize("tool", OTHERS)
def test_ours_runs(tool, capsys):
    """Six trials, and the best of them is printed."""
    sweep = run(COMMON + OTHERS[tool][1])["sweep"]
    assert [record.status for record in sweep.experiment.trials()] == ["completed"] * 6
    assert "lr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tool", "module"),
    [("Optuna", "optuna"), pytest.param("Ax", "ax", marks=pytest.mark.slow), ("Ray Tune", "ray.tune")],
)
@pytest.mark.filterwarnings("ignore")
def test_theirs_runs_where_it_is_installed(tool, module, capsys):
    compile(OTHERS[tool][0], tool, "exec")
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    run(OTHERS[tool][0])
    assert "lr" in capsys.readouterr().out


def test_that_of_wandb_runs_without_its_server(monkeypatch):
    """Only what needs an account is replaced, with the signatures that wandb has."""
    wandb = pytest.importorskip("wandb")
    logged, kept = [], {name: inspect.signature(getattr(wandb, name)) for name in ("sweep", "agent", "init")}
    given = {}

    class Run:
        config = {"lr": 0.01, "layers": 2}  # noqa: RUF012 - as wandb has it

        def __enter__(self):
            self.config = {"lr": random.uniform(1e-4, 1e-1), "layers": random.randint(1, 8)}
            return self

        def __exit__(self, *error): ...

        log = logged.append

    def sweep(*args, **kwargs):
        given.update(kept["sweep"].bind(*args, **kwargs).arguments["sweep"])
        return "id"

    def agent(*args, **kwargs):
        bound = kept["agent"].bind(*args, **kwargs).arguments
        for _ in range(bound["count"]):
            bound["function"]()

    for name, fake in (("sweep", sweep), ("agent", agent), ("init", lambda **settings: Run())):
        monkeypatch.setattr(wandb, name, fake)
    run(OTHERS["W&B sweeps"][0])
    ours = run(COMMON + OTHERS["W&B sweeps"][1])["sweep"]
    assert len(logged) == 6
    assert list(given["parameters"]) == [parameter.name for parameter in ours.experiment.space.parameters]


def public() -> dict[str, object]:
    """Everything that a user calls: functions, methods and properties, by name."""
    found: dict[str, object] = {"create": sweeps.create, "open": sweeps.open}
    for kind in (sweeps.Sweep, sweeps.Trial):
        found |= {f"{kind.__name__}.{name}": value for name, value in vars(kind).items() if name[0] != "_"}
    return {name: getattr(value, "fget", None) or value for name, value in found.items()}


PLAIN = {"Sweep.url", "Sweep.name", "Sweep.experiment"}
"""Whose one line says it."""


@pytest.mark.parametrize("name", sorted(public().keys() - PLAIN))
def test_every_public_name_has_an_example_that_runs(name):
    examples = doctest.DocTestFinder(recurse=False).find(public()[name], name, globs={"SPACE": SPACE})
    assert sum(len(example.examples) for example in examples) >= 2
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for example in examples:
        runner.run(example, out=said.append)
    assert "".join(said) == ""


def test_every_name_is_there_and_typed():
    from sweeps import _ORIGINS

    assert set(sweeps.__all__) == set(_ORIGINS) <= set(dir(sweeps))
    assert all(getattr(sweeps, name) is not None for name in sweeps.__all__)
    with pytest.raises(AttributeError, match="'creat'"):
        sweeps.creat  # noqa: B018
    assert (Path(sweeps.__file__).parent / "py.typed").exists()
    documented = (DOCS / "how-to" / "python.md").read_text(encoding="utf-8")
    assert [
        name for name in ("SweepError", "InputError", "NothingToAsk", "TrialLost") if name not in documented
    ] == []
