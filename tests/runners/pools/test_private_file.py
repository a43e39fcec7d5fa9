"""A private file is its owner's alone, whole, and replaced rather than rewritten."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from runners.pools.private_file import write_private


@pytest.mark.parametrize(("executable", "mode"), [(False, 0o600), (True, 0o700)])
def test_it_is_for_its_owner_alone_whatever_was_there(tmp_path: Path, executable: bool, mode: int) -> None:
    path = tmp_path / "new folder" / "worker.sh"
    path.parent.mkdir()
    for left in (path, path.with_name("worker.sh.new")):  # the second by a writer that was killed
        left.write_text("older and longer")
        left.chmod(0o644)
    write_private(path, "text\n", executable=executable)
    assert path.read_text() == "text\n"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert list(path.parent.iterdir()) == [path]


def test_who_reads_the_old_one_goes_on_with_it(tmp_path: Path) -> None:
    """bash reads a script as it goes."""
    path = tmp_path / "deeper" / "worker.sh"
    write_private(path, "old")
    with path.open() as reader:
        write_private(path, "new")
        assert reader.read() == "old"
