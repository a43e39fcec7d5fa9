"""Parameters encoded on the axes of the search and decoded again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.search.encoding import Encoding, Interval, Options, at_share, share_at
from sweeps.space.definition import Choice, Fixed, Objective, Parameter, Program, Range, Space, Value
from sweeps.space.domain import Domain


def encoding(*parameters: Parameter, constraints: tuple[str, ...] = ()) -> Encoding:
    return Encoding(
        Domain(
            Space(
                name="case",
                objectives=(Objective(metric="loss"),),
                parameters=parameters,
                program=Program(kind="function", function="m:f"),
                parameter_constraints=constraints,
            )
        )
    )


MIXED = encoding(
    Choice(name="gate", values=("on", "off"), when=(("on", ("a.lr", "fixed")), ("off", ("few",)))),
    Range(name="a.lr", min=1e-5, max=1e-1, kind="float", log=True),
    Range(name="many", min=1, max=5000, kind="int", log=True),
    Range(name="few", min=-3, max=3, kind="int"),
    Choice(name="mixed", values=(1, 0.5, 2), ordered=True),
    Fixed(name="fixed", value=True),
)


def test_axes_are_units_small_integers_and_options():
    gate, rate, many, few, mixed = MIXED.axes
    assert isinstance(gate, Options)
    assert gate.dependents == {"on": ["p1"], "off": ["p3"]}
    assert (gate.kind, gate.ordered) == ("str", True)
    assert rate == Interval(name="p1")
    assert many == Interval(name="p2")
    assert few == Interval(name="p3", bounds=(-3, 3), kind="int")
    assert mixed == Options(name="p4", values=(1.0, 0.5, 2.0), kind="float", ordered=True, dependents={})


@given(st.sampled_from(["on", "off"]), st.floats(0, 1), st.floats(0, 1), st.integers(-3, 3))
def test_proposed_parameters_round_trip(gate: str, rate: float, many: float, few: int):
    point: dict[str, Value] = {"p0": gate, "p2": many, "p4": 1.0}
    point |= {"p1": rate} if gate == "on" else {"p3": few}
    parameters = MIXED.decode(point)
    again = MIXED.encode(parameters)
    assert again is not None
    assert set(again) == set(point)
    assert MIXED.decode(again)["many"] == parameters["many"]
    assert MIXED.decode(again).keys() == parameters.keys()
    assert parameters["mixed"] == 1
    assert type(parameters["mixed"]) is int
    assert ("fixed" in parameters) is (gate == "on")


def test_inactive_axes_get_seeded_values():
    point: dict[str, Value] = {"p0": "on", "p1": 0.5, "p2": 0.5, "p4": 1.0}
    filled = [MIXED.on_all_axes(point, seed) for seed in range(40)]
    assert MIXED.on_all_axes(point, 3) == filled[3]
    assert all(list(one) == ["p0", "p1", "p2", "p3", "p4"] for one in filled)
    assert all(point.items() <= one.items() for one in filled)
    assert {one["p3"] for one in filled} == {-3, -2, -1, 0, 1, 2, 3}
    gates = {MIXED.on_all_axes({}, seed)["p0"] for seed in range(40)}
    rates = [float(MIXED.on_all_axes({}, seed)["p1"]) for seed in range(40)]
    assert gates == {"on", "off"}
    assert 0 <= min(rates) < 0.2 < 0.8 < max(rates) < 1


def test_parameters_of_another_space_have_no_point():
    good: Mapping[str, Value] = {"gate": "off", "many": 7, "few": 0, "mixed": 2}
    assert MIXED.encode(good) is not None
    assert MIXED.encode({**good, "gate": "ajar"}) is None
    assert MIXED.encode({**good, "many": "7"}) is None
    assert MIXED.encode({**good, "few": True}) is None
    assert MIXED.encode({**good, "mixed": True}) is None
    assert MIXED.encode({name: value for name, value in good.items() if name != "many"}) is None


def test_constraint_is_scaled_to_coefficients_of_size_one():
    (text,) = encoding(
        Range(name="a.x", min=10.0, max=30.0, kind="float"),
        Range(name="n", min=1, max=9, kind="int"),
        constraints=("a.x + 2*n <= 40",),
    ).constraints
    assert text == f"1.0*p0 + 0.1*p1 <= {1.5 - 1e-7!r}"


def test_a_constraint_over_integers_alone_is_not_tightened():
    (text,) = encoding(
        Range(name="n", min=1, max=9, kind="int"),
        Range(name="m", min=1, max=9, kind="int"),
        constraints=("n + m <= 12",),
    ).constraints
    assert text == "1.0*p0 + 1.0*p1 <= 12.0"


STEPPED = encoding(
    Range(name="few", min=0.1, max=0.9, kind="float", step=0.2),
    Range(name="many", min=0, max=5000, kind="int", step=10),
    Range(name="normal", min=1e-4, max=1.0, kind="float", log=True, normal=(-4.6, 1.0)),
    Range(name="x", min=0.0, max=1.0, kind="float"),
    constraints=("few + x <= 1.5",),
)


def test_few_steps_are_counted_and_many_are_a_unit():
    assert STEPPED.axes[:3] == (
        Interval(name="p0", bounds=(0, 4), kind="int"),
        Interval(name="p1"),
        Interval(name="p2"),
    )


@given(st.integers(0, 4), st.floats(0, 1), st.floats(0, 1))
def test_steps_and_normal_ranges_round_trip(few: int, many: float, normal: float):
    parameters = STEPPED.decode({"p0": few, "p1": many, "p2": normal, "p3": 0.25})
    assert parameters["few"] == (0.1, 0.3, 0.5, 0.7, 0.9)[few]
    assert int(parameters["many"]) % 10 == 0
    again = STEPPED.encode(parameters)
    assert again is not None
    assert again["p0"] == few
    assert STEPPED.decode(again) == pytest.approx(parameters, rel=1e-9)


def test_a_constraint_on_steps_is_written_in_their_positions():
    (text,) = STEPPED.constraints
    left, right = text.split("<=")
    terms = {name: float(factor) for factor, name in (term.strip().split("*") for term in left.split("+"))}
    assert terms == {"p0": 0.2, "p3": 1.0}
    assert float(right) == pytest.approx(1.4, abs=1e-6)


def test_dependents_of_a_number_have_own_axes():
    steps = Range(name="steps", min=0, max=9, kind="int", when=(("> 0", ("lr",)),))
    found = encoding(steps, Range(name="lr", min=0.0, max=1.0, kind="float"))
    assert found.decode({"p0": 0, "p1": 0.5}) == {"steps": 0}
    assert found.decode({"p0": 1, "p1": 0.5}) == {"steps": 1, "lr": 0.5}
    assert found.encode({"steps": 0}) == {"p0": 0}
    assert found.encode({"steps": 0, "lr": 0.5}) is None


def test_ax_switches_axes_by_options_alone():
    steps = Range(name="steps", min=0, max=9, kind="int", when=(("> 0", ("lr",)),))
    gate = Choice(name="gate", values=("on", "off"), when=(("on", ("warm",)),))
    warm = Choice(name="warm", values=("a", "b", "c"), when=(("a", ("few",)),))
    few = Range(name="few", min=0, max=3, kind="int")
    found = encoding(steps, Range(name="lr", min=0.0, max=1.0, kind="float"), gate, warm, few)
    off = {"p0": 0, "p1": 0.5, "p2": "off", "p3": "a", "p4": 1}
    assert found.active_for_ax(off) == {"p0": 0, "p1": 0.5, "p2": "off"}
    assert found.active_for_ax(off | {"p2": "on"}) == off | {"p2": "on"}
    assert found.active_for_ax(off | {"p2": "on", "p3": "b"}) == {"p0": 0, "p1": 0.5, "p2": "on", "p3": "b"}


@pytest.mark.parametrize(
    ("low", "high", "log"), [(10, 40, True), (1, 6, True), (1, 8, False)], ids=["log", "log-from-1", "even"]
)
def test_shares_of_an_axis_are_spread_as_stated(low: int, high: int, log: bool) -> None:
    """The chance of an integer is that of the real numbers that round to it."""
    axis = Interval(name="p0", bounds=(low, high), kind="int", log=log)
    count = 100_000
    found = Counter(at_share(axis, (at + 0.5) / count) for at in range(count))
    edges = [value - 0.5 for value in range(low, high + 2)]
    scale = math.log if log else float
    whole = scale(edges[-1]) - scale(edges[0])
    chances = {v: (scale(v + 0.5) - scale(v - 0.5)) / whole for v in range(low, high + 1)}
    assert {value: times / count for value, times in found.items()} == pytest.approx(chances, abs=2e-5)
    assert all(at_share(axis, share_at(axis, value)) == value for value in found)
