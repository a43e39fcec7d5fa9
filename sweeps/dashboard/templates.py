"""Templates of the pages. Everything that programs wrote is escaped, and nothing is a script or a style."""

from __future__ import annotations

import functools
from pathlib import Path
from urllib.parse import quote

import jinja2

from analysis import labels
from sweeps.text.counted import counted
from sweeps.text.timestamp import timestamp

FOLDER = Path(__file__).parent / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """Return the templates' environment, with the report's formats of numbers."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["urlencode_all"] = lambda text: quote(str(text), safe="")
    made.globals |= {
        "number": labels.number,
        "cell": labels.cell,
        "counted": counted,
        "title": labels.title,
        "timestamp": timestamp,
        "ago": ago,
        "hours": hours,
    }
    return made


def render(name: str, values: dict[str, object]) -> bytes:
    """Return a page as UTF-8; half of a surrogate pair becomes a question mark."""
    return environment().get_template(name).render(values).encode("utf-8", "replace")


def ago(now: float, then: float | None) -> str:
    """Return how long ago something was: `12 s ago`, `3 h ago`."""
    if then is None:
        return labels.MISSING
    seconds = now - then
    if seconds < 0:
        return "now" if seconds > -5 else f"{-seconds:.0f} s in the future"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def hours(count: float) -> str:
    """Return a time in hours for people."""
    if count < 1:
        return f"{60 * count:.0f} minutes"
    return f"{count:.1f} hours" if count < 48 else f"{count / 24:.1f} days"
