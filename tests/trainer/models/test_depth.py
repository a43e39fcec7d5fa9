"""The mapping of layers: properties at all depths, and a few depths by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.models.depth import matched_layers

DEPTHS = st.integers(1, 200).flatmap(lambda teacher: st.tuples(st.integers(1, teacher), st.just(teacher)))


@pytest.mark.parametrize(
    ("student", "teacher", "expected"),
    [
        (1, 4, (3,)),
        (2, 4, (0, 3)),
        (3, 4, (0, 2, 3)),
        (4, 4, (0, 1, 2, 3)),
        (3, 32, (0, 16, 31)),
        (6, 30, (0, 6, 12, 17, 23, 29)),
    ],
)
def test_by_hand(student: int, teacher: int, expected: tuple[int, ...]) -> None:
    assert matched_layers(student, teacher) == expected


@given(DEPTHS)
def test_matched_layers_rise_strictly_and_align_the_ends(depths: tuple[int, int]) -> None:
    student, teacher = depths
    matched = matched_layers(student, teacher)
    assert len(matched) == student
    assert all(before < after for before, after in pairwise(matched))
    assert matched[-1] == teacher - 1
    assert student == 1 or matched[0] == 0


@given(DEPTHS)
def test_gaps_differ_by_one_layer_at_most(depths: tuple[int, int]) -> None:
    matched = matched_layers(*depths)
    gaps = [after - before for before, after in pairwise(matched)]
    assert not gaps or max(gaps) - min(gaps) <= 1


@given(st.integers(1, 200))
def test_for_equal_depths_it_is_the_identity(layers: int) -> None:
    assert matched_layers(layers, layers) == tuple(range(layers))


@pytest.mark.parametrize(("student", "teacher"), [(0, 4), (5, 4), (-1, 4), (0, 0)])
def test_a_student_that_is_deeper_or_empty_is_refused(student: int, teacher: int) -> None:
    with pytest.raises(ValueError, match="cannot be matched"):
        matched_layers(student, teacher)
