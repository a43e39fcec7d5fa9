"""Searched part of a space: identity, membership, constraints, enumeration."""

from __future__ import annotations

import pytest

from sweeps.space.definition import Choice, Fixed, Objective, Parameter, Program, Range, Space
from sweeps.space.domain import ENUMERABLE, Domain


def domain(*parameters: Parameter, constraints: tuple[str, ...] = ()) -> Domain:
    return Domain(
        Space(
            name="case",
            objectives=(Objective(metric="loss"),),
            parameters=parameters,
            program=Program(kind="function", function="m:f"),
            parameter_constraints=constraints,
        )
    )


X = Range(name="x", min=0.0, max=1.0, kind="float")
LR = Range(name="lr", min=1e-6, max=1e-2, kind="float", log=True)
N = Range(name="n", min=1, max=10, kind="int")
GATE = Choice(name="gate", values=(True, False), when=((True, ("n",)),))


def test_identity_separates_true_from_1_but_not_1_from_1_0():
    choice = domain(Choice(name="a", values=(1, 2)))
    assert choice.identity({"a": 1}) == choice.identity({"a": 1.0})
    assert choice.identity({"a": 1}) != choice.identity({"a": True})
    assert choice.identity({"a": 1}) != choice.identity({"a": "1"})


def test_identity_ignores_last_bits_and_order_of_keys():
    both = domain(X, LR)
    assert both.identity({"x": 0.3, "lr": 1e-4}) == both.identity({"lr": 1e-4 * (1 + 1e-13), "x": 0.1 * 3})
    assert both.identity({"x": 0.3, "lr": 1e-4}) != both.identity({"x": 0.3, "lr": 1.0001e-4})
    assert both.identity({"x": 0.3, "lr": 1e-6}) != both.identity({"x": 0.3, "lr": 1.00001e-6})


def test_complete_drops_inactive_and_adds_fixed_values():
    gated = domain(GATE, Fixed(name="f", value="v"), N)
    assert list(gated.complete({"n": 3, "gate": True}).items()) == [("gate", True), ("f", "v"), ("n", 3)]
    assert gated.complete({"n": 3, "gate": False}) == {"gate": False, "f": "v"}


@pytest.mark.parametrize(
    ("parameter", "value", "member"),
    [(X, 1.0 + 1e-12, 1.0), (X, -1e-17, 0.0), (N, 10.4999, 10), (N, 0.6, 1), (LR, 9.999e-7, 1e-6)],
)
def test_member_stays_within_the_bounds_to_the_last_bit(parameter: Range, value: float, member: float):
    found = domain(parameter).member(parameter.name, value)
    assert found == member
    assert type(found) is (int if parameter.kind == "int" else float)


def test_member_gives_the_choices_own_value():
    choice = domain(Choice(name="a", values=(1, 0.5)))
    assert type(choice.member("a", 1.0)) is int
    with pytest.raises(ValueError, match=r"of a$"):
        choice.member("a", True)


@pytest.mark.parametrize(
    ("constraint", "rounded"),
    [("n + x <= 5", 4), ("n - x >= 3", 5), ("x - n <= 3", 5)],
)
def test_integer_is_rounded_to_the_side_that_obeys(constraint: str, rounded: int):
    constrained = domain(N, X, constraints=(constraint,))
    assert [constrained.member("n", value) for value in (4.4, 4.6)] == [rounded, rounded]


def test_an_integer_between_two_constraints_is_rounded_as_usual():
    both = domain(N, X, constraints=("n + x <= 5", "n - x >= 3"))
    assert both.rounding("n")(4.4) == 4
    assert both.rounding("n")(4.6) == 5


def test_constraints_hold_to_the_last_bits():
    half = domain(X, Range(name="y", min=0.0, max=1.0, kind="float"), constraints=("x + y <= 0.5",))
    assert half.allows({"x": 0.25, "y": 0.25})
    assert not half.allows({"x": 0.25, "y": 0.25 + 1e-12})


def test_configurations_are_counted_where_they_are_few():
    found = domain(GATE, N, constraints=()).configurations()
    assert found is not None
    assert len(found) == 11  # ten with n, one without
    constrained = domain(
        N, Range(name="m", min=1, max=10, kind="int"), constraints=("n + m <= 4",)
    ).configurations()
    assert constrained is not None
    assert len(constrained) == 6
    assert domain().configurations() == {frozenset(): {}}


def test_many_or_infinite_configurations_are_not_listed():
    assert domain(X, GATE, N).configurations() is None
    assert domain(Range(name="n", min=0, max=ENUMERABLE, kind="int")).configurations() is None


TENTHS = Range(name="t", min=0.1, max=0.9, kind="float", step=0.2)
FIFTIES = Range(name="f", min=50, max=200, kind="int", step=50)


@pytest.mark.parametrize(
    ("parameter", "value", "member"),
    [(TENTHS, 0.31, 0.3), (TENTHS, 0.95, 0.9), (TENTHS, -3.0, 0.1), (FIFTIES, 76, 100), (FIFTIES, 999, 200)],
)
def test_members_of_a_stepped_range_are_its_steps_as_written(parameter: Range, value: float, member: float):
    found = domain(parameter).member(parameter.name, value)
    assert found == member
    assert type(found) is (int if parameter.kind == "int" else float)


def test_step_is_rounded_to_the_side_that_obeys_a_constraint():
    constrained = domain(FIFTIES, X, constraints=("f + x <= 199",))
    assert [constrained.member("f", value) for value in (149.0, 101.0)] == [100, 100]


def test_value_between_two_steps_is_a_misfit():
    stepped = domain(TENTHS, FIFTIES)
    assert stepped.misfit({"t": 0.1 + 0.2, "f": 50}) is None
    assert stepped.misfit({"t": 0.4, "f": 50}) == "t is 0.4, outside of its range or values"
    assert stepped.misfit({"t": 0.3, "f": 75}) == "f is 75, outside of its range or values"
    assert stepped.misfit({"t": 0.3, "f": 10**400}) is not None
    assert stepped.misfit({"t": 0.3}) == "f is missing"


def test_a_bound_is_met_despite_rounding():
    only = domain(X)
    least, most = float(X.min), float(X.max)
    for inside in (least - 1e-10 * (most - least), most + 1e-10 * (most - least)):
        assert only.has("x", inside)
    for outside in (least - 1e-8 * (most - least), most + 1e-8 * (most - least)):
        assert not only.has("x", outside)


def test_stepped_ranges_are_enumerated():
    found = domain(TENTHS, FIFTIES).configurations()
    assert found is not None
    assert {(p["t"], p["f"]) for p in found.values()} == {
        (t, f) for t in (0.1, 0.3, 0.5, 0.7, 0.9) for f in (50, 100, 150, 200)
    }
    assert domain(Range(name="x", min=0.0, max=1.0, kind="float", step=1e-4)).configurations() is None
