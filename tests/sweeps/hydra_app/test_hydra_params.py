"""Parameters of a Hydra configuration as those of a search space; wrong ones are refused in one line."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import golden_messages
import pytest

from sweeps.errors import InputError
from sweeps.hydra_app import app
from sweeps.hydra_app.params import read
from sweeps.hydra_app.settings import StageSweeperConf
from sweeps.hydra_app.sweeping import space_of
from sweeps.space.definition import Choice, Fixed, Range, Snapshots, Stage

SEARCHED = [
    ("x=interval(1e-4,1e-2)", {"min": 1e-4, "max": 1e-2}),
    ("x=interval(1,5)", {"min": 1.0, "max": 5.0}),  # Hydra's intervals are of floats
    ("x=int(interval(1,5))", {"min": 1, "max": 5}),
    (
        "x=tag(log,interval(1e-4,1e-2))",
        {"min": 1e-4, "max": 1e-2, "distribution": "log_uniform_values"},
    ),
    ("x=tag(log,int(interval(1,64)))", {"min": 1, "max": 64, "distribution": "int_log_uniform"}),
    ("x=range(1,5)", {"min": 1, "max": 4}),
    ("x=range(1,10,3)", {"values": [1, 4, 7], "ordered": True}),
    ("x=range(0,1,0.25)", {"values": [0.0, 0.25, 0.5, 0.75], "ordered": True}),
    ("x=range(1,2)", {"value": 1}),
    ("x=choice(a,b)", {"values": ["a", "b"]}),
    ("x='a b',c", {"values": ["a b", "c"]}),
    ("x=1,2,4", {"values": [1, 2, 4], "ordered": True}),
    ("x=1,0.5", {"values": [1.0, 0.5]}),
    ("x=true,false", {"values": [True, False]}),
    ("x=sort(3,1,2)", {"values": [1, 2, 3], "ordered": True}),
    ("x=shuffle(1,2,3,4,5,6,7,8)", {"values": [1, 2, 3, 4, 5, 6, 7, 8], "ordered": True}),
    ("x=shuffle(range(1,16,2))", {"values": [1, 3, 5, 7, 9, 11, 13, 15], "ordered": True}),
]


@pytest.mark.parametrize(("override", "expected"), SEARCHED, ids=[text for text, _ in SEARCHED])
def test_overrides_become_parameters(override: str, expected: dict[str, Any]) -> None:
    assert read({}, [override], None) == ({"x": expected}, [])
    # The same under hydra.sweeper.params, as for the Optuna sweeper.
    assert read({"x": override.removeprefix("x=")}, [], None) == ({"x": expected}, [])


AX = [
    ({"type": "range", "bounds": [1, 5]}, {"min": 1, "max": 5}),
    ({"type": "range", "bounds": [1, 5], "value_type": "float"}, {"min": 1.0, "max": 5.0}),
    (
        {"type": "range", "bounds": [1e-4, 0.1], "log_scale": True},
        {"min": 1e-4, "max": 0.1, "distribution": "log_uniform_values"},
    ),
    ({"type": "range", "bounds": [1.0, 5.0], "value_type": "int"}, {"min": 1, "max": 5}),
    ({"type": "choice", "values": ["a", "b"]}, {"values": ["a", "b"]}),
    ({"type": "choice", "values": [2, 1], "is_ordered": True}, {"values": [2, 1], "ordered": True}),
    ({"type": "fixed", "value": 3}, {"value": 3}),
    ({"min": 1, "max": 5}, {"min": 1, "max": 5}),
    ([1, 2], {"values": [1, 2], "ordered": True}),
]


@pytest.mark.parametrize(("param", "expected"), AX, ids=[str(param) for param, _ in AX])
def test_dictionaries_are_axs_or_ours(param: Any, expected: dict[str, Any]) -> None:
    assert repr(read({"a.b": param}, [], None)) == repr(({"a.b": expected}, []))  # 1 is not 1.0 here


def test_command_line_precedes_the_file() -> None:
    params = {"x": "interval(0,1)", "y": "choice(a,b)", "z": 3, "w": "plain"}
    searched, fixed = read(params, ["x=5", "model=big", "z=choice(1,2)", "+new.key='a b'", "~gone"], None)
    assert searched == {"y": {"values": ["a", "b"]}, "z": {"values": [1, 2], "ordered": True}}
    assert fixed == ["w=plain", "x=5", "model=big", "+new.key='a b'", "~gone"]


def test_key_that_the_configuration_lacks_is_added_first() -> None:
    searched, fixed = read({}, ["+experiment=a,b", "++x=interval(0.5,1)", "+layers=[1,2],[3]"], None)
    assert list(searched) == ["experiment", "x", "layers"]
    assert searched["experiment"] == {"values": ["a", "b"]}
    assert fixed == ["+experiment=a", "++x=0.5", "+layers=[1,2]"]


REFUSED: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({}, ["~x=choice(1,2)"]),
    ({}, ["x=tag(warm,interval(0,1))"]),
    ({}, ["x=tag(log,choice(1,2))"]),
    ({}, ["x=choice({a:1},{a:2})"]),
    ({}, ["x=${base_lr},0.1"]),
    ({}, ["x=choice('runs/${seed}',other)"]),
    ({}, ["x=[${base_lr},1],[2,3]"]),
    ({"x": None}, []),
    ({"x": {"type": "range", "bounds": [1]}}, []),
    ({"x": {"type": "range", "bounds": [1, 2], "digits": 3}}, []),
    ({"x": {"type": "range", "bounds": ["a", "b"], "value_type": "float"}}, []),
    ({"x": {"type": "range", "bounds": [None, 1]}}, []),
    ({"x": {"type": "range", "bounds": [0.5, 2], "value_type": "int"}}, []),
    ({"x": {"type": "range", "bounds": [1, 2], "value_type": "str"}}, []),
    ({"x": {"type": "range", "bounds": [1, 2], "log_scale": "false"}}, []),
    ({"x": {"type": "choice", "values": "abc"}}, []),
    ({"x": {"type": "choice", "values": 3}}, []),
    ({"x": {"type": "normal"}}, []),
)


def test_what_hydra_cannot_read_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^[^\n]*interval[^\n]*$"):
        read({}, ["x=interval(1,"], None)


def test_what_cannot_be_searched_is_refused_as_the_page_says() -> None:
    calls = {
        f"params: {params}, {' '.join(arguments)}".rstrip(", "): partial(read, params, arguments, None)
        for params, arguments in REFUSED
    }
    golden_messages.compare_refusals("Parameters of a Hydra application", InputError, calls)


def settings(**changed: Any) -> dict[str, Any]:
    plain = asdict(StageSweeperConf()) | {"name": "my app"} | changed
    plain.pop("_target_")
    return plain


@pytest.fixture
def started_by_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__file__, main.__spec__ = "train.py", None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "-cn", "other", "--config-dir=more", "x=1"])


@pytest.mark.usefixtures("started_by_a_script")
class TestSpace:
    def test_texts_that_look_like_numbers_stay_texts(self) -> None:
        texts = ("1e5", "nan", "0o17", "x")
        searched = {"run": {"values": list(texts)}, "n": {"values": [1, 2], "when": {2: ["k"]}}}
        space = space_of(settings(metric=["loss"]), {**searched, "k": {"min": 1e-5, "max": 1.0}}, [], [])
        assert space.parameter("run") == Choice(name="run", values=texts)
        assert space.parameter("n") == Choice(name="n", values=(1, 2), when=((2, ("k",)),))

    def test_settings_are_a_search_space_file_in_other_words(self) -> None:
        space = space_of(
            settings(
                metric=["loss", "score"],
                direction=["minimize", "maximize"],
                n_trials=7,
                method="random",
                seed=3,
                outcome_constraints=["score >= 0.5"],
                baseline={"lr": 0.01},
                lease={"expire_s": 120},
                budget={"wall_hours": 2},
                brake={"first": 0},
            ),
            {"lr": {"min": 1e-3, "max": 0.1}, "kind": {"values": ["a", "b"]}, "n": {"value": 2}},
            ["model=big"],
            ["hydra/sweeper=stagesweep", "hydra.sweeper.n_trials=7", "hydra.verbose=true"],
        )
        assert (space.name, space.run_cap) == ("my-app", 7)
        assert [(o.metric, o.goal) for o in space.objectives] == [("loss", "minimize"), ("score", "maximize")]
        assert space.parameters == (
            Range(name="lr", min=1e-3, max=0.1, kind="float"),
            Choice(name="kind", values=("a", "b")),
            Fixed(name="n", value=2),
        )
        assert (space.search.method, space.search.seed) == ("random", 3)
        assert (space.lease.expire_s, space.budget.wall_hours) == (120, 2)
        assert (space.brake.first, space.brake.later) == (0, 5)
        assert space.baseline is not None
        assert space.baseline["lr"] == 0.01
        assert space.program.command == (
            "${python}",
            "train.py",
            "--config-name=other",
            "--config-dir=more",
            "hydra.mode=RUN",
            "hydra.run.dir=${oc.env:SWEEP_RUN_DIR}",
            "+hydra.callbacks.stagesweep={_target_:sweeps.hydra_app.callback.WriteResult,metrics:[loss,score]}",
            "hydra.verbose=true",
            "model=big",
            "${overrides}",
        )

    @pytest.mark.parametrize("metric", [None, "", []])
    def test_a_metric_without_a_name_is_refused(self, metric: Any) -> None:
        with pytest.raises(InputError, match="metric: is empty"):
            space_of(settings(metric=metric), {"x": {"min": 0.0, "max": 1.0}}, [], [])

    def test_stages_of_the_application_are_read_as_in_a_file(self) -> None:
        entries = [
            {"name": "a", "parameters": ["n"], "cost": "2*n"},
            {"name": "b", "parameters": ["*"], "cost": 9},
        ]
        space = space_of(
            settings(stages=entries, snapshots={"keep": 3, "keep_gib": None}, reuse="none"),
            {"lr": {"min": 1e-3, "max": 0.1}, "n": {"value": 2}},
            [],
            [],
        )
        assert space.stages == (
            Stage(name="a", parameters=("n",), cost="2*n"),
            Stage(name="b", parameters=("*",), cost="9"),
        )
        assert (space.snapshots, space.search.reuse) == (Snapshots(keep=3), "none")

    def test_wrong_settings_are_refused_as_the_page_says(self) -> None:
        mistakes: tuple[dict[str, Any], ...] = (
            *(
                {"direction": "up"},
                {"direction": ["minimize", "maximize"]},
                {"n_trials": 0},
                {"method": "tpe"},
            ),
            *(
                {"lease": {"expire_s": -1}},
                {"parameter_constraints": ["lr <= q"]},
                {"snapshots": {"keep": 3}},
            ),
            {"stages": [{"name": "a", "parameters": ["lr"]}]},
        )
        calls = {
            str(changed): partial(space_of, settings(**changed), {"lr": {"min": 0.1, "max": 0.2}}, [], [])
            for changed in mistakes
        }
        refused = golden_messages.compare_refusals("Settings of hydra.sweeper", InputError, calls)
        assert all(str(error).startswith("hydra.sweeper") for error in refused.values())


def test_what_a_worker_would_replace_is_refused_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application's own key of that name is what Hydra itself would put there."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("package.train.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    overrides = ("ckpt=${run_dir}/ckpt", "tag=t${trial}", "path='${python} ${x}'")
    calls = {override: partial(app.command, ["m"], [override], [], []) for override in overrides}
    calls["hydra.job.name=${trial}"] = partial(app.command, ["m"], [], ["hydra.job.name=${trial}"], [])
    golden_messages.compare_refusals("Overrides of a Hydra application", InputError, calls)
    kept = ["ckpt=${oc.select:run_dir}", "name=${trials}", "size=${model.size}"]
    # Not of a trial: Hydra's own sweeper alone reads it.
    assert app.command(["m"], kept, ["hydra.sweep.subdir=${trial}"], [])[-4:] == [*kept, "${overrides}"]


def test_a_module_and_a_command_are_started_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("package.train.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert app.command(["m"], [], [], [])[:3] == ["${python}", "-m", "package.train"]
    main.__spec__, main.__file__ = None, __file__
    monkeypatch.setattr(app.shutil, "which", lambda name: __file__)
    assert app.command(["m"], [], [], [])[0] == "test_hydra_params.py"
    del main.__file__
    with pytest.raises(InputError, match="file"):
        app.command(["m"], [], [], [])
