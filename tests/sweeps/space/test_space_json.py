"""Spaces and trials as they are stored: JSON loses nothing, and what is stored with schema 1 loads."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.space.definition import (
    Brake,
    Budget,
    Choice,
    EarlyTerminate,
    Fixed,
    Lease,
    Objective,
    Parameter,
    Program,
    Range,
    Search,
    Snapshots,
    Space,
    Stage,
    Value,
    same_value,
)
from sweeps.space.space_json import from_json, problem, read, to_json
from sweeps.trials.record import Attempt, Trial, decode, encode

GOLDEN = Path(__file__).parents[2] / "golden"

words = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**53), 2**53)
counts = st.integers(0, 2**53)
above_0 = st.floats(1e-6, 1e6)
values: st.SearchStrategy[Value] = st.one_of(st.booleans(), integers, floats, words)
value_lists = st.one_of(
    st.lists(kind, min_size=2, max_size=4) for kind in (st.booleans(), integers, floats, words)
)


@st.composite
def parameters(draw: st.DrawFn, name: str) -> Parameter:
    kind = draw(st.sampled_from(["int", "float", "choice", "fixed"]))
    if kind == "fixed":
        return Fixed(name=name, value=draw(values))
    if kind == "choice":
        listed = tuple(draw(value_lists))
        when = tuple((value, (draw(words),)) for value in listed if draw(st.booleans()))
        return Choice(name=name, values=listed, ordered=draw(st.booleans()), when=when)
    number = integers if kind == "int" else floats
    low, high = sorted((draw(number), draw(number)))
    return Range(
        name=name, min=low, max=high, kind="int" if kind == "int" else "float", log=draw(st.booleans())
    )


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    baseline = draw(st.none() | st.dictionaries(words, values, max_size=3))
    return Space(
        name=draw(words),
        objectives=tuple(
            Objective(metric=metric, goal=draw(st.sampled_from(["minimize", "maximize"])))
            for metric in draw(st.lists(words, min_size=1, max_size=3))
        ),
        parameters=tuple(draw(parameters(name)) for name in names),
        program=Program(
            kind=draw(st.sampled_from(["trainer", "command", "function"])),
            overrides=tuple(draw(st.lists(words, max_size=2))),
            command=tuple(draw(st.lists(words, max_size=2))),
            function=draw(words),
            processes=draw(st.integers(1, 8)),
            nodes=draw(st.integers(1, 8)),
            devices=draw(st.integers(1, 8)),
        ),
        outcome_constraints=tuple(draw(st.lists(words, max_size=2))),
        parameter_constraints=tuple(draw(st.lists(words, max_size=2))),
        search=Search(
            method=draw(st.sampled_from(["bayes", "random"])),
            sobol=draw(counts),
            seed=draw(counts),
            noise=draw(st.sampled_from(["inferred", "reported"]) | st.floats(1e-6, 10.0)),
            reuse=draw(st.sampled_from(["auto", "none"])),
        ),
        run_cap=draw(st.none() | st.integers(1, 10**6)),
        baseline=None if baseline is None else MappingProxyType(baseline),
        lease=Lease(heartbeat_s=draw(above_0), expire_s=draw(above_0), max_attempts=draw(counts)),
        budget=Budget(
            effective_steps=draw(st.none() | above_0),
            device_hours=draw(st.none() | above_0),
            usd=draw(st.none() | above_0),
            wall_hours=draw(st.none() | above_0),
        ),
        brake=Brake(first=draw(st.integers(0, 9)), later=draw(st.integers(0, 9))),
        early_terminate=draw(
            st.none()
            | st.builds(
                EarlyTerminate,
                type=st.sampled_from(["percentile", "curve"]),
                percentile=floats,
                min_trials=integers,
                min_step=floats,
                margin=floats,
            )
        ),
        stages=tuple(
            Stage(name=name, parameters=tuple(draw(st.lists(words, max_size=2))), cost=draw(words))
            for name in draw(st.lists(words, max_size=3))
        ),
        snapshots=Snapshots(keep=draw(st.integers(1, 9)), keep_gib=draw(st.none() | above_0)),
    )


@given(spaces())
def test_the_way_through_json_loses_nothing(space: Space) -> None:
    back = from_json(json.loads(json.dumps(to_json(space), allow_nan=False)))
    assert back == space
    assert repr(back) == repr(space)  # == takes True for 1 and 1.0


def test_default_brake_is_not_written(space: Space) -> None:
    assert "brake" not in to_json(space)
    assert to_json(dataclasses.replace(space, brake=Brake(first=0)))["brake"] == {"first": 0, "later": 5}


def test_stages_and_snapshots_are_written_only_if_set(space: Space) -> None:
    document = to_json(space)
    assert {"stages", "snapshots"}.isdisjoint(document)
    assert "reuse" not in document["search"]
    sharing = dataclasses.replace(
        space,
        stages=(Stage(name="a", parameters=("x", "b.*"), cost="2*n"), Stage(name="b", parameters=())),
        snapshots=Snapshots(keep=3),
        search=Search(reuse="none"),
    )
    document = json.loads(json.dumps(to_json(sharing)))
    assert document["stages"] == [
        {"name": "a", "parameters": ["x", "b.*"], "cost": "2*n"},
        {"name": "b", "parameters": [], "cost": ""},
    ]
    assert document["snapshots"] == {"keep": 3, "keep_gib": None}
    assert from_json(document) == sharing


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"stages": [{"name": "", "parameters": []}]}, "a stage has no name"),
        ({"stages": [{"name": "a", "parameters": [3]}]}, "stages[0].parameters[0] is 3, not a text"),
        ({"stages": [{"name": "a", "parameters": [], "cost": 3}]}, "stages[0].cost is 3, not a text"),
        ({"stages": [{"name": "a", "parameters": [], "cost": "n*n"}]}, "cost 'n*n': `n*n` is not linear"),
        ({"snapshots": {"keep": 0}}, "snapshots.keep is 0, not an integer from 1"),
        ({"brake": {"first": -1}}, "brake.first is -1, not an integer from 0"),
        ({"search": {"stop": {"expected_gain": 0.0}}}, "expected_gain is 0.0, not a finite number above 0"),
        ({"snapshots": {"keep": True}}, "snapshots.keep is True, not an integer"),
        ({"snapshots": {"keep_gib": -1.0}}, "snapshots.keep_gib is -1.0"),
        ({"snapshots": {"keep_gib": "all"}}, "snapshots.keep_gib is 'all'"),
        ({"search": {"reuse": "always"}}, "search.reuse is 'always'"),
    ],
    ids=lambda part: part if isinstance(part, str) else str(part)[:60],
)
def test_an_edited_sweep_with_wrong_stages_is_named(edit: dict[str, object], says: str) -> None:
    document = json.loads((GOLDEN / "sweep_v1.json").read_text())["space"]
    assert problem(from_json(document)) is None
    with pytest.raises(ValueError, match=re.escape(says)):
        read(json.dumps({"schema": 1, "space": document | edit}).encode())


def test_margin_is_written_only_for_the_curve_rule(space: Space) -> None:
    percentile = dataclasses.replace(space, early_terminate=EarlyTerminate())
    assert "margin" not in to_json(percentile)["early_terminate"]
    curve = dataclasses.replace(space, early_terminate=EarlyTerminate(type="curve"))
    assert to_json(curve)["early_terminate"]["margin"] == 0.005
    assert from_json(json.loads(json.dumps(to_json(curve)))) == curve


@pytest.mark.parametrize(
    "damage",
    [
        {"parameters": [{"type": "surprise", "name": "x"}]},
        {"parameters": [{"type": "range", "name": "x"}]},
        {"objectives": [{"goal": "minimize"}]},
        {"search": {"speed": 9}},
        {"lease": None},
        {"unknown": 1},
        {"stages": [{"name": "a"}]},
        {"stages": [3]},
        {"snapshots": {"kep": 3}},
    ],
    ids=["type", "missing", "objective", "search", "lease", "field", "stage", "no_stage", "snapshots"],
)
def test_damaged_space_raises_lookup_type_or_value_error(damage: dict[str, object]) -> None:
    document = json.loads((GOLDEN / "sweep_v1.json").read_text())["space"]
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(document | damage)


@pytest.mark.parametrize("key", ["name", "objectives", "parameters", "program", "search", "lease"])
def test_space_without_what_is_always_written_is_damaged(key: str) -> None:
    document = json.loads((GOLDEN / "sweep_v1.json").read_text())["space"]
    with pytest.raises((KeyError, ValueError)):
        from_json({name: value for name, value in document.items() if name != key})


def test_a_sweep_stored_with_schema_1_still_loads() -> None:
    document = json.loads((GOLDEN / "sweep_v1.json").read_text())
    assert document["schema"] == 1
    space = from_json(document["space"])
    assert space == Space(
        name="golden",
        objectives=(
            Objective(metric="final_loss", goal="minimize"),
            Objective(metric="tokens_per_second", goal="maximize"),
        ),
        parameters=(
            Range(name="stage1_9.optimizer.lr", min=0.001, max=0.008, kind="float", log=True),
            Range(name="stage1_9.max_steps", min=50, max=1000, kind="int"),
            Choice(
                name="stage1_9.saliency.enabled",
                values=(True, False),
                when=((True, ("stage1_9.saliency.initial_k",)),),
            ),
            Choice(name="stage1_9.saliency.initial_k", values=(0.05, 0.1, 0.15, 0.2), ordered=True),
            Choice(name="stage2.optimizer.type", values=("muon", "adamw")),
            Fixed(name="stage2.max_steps", value=200),
        ),
        program=Program(kind="trainer", overrides=("model=tiny", "data=stdlib")),
        outcome_constraints=("peak_memory_gib <= 40",),
        parameter_constraints=(),
        search=Search(method="bayes", sobol=12, seed=7),
        run_cap=30,
        baseline={
            "stage1_9.optimizer.lr": 0.003,
            "stage1_9.max_steps": 200,
            "stage1_9.saliency.enabled": False,
            "stage2.optimizer.type": "muon",
            "stage2.max_steps": 200,
        },
        lease=Lease(heartbeat_s=30.0, expire_s=90.0, max_attempts=3),
    )
    assert document["space"].items() <= json.loads(json.dumps(to_json(space))).items()  # fields may be added


def test_sobol_is_stored_only_where_the_space_gives_it() -> None:
    space = from_json(json.loads((GOLDEN / "sweep_v1_stages.json").read_text())["space"])
    for sobol in (None, 12):
        document = to_json(dataclasses.replace(space, search=dataclasses.replace(space.search, sobol=sobol)))
        assert document["search"].get("sobol") == sobol
        assert from_json(document).search.sobol == sobol


def test_a_sweep_stored_with_stages_still_loads() -> None:
    document = json.loads((GOLDEN / "sweep_v1_stages.json").read_text())["space"]
    space = from_json(document)
    assert problem(space) is None
    assert (space.search.reuse, space.snapshots) == ("none", Snapshots(keep=3))
    assert space.stages == (
        Stage(name="stage1_9", parameters=("stage1_9.max_steps",), cost="2*stage1_9.max_steps"),
        Stage(name="stage2", parameters=("stage2.*",), cost="stage2.max_steps"),
    )
    assert document.items() <= json.loads(json.dumps(to_json(space))).items()  # fields may be added


def test_a_trial_stored_with_schema_1_still_loads() -> None:
    data = (GOLDEN / "trial_v1.json").read_bytes()
    record = decode(data)
    assert dataclasses.asdict(
        dataclasses.replace(record, parameters={}, metrics={}, predicted={}, progress={})
    ) == dataclasses.asdict(
        Trial(
            trial=12,
            status="completed",
            parameters={},
            generator="botorch",
            attempt=2,
            created=1795132800.25,
            started=1795132990.5,
            ended=1795133210.75,
            history=(
                Attempt(
                    attempt=1,
                    worker="gpu-3:4711:9f2c",
                    start=1795132801.0,
                    end=1795132952.0,
                    reason="expired",
                    detail="no heartbeat for 90 s",
                ),
                Attempt(
                    attempt=2,
                    worker="gpu-5:118:01ab",
                    start=1795132990.5,
                    end=1795133210.75,
                    reason="completed",
                ),
            ),
            write="5b0f6f0c9a3e4b6d",
        )
    )
    assert dict(record.parameters) == {
        "stage1_9.optimizer.lr": 0.00317,
        "stage1_9.max_steps": 212,
        "stage1_9.saliency.enabled": False,
        "stage2.optimizer.type": "muon",
        "stage2.max_steps": 200,
    }
    assert same_value(record.parameters["stage1_9.saliency.enabled"], False)
    assert dict(record.metrics) == {
        "final_loss": 6.3,
        "final_loss_sem": 0.021,
        "tokens_per_second": 4950.0,
        "usd": None,
    }
    assert dict(record.progress) == {"step": 200.0, "loss": 6.41, "done": 1.0}
    assert json.loads(data).items() <= json.loads(encode(record, record.write)).items()  # fields may be added
