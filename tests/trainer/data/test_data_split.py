"""trainer.data.split: no file, and no copy of a file, on both sides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import DataError
from trainer.data.split import split
from trainer.data.stdlib import Document


def document(path: str, text: str | None = None) -> Document:
    """A file whose lines are unique by default."""
    lines = text if text is not None else "\n".join(f"{path} has a line {number}" for number in range(9))
    return Document(path=path, data=lines.encode())


LIBRARY = [document(f"module{number}.py") for number in range(400)]


@given(st.floats(0.05, 0.95))
def test_every_file_is_on_one_side_and_the_share_is_about_right(fraction: float) -> None:
    train, held_out = split(LIBRARY, fraction)
    assert sorted((*train, *held_out), key=LIBRARY.index) == LIBRARY
    assert abs(len(held_out) / len(LIBRARY) - fraction) < 0.1  # four standard deviations


@given(st.sets(st.integers(0, 399), min_size=100))
def test_a_file_keeps_its_side_whatever_else_is_there(chosen: set[int]) -> None:
    held_out = split(LIBRARY, 0.3)[1]
    some = [LIBRARY[number] for number in sorted(chosen)]
    assert split(some, 0.3)[1] == [file for file in some if file in held_out]


def test_a_larger_fraction_only_adds_held_out_files() -> None:
    small, large = split(LIBRARY, 0.1)[1], split(LIBRARY, 0.2)[1]
    assert all(file in large for file in small)
    assert len(large) > len(small)


@pytest.mark.parametrize(
    ("own_lines", "kept"), [(0, False), (4, False), (5, True), (20, True)], ids=lambda value: str(value)
)
def test_a_held_out_copy_of_training_text_is_left_out(own_lines: int, kept: bool) -> None:
    train, held_out = split(LIBRARY, 0.3)
    copied = train[0].data.decode().splitlines()[:5]
    own = [f"a line of its own, number {number}" for number in range(own_lines)]
    copy = document(held_out[0].path, "\n".join(f"    {line}" for line in (*copied, *own)))
    others = [file for file in LIBRARY if file.path != copy.path]
    assert (copy in split([*others, copy], 0.3)[1]) == kept
    assert copy not in split([*others, copy], 0.3)[0]


def test_short_lines_are_nobodys_copy() -> None:
    train, held_out = split(LIBRARY, 0.3)
    common = "import os\nelse:\nreturn None\n"
    library = [
        document(file.path, file.data.decode() + "\n" + common) if file in train[:1] else file
        for file in LIBRARY
        if file != held_out[0]
    ]
    short = document(held_out[0].path, common)
    assert short in split([*library, short], 0.3)[1]


@pytest.mark.parametrize(("fraction", "side"), [(1e-6, "held-out"), (1 - 1e-6, "training")])
def test_an_empty_side_is_refused(fraction: float, side: str) -> None:
    with pytest.raises(DataError, match=f"leaves no {side} text among 400 files"):
        split(LIBRARY, fraction)
