"""trainer.data.stdlib: the selection of files."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from trainer.data.stdlib import EXCLUDED_FOLDERS, documents
from trainer.errors import DataError


def write(root: Path, **files: bytes) -> None:
    """Write files by path; `__` in a name is a slash, and every file is a .py."""
    for name, data in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def paths(root: Path, max_bytes: int | None = None) -> list[str]:
    return [document.path for document in documents(max_bytes, root)]


def test_source_files_come_sorted_by_path_with_their_bytes(tmp_path: Path) -> None:
    write(tmp_path, b=b"b = 1\n", a__z=b"z = 1\n", a=b"a = '\xc3\xa9'\r\n")
    assert [(document.path, document.data) for document in documents(None, tmp_path)] == [
        ("a.py", b"a = '\xc3\xa9'\r\n"),
        ("a/z.py", b"z = 1\n"),
        ("b.py", b"b = 1\n"),
    ]


@pytest.mark.parametrize("folder", sorted(EXCLUDED_FOLDERS))
@pytest.mark.parametrize("above", ["", "package/"], ids=["at-the-top", "nested"])
def test_folders_that_are_not_programs_are_left_out(folder: str, above: str, tmp_path: Path) -> None:
    write(tmp_path, kept=b"kept = 1\n")
    left_out = tmp_path / above / folder / "deeper"
    left_out.mkdir(parents=True)
    (left_out / "module.py").write_text("left_out = 1\n")
    assert paths(tmp_path) == ["kept.py"]


def test_files_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    write(
        tmp_path, kept=b"kept = 1\n", latin=b"# \xe9\n", empty=b"", blank=b" \n", _sysconfigdata_x=b"x = 1\n"
    )
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    assert paths(tmp_path) == ["kept.py"]


@pytest.mark.parametrize("root", ["python311.zip", "empty"], ids=["missing", "without-sources"])
def test_an_interpreter_without_source_is_told(root: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no Python source") as error:
        documents(None, tmp_path / root)
    assert str(tmp_path / root) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_interpreters_own_library_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path, own=b"own = 1\n")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert [document.path for document in documents()] == ["own.py"]


def test_a_bound_on_the_bytes_holds_and_draws_from_everywhere(tmp_path: Path) -> None:
    write(tmp_path, **{f"{letter}{number}": b"x = 1234\n\n" for letter in "abcd" for number in range(25)})
    kept = paths(tmp_path, max_bytes=409)
    assert len(kept) == 40
    assert {path[0] for path in kept} == set("abcd")
    assert kept == sorted(kept) == paths(tmp_path, max_bytes=400)


def test_a_larger_bound_adds_files_and_replaces_none(tmp_path: Path) -> None:
    write(tmp_path, **{f"m{number}": b"x = 1\n" * (number + 1) for number in range(30)})
    small, large = set(paths(tmp_path, 500)), set(paths(tmp_path, 1500))
    assert small < large


def test_a_bound_below_the_first_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, module=b"x = 12345\n")
    with pytest.raises(DataError, match=r"data\.max_bytes is 9, .*module\.py, 10 bytes"):
        documents(9, tmp_path)
