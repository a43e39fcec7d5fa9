"""Validation of a pool's options by an engine's own dataclass, with one-line errors."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, ValidationError

from runners.errors import PoolError
from runners.pools.pool import Pool

T = TypeVar("T")

Quantity = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]
"""Text such as 8+ or 64Gi, that may also be written as a number."""


def require_package(package: str, forms: str) -> None:
    """Raise `PoolError` where a pool does not say what pip installs on its machines.

    Nobody holds the name stagesweep on PyPI yet: whoever takes it would get the machines and their secrets.

    Args:
        forms: what it may be, for the message.
    """
    if not package:
        raise PoolError(
            "options",
            f"package: it is missing; no package index has stagesweep yet; write --option package={forms}",
        )


def parse(kind: type[T], pool: Pool) -> T:
    """Return the pool's options as a `kind`, a pydantic dataclass that forbids others. Raises `PoolError`."""
    try:
        return kind(**pool.options)
    except ValidationError as error:
        first = error.errors()[0]
    key = ".".join(str(each) for each in first["loc"])
    problem = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        problem = "it is missing"
    elif first["type"] == "unexpected_keyword_argument":
        names = ", ".join(each.name for each in fields(cast(Any, kind)))
        problem = f"there is no such option; there are {names}"
    raise PoolError("options", f"{key}: {problem}")
