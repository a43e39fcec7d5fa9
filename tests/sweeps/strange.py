"""Entries of a file system in place of a file that are none. Test modules import it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

KINDS = ("pipe", "loop", "dangling", "folder", "socket", "device")


def stand_in(kind: str, path: Path) -> None:
    """Put a thing of that kind into the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("nothing-here")
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            _bind(path)


def _bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket may be 107 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    except OSError as error:
        pytest.skip(f"no sockets on this file system: {error}")
    finally:
        os.chdir(here)
