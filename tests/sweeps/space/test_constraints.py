"""Linear inequalities: what is read, what is refused, and that printing and reading are inverse."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import golden_messages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.space.constraints import MAX_LENGTH, Linear, parse, parse_expression

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}(\.[A-Za-z0-9_]{1,6}){0,2}(/[a-z]{1,3})?", fullmatch=True)
numbers = st.floats(min_value=-1e9, max_value=1e9, allow_subnormal=False)
factors = numbers.filter(bool)
linears = st.builds(
    lambda coefficients, bound: Linear(coefficients=coefficients, bound=bound + 0.0),
    st.dictionaries(names, factors, min_size=1, max_size=4),
    numbers,
)


@pytest.mark.parametrize(
    ("text", "coefficients", "bound"),
    [
        ("a <= 3", {"a": 1}, 3),
        ("a>=3", {"a": -1}, -3),
        ("3 >= a", {"a": 1}, 3),
        ("a.b + 2*c.d.e <= 10", {"a.b": 1, "c.d.e": 2}, 10),
        ("a - b <= 0", {"a": 1, "b": -1}, 0),
        ("a <= b", {"a": 1, "b": -1}, 0),
        ("-a <= -1e-3", {"a": -1}, -0.001),
        ("a*2*3 + 1 <= 4/2 + b/4", {"a": 6, "b": -0.25}, 1),
        ("a + a <= 3", {"a": 2}, 3),
        ("a - -b <= 3", {"a": 1, "b": 1}, 3),
        ("stage2.lambda.max <= 3", {"stage2.lambda.max": 1}, 3),
        ("stage1_9.max_steps + stage2.max_steps <= 1000", {"stage1_9.max_steps": 1, "stage2.max_steps": 1}, 1000),
        ("eval/loss <= 3", {"eval/loss": 1}, 3),
        ("optimizer.0.lr <= 3.", {"optimizer.0.lr": 1}, 3),
        ("  a   <=  .5  ", {"a": 1}, 0.5),
    ],
)  # fmt: skip
def test_it_reads_what_people_write(text: str, coefficients: dict[str, float], bound: float) -> None:
    assert parse(text) == Linear(coefficients=coefficients, bound=bound)


KNOWN = ("weight-decay", "weight", "decay", "a", "b", "g.warm-up.x-1")


@pytest.mark.parametrize(
    ("text", "coefficients"),
    [
        ("weight-decay <= 3", {"weight-decay": 1}),
        ("weight - decay <= 3", {"weight": 1, "decay": -1}),
        ("2*weight-decay/4 - g.warm-up.x-1 <= 3", {"weight-decay": 0.5, "g.warm-up.x-1": -1}),
        ("weight-decay-decay <= 3", {"weight-decay": 1, "decay": -1}),
        ("-weight-decay <= 3", {"weight-decay": -1}),
        ("a-b <= 3", {"a": 1, "b": -1}),
        ("weight-decay.c <= 3", {"weight": 1, "decay.c": -1}),
        ("weight-decay2 <= 3", {"weight": 1, "decay2": -1}),
        ("weight-decay/b <= 3", {"weight": 1, "decay/b": -1}),
    ],
)
def test_a_minus_within_a_known_name_is_part_of_it(text: str, coefficients: dict[str, float]) -> None:
    assert parse(text, KNOWN) == Linear(coefficients=coefficients, bound=3)
    assert parse_expression(text.partition(" <=")[0], KNOWN).coefficients == coefficients


def description(text: str) -> str:
    return f"`{text}`" if len(text) < 100 else f"`{text[:20]}…`, {len(text)} characters"


# fmt: off
NO_INEQUALITIES = (
    "", "a", "a < 3", "a => 3", "a ≤ 3", "a != 3", "a == 3", "a = 3", "1 <= a <= 3", "<= 3", "a <=", "a + <= 3", "* a <= 3",
    "a 3 <= 3", "2a <= 3", "1.2.3*a <= 3", "a*b <= 3", "1/a <= 3", "a/0 <= 3", "a ** 2 <= 3", "a % 2 <= 3", "(a + b) <= 3",
    "__import__('os') <= 3", "a - a <= 3", "1 <= 3", "a <= 1e999", "nan*a + inf <= 3", "a <= " + "9" * 2000,
    "((((" * 200 + "a <= 3", "é <= 3",
)
NO_EXPRESSIONS = ("", "a*b", "1/a", "a/0", "a <= 3", "(a + b)", "1e999", "1e308*10*a", "a" * (MAX_LENGTH + 1))
# fmt: on


@pytest.mark.parametrize(
    ("title", "read", "texts"),
    [
        ("Inequalities", parse, NO_INEQUALITIES),
        ("Expressions of a cost", parse_expression, NO_EXPRESSIONS),
    ],
    ids=["inequalities", "expressions"],
)
def test_the_rest_is_refused_as_the_page_says(
    title: str, read: Callable[[str], object], texts: tuple[str, ...]
) -> None:
    golden_messages.compare_refusals(
        title, ValueError, {description(text): partial(read, text) for text in texts}
    )


@given(linears)
def test_printing_and_reading_are_inverse(linear: Linear) -> None:
    assert parse(str(linear)) == linear


@given(linears, st.data())
def test_it_is_evaluated_as_the_printed_text_says(linear: Linear, data: st.DataObject) -> None:
    values = {name: data.draw(st.floats(-1e3, 1e3)) for name in linear.coefficients}
    total = sum(factor * values[name] for name, factor in linear.coefficients.items())
    assert math.isclose(linear.sum(values), total, rel_tol=1e-9, abs_tol=1e-3)
    size = max(1.0, abs(linear.bound), *(abs(f * values[n]) for n, f in linear.coefficients.items()))
    if abs(total - linear.bound) > 1e-6 * size:
        assert linear.holds(values) == (total < linear.bound)


@given(linears, st.floats(1e-3, 1e3))
def test_multiplying_an_inequality_says_the_same(linear: Linear, by: float) -> None:
    scaled = linear.scaled()
    assert max(map(abs, scaled.coefficients.values())) == 1
    assert Linear(coefficients=dict(scaled.coefficients), bound=scaled.bound).scaled() == scaled
    multiplied = Linear(
        coefficients={n: f * by for n, f in linear.coefficients.items()}, bound=linear.bound * by
    )
    assert math.isclose(multiplied.scaled().bound, scaled.bound, rel_tol=1e-12, abs_tol=1e-300)


def test_the_boundary_counts_as_inside_despite_rounding() -> None:
    assert parse("a + b <= 0.3").holds({"a": 0.1, "b": 0.2})
    assert not parse("a + b <= 0.3").holds({"a": 0.1, "b": 0.2001})
    assert parse("a - b <= 0").holds({"a": 1e12 + 1, "b": 1e12}), "relative to the largest term"
    assert not parse("a - b <= 0").holds({"a": 1e-7, "b": 0.0})


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_and_never_crashes(text: str) -> None:
    try:
        linear = parse(text)
    except ValueError:
        return
    assert parse(str(linear)) == linear


@pytest.mark.parametrize(
    ("text", "coefficients", "constant"),
    [
        ("100", {}, 100.0),
        ("2*a.b", {"a.b": 2.0}, 0.0),
        ("a + 1 - b/4 + 2 - a", {"b": -0.25}, 3.0),
        (" 1e-3 ", {}, 0.001),
    ],
)
def test_an_expression_is_a_sum_of_terms(text: str, coefficients: dict[str, float], constant: float) -> None:
    expression = parse_expression(text)
    assert (expression.coefficients, expression.constant) == (coefficients, constant)
    values = {"a.b": 3.0, "b": 8.0}
    assert expression.value(values) == constant + sum(
        coefficients[name] * values[name] for name in coefficients
    )
