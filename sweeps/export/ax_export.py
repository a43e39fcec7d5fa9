"""Export of the sweep as an Ax experiment: `sweep export --ax ax.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeps.export.table import replace_file
from sweeps.space.definition import Space
from sweeps.trials.record import Trial


def write(path: Path, space: Space, records: Sequence[Trial]) -> list[int]:
    """Write the experiment to `path` atomically, and return the indices of the trials that Ax refused.

    Raises:
        InputError: Ax refuses the space, or `path` is a folder.
        StoreUnavailable: the file cannot be written.
    """
    from sweeps.search.optimizer import write_client

    left_out: list[int] = []
    replace_file(path, lambda draft: left_out.extend(write_client(draft, space, records)))
    return left_out
