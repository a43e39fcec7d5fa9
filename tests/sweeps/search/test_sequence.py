"""The Sobol sequence by position: the same in any order of reading, and random walks where points are rare."""

from __future__ import annotations

import pytest

from sweeps.search.sequence import BATCH, DRAWS, Point, SobolSequence


class Counting:
    """Draws the integers from the start on; each batch takes `cost` draws."""

    def __init__(self, cost: int = BATCH) -> None:
        self.cost = cost
        self.calls: list[tuple[int, int, int, int]] = []

    def __call__(self, n: int, draws: int, seed: int, start: int) -> tuple[list[Point], int]:
        self.calls.append((n, draws, seed, start))
        return [{"p": start + i, "seed": seed} for i in range(n)], start + min(self.cost, draws)


def test_batches_continue_one_scrambled_sequence():
    draw = Counting()
    sequence = SobolSequence(draw, seed=1)
    assert [sequence[i]["p"] for i in range(40)] == list(range(40))
    assert len({call[2] for call in draw.calls}) == 1
    assert len(draw.calls) == 3


def test_it_may_be_read_in_any_order():
    assert (
        SobolSequence(Counting(), seed=1)[37] == [SobolSequence(Counting(), seed=1)[i] for i in range(38)][37]
    )
    late = SobolSequence(Counting(), seed=1)
    assert (late[20], late[3]) == ({**late[20], "p": 20}, {**late[3], "p": 3})


def test_another_seed_is_another_scrambling():
    assert SobolSequence(Counting(), seed=1)[0] != SobolSequence(Counting(), seed=2)[0]


def test_where_points_are_rare_each_is_a_walk_of_its_own():
    draw = Counting(cost=DRAWS)
    sequence = SobolSequence(draw, seed=1)
    found = [sequence[i]["seed"] for i in range(5)]
    assert len(set(found)) == 5
    assert [call[0] for call in draw.calls] == [BATCH, 1, 1, 1, 1, 1]
    assert sequence[2]["seed"] == SobolSequence(Counting(cost=DRAWS), seed=1)[2]["seed"]


def test_what_the_generator_raises_reaches_the_reader():
    def empty(n: int, draws: int, seed: int, start: int) -> tuple[list[Point], int]:
        raise LookupError

    with pytest.raises(LookupError):
        SobolSequence(empty, seed=1)[0]
