"""A file is replaced atomically, and has the mode that was asked for whatever was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.text.atomic_file import BY_UMASK, OWNER_EXECUTABLE, OWNER_ONLY, write_atomic


@pytest.fixture
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
@pytest.mark.parametrize(
    ("mode", "expected"), [(OWNER_ONLY, 0o600), (OWNER_EXECUTABLE, 0o700), (BY_UMASK, 0o644)]
)
def test_its_mode_is_the_one_asked_for_whatever_was_there(tmp_path: Path, mode: int, expected: int) -> None:
    path = tmp_path / "new folder" / "worker.sh"
    path.parent.mkdir()
    for left in (path, path.with_name("worker.sh.new")):  # the second by a writer that was killed
        left.write_text("older and longer")
        left.chmod(0o666)
    write_atomic(path, "text\n", mode=mode)
    assert path.read_text() == "text\n"
    assert stat.S_IMODE(path.stat().st_mode) == expected
    assert list(path.parent.iterdir()) == [path]


def test_who_reads_the_old_one_goes_on_with_it(tmp_path: Path) -> None:
    """A shell reads its script as it goes."""
    path = tmp_path / "deeper" / "worker.sh"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "old"
