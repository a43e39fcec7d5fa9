"""An export replaces a regular file or makes one; devices and pipes are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeps.errors import InputError
from sweeps.export.table import require_place


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "trials.csv"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="device or a pipe"):
        require_place(pipe)


@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout"])
def test_a_device_is_not_replaced(device: str) -> None:
    with pytest.raises(InputError, match="device or a pipe"):
        require_place(Path(device))


def test_a_file_is_replaced_or_made(tmp_path: Path) -> None:
    file = tmp_path / "trials.csv"
    require_place(file)
    file.touch()
    require_place(file)
