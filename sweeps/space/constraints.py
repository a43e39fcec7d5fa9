"""Linear inequalities as users write them: `stage1_9.max_steps + 2*stage2.max_steps <= 1000`.

The grammar is our own and flat (no parentheses, nothing evaluated), so that any text is safe to parse and any
dotted name is allowed, even `stage2.lambda.max`, which is a syntax error in Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_LENGTH = 1000

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
# A slash between two names is part of a name (`eval/loss`): a quotient of names would not be linear anyway.
_WORD = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_NAME = rf"{_WORD}(?:/{_WORD})*"
_TOKEN = rf"(?:{_NUMBER})(?![A-Za-z0-9_.])|{_NAME}|[-+*/]"
# Digits may be part of a name too, as in `top-1` and `5-shot`, but `1e-3` is a number. Backtracking in
# _NUMBER would take minutes for a long text.
_DIGITS = r"[0-9.]+(?:[eE][-+]?[0-9]+)?"
_MINUS_IN_NAME = re.compile(rf"(?<![A-Za-z0-9_.])(?:{_DIGITS}|{_WORD})-[-A-Za-z0-9_.]+", re.ASCII)
_RELATION = re.compile(r"<=|>=|==|=<|=>|!=|=|<|>|≤|≥")


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Inequality `sum(coefficient * value) <= bound` with one or more coefficients, none of them zero."""

    coefficients: Mapping[str, float]
    bound: float

    def sum(self, values: Mapping[str, float]) -> float:
        """Return the left-hand side. Raises KeyError if a value is missing."""
        return math.fsum(factor * values[name] for name, factor in self.coefficients.items())

    def holds(self, values: Mapping[str, float], tolerance: float = 1e-8) -> bool:
        """Return whether the values satisfy it, up to a rounding error relative to the largest term.

        They do not if one is missing, as in a record that was edited or imported.
        """
        if not self.coefficients.keys() <= values.keys():
            return False
        size = max(1.0, abs(self.bound), *(abs(f * values[n]) for n, f in self.coefficients.items()))
        return self.sum(values) <= self.bound + tolerance * size

    def scaled(self) -> Linear:
        """Return it scaled to a largest coefficient of 1, so that equivalent inequalities are equal."""
        largest = max(map(abs, self.coefficients.values()))
        factors = {name: factor / largest for name, factor in self.coefficients.items()}
        return Linear(coefficients=MappingProxyType(factors), bound=self.bound / largest)

    def __str__(self) -> str:
        """Return it in the grammar of `parse`: `parse(str(x)) == x`."""
        return self.text({name: name for name in self.coefficients}).replace("+ -", "- ")

    def text(self, names: Mapping[str, str]) -> str:
        """Return it in Ax's grammar, with these names in place of its own."""
        terms = [f"{factor!r}*{names[name]}" for name, factor in self.coefficients.items()]
        return f"{' + '.join(terms)} <= {self.bound!r}"


@dataclass(frozen=True, kw_only=True)
class Expression:
    """Linear expression `sum(coefficient * value) + constant`, without coefficients of zero."""

    coefficients: Mapping[str, float]
    constant: float

    def value(self, values: Mapping[str, float]) -> float:
        """Return its value. Raises KeyError if that of a name is missing."""
        terms = (factor * values[name] for name, factor in self.coefficients.items())
        return math.fsum((self.constant, *terms))


def parse(text: str, known: Collection[str] = ()) -> Linear:
    """Parse `terms <= terms` or `terms >= terms`, where a term is 3, a.b, 3*a.b, a.b*3 or a.b/3.

    Args:
        known: names that may stand in it; a minus within one of them is part of the name.

    Raises:
        ValueError: the text does not fit; the message says in a clause what to write instead.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"longer than {MAX_LENGTH} characters")
    relations = _RELATION.findall(text)
    if not relations:
        raise ValueError("no `<=` or `>=` in it")
    if len(relations) > 1:
        raise ValueError("more than one comparison; write each as a constraint of its own")
    relation = relations[0]
    if relation in ("==", "="):
        raise ValueError(
            "equalities are not supported; express one name by the others, or write `<=` or `>=`"
        )
    if relation not in ("<=", ">="):
        raise ValueError(f"`{relation}` is not supported; write `<=` or `>=`")
    (names, constant), (right, bound) = (_side(side, known) for side in text.split(relation))
    for name, factor in right.items():
        names[name] = names.get(name, 0.0) - factor
    bound -= constant
    if relation == ">=":
        names, bound = {name: -factor for name, factor in names.items()}, -bound
    coefficients = _finite(names, bound)
    if not coefficients:
        raise ValueError("no name is left in it; write for example `a + 2*b <= 10`")
    return Linear(coefficients=coefficients, bound=bound + 0.0)  # + 0.0: no -0.0


def parse_expression(text: str, known: Collection[str] = ()) -> Expression:
    """Parse a sum of terms as in `parse`: `2*a.b + 100`, or a number alone.

    Args:
        known: as in `parse`.

    Raises:
        ValueError: the text does not fit; the message is a clause.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"longer than {MAX_LENGTH} characters")
    names, constant = _side(text, known)
    return Expression(coefficients=_finite(names, constant), constant=constant)


def _finite(names: Mapping[str, float], constant: float) -> Mapping[str, float]:
    """Return the coefficients that are not zero. Raises ValueError if a number is infinite or NaN."""
    kept = {name: factor for name, factor in names.items() if factor != 0}
    if not all(map(math.isfinite, (constant, *kept.values()))):
        raise ValueError("its numbers are too large")
    return MappingProxyType(kept)


def ambiguous_minus(text: str) -> str:
    """Return the first part of the text like `a-b`, which may be a difference or a name; "": none."""
    found = _MINUS_IN_NAME.search(text)
    return found[0] if found else ""


def _token(known: Collection[str]) -> re.Pattern[str]:
    """Return the pattern of a token; the longest of the `known` names comes first."""
    names = sorted((re.escape(name) for name in known if "-" in name), key=len, reverse=True)
    own = rf"(?:{'|'.join(names)})(?![A-Za-z0-9_.]|/[A-Za-z_])|" if names else ""
    return re.compile(rf"\s*(?:{own}{_TOKEN})", re.ASCII)


def _side(text: str, known: Collection[str]) -> tuple[dict[str, float], float]:
    """Return the coefficients by name, and the constant."""
    token = _token(known)
    names: dict[str, float] = {}
    constant = 0.0
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        found = token.match(text, position, end)
        if not found:
            remainder = text[position:end].strip()
            hint = "; write it without parentheses" if remainder[0] in "()" else ""
            raise ValueError(f"cannot read `{remainder}`{hint}")
        tokens.append(found[0].strip())
        position = found.end()
    position = 0
    while position < len(tokens) or position == 0:
        factor, name, position = _term(tokens, position, text)
        if name:
            names[name] = names.get(name, 0.0) + factor
        else:
            constant += factor
    return names, constant


def _term(tokens: list[str], position: int, text: str) -> tuple[float, str, int]:
    """Return factor, name ("" for a constant) and end of the signed product that starts at `position`."""
    factor, name, start = 1.0, "", position
    while position < len(tokens) and tokens[position] in ("+", "-"):
        factor = -factor if tokens[position] == "-" else factor
        position += 1
    if start > 0 and position == start:
        raise ValueError(f"`+`, `-`, `*` or `/` is missing before `{tokens[start]}`")
    operator = "*"
    while True:
        if position >= len(tokens) or tokens[position] in "+-*/":
            raise ValueError(f"a number or a name is missing in `{text.strip()}`")
        operand = tokens[position]
        if not (operand[0].isalpha() or operand[0] == "_"):
            number = float(operand)
            if operator == "/" and number == 0:
                raise ValueError("division by zero")
            factor = factor * number if operator == "*" else factor / number
        elif name or operator == "/":
            raise ValueError(
                f"`{text.strip()}` is not linear: a name may only be multiplied or divided by numbers"
            )
        else:
            name = operand
        position += 1
        if position >= len(tokens) or tokens[position] not in ("*", "/"):
            return factor, name, position
        operator = tokens[position]
        position += 1
