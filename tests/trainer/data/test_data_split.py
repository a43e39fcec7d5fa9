"""trainer.data.memory.split: no file, and no copy of a file, on two sides."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.corpus import HELD_OUT, SIDES, TEST, TRAIN, side
from trainer.data.memory import split
from trainer.data.stdlib import Document
from trainer.errors import DataError


def document(path: str, text: str | None = None) -> Document:
    """A file whose lines are unique by default."""
    lines = text if text is not None else "\n".join(line(path, number) for number in range(6))
    return Document(path=path, data=lines.encode())


def line(path: str, number: int) -> str:
    return f"{path}, line {number}: no other file than {path} has it, {path} or {number * 7919}"


LIBRARY = [document(f"module{number}.py") for number in range(400)]
SMALL = st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.499))
FRACTIONS = st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9)).filter(lambda both: sum(both) < 0.95)


@settings(max_examples=10)
@given(FRACTIONS)
def test_split_is_a_partition_with_the_right_shares(fractions: tuple[float, float]) -> None:
    sides = split(LIBRARY, *fractions)
    assert list(sides) == list(SIDES)
    assert sorted(chain(*sides.values()), key=LIBRARY.index) == LIBRARY
    for name, fraction in zip((HELD_OUT, TEST), fractions, strict=True):
        assert abs(len(sides[name]) / len(LIBRARY) - fraction) < 0.1  # four standard deviations


@settings(max_examples=10)
@given(st.sets(st.integers(0, 399), min_size=100))
def test_a_file_keeps_its_side_whatever_else_is_there(chosen: set[int]) -> None:
    sides = split(LIBRARY, 0.3, 0.2)
    some = [LIBRARY[number] for number in sorted(chosen)]
    for name, files in split(some, 0.3, 0.2).items():
        assert files == [file for file in some if file in sides[name]]


@given(st.text(), SMALL, SMALL)
def test_fractions_move_nothing_between_measured_texts(
    content: str, one: tuple[float, float], other: tuple[float, float]
) -> None:
    sides = {side(content, held_out_fraction=held_out, test_fraction=test) for held_out, test in (one, other)}
    assert sides != {HELD_OUT, TEST}


@pytest.mark.parametrize("name", [HELD_OUT, TEST])
def test_a_larger_fraction_only_adds_measured_files(name: str) -> None:
    small, large = split(LIBRARY, 0.1, 0.1)[name], split(LIBRARY, 0.2, 0.2)[name]
    assert all(file in large for file in small)
    assert len(large) > len(small)


@pytest.mark.parametrize(("of", "name"), [(TRAIN, HELD_OUT), (TRAIN, TEST), (HELD_OUT, TEST)])
@pytest.mark.parametrize(("own_lines", "kept"), [(0, False), (4, False), (6, True), (20, True)], ids=str)
def test_measured_copies_are_dropped(own_lines: int, kept: bool, of: str, name: str) -> None:
    sides = split(LIBRARY, 0.3, 0.3)
    copied = sides[of][0].data.decode().splitlines()[:5]
    own = [line("another.py", number) for number in range(own_lines)]
    copy = document(sides[name][0].path, "\n".join(f"    {text}" for text in (*copied, *own)))
    others = [file for file in LIBRARY if file.path != copy.path]
    again = split([*others, copy], 0.3, 0.3)
    assert (copy in again[name]) == kept
    assert all(copy not in files for side, files in again.items() if side != name)


def test_a_file_of_pieces_of_many_training_files_is_left_out() -> None:
    sides = split(LIBRARY, 0.3, 0.1)
    pieces = "\n".join(file.data.decode().splitlines()[3] for file in sides[TRAIN][:30])
    copy = document(sides[HELD_OUT][0].path, pieces)
    others = [file for file in LIBRARY if file.path != copy.path]
    assert copy not in split([*others, copy], 0.3, 0.1)[HELD_OUT]


@pytest.mark.parametrize(("fraction", "name"), [(1e-6, "held-out"), (0.9 - 1e-6, "training")])
def test_an_empty_side_is_refused(fraction: float, name: str) -> None:
    with pytest.raises(DataError, match=f"no {name} text .*400"):
        split(LIBRARY, fraction, 0.1)


def test_an_empty_test_side_is_not() -> None:
    assert split(LIBRARY, 0.2, 1e-6)[TEST] == []
