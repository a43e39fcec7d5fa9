"""Keys of stages, and what a record says of them: pure functions."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.programs import process
from sweeps.programs.kinds import program_of
from sweeps.programs.signals import Stop
from sweeps.space.definition import Choice, Fixed, Objective, Program, Range, Space, Stage, Trunk
from sweeps.stages import stage_runs
from sweeps.stages.stage_runs import Reported
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun
from trainer import api
from trainer.errors import ConfigError

KEY, OTHER = "a" * 64, "b" * 64

SPACE = Space(
    name="three",
    objectives=(Objective(metric="loss"),),
    parameters=(
        Range(name="a.lr", min=1e-4, max=1.0, kind="float", log=True),
        Range(name="b.steps", min=1, max=100, kind="int"),
        Choice(name="c.mode", values=("x", "y")),
        Fixed(name="seed", value=0),
    ),
    program=Program(kind="command", command=("train", "${overrides}")),
    stages=(
        Stage(name="a", parameters=("a.*", "seed"), cost="1"),
        Stage(name="b", parameters=("b.*",), cost="b.steps"),
        Stage(name="c", parameters=("c.*",), cost="1"),
    ),
)

trials = st.fixed_dictionaries(
    {
        "a.lr": st.sampled_from([0.1, 0.1 + 1e-16, 0.25, 1.0]),
        "b.steps": st.integers(1, 3),
        "c.mode": st.sampled_from(["x", "y"]),
        "seed": st.just(0),
    }
)


@given(trials, trials)
def test_keys_are_equal_iff_parameters_until_there_are(one, two) -> None:
    first, second = program_of(SPACE).shared_keys(one).ends, program_of(SPACE).shared_keys(two).ends
    assert list(first) == ["a", "b"]  # nobody starts after the last one
    assert (first["a"] == second["a"]) == (one["a.lr"] == two["a.lr"])
    same = one["a.lr"] == two["a.lr"] and one["b.steps"] == two["b.steps"]
    assert (first["b"] == second["b"]) == same
    assert len({*first.values(), *second.values()} & {first["a"]}) == 1
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in first.values())


def test_a_key_belongs_to_one_program() -> None:
    parameters = {"a.lr": 0.1, "b.steps": 1, "c.mode": "x", "seed": 0}
    spaces = [
        SPACE,
        replace(SPACE, program=replace(SPACE.program, command=("train", "--fast", "${overrides}"))),
        replace(SPACE, program=Program(kind="function", function="m:f")),
        replace(SPACE, program=Program(kind="function", function="m:g")),
    ]
    assert len({program_of(space).shared_keys(parameters).ends["a"] for space in spaces}) == len(spaces)
    renamed = replace(SPACE, name="again", run_cap=3, objectives=(Objective(metric="accuracy"),))
    assert program_of(renamed).shared_keys(parameters).ends == program_of(SPACE).shared_keys(parameters).ends


@dataclass(frozen=True, kw_only=True)
class LaterProgram(Program):
    """Program with a field that a later version has added."""

    timeout_s: float | None = None


def test_keys_stay_the_same_in_later_versions() -> None:
    """Old and new workers of one sweep share stages: change these keys only with what programs compute."""
    space = replace(
        SPACE,
        stages=(
            Stage(name="a", parameters=("a.*",), cost="1"),
            Stage(name="b", parameters=("b.*",), cost="b.steps", trunk=Trunk(length="b.steps", decay=0.25)),
        ),
    )
    later = replace(space, program=LaterProgram(kind="command", command=space.program.command))
    for each in (space, later):
        keys = program_of(each).shared_keys({"a.lr": 0.5, "b.steps": 80})
        assert keys.ends == {"a": "81f593ada0b4dca9a1087345c31e263988743840d1d60c79727017a394b29c06"}
        trunk = keys.trunks["b"]
        assert trunk.key == "2ca575cb2d7620f56868b9555cf9b3f810df3100836a81a3e5fd5bbad5738913"
        assert trunk.until == 60


def test_key_ignores_order_and_inactive_parameters() -> None:
    one = {"a.lr": 0.1, "b.steps": 1, "c.mode": "x", "seed": 0}
    assert (
        program_of(SPACE).shared_keys(dict(reversed(one.items()))).ends
        == program_of(SPACE).shared_keys(one).ends
    )
    del one["c.mode"]
    assert len(program_of(SPACE).shared_keys(one).ends) == 2


@pytest.mark.parametrize(
    "space",
    [
        replace(SPACE, stages=()),
        replace(SPACE, stages=SPACE.stages[:1]),
        replace(SPACE, search=replace(SPACE.search, reuse="none")),
        replace(SPACE, parameters=SPACE.parameters[:1]),
    ],
    ids=["no stages", "one stage", "reuse: none", "nothing to share"],
)
def test_a_sweep_that_shares_nothing_has_no_keys(space) -> None:
    assert program_of(space).shared_keys({"a.lr": 0.1, "b.steps": 1, "c.mode": "x", "seed": 0}).ends == {}


TRAINER = replace(
    SPACE,
    program=Program(kind="trainer", overrides=("model=tiny",)),
    parameters=(
        Choice(name="stage1_9.max_steps", values=(10, 20)),
        Choice(name="stage2.optimizer.lr", values=(0.1, 0.2)),
    ),
    stages=(
        Stage(name="stage1_9", parameters=("stage1_9.*",)),
        Stage(name="stage2", parameters=("stage2.*",)),
    ),
)
OF_THE_TRAINER = {"stage1_9.max_steps": 10, "stage2.optimizer.lr": 0.1}


def test_the_trainer_says_itself_what_its_stages_depend_on(monkeypatch) -> None:
    asked = []

    class Composition:
        def __init__(self, overrides):
            asked.append(overrides)

        def stage_keys(self):
            return {"another": OTHER, "stage1_9": KEY}

    monkeypatch.setattr(api, "Composition", Composition)
    assert program_of(TRAINER).shared_keys(OF_THE_TRAINER).ends == {"stage1_9": KEY}
    assert asked == [["model=tiny", "stage1_9.max_steps=10", "stage2.optimizer.lr=0.1"]]


def test_a_configuration_that_the_trainer_refuses_has_no_keys(monkeypatch) -> None:
    """The program itself is about to refuse it, with its own words in the record."""

    def refuse(overrides):
        raise ConfigError("stage2.max_steps: 0 is too few")

    monkeypatch.setattr(api, "Composition", refuse)
    assert program_of(TRAINER).shared_keys(OF_THE_TRAINER).ends == {}


def test_trainer_writes_checkpoints_only_if_shared(tmp_path, monkeypatch) -> None:
    started = []

    def start(argv, **options):
        started.append([word for word in argv if word.startswith("snapshots.")])
        return 1

    monkeypatch.setattr(process, "run", start)
    record = Trial(trial=0, status="running", parameters=OF_THE_TRAINER, generator="grid", worker="w")
    for shared in (True, False):
        program_of(TRAINER).run(record, tmp_path, stop=Stop(), wants_stop=lambda: False, snapshots=shared)
    assert started == [["snapshots.write=true"], []]


# ---- what programs report


def test_what_a_result_says_of_its_stages_is_kept() -> None:
    document = [
        {"name": "a", "key": KEY, "reused": True, "cost": 200, "seconds": 9.5, "usd": 0.25, "more": [1]},
        {"name": "b", "key": "", "reused": False, "cost": 60, "seconds": 3, "usd": None},
    ]
    assert stage_runs.parse(document, "result.json") == (
        Reported(name="a", key=KEY, reused=True, cost=200.0, seconds=9.5, usd=0.25),
        Reported(name="b", cost=60.0, seconds=3.0),
    )
    assert stage_runs.parse(None, "result.json") == ()


UNFIT_STAGES = {
    "a text": "stage1_9",
    "an object": {"name": "a"},
    "a number": 3,
    "no objects": ["a"],
    "no name": [{"key": KEY}],
    "an empty name": [{"name": ""}],
    "a name that is no text": [{"name": 3}],
    "a name of a thousand characters": [{"name": "a" * 1000}],
    "a name of two lines": [{"name": "a\nb"}],
    "half a surrogate pair": [{"name": "\ud800"}],
    "one name twice": [{"name": "a"}, {"name": "a"}],
}


@pytest.mark.parametrize("name", UNFIT_STAGES)
def test_stages_that_cannot_be_read_are_ignored_with_one_line(name, caplog) -> None:
    assert stage_runs.parse(UNFIT_STAGES[name], "RUN/result.json") == ()
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("RUN/result.json: stages ")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "3", True, None, [], 10**400, {}])
def test_what_is_no_amount_counts_as_not_stated(value) -> None:
    entry = {"name": "a", "key": value, "reused": value, "cost": value, "seconds": value, "usd": value}
    assert stage_runs.parse([entry], "result.json") == (Reported(name="a", reused=value is True),)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda t: st.lists(t) | st.dictionaries(st.sampled_from(["name", "key", "cost", "reused"]), t),
    )
)
def test_any_reported_stages_fit_a_record(document) -> None:
    for stage in stage_runs.finished(stage_runs.parse(document, "x"), {}, ("a",), {}, {}):
        assert 0 <= stage.cost < math.inf
        assert stage.key == ""


# ---- what a record says


def record(trial: int, *stages: StageRun) -> Trial:
    return Trial(trial=trial, status="completed", parameters={}, generator="sobol", stages=stages)


def stage(key: str = KEY, *, of: int | None = None, snapshot: bool = False) -> StageRun:
    return StageRun(name="a", key=key, cost=1.0, reused_from=of, snapshot=snapshot)


def test_publisher_is_itself_or_the_first_recorded() -> None:
    records = [
        record(0, stage(OTHER, snapshot=True)),
        record(1, stage()),
        record(2, stage(snapshot=True)),
        record(3, stage(snapshot=True)),
    ]
    assert stage_runs.publisher(records, KEY, 7).trial == 2
    assert stage_runs.publisher(records, KEY, 3).trial == 3
    assert stage_runs.publisher(records[:2], KEY, 7) is None


def test_origin_is_known_after_removal() -> None:
    assert stage_runs.origin([record(2, stage()), record(5, stage(snapshot=True))], KEY, 7) == 5
    assert stage_runs.origin([record(2, stage()), record(5, stage(of=2))], KEY, 7) == 2
    assert stage_runs.origin([record(5, stage(of=2))], KEY, 7) == 2
    assert stage_runs.origin([record(7, stage()), record(5, stage(of=7))], KEY, 7) is None
    assert stage_runs.origin([record(2, stage(OTHER))], KEY, 7) is None


RUN = StageRun(name="a", key=KEY, cost=5.0, reused_from=2, seconds=50.0, usd=1.0)


def finished(*reported: Reported, known: StageRun | None = RUN, costs=None, metrics=None) -> StageRun:
    runs = {} if known is None else {"a": known}
    (found, _) = stage_runs.finished(reported, runs, ("a", "b"), costs or {}, metrics or {})
    return found


def test_unreported_stage_is_as_fetched() -> None:
    assert finished() == RUN
    assert finished(costs={"a": 7.0, "b": 1.0}) == replace(RUN, cost=7.0)


def test_what_the_program_reports_comes_first() -> None:
    assert finished(Reported(name="a", key=KEY, reused=True, cost=9.0, seconds=3.0)) == replace(
        RUN, cost=9.0, seconds=3.0
    )
    computed = finished(Reported(name="a", key=KEY, reused=False))
    assert computed == replace(RUN, reused_from=None)  # it had a snapshot, and could not use it


def test_another_key_than_that_of_the_snapshot_is_another_stage() -> None:
    found = finished(Reported(name="a", key=OTHER, reused=False, cost=9.0), known=replace(RUN, snapshot=True))
    assert found == StageRun(name="a", key=OTHER, cost=9.0)


def test_seconds_stand_in_for_a_cost_that_nobody_states() -> None:
    assert finished(known=None, metrics={"seconds.a": 12.5}) == StageRun(
        name="a", key="", cost=12.5, seconds=12.5
    )
    assert finished(known=None, metrics={"seconds.a": math.nan, "loss": None}).cost == 0.0
    assert finished(known=None, costs={"a": 3.0}, metrics={"seconds.a": 12.5}).cost == 3.0


def test_stages_are_in_sweep_order_then_unknown_ones() -> None:
    reported = (Reported(name="c", cost=1.0), Reported(name="b", cost=2.0))
    stages = stage_runs.finished(reported, {}, ("a", "b"), {}, {})
    assert [run.name for run in stages] == ["a", "b", "c"]
    assert stage_runs.finished((), {}, (), {}, {}) == ()
