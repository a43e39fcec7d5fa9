"""Look for files below a folder that other processes write to."""

from __future__ import annotations

import glob
from pathlib import Path


def find(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that match, passing over folders that go meanwhile, at which Python 3.11's `Path.glob` fails."""
    return [folder / found for found in glob.glob(pattern, root_dir=folder, recursive=True)]  # noqa: PTH207
