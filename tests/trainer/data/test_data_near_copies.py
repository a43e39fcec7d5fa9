"""trainer.data.near_copies: what nearly copies a document is found, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.near_copies import NearCopies, collect_shingles, is_contained, shingles


def prose(seed: int, words: int) -> list[str]:
    """So many words that no other seed has."""
    random = Random(seed)
    return [
        "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(words)
    ]


def text_of(seed: int, words: int = 120) -> str:
    return " ".join(prose(seed, words))


INDEX = NearCopies.build([text_of(seed) for seed in range(20)])


@given(
    st.integers(0, 19), st.sets(st.integers(0, 119), max_size=6), st.sampled_from([" ", "\n", ", ", " - "])
)
def test_a_copy_with_a_few_other_words_is_found(number: int, changed: set[int], between: str) -> None:
    """Each changed word takes 40 of the 600 shingles at most."""
    words = [f"X{place}" if place in changed else word for place, word in enumerate(prose(number, 120))]
    assert INDEX.has(between.join(words).upper())


@given(st.integers(1000, 10**9), st.integers(0, 300))
def test_other_text_is_not(seed: int, words: int) -> None:
    assert not INDEX.has(text_of(seed, words))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (text_of(3), True),
        (text_of(3) + text_of(99, 5000), True),  # the document within a long text
        (text_of(99, 5000) + text_of(3), True),
        (text_of(99, 150) + " ".join(prose(3, 120)[:50]) + text_of(98, 150), False),  # too little of either
        (" ".join(prose(3, 120)[40:60]), True),  # a passage of it alone
        (" ".join(prose(3, 120)[40:60]) * 50 + text_of(99, 30), True),
        (" ".join(prose(3, 120)[:60] + prose(4, 120)[:60]), False),  # under half of each, by a few letters
        ("", False),
        ("...", False),
        ("a", False),
    ],
    ids=["same", "before", "after", "quoted", "passage", "repeated", "mixed", "empty", "blank", "short"],
)
def test_half_of_either_makes_a_near_copy(text: str, found: bool) -> None:
    assert INDEX.has(text) == found


def test_short_document_is_found_but_not_as_a_footer() -> None:
    footer = "read our policy on cookies and privacy, or write to us for more"
    index = NearCopies.build([footer, "Yes!"])
    assert index.has(footer.upper() + ".")
    assert index.has("yes")
    assert not index.has(text_of(1) + footer)
    assert not index.has("yes, and more")


def test_text_without_spaces_has_shingles_too() -> None:
    letters = [chr(Random(1).randint(0x4E00, 0x9FFF) + number) for number in range(0, 600)]
    index = NearCopies.build(["".join(letters)])
    assert index.has("".join(["。" if place % 40 == 0 else letter for place, letter in enumerate(letters)]))
    assert not index.has("".join(reversed(letters)))


@given(st.lists(st.sampled_from(["", "!", "a", "ab", text_of(1), text_of(2), text_of(1, 60)]), max_size=5))
def test_an_index_is_the_same_after_it_was_kept(texts: list[str]) -> None:
    import tempfile

    index = NearCopies.build(texts)
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "copies")
        again = NearCopies.load(Path(folder) / "copies")
        for text in ("", "a", text_of(1), text_of(2) + "?", text_of(3)):
            assert again.has(text) == index.has(text)
            assert index.has(text) == any(NearCopies.build([one]).has(text) for one in texts)


@given(st.text(max_size=200))
def test_a_shingle_is_a_function_of_its_letters_alone(text: str) -> None:
    """Wherever it stands: the hashes of a part are a part of the hashes."""
    around = text_of(5, 20)
    hashes = shingles(text)
    letters = text.lower().encode().translate(None, bytes(b for b in range(128) if not chr(b).isalnum()))
    assert len(hashes) == (max(1, len(letters) - 31) if letters else 0)
    if len(letters) >= 32:
        assert np.isin(hashes, shingles(around + text + around)).all()


def test_a_text_is_contained_in_many_that_have_its_pieces() -> None:
    known = collect_shingles(text_of(seed) for seed in range(20))
    pieces = " ".join(word for seed in range(20) for word in prose(seed, 120)[50:70])
    assert is_contained(pieces, known)
    assert not is_contained(text_of(99), known)
    assert not is_contained("", known)
    assert not is_contained(text_of(1), collect_shingles([]))
