"""Near-copies of measured documents in streamed text: none is trained on, and all else stays as it is."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from data_texts import END, parquet_config, side_of, text_config, write_lines, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import StreamConfig
from trainer.data.corpus import HELD_OUT, SIDES, TEST, TRAIN, Corpus
from trainer.data.inputs import load
from trainer.data.near_copies import NearCopies

DOCUMENTS = 60
ENOUGH = 10**6


def words_of(number: int) -> list[str]:
    """100 words of four digits each."""
    random = Random(number)
    return [str(random.randint(1000, 1999)) for _ in range(100)]


def copy_for(number: int, side: str) -> str:
    """A copy on that side, in which the number of the document has taken the place of three words."""
    for seed in range(1000):
        words = words_of(number)
        for place in Random(seed).sample(range(100), 3):
            words[place] = str(number)
        if side_of(" ".join(words)) == side:
            return " ".join(words)
    raise AssertionError(f"no copy of document {number} falls on the {side} side")


ORIGINALS = [" ".join(words_of(number)) for number in range(DOCUMENTS)]
OF_SIDE = {side: {number for number, text in enumerate(ORIGINALS) if side_of(text) == side} for side in SIDES}


@pytest.fixture(scope="module", params=["parquet", "lines"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StreamConfig:
    """Text in which every document has a near-copy on the training side."""
    folder = tmp_path_factory.mktemp("copies")
    texts = [text for number, one in enumerate(ORIGINALS) for text in (copy_for(number, TRAIN), one)]
    tokens = {"held_out_tokens": ENOUGH, "test_tokens": ENOUGH, "lanes": 2}
    if request.param == "parquet":
        write_parquet(folder / "a.parquet", texts)
        return parquet_config(folder, **tokens)
    for part in range(40):
        write_lines(folder / f"{part:02d}.jsonl", texts[3 * part : 3 * part + 3])
    return text_config(f"{folder}/*.jsonl", text_key="text", **tokens)


@pytest.fixture
def corpus(config: StreamConfig, word_tokenizer: Path) -> Corpus:
    return load(config, own_tokenizer=word_tokenizer)


def batches(
    corpus: Corpus, count: int, *, rank: int = 0, world: int = 1, skip: int = 0
) -> list[torch.Tensor]:
    with corpus.batches(batch_size=4, sequence_length=8, seed=3, rank=rank, world=world) as feed:
        return list(islice(feed, skip, skip + count))


def test_no_near_copy_of_a_measured_document_is_trained_on(corpus: Corpus) -> None:
    found = {int(token) for batch in batches(corpus, 700) for token in batch.flatten() if token < DOCUMENTS}
    assert OF_SIDE[HELD_OUT]
    assert OF_SIDE[TEST]
    assert found == OF_SIDE[TRAIN]


def test_an_epoch_has_every_other_training_document_once(corpus: Corpus) -> None:
    windows = [window for batch in batches(corpus, 1200) for window in batch]
    tokens = Counter(int(token) for window in windows for token in window)
    shown = [tokens[number] / 3 for number in OF_SIDE[TRAIN]]
    assert max(shown) - min(shown) <= 2.5  # epochs; the last one has begun only
    assert tokens[END] == pytest.approx(2 * sum(shown), rel=0.05)  # the copy and its original


@pytest.mark.parametrize("before", [1, 7, 150])
def test_a_resumed_feed_goes_on_as_if_it_had_not_ended(before: int, corpus: Corpus) -> None:
    arguments = {"batch_size": 4, "sequence_length": 8, "seed": 3}
    with corpus.batches(**arguments) as feed:
        for _ in range(before):
            next(feed)
        state = feed.state()
    with corpus.batches(**arguments) as feed:
        feed.restore(state)
        again = list(islice(feed, 20))
    assert all(map(torch.equal, again, batches(corpus, 20, skip=before)))


def test_processes_share_the_batches_of_one(corpus: Corpus) -> None:
    shares = [batches(corpus, 30, rank=rank, world=2) for rank in range(2)]
    for number, batch in enumerate(batches(corpus, 30)):
        for rank in range(2):
            assert torch.equal(shares[rank][number], batch[rank::2])


@pytest.mark.parametrize("first", [TEST, HELD_OUT])
def test_near_copy_of_held_out_text_is_dropped_from_test(
    first: str, tmp_path: Path, word_tokenizer: Path
) -> None:
    """Whichever of the two comes first."""
    number = min(OF_SIDE[HELD_OUT])
    pair = {HELD_OUT: ORIGINALS[number], TEST: copy_for(number, TEST)}
    other = [ORIGINALS[number] for side in (TEST, TRAIN) for number in sorted(OF_SIDE[side])]
    second = pair[HELD_OUT if first == TEST else TEST]
    write_parquet(tmp_path / "a.parquet", [pair[first], *other, second], rows=999)
    corpus = load(
        parquet_config(tmp_path, held_out_tokens=ENOUGH, test_tokens=ENOUGH), own_tokenizer=word_tokenizer
    )
    assert len(corpus.held_out) == 101
    assert len(corpus.test) == 101 * len(OF_SIDE[TEST])
    assert number not in corpus.test


@settings(max_examples=25)
@given(
    number=st.sampled_from(sorted(OF_SIDE[HELD_OUT] | OF_SIDE[TEST])),
    changes=st.dictionaries(st.integers(0, 99), st.integers(0, 1999).map(str), max_size=5),
    between=st.sampled_from([" ", "\n\n", ", ", "\t-- "]),
)
def test_near_copy_is_found_wherever_it_differs(number: int, changes: dict[int, str], between: str) -> None:
    index = NearCopies.build(ORIGINALS[number] for number in sorted(OF_SIDE[HELD_OUT] | OF_SIDE[TEST]))
    words = [changes.get(place, word) for place, word in enumerate(words_of(number))]
    assert index.has(between.join(words))
    assert not any(index.has(ORIGINALS[other]) for other in islice(sorted(OF_SIDE[TRAIN]), 5))
