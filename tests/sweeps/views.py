"""A sweep as the dashboard has read it, from records."""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.dashboard.reader import View
from sweeps.space.definition import Space
from sweeps.trials.control import Switch
from sweeps.trials.record import Trial


def view_of(space: Space, records: Sequence[Trial]) -> View:
    """Return the view of a running sweep that nobody has changed, confirmed or archived."""
    return View(
        number=1,
        url="case",
        space=space,
        records=tuple(records),
        damaged=(),
        switch=Switch(),
        archived=False,
        changes=(),
        actions=(),
        confirmation=None,
        now=0.0,
    )
