"""Run a script in this process, as `python FILE ARGUMENTS…` would; for `forked.Forked`."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run the script that comes first; return 0, or raise what it raises."""
    sys.argv = argv
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [str(Path(argv[0]).absolute().parent), *given]
    runpy.run_path(argv[0], run_name="__main__")
    return 0
