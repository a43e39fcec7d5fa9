"""Types of fields, and checks that several dataclasses share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, PlainValidator

STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Exponent = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class FieldError(ValueError):
    """Fields that contradict each other.

    Args:
        problem: the contradiction, and what to write instead.
        key: relative to the dataclass that raises it; "" in a validator of one field.
    """

    def __init__(self, problem: str, *, key: str) -> None:
        self.problem, self.key = problem, key
        super().__init__(f"{key}: {problem}")


class FieldErrors(ValueError):
    """All contradictions of one dataclass's fields."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, errors)))


class Checked:
    """A base of dataclasses whose fields are checked against each other, once each is valid by itself."""

    def __post_init__(self) -> None:
        if found := list(self.contradictions()):
            raise FieldErrors(found)

    def contradictions(self) -> Iterator[FieldError]:
        """Yield each contradiction between the fields that follows from no other one."""
        raise NotImplementedError


def read_trunk_points(value: object) -> int | tuple[int, ...]:
    """Return the steps between points, or the points; a list becomes a tuple.

    Raises:
        FieldError: it is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    steps = tuple(value) if isinstance(value, list | tuple) else (0,)
    if all(isinstance(step, int) and not isinstance(step, bool) and step > 0 for step in steps):
        return steps
    raise FieldError(
        f"{value!r} is no number of steps (0: no points) and no list of steps; write 20 or [17,35]", key=""
    )


TrunkPoints = Annotated[int | tuple[int, ...], PlainValidator(read_trunk_points)]
"""Points of a trunk: how many steps are between two, 0 for none; or the steps themselves."""
