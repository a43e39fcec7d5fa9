"""Table of a sweep's trials: sort, filter, search and pages. All of it is in the page's address."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

from analysis.labels import cell
from sweeps.dashboard.reader import View
from sweeps.errors import InputError
from sweeps.export import table
from sweeps.space.definition import Fixed, cell_of
from sweeps.text import columns as names
from sweeps.text.columns import FOR_PEOPLE, METRIC, PARAMETER, metric_of, parameter_column
from sweeps.trials import costs
from sweeps.trials.record import STATUSES, Trial

PER_PAGE = 100
_LONGEST = 200
_TERMS = 12
_TERM = re.compile(r"(?P<name>[^<>=]+?)(?P<sign><=|>=|<|>|=)(?P<value>.+)")


def _is_equal(value: float, asked: float) -> bool:
    """Return whether two whole numbers are equal, such as seeds, or others to the digits of a table."""
    if isinstance(asked, int) and (isinstance(value, int) or value.is_integer()):
        return value == asked
    return math.isclose(value, asked, rel_tol=1e-4)


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": _is_equal,
}


@dataclass(frozen=True, kw_only=True)
class Query:
    """A view of the table, as the address of the page has it.

    Args:
        status, by: only trials of this status, or of this generator; "" for all.
        q: words that a trial must have somewhere, or conditions such as `final_loss<3.3`.
        page: from 1.
        x, y: axes of the front; "" for the default.
    """

    status: str = ""
    by: str = ""
    q: str = ""
    sort: str = "trial"
    order: Literal["asc", "desc"] = "asc"
    page: int = 1
    x: str = ""
    y: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Return the query of an address; what is not understood is left at its default."""
        page = given.get("page", "")
        return cls(
            status=given.get("status", "") if given.get("status") in STATUSES else "",
            by=given.get("by", "")[:_LONGEST],
            q=given.get("q", "")[:_LONGEST].strip(),
            sort=given.get("sort", "trial")[:_LONGEST] or "trial",
            order="desc" if given.get("order") == "desc" else "asc",
            page=max(1, int(page[:7])) if page.isascii() and page.isdecimal() else 1,
            x=given.get("x", "")[:_LONGEST],
            y=given.get("y", "")[:_LONGEST],
        )

    def address(self, **changes: Any) -> str:
        """Return the address with these changes, without what is at its default: `?sort=final_loss`."""
        changed, default = replace(self, **changes), Query()
        found = {name: value for name, value in vars(changed).items() if value != getattr(default, name)}
        return f"?{urlencode(found)}" if found else "?"

    def toggled(self, column: str) -> str:
        """Return the address that sorts by the column, the other way round if it does so already."""
        turned: Literal["asc", "desc"] = "desc" if self.sort == column and self.order == "asc" else "asc"
        return self.address(sort=column, order=turned, page=1)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its name in addresses, its head, and whether it has words, which stand at the left."""

    name: str
    head: str
    words: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialTable:
    """A page of the table.

    Args:
        columns: those that are shown, `trial` first.
        rows: trials, each with a text for each column.
        generators: all of the sweep, for the filter.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Trial, list[str]], ...]
    found: int
    pages: int
    page: int
    generators: tuple[str, ...]


def trial_table(view: View, query: Query) -> TrialTable:
    """Return the page of the table that a query asks for."""
    shown = columns(view)
    paid = costs.paid_by_trial(view.records)
    fits = matcher(query.q, paid)
    found = [
        record
        for record in view.records
        if (not query.status or record.status == query.status)
        and (not query.by or record.generator == query.by)
        and fits(record)
    ]
    if query.sort in {column.name for column in shown}:
        found = _sort_records(found, query.sort, paid, descending=query.order == "desc")
    pages = max(1, -(-len(found) // PER_PAGE))
    page = min(query.page, pages)
    rows = found[(page - 1) * PER_PAGE : page * PER_PAGE]
    return TrialTable(
        columns=tuple(shown),
        rows=tuple((record, [_text(record, column.name, paid) for column in shown]) for record in rows),
        found=len(found),
        pages=pages,
        page=page,
        generators=tuple(sorted({record.generator for record in view.records})),
    )


def columns(view: View) -> list[Column]:
    """Return the columns: objectives, seconds, what was paid, and the parameters that vary.

    Their names are those of an export, a metric's with its prefix also where one of `raw` is called so; their
    heads those of `sweep trials`.
    """
    metrics = [metric_column(metric) for metric in view.space.metrics()]
    heads = {*metrics, "usd"}
    found = [
        Column(name="trial", head="trial"),
        Column(name="status", head="status", words=True),
        Column(name="by", head="by", words=True),
        *(Column(name=metric, head=metric) for metric in metrics),
        Column(name="seconds", head="seconds"),
    ]
    if any(record.stages for record in view.records):
        found.append(Column(name="paid", head="paid"))
    if "usd" not in metrics and any(record.metrics.get("usd") for record in view.records):
        found.append(Column(name="usd", head="usd"))
    found += [
        Column(name=f"{PARAMETER}{parameter.name}", head=parameter_column(parameter.name, heads))
        for parameter in view.space.parameters
        if not isinstance(parameter, Fixed)
    ]
    return [*found, Column(name="worker", head="worker", words=True)]


def metric_column(metric: str) -> str:
    """Return the name of a metric's column: that of `sweep trials`, which no other column of ours has."""
    return names.metric_column(metric, FOR_PEOPLE)


def raw(record: Trial, column: str, paid: Mapping[int, float | None] | None = None) -> object:
    """Return a trial's value in a column, None if it has none.

    Args:
        paid: `costs.paid_by_trial` of the sweep; without it a trial that was stopped early has paid for its
            ended stages alone.
    """
    if column.startswith(PARAMETER):
        return table.flat_parameter(record, column.removeprefix(PARAMETER))
    if column.startswith(METRIC):
        return record.metrics.get(metric_of(column))
    match column:
        case "trial":
            return record.trial
        case "status":
            return record.status
        case "by" | "generator":
            return record.generator
        case "seconds":
            return table.seconds(record)
        case "machine_seconds":
            return table.all_seconds(record)
        case "paid":
            return costs.paid(record) if paid is None else paid.get(record.trial)
        case "worker":
            return record.worker or (record.history[-1].worker if record.history else None)
        case "error":
            return record.error
        case _:
            return record.metrics.get(column, table.flat_parameter(record, column))


def _text(record: Trial, column: str, paid: Mapping[int, float | None]) -> str:
    if column == "trial":
        return str(record.trial)
    value = raw(record, column, paid)
    if column == "status":
        return str(value).replace("_", " ")
    text = cell(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _sort_records(
    records: Sequence[Trial], column: str, paid: Mapping[int, float | None], *, descending: bool
) -> list[Trial]:
    """Return the records by a column: numbers before texts, and what is missing always last."""
    keyed = [(raw(record, column, paid), record) for record in records]
    present = [(value, record) for value, record in keyed if value is not None]

    def key(pair: tuple[object, Trial]) -> tuple[int, float, str]:
        value = pair[0]
        if isinstance(value, int | float):
            return 0, float(value), ""
        return 1, 0.0, str(value)

    present.sort(key=key, reverse=descending)
    return [record for _, record in present] + [record for value, record in keyed if value is None]


def matcher(text: str, paid: Mapping[int, float | None] | None = None) -> Callable[[Trial], bool]:
    """Return whether a trial fits all words and conditions of a text; `paid` as in `raw`."""
    checks = [_check(word, paid) for word in text.split()[:_TERMS]]
    return lambda record: all(check(record) for check in checks)


def _check(word: str, paid: Mapping[int, float | None] | None) -> Callable[[Trial], bool]:
    found = _TERM.fullmatch(word)
    if found is not None:
        name, sign, asked = found["name"], found["sign"], found["value"]
        limit: float | None = None
        with suppress(ValueError):
            limit = float(asked)
            limit = int(asked)  # in full; `2.026e7` is as a table rounds it

        def fits(record: Trial) -> bool:
            value = raw(record, name, paid)
            if limit is None:  # a condition on a text
                return sign == "=" and asked.casefold() == ("" if value is None else str(value).casefold())
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            return _COMPARE[sign](value, limit)

        return fits
    wanted = word.casefold()
    return lambda record: wanted in _haystack(record)


def _haystack(record: Trial) -> str:
    """Return all texts of a trial in one, in lower case."""
    worker = raw(record, "worker")
    pairs = (f"{name}={cell_of(value)}" for name, value in record.parameters.items())
    parts = (f"#{record.trial}", str(record.trial), record.status, record.generator, worker, record.failure)
    return "\n".join([*(str(part) for part in parts if part), *pairs, record.error or ""]).casefold()


def select_trials(view: View, given: Sequence[str], *, most: int) -> list[Trial]:
    """Return the trials of `t=3&t=5` or `t=3,5`, each once. Raises `InputError` for what is none."""
    words = [word for text in given for word in text.replace(",", " ").split()]
    found: dict[int, Trial] = {}
    for word in words:
        index = int(word) if word.isascii() and word.isdecimal() and len(word) <= 7 else -1
        record = view.trial(index) if index >= 0 else None
        if record is None:
            raise InputError(f"there is no trial {word[:20]}")
        found[index] = record
    if len(found) > most:
        raise InputError(f"{len(found)} trials are too many at once; take at most {most}")
    return list(found.values())
