"""Entry point of `python -m sweeps`, which is the command `sweep`."""

import os
import sys
from importlib.machinery import PathFinder


def _leave_out_working_folder() -> None:
    """Take the working folder off the path, where `python -m` puts it: a `trainer.py` there is not ours."""
    folder = sys.path[0]
    if folder != os.getcwd():  # noqa: PTH109 - as `python -m` writes it
        return
    del sys.path[0]
    if PathFinder.find_spec("sweeps", sys.path) is None:  # not installed: these are the sources themselves
        sys.path.append(folder)
        paths = [path for path in (os.environ.get("PYTHONPATH"), folder) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the processes that this one starts


if not sys.flags.safe_path:
    _leave_out_working_folder()
try:
    from sweeps.cli import main
except ImportError as error:
    print(f"sweep: error: cannot import {error.name or 'a module'}: {error}", file=sys.stderr)
    sys.exit(2)

main()
