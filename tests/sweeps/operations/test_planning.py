"""Plans from finished sweeps: settings on a known ladder, the final sweep, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_messages
import numpy as np
import pytest

from sweeps.errors import InputError, SurrogateFailed
from sweeps.experiment import Experiment
from sweeps.operations.creation import create_sweep
from sweeps.operations.planning import Estimate, Plan, Setting, SourceSweep, make_plan
from sweeps.space import literals
from sweeps.space.definition import Fixed, Range
from sweeps.storage.urls import open_store
from sweeps.trials.lifecycle import Complete
from sweeps.trials.record import Attempt, encode, key
from sweeps.trials.stage_run import StageRun

pytestmark = pytest.mark.usefixtures("fewer_points")

Loss = Callable[[Mapping[str, Any], float], float]
PARAMETERS = {
    "lr": {"min": 1e-4, "max": 1e-1, "distribution": "log_uniform_values"},
    "layers": {"min": 1, "max": 20},
    "kind": {"values": ["x", "y", "z"]},
}


def loss(parameters: Mapping[str, Any], width: float) -> float:
    """The loss, best at lr = 0.02 / sqrt(width), 3 layers for each doubling, kind y."""
    away = math.log10(parameters["lr"]) - math.log10(0.02) + 0.5 * math.log10(width)
    deep = parameters["layers"] / 20 - 0.15 * math.log2(2 * width)
    return float(width**-0.1 + 0.1 * away**2 + 0.2 * deep**2 + 0.1 * (parameters["kind"] != "y"))


def finished(at: Path, width: float, trials: int = 14, of: Loss = loss, **keys: Any) -> Experiment:
    """A sweep of this width whose trials have completed."""
    space: dict[str, Any] = {
        "name": f"w{width}",
        "objectives": [{"metric": "loss"}],
        "program": {"function": "objectives_for_tests:paraboloid"},
        "parameters": {**PARAMETERS, "width": {"value": width}},
        "search": {"method": "random"},
        "run_cap": trials,
    }
    experiment = Experiment.create(open_store(str(at)), literals.space_of({**space, **keys}, "test"))
    for _ in range(trials):
        found = experiment.ask("worker", wait=lambda _: None)
        assert found is not None
        value = of(found.parameters, width)
        metrics = dict.fromkeys(experiment.space.metrics(), value) | {
            "train_flops": 1e12 * width**2,
            "train_seconds": 10.0 * width**2,
            "usd": 0.5 * width**2,
        }
        experiment.apply(found.trial, Complete(worker="worker", attempt=1, metrics=metrics))
    return experiment


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> list[Experiment]:
    folder = tmp_path_factory.mktemp("ladder")
    return [finished(folder / f"w{width}", width) for width in (4, 2, 1)]


@pytest.fixture(scope="module")
def plan(ladder: list[Experiment]) -> Plan:
    return make_plan(ladder, 8, measure="width")


def test_plan_follows_the_optima(plan):
    assert [source.size for source in plan.sources] == [1, 2, 4]
    assert plan.beyond == 2
    for name, best in (("lr", 0.02 / math.sqrt(8)), ("layers", 12)):
        low, high = plan.settings[name].interval
        assert low <= best <= high
    assert plan.settings["lr"].value == pytest.approx(0.02 / math.sqrt(8), rel=0.4)
    assert plan.settings["kind"].value == "y"
    falls = plan.settings["lr"].exponent  # the best is 0.02 / sqrt(width)
    assert falls.low < -0.5 < falls.high
    (first, start, *_), *_, (last, end, *_) = plan.settings["lr"].line
    assert falls.value == pytest.approx(math.log(end / start) / math.log(last / first), abs=0.01)
    assert falls.high - falls.low == pytest.approx(2 * (falls.high - falls.value))
    assert plan.settings["layers"].exponent is None
    assert plan.loss.low <= 8**-0.1 <= plan.loss.high


def test_costs_follow_the_sources(plan):
    assert plan.train_flops == pytest.approx(64e12)
    assert plan.seconds == pytest.approx(640)
    assert plan.usd == pytest.approx(32)


def test_seconds_are_of_all_attempts_and_of_what_others_computed(tmp_path):
    """A run of 11 hours was lost after ten; another trial had computed half an hour of its first stage."""
    for width in (1, 2):
        sweep = finished(tmp_path / f"w{width}", width, trials=5)
        for record in sweep.trials():
            lost = Attempt(attempt=1, worker="a", start=0.0, end=36_000.0, reason="expired")
            last = Attempt(attempt=2, worker="b", start=50_000.0, end=53_600.0, reason="completed")
            both = (
                StageRun(name="align", key="", cost=5, seconds=900.0, reused_from=7),
                StageRun(name="train", key="", cost=9, seconds=2_700.0, branched_from=7, saved=3),
            )
            metrics = {name: value for name, value in record.metrics.items() if name != "train_seconds"}
            changed = replace(record, attempt=2, history=(lost, last), stages=both, metrics=metrics)
            file = tmp_path / f"w{width}" / key(record.trial)
            file.write_bytes(encode(changed, "edited"))
    pair = [Experiment.open(open_store(str(tmp_path / f"w{width}"))) for width in (1, 2)]
    found = make_plan(pair, 4, measure="width")
    assert [source.seconds for source in found.sources] == [pytest.approx(39_600 + 900 + 900)] * 2


def test_price_is_of_all_hosts(tmp_path):
    for width in (1, 2):
        for record in finished(tmp_path / f"w{width}", width, trials=5).trials():
            file = tmp_path / f"w{width}" / key(record.trial)
            file.write_bytes(encode(replace(record, nodes=3), "edited"))
    pair = [Experiment.open(open_store(str(tmp_path / f"w{width}"))) for width in (1, 2)]
    found = make_plan(pair, 4, measure="width", usd_per_hour=2.0)
    assert found.seconds == pytest.approx(160)
    assert found.usd == pytest.approx(3 * 2.0 * 160 / 3600)


def test_final_sweep_is_around_the_settings(plan):
    space = literals.space_of(plan.space, "plan")
    lr, layers, width = (space.parameter(name) for name in ("lr", "layers", "width"))
    assert isinstance(lr, Range)
    assert isinstance(layers, Range)
    assert isinstance(width, Fixed)
    assert lr.log
    assert 1e-4 < lr.min < plan.settings["lr"].value < lr.max < 1e-1
    assert layers.kind == "int"
    assert width.value == 8
    assert space.baseline is not None
    assert space.baseline["lr"] == plan.settings["lr"].value
    assert [source.url for source in space.transfer] == [each.url for each in plan.sources]


def test_steps_conditions_and_constraints_are_kept(tmp_path):
    parameters = {
        "steps": {"min": 100, "max": 500, "step": 50},
        "share": {"min": 0.0, "max": 1.0, "step": 0.25},
        "kind": {"values": [[1, 2], [3, 4]], "when": {"[1, 2]": ["x"]}},
        "x": {"min": 0.0, "max": 1.0},
    }
    sweeps = [
        finished(
            tmp_path / f"w{width}",
            width,
            of=lambda p, w: abs(p["steps"] - 160 * w) / 500 + p.get("x", 1.0) + abs(p["share"] - 0.5),
            parameters=parameters | {"width": {"value": width}},
            parameter_constraints=["steps - 400 * share <= 450"],
        )
        for width in (1, 2)
    ]
    found = make_plan(sweeps, 2.5, measure="width")
    space = literals.space_of(found.space, "plan")
    steps = space.parameter("steps")
    assert isinstance(steps, Range)
    assert (steps.kind, steps.step) == ("int", 50)
    assert space.baseline is not None
    assert space.baseline["steps"] in range(100, 501, 50)
    assert space.parents()["x"].parent == "kind"
    assert list(found.space["parameter_constraints"]) == ["steps - 400 * share <= 450"]


@pytest.mark.parametrize(
    ("steps", "stages"),
    [
        (
            {"min": 40, "max": 120, "step": 20},
            [
                {
                    "name": "train",
                    "parameters": ["*"],
                    "cost": "steps",
                    "trunk": {"length": "steps", "decay": 0.25},
                }
            ],
        ),
        ({"values": [40, 80]}, None),  # one of the two is far better: nothing is left to share
    ],
    ids=["searched", "fixed"],
)
def test_trunk_reuse_and_noise_are_kept(tmp_path, steps, stages):
    trunk = {"length": "steps", "decay": 0.25}
    sweeps = [
        finished(
            tmp_path / f"w{width}",
            width,
            of=lambda p, w: abs(p["steps"] - 80) + abs(math.log10(p["lr"]) + 2) + 1 / w,
            parameters={"lr": PARAMETERS["lr"], "steps": steps, "width": {"value": width}},
            stages=[{"name": "train", "parameters": ["*"], "cost": "steps", "trunk": trunk}],
            search={"method": "random", "noise": 0.01, "reuse": "none"},
        )
        for width in (1, 2)
    ]
    found = make_plan(sweeps, 4, measure="width")
    assert found.space.get("stages") == stages
    assert found.space["search"] == {"sobol": 3, "noise": 0.01, "reuse": "none"}
    assert not any("will refuse" in note for note in found.notes)
    literals.space_of(found.space, "plan")


def test_what_init_would_refuse_is_noted(tmp_path):
    """The optimum moves along with the size, and out of what a constraint allows."""
    sides = {"x": {"min": 0.0, "max": 1.0}, "y": {"min": 0.0, "max": 1.0}}
    sweeps = [
        finished(
            tmp_path / f"w{width}",
            width,
            of=lambda p, w: sum((p[name] - 0.3 - 0.2 * math.log2(w)) ** 2 for name in sides),
            parameters=sides | {"width": {"value": width}},
            parameter_constraints=["x + y <= 1.2"],
        )
        for width in (1, 2)
    ]
    found = make_plan(sweeps, 4, measure="width")
    assert any(note.startswith("`sweep init` will refuse the space file as it is: ") for note in found.notes)


def test_sweep_that_cannot_be_a_source_is_left_out(tmp_path):
    """The ranges of the final sweep have left the small sweep's far behind."""
    ranges = {1: (1e-4, 1e-3), 2: (9e-4, 1e3)}
    sweeps = [
        finished(
            tmp_path / f"w{width}",
            width,
            of=lambda p, w: abs(math.log10(p["lr"] / (1e-3 if w == 1 else 100))),
            parameters={
                "lr": {"min": low, "max": high, "distribution": "log_uniform_values"},
                "width": {"value": width},
            },
        )
        for width, (low, high) in ranges.items()
    ]
    found = make_plan(sweeps, 2.1, measure="width")
    why = "it has searched none of this sweep's parameters in these ranges"
    assert f"w1 is not in transfer: {why}" in found.notes
    assert found.space["transfer"] == {"from": [str(tmp_path / "w2")]}


def test_sweep_that_has_not_ended_is_told(tmp_path):
    sweeps = [finished(tmp_path / f"w{w}", w, trials=6, run_cap=6 * w) for w in (1, 2)]
    ended = [note for note in make_plan(sweeps, 4, measure="width").notes if "have ended" in note]
    assert ended == ["w2: 6 of its 12 trials have ended"]


def test_a_fit_that_fails_names_its_sweep(tmp_path):
    small = finished(tmp_path / "w1", 1)
    huge = finished(tmp_path / "w2", 2, of=lambda p, _: 1e200 * math.log10(p["lr"]) ** 2)
    with pytest.raises(SurrogateFailed, match=r"w2: the surrogate failed .*; leave it out"):
        make_plan([small, huge], 4, measure="width")


def test_sizes_speed_and_price_may_be_given(ladder):
    found = make_plan(ladder[:2], 800, sizes=[400, 200], speed=1e13, usd_per_hour=2.0)
    assert found.train_flops == pytest.approx(64e12)
    assert found.seconds == pytest.approx(6.4)
    assert found.usd == pytest.approx(2.0 * 6.4 / 3600)
    assert found.measure == "model_parameters"
    assert [source.size for source in found.sources] == [200, 400]
    assert any("set that of model_parameters 800 there" in note for note in found.notes)


@pytest.mark.slow
def test_optima_off_a_line_widen_the_interval(tmp_path):
    """The same sweeps as when the optimum follows a line, but for that of the middle size."""

    def jumping(parameters: Mapping[str, Any], width: float) -> float:
        best = 0.01 if width != 2 else 0.0005
        return float((math.log10(parameters["lr"] / best)) ** 2 + 1e-3 * parameters["layers"])

    def staying(parameters: Mapping[str, Any], width: float) -> float:
        return jumping(parameters, 1)

    lengths = []
    for of in (staying, jumping):
        sweeps = [finished(tmp_path / of.__name__ / f"w{width}", width, of=of) for width in (1, 2, 4)]
        found = make_plan(sweeps, 8, measure="width")
        low, high = found.settings["lr"].interval
        lengths.append(math.log10(high / low))
    assert lengths[1] > 5 * lengths[0]
    assert any("do not lie on a line" in note and note.startswith("lr") for note in found.notes)


def test_options_may_differ(tmp_path):
    """The larger one does not have the smaller one's best option, and keeps its own."""
    sweeps = [
        finished(
            tmp_path / f"w{width}",
            width,
            trials=12,
            of=lambda p, _, best=best: abs(p["x"] - 0.4) + (p["kind"] != best),
            parameters={
                "x": {"min": 0.0, "max": 1.0},
                "kind": {"values": options},
                "width": {"value": width},
            },
        )
        for width, options, best in ((1, ["a", "b"], "a"), (2, ["c", "d", "e"], "d"))
    ]
    found = make_plan(sweeps, 4, measure="width")
    assert list(found.settings["kind"].optima.values()) == ["a", "d"]
    assert found.settings["kind"].value == "d"
    assert "d" in found.settings["kind"].options


def test_an_optimum_at_the_end_of_a_range_is_told(tmp_path):
    sweeps = [finished(tmp_path / f"w{w}", w, of=lambda p, _: p["lr"] + p["layers"]) for w in (1, 2)]
    found = make_plan(sweeps, 4, measure="width")
    assert any(note.startswith("lr: best at the end of its range in w1") for note in found.notes)


@pytest.mark.parametrize(
    ("spread", "what", "there"),
    [
        ("log_uniform_values", "line", "nothing was tried there"),
        ("uniform", "interval", "it is cut off there, and the optimum may lie beyond"),
    ],
)
def test_interval_that_leaves_what_was_searched_is_told(tmp_path, spread, what, there):
    """Best at 10 times the size, searched up to 32: at size 4 the power law is at 40, the straight line at 30."""
    parameters = {"x": {"min": 1.0, "max": 32.0, "distribution": spread}}

    def sharp(found: Mapping[str, Any], size: float) -> float:
        away = math.log(found["x"] / (10 * size)) if spread != "uniform" else (found["x"] - 10 * size) / 10
        return float(away**2)

    pair = [
        finished(tmp_path / f"{at}", at, 8, sharp, parameters=parameters | {"width": {"value": at}})
        for at in (1, 2)
    ]
    found = make_plan(pair, 4, measure="width")
    (note,) = [each for each in found.notes if each.startswith("x: the")]
    assert note == f"x: the {what} leaves the ranges that were searched (1 to 32); {there}"
    low, high = found.settings["x"].interval
    assert low < 32
    assert (high > 32) == (spread != "uniform")


def test_listed_numbers_are_followed_as_a_range(tmp_path):
    """A grid of rates, each twice the last: the best lies between them, and is no option."""
    listed = [0.001 * 2**each for each in range(7)]
    parameters = {"lr": {"values": listed}, "layers": {"values": [1, 2]}}

    def sharp(found, width: float) -> float:
        return float(2 + (math.log2(found["lr"] / 0.03) + 0.5 * math.log2(width)) ** 2)

    grids = [
        finished(
            tmp_path / f"grid{width}", width, 14, sharp,
            parameters=parameters | {"width": {"value": width}}, search={"method": "grid"},
        )
        for width in (1, 2, 4)
    ]  # fmt: skip
    found = make_plan(grids, 8, measure="width")
    rate = found.settings["lr"]
    assert rate.log
    assert rate.interval[0] < 0.03 / math.sqrt(8) < rate.interval[1] < 2 * rate.interval[0]
    assert rate.exponent.low < -0.5 < rate.exponent.high
    assert found.space["parameters"]["lr"]["distribution"] == "log_uniform_values"
    assert found.settings["layers"].options == (1, 2)
    literals.space_of(found.space, "plan")


@pytest.mark.parametrize(
    ("values", "log", "kind"),
    [
        ([1, 2, 4, 8], True, "int"),
        ([0.1, 0.2, 0.3, 0.4], False, "float"),
        ([0.0, 0.3, 0.6, 0.9], False, "float"),
    ],
)
def test_listed_numbers_are_logarithmic_where_their_ratios_are_alike(tmp_path, values, log, kind):
    parameters = {"x": {"values": values}}
    pair = [
        finished(
            tmp_path / f"{width}", width, 4, lambda found, width: found["x"] ** 2 + width,
            parameters=parameters | {"width": {"value": width}}, search={"method": "random"},
        )
        for width in (1, 2)
    ]  # fmt: skip
    found = make_plan(pair, 4, measure="width")
    assert found.settings["x"].log is log
    assert isinstance(found.settings["x"].value, int if kind == "int" else float)


def with_levels(folder: Path, width: int, levels: Mapping[int, float], below: int) -> Experiment:
    """A sweep of 8 trials at the target, and some below, which have by far the lowest losses and other optima.

    Args:
        levels: the cost of each number of steps.
        below: number of the trials below the target.
    """
    target = max(levels)

    def loss(found: Mapping[str, Any], width: float) -> float:
        away = math.log10(found["lr"] / (0.02 if found["steps"] == target else 5e-4) * math.sqrt(width))
        return float(width**-0.1 + 0.1 * away**2 + 10 * (found["steps"] == target))

    sweep = finished(
        folder / f"w{width}", width, below + 8, loss,
        parameters={
            "lr": PARAMETERS["lr"], "steps": {"values": list(levels)}, "width": {"value": width}
        },
        fidelity={"steps": {"cost": list(levels.values())}}, search={"sobol": 40}, run_cap=8,
    )  # fmt: skip
    counts = [record.parameters["steps"] == target for record in sweep.trials()]
    assert (counts.count(False), counts.count(True)) == (below, 8)
    return sweep


@pytest.mark.parametrize(
    ("levels", "below"),
    [
        ({100: 0.05, 1000: 1}, 9),
        pytest.param({100: 0.03, 300: 0.035, 1000: 1}, 14, marks=pytest.mark.slow),
    ],
)
def test_plan_is_of_the_target_of_fidelity(tmp_path, levels, below):
    pair = [with_levels(tmp_path, width, levels, below) for width in (1, 2)]
    found = make_plan(pair, 4, measure="width")
    assert list(found.settings) == ["lr"]
    assert all(each["value"] > 0.005 for each in found.settings["lr"].optima.values())
    assert found.loss.low > 5
    assert [source.results for source in found.sources] == [8, 8]
    assert found.space["parameters"]["steps"] == {"value": 1000}
    assert (
        "steps is 1000, the target of w2: trials below it are left out, and the space file has none"
        in found.notes
    )
    space = literals.space_of(found.space, "plan")
    final = create_sweep(space, str(tmp_path / "final"), skip_if_exists=False, on_notice=lambda _: None)
    first = final.ask("worker", wait=lambda _: None)
    assert first is not None
    assert first.parameters["steps"] == 1000


def test_a_target_of_fidelity_can_be_the_length(tmp_path):
    lengths = ((1, 100), (2, 100), (2, 400))
    levels = [{at // 10: 0.05, at: 1.0} for _, at in lengths]
    sweeps = [
        with_levels(tmp_path / str(at), width, each, 9)
        for (width, at), each in zip(lengths, levels, strict=True)
    ]
    found = make_plan(sweeps, 4, measure="width", other=("steps", 1600))
    assert [source.other for source in found.sources] == [100, 100, 400]
    assert found.space["parameters"]["steps"] == {"value": 1600}
    assert not any(note.startswith("steps is") for note in found.notes)


def test_a_seed_is_no_setting(tmp_path):
    parameters = {"lr": PARAMETERS["lr"], "seed": {"values": [0, 1, 2]}, "width": {"value": 1}}
    sweeps = [
        finished(
            tmp_path / f"w{w}",
            w,
            of=lambda p, _: (math.log10(p["lr"]) + 2) ** 2,
            parameters=parameters | {"width": {"value": w}},
        )
        for w in (1, 2)
    ]
    found = make_plan(sweeps, 4, measure="width")
    assert list(found.settings) == ["lr"]
    assert "value" in found.space["parameters"]["seed"]


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> list[Experiment]:
    """Sweeps of three widths and two lengths: the best rate is 0.02 / sqrt(width) / (steps / 10)^0.3."""

    def loss(found: Mapping[str, Any], width: float) -> float:
        away = math.log10(found["lr"] / 0.02 * math.sqrt(width) * (found["steps"] / 10) ** 0.3)
        return float(2 + width**-0.1 + (found["steps"] / 10) ** -0.2 + away**2)

    folder = tmp_path_factory.mktemp("lengths")
    return [
        finished(
            folder / f"w{width}-s{steps}", width, 12, loss,
            parameters={"lr": PARAMETERS["lr"], "width": {"value": width}, "steps": {"value": steps}},
        )
        for width, steps in ((1, 10), (2, 10), (2, 80), (4, 40))
    ]  # fmt: skip


def test_size_and_length_are_followed_together(lengths):
    found = make_plan(lengths, 8, measure="width", other=("steps", 160))
    best = 0.02 / math.sqrt(8) / 16**0.3
    low, high = found.settings["lr"].interval
    assert low <= best <= high
    assert found.settings["lr"].value == pytest.approx(best, rel=0.5)
    assert found.settings["lr"].exponent.low < -0.5 < found.settings["lr"].exponent.high
    (note,) = [each for each in found.notes if each.startswith("lr: its exponent in steps")]
    assert -0.5 < float(note.split(" is ")[1].split()[0]) < -0.1
    assert found.loss.low < 2 + 8**-0.1 + 16**-0.2 < found.loss.high
    assert [source.other for source in found.sources] == [10, 10, 80, 40]
    assert found.space["parameters"]["width"] == {"value": 8}
    assert found.space["parameters"]["steps"] == {"value": 160}
    assert "; steps 160, of sources with 10 to 80" in found.lines()[0]
    assert not any("taken for the size's doing" in each for each in found.notes)
    alone = make_plan(lengths, 8, measure="width")
    assert "steps is fixed at 10, 10, 80, 40: what it changes is taken for the size's doing" in alone.notes


@pytest.mark.slow
def test_target_beyond_the_distance_of_the_sources_is_told(lengths):
    """The widths 1 to 4 span a factor of 4, the steps 10 to 80 one of 8: up to this nothing is said."""
    told = " is farther from the sources than these are apart: intervals hold only for a line"
    for width, other, far in ((16, ("steps", 641), "steps 641"), (17, None, "width 17")):
        found = make_plan(lengths, width, measure="width", other=other)
        assert [note.removesuffix(told) for note in found.notes if note.endswith(told)] == [far]


def test_costs_of_a_steep_line_stay_numbers(tmp_path):
    """A thousand times the width, said to be 8 % more: far away the line is beyond what a float can hold."""
    pair = [finished(tmp_path / f"w{width}", width, trials=5) for width in (1, 1000)]
    found = make_plan(pair, 1e6, sizes=[1.0, 1.08])
    assert found.train_flops is not None
    assert 1e300 < found.train_flops < math.inf


@pytest.mark.parametrize(("stages", "best"), [([], 0.5), (["2*stage2.max_steps", "100"], 0.25)])
def test_share_of_stage_1_9(tmp_path, stages, best):
    """50 steps that count twice, of 200; or of 400, where the others count twice too and a third stage has 100."""
    later = [
        {"name": f"stage{at}", "parameters": [f"stage{at}.*"], "cost": cost}
        for at, cost in enumerate(stages, start=2)
    ]
    first = [{"name": "stage1_9", "parameters": ["stage1_9.*", "width"], "cost": "2*stage1_9.max_steps"}]
    keys = {"stages": first + later} if stages else {}
    parameters = {
        "stage1_9.max_steps": {"min": 0, "max": 100},
        "stage2.max_steps": {"value": 100},
        "stage3.max_steps": {"value": 100},
    }
    sweeps = [
        finished(
            tmp_path / f"w{w}",
            w,
            of=lambda p, _: (p["stage1_9.max_steps"] / 100 - 0.5) ** 2 + 1,
            parameters=parameters | {"width": {"value": w}},
            **keys,
        )
        for w in (1, 4)
    ]
    share = make_plan(sweeps, 8, measure="width").stage1_9
    assert share is not None
    assert share.value == pytest.approx(best, abs=0.05)
    assert share.low <= best <= share.high


def test_what_cannot_be_planned(tmp_path, lengths):
    small, large = (finished(tmp_path / f"w{width}", width, trials=5) for width in (1, 2))
    flat = finished(tmp_path / "flat", 3, trials=5, of=lambda p, _: 1.0)
    lone = finished(tmp_path / "lone", 3, trials=3)
    other = finished(tmp_path / "other", 3, trials=5, objectives=[{"metric": "accuracy", "goal": "maximize"}])
    two = finished(tmp_path / "two", 3, trials=5, objectives=[{"metric": "loss"}, {"metric": "cost"}])
    bounded = finished(tmp_path / "bounded", 3, trials=5, outcome_constraints=["train_seconds <= 9"])
    lr = PARAMETERS["lr"]
    strange = finished(
        tmp_path / "strange", 3, 5, lambda p, _: p["x"], parameters={"x": lr, "width": {"value": 3}}
    )
    percent = finished(
        tmp_path / "percent",
        3,
        trials=5,
        of=lambda p, _: p["lr"],
        parameters={"lr": {"min": 1.0, "max": 10.0}, "width": {"value": 3}},
    )
    chosen = finished(
        tmp_path / "chosen",
        3,
        trials=5,
        of=lambda p, _: p["lr"],
        parameters={"lr": {"values": [0.001, 0.01]}, "x": lr, "width": {"value": 3}},
    )
    running = finished(tmp_path / "running", 3, trials=5, run_cap=6)
    running.ask("at-work", wait=lambda _: None)
    finished(tmp_path / "damaged", 3, trials=5)
    (tmp_path / "damaged" / "trials" / "000004.json").write_text("{")
    golden_messages.compare_refusals(
        "Plans that cannot be made",
        InputError,
        {
            "one sweep only": lambda: make_plan([small], 8, measure="width"),
            "one sweep twice": lambda: make_plan([small, small], 8, measure="width"),
            "sizes that are close": lambda: make_plan([small, large], 8, sizes=[1.0, 1.05]),
            "a size of zero": lambda: make_plan([small, large], 0, measure="width"),
            "a size that is no number": lambda: make_plan([small, large], math.nan, measure="width"),
            "a size that no line reaches": lambda: make_plan([small, large], 1e300, measure="width"),
            "a speed of zero": lambda: make_plan([small, large], 8, measure="width", speed=0.0),
            "a size for one of two": lambda: make_plan([small, large], 8, sizes=[1]),
            "sizes below zero": lambda: make_plan([small, large], 8, sizes=[1, -2]),
            "no such measure": lambda: make_plan([small, large], 8),
            "a measure that varies": lambda: make_plan([small, large], 8, measure="loss"),
            "size and length grow together": lambda: make_plan(
                [lengths[0], lengths[3]], 8, measure="width", other=("steps", 160)
            ),
            "size and length nearly grow together": lambda: make_plan(
                lengths, 16, sizes=[1, 1.1, 8, 4], other=("steps", 160)
            ),
            "a length of zero": lambda: make_plan(lengths, 8, measure="width", other=("steps", 0)),
            "a length that no line reaches": lambda: make_plan(
                lengths, 8, measure="width", other=("steps", 1e300)
            ),
            "no such length": lambda: make_plan([small, large], 8, measure="width", other=("tokens", 9)),
            "too few results": lambda: make_plan([small, lone], 8, measure="width"),
            "equal results": lambda: make_plan([small, flat], 8, measure="width"),
            "another objective": lambda: make_plan([small, other], 8, measure="width"),
            "two objectives": lambda: make_plan([small, two], 8, measure="width"),
            "outcome constraints": lambda: make_plan([small, bounded], 8, measure="width"),
            "no parameter in common": lambda: make_plan([small, strange], 8, measure="width"),
            "another unit": lambda: make_plan([small, percent], 8, measure="width"),
            "a range and a choice": lambda: make_plan([small, chosen], 8, measure="width"),
            "at work": lambda: make_plan([small, running], 8, measure="width"),
            "damaged": lambda: make_plan(
                [small, Experiment.open(open_store(str(tmp_path / "damaged")))], 8, measure="width"
            ),
        },
        hide=tmp_path,
    )


def test_text_of_a_plan():
    sources = tuple(
        SourceSweep(
            url=f"./sweep-store/{name}",
            name=name,
            size=size,
            results=30,
            trial=3,
            loss=Estimate(value=value, low=value - 0.02, high=value + 0.02),
            train_flops=1e15,
            seconds=100.0,
            usd=None,
        )
        for name, size, value in (("small", 2.4e5, 3.97), ("middle", 1.1e6, 3.89))
    )
    common: dict[str, Any] = {
        "measure": "model_parameters",
        "metric": "final_loss",
        "sources": sources,
        "settings": {"lr": Setting(value=0.003, optima={})},
        "loss": Estimate(value=3.4, low=3.2, high=3.9),
        "loss_line": (),
        "notes": (),
        "space": {},
    }
    plans = {
        "beyond": Plan(
            **common,
            size=4e9,
            beyond=4e9 / 1.1e6,
            train_flops=3.1e19,
            speed=1.2e14,
            seconds=258_000.0,
            usd=85.3,
            stage1_9=Estimate(value=0.25, low=0.1, high=0.4),
        ),
        "below": Plan(
            **common, size=1e5, beyond=0.09, train_flops=None, speed=None, seconds=100.0, usd=None, stage1_9=None
        ),
        "between, without costs": Plan(
            **common, size=5e5, beyond=0.45, train_flops=None, speed=None, seconds=None, usd=None,
            stage1_9=Estimate(value=0.5, low=0.5, high=0.5),
        ),
    }  # fmt: skip
    price = "RunPod A100 at $1.19 an hour on demand (2024-12)"
    golden_messages.compare("A plan", [(name, "\n".join(each.lines(price))) for name, each in plans.items()])


def test_document_is_plain(plan):
    document = plan.document()
    assert document["settings"]["lr"]["line"][0][0] == 1
    assert np.isfinite(document["loss_line"]).all()
