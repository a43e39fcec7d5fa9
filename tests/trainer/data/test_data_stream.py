"""trainer.data.stream: for every source, training has each document that is not held out once per epoch, ranks
share batches, and a run resumes exactly."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_texts import END, numbered, parquet_config, side_of, text_config, write_lines, write_parquet
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from trainer.api import check
from trainer.cache import ROOT_VARIABLE
from trainer.checkpoint.state import State, StateError
from trainer.config import StreamConfig
from trainer.data import prefetch, stream, tokenizer
from trainer.data.corpus import HELD_OUT, SIDES, TEST, TRAIN, Corpus
from trainer.data.feed import Feed
from trainer.data.files import File
from trainer.data.inputs import load
from trainer.data.shards import BlockReader, open_shards
from trainer.data.stream import StreamCorpus, lane_count
from trainer.errors import ConfigError, DataError, HangingDiskError, UnreachableError

Make = Callable[..., Path]
Load = Callable[[StreamConfig], StreamCorpus]


@pytest.fixture
def opened(word_tokenizer: Path) -> Load:
    def open_(config: StreamConfig) -> StreamCorpus:
        corpus = load(config, own_tokenizer=word_tokenizer)
        assert isinstance(corpus, StreamCorpus)
        return corpus

    return open_


def feed_of(corpus: Corpus, **changes: int) -> Feed:
    return corpus.batches(**({"batch_size": 4, "sequence_length": 8, "seed": 3} | changes))


def rows(corpus: Corpus, batches: int, **changes: int) -> torch.Tensor:
    with feed_of(corpus, **changes) as feed:
        return torch.cat(list(islice(feed, batches)))


def counted(tokens: Iterable[int]) -> Counter[int]:
    return Counter(int(token) for token in tokens if token != END)


def expected(numbers: Iterable[int]) -> Counter[int]:
    """The words of these documents, as written by `numbered`."""
    return Counter({number: 1 + number % 5 for number in numbers})


OF_SIDE = {
    name: [number for number, text in enumerate(numbered(600)) if side_of(text) == name] for name in SIDES
}
TRAINED_ON = OF_SIDE[TRAIN]


# What is trained on, what is held out


@pytest.mark.parametrize("lanes", [1, 4])
def test_every_training_document_is_shown_and_no_other(lanes: int, shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards(), lanes=lanes))
    tokens = rows(corpus, 400).flatten()  # 12,800 tokens: five epochs and more
    assert set(counted(tokens)) == set(TRAINED_ON)


@pytest.mark.parametrize("is_remote", [False, True])
def test_text_that_hangs_is_on_a_disk_or_beyond_a_network(
    is_remote: bool, shards: Make, opened: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, hanging = shards(), threading.Event()
    corpus = opened(parquet_config(folder))
    if is_remote:
        monkeypatch.setattr(File, "is_local", False)
    monkeypatch.setattr(BlockReader, "texts", lambda reader, block: hanging.wait(30) and 1 / 0)
    monkeypatch.setitem(prefetch.Prefetched.__init__.__kwdefaults__, "stalled_s", 0.2)
    monkeypatch.setattr(prefetch, "CLOSING_S", 0.1)
    with feed_of(corpus) as feed, pytest.raises(UnreachableError) as raised:
        next(feed)
    hanging.set()
    assert isinstance(raised.value, HangingDiskError) is not is_remote
    assert (str(folder) in str(raised.value)) is not is_remote


def test_batches_made_ahead_have_a_limit_in_bytes(
    shards: Make, opened: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as many as hide the reading, if that is less: a batch here takes 4 x 8 x 8 bytes."""
    corpus, given = opened(parquet_config(shards(), lanes=4)), list[int]()
    monkeypatch.setattr(stream, "Prefetched", lambda feed, ahead, folder: given.append(ahead) or feed)
    for limit in (stream.AHEAD_BYTES, 2 * 256 + 255, 1):
        monkeypatch.setattr(stream, "AHEAD_BYTES", limit)
        feed_of(corpus).close()
    assert given[0] > 2
    assert given[1:] == [2, 1]


@pytest.mark.parametrize("files", [1, 2, 16])
def test_a_short_run_sees_all_parts_of_lines_that_are_sorted(
    files: int, tmp_path: Path, opened: Load
) -> None:
    """Sources that follow one another, in one file or in several, are mixed."""
    texts = [" ".join([str(number)] * 250) for number in range(1600)]
    for file, part in enumerate(np.split(np.array(texts), files)):
        write_lines(tmp_path / f"{file}.jsonl", part.tolist())
    corpus = opened(text_config(f"{tmp_path}/*.jsonl", text_key="text", lanes=4, shuffle_windows=64))
    for seed in range(5):
        numbers = rows(corpus, 64, sequence_length=128, seed=seed)  # a twelfth of the text
        shares = np.bincount(numbers[numbers != END].numpy() // 400, minlength=4) / numbers.numel()
        assert shares.min() > 0.1


@pytest.mark.slow
def test_few_long_lines_fill_every_lane(tmp_path: Path, opened: Load) -> None:
    """Blocks of lines may be far smaller than a document, and most of them then hold none."""
    texts = [" ".join([str(number)] * 20_000) for number in range(30)]
    write_lines(tmp_path / "a.jsonl", texts)
    trained_on = [number for number, text in enumerate(texts) if side_of(text) == TRAIN]
    assert len(trained_on) > 15
    corpus = opened(text_config(tmp_path / "a.jsonl", text_key="text", lanes=8))
    windows = len(trained_on) * 20_001 // 128
    shown = counted(rows(corpus, windows // 4, sequence_length=128).flatten())
    assert set(shown) == set(trained_on)
    assert max(shown.values()) < 1.05 * 20_000  # windows are shuffled across the end of the epoch


def test_a_short_run_sees_all_parts_of_a_row_group(tmp_path: Path, opened: Load) -> None:
    write_parquet(tmp_path / "a.parquet", [f"{number} " * 40 for number in range(1600)], rows=1600)
    corpus = opened(parquet_config(tmp_path / "a.parquet", lanes=1))
    numbers = rows(corpus, 64, sequence_length=16)
    shares = np.bincount(numbers[numbers != END].numpy() // 400, minlength=4) / numbers.numel()
    assert shares.min() > 0.1


def test_one_lane_without_shuffling_shows_whole_epochs(shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards(), lanes=1, shuffle_windows=1))
    epoch = sum(expected(TRAINED_ON).values()) + len(TRAINED_ON)  # words and ends
    tokens = rows(corpus, -(-3 * epoch // 32)).flatten().numpy()
    for number in range(3):
        of_epoch = tokens[number * epoch : (number + 1) * epoch]
        assert counted(of_epoch) == expected(TRAINED_ON)
        assert of_epoch[-1] == END
    documents = [
        set(part[:-1]) for part in np.split(tokens[:epoch], np.nonzero(tokens[:epoch] == END)[0] + 1)
    ]
    assert all(len(words) == 1 for words in documents[:-1])
    assert not np.array_equal(tokens[:epoch], tokens[epoch : 2 * epoch])


def test_held_out_text_is_never_trained_on(shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards(), held_out_tokens=10**6))
    held_out = OF_SIDE[HELD_OUT]
    assert counted(corpus.held_out) == expected(held_out)
    assert 60 < len(held_out) < 180
    text = [numbered(600)[number] for number in held_out]
    assert corpus.bytes_per_token == pytest.approx(sum(map(len, text)) / len(corpus.held_out))


def test_held_out_text_comes_from_all_files(shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards(), held_out_tokens=100))
    assert 100 <= len(corpus.held_out) < 106
    files = {int(token) // 120 for token in corpus.held_out if token != END}
    assert len(files) >= 3


def test_a_copy_of_a_held_out_text_is_held_out(tmp_path: Path, opened: Load) -> None:
    write_parquet(tmp_path / "a.parquet", numbered(200))
    write_parquet(tmp_path / "b.parquet", numbered(200))
    corpus = opened(parquet_config(tmp_path, held_out_tokens=10**6))
    assert not set(counted(rows(corpus, 300).flatten())) & set(counted(corpus.held_out))


def test_training_text_after_the_held_out_text_counts(tmp_path: Path, opened: Load) -> None:
    """The first document is all the held-out text that is asked for; of test text there is too little."""
    first = next(text for n in range(100) if side_of(text := " ".join([str(n)] * 120)) == HELD_OUT)
    write_parquet(tmp_path / "a.parquet", [first, *numbered(100, first=200)], rows=200)
    corpus = opened(parquet_config(tmp_path, held_out_tokens=100, test_tokens=10**6))
    assert len(corpus.held_out) == 121
    assert set(counted(rows(corpus, 40).flatten())) <= set(TRAINED_ON)


@pytest.mark.parametrize("source", ["stdlib", "parquet"])
def test_a_tokenizer_that_knows_nothing_of_the_text_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "cache"))
    foreign = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"ж": 0}, [])))
    foreign.save_pretrained(tmp_path / "foreign")
    write_parquet(tmp_path / "a.parquet", numbered(100))
    config = parquet_config(tmp_path / "a.parquet")
    if source == "stdlib":
        config = check(["data.max_bytes=1500000"]).data
    with pytest.raises(DataError, match=r"no token of the held-out text; name another data\.tokenizer"):
        load(config, own_tokenizer=tmp_path / "foreign")


def test_test_text_is_gathered_like_held_out_text_and_is_another(shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards(), test_tokens=10**6))
    assert counted(corpus.test) == expected(OF_SIDE[TEST])
    assert 30 < len(OF_SIDE[TEST]) < 90
    some = opened(parquet_config(shards(), test_tokens=50))
    assert 50 <= len(some.test) < 56
    assert set(counted(some.test)) < set(OF_SIDE[TEST])


@pytest.mark.parametrize(("fraction", "side"), [(1e-6, "held-out"), (0.9 - 1e-9, "training")])
def test_an_empty_side_is_refused(fraction: float, side: str, shards: Make, opened: Load) -> None:
    with pytest.raises(DataError, match=f"no {side} text .*600"):
        opened(
            parquet_config(
                shards(),
                held_out_fraction=fraction,
                test_fraction=0.1,
                held_out_tokens=10**6,
                test_tokens=10**6,
            )
        )


def test_too_little_text_for_a_vocabulary_names_keys_of_streamed_text_alone(shards: Make) -> None:
    with pytest.raises(DataError, match=r"lower data\.vocab_size or take more text$"):
        load(parquet_config(shards(), vocab_size=100_000))


def test_too_little_held_out_text_is_told_with_the_settings(shards: Make, opened: Load) -> None:
    with pytest.raises(DataError, match=r"data\.sequence_length=5000; .*data\.held_out_tokens"):
        opened(parquet_config(shards(), sequence_length=5000))


# Every source


def sources(folder: Path) -> dict[str, StreamConfig]:
    texts = numbered(400)
    for part in range(4):
        some = texts[part * 100 : part * 100 + 100]
        write_parquet(folder / "parquet" / f"{part}.parquet", some)
        write_lines(folder / "lines" / f"{part}.jsonl", some)
    for number, text in enumerate(texts):
        (folder / "text").mkdir(exist_ok=True)
        (folder / "text" / f"{number}.txt").write_text(text)
    return {
        "parquet": parquet_config(folder / "parquet"),
        "lines": text_config(f"{folder}/lines/*.jsonl", text_key="text"),
        "text": text_config(folder / "text"),
    }


@pytest.mark.parametrize("source", ["parquet", "lines", "text"])
def test_each_source_gives_the_same_documents_to_each_side(source: str, tmp_path: Path, opened: Load) -> None:
    config = dataclasses.replace(sources(tmp_path)[source], held_out_tokens=10**6)
    corpus = opened(config)
    trained_on = {number for number in TRAINED_ON if number < 400}
    assert set(counted(corpus.held_out)) == {number for number in OF_SIDE[HELD_OUT] if number < 400}
    assert set(counted(rows(corpus, 300).flatten())) == trained_on
    assert corpus.vocab_size == END + 2


def test_tokenizer_is_trained_on_training_text_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document {number} tells of {number * 7919}, and of more" for number in range(600)]
    write_parquet(tmp_path / "a.parquet", texts)
    given: list[str] = []
    real = tokenizer.train_bpe

    def train(texts: list[str], vocab_size: int, folder: Path) -> None:
        given.extend(texts)
        real(texts, vocab_size, folder)

    monkeypatch.setattr(tokenizer, "train_bpe", train)
    corpus = load(parquet_config(tmp_path, vocab_size=300))
    assert corpus.vocab_size == 300
    assert sorted(given) == sorted(text for text in texts if side_of(text) == TRAIN)
    with feed_of(corpus, sequence_length=64) as feed:
        assert "tells of" in AutoTokenizer.from_pretrained(corpus.tokenizer_dir).decode(next(feed)[0])


# Order


def test_the_order_is_the_seeds(shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards()))
    first, again, other = (rows(corpus, 20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (80, 8)
    assert first.dtype == torch.int64


@pytest.mark.parametrize("change", [{"lanes": 2}, {"shuffle_windows": 64}], ids=str)
def test_lanes_and_shuffling_change_the_order(change: dict[str, Any], shards: Make, opened: Load) -> None:
    folder = shards()
    one, other = opened(parquet_config(folder)), opened(parquet_config(folder, **change))
    assert not torch.equal(rows(one, 20), rows(other, 20))
    assert one.order_sha256 != other.order_sha256
    assert one.sha256 == other.sha256


def test_epochs_show_files_and_blocks_in_orders_of_their_own(shards: Make) -> None:
    text = open_shards(parquet_config(shards()))
    orders = [text.epoch_order(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert all(sorted(order) == list(range(200)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    files = [order // 40 for order in orders]
    assert all(len(np.unique(file[at : at + 40])) == 1 for file in files for at in range(0, 200, 40))


@pytest.mark.parametrize(
    ("pieces", "most", "lanes"),
    [(1, 8, 1), (31, 8, 1), (32, 8, 2), (127, 8, 4), (128, 8, 8), (10**6, 8, 8), (80, 6, 3), (10**6, 1, 1)],
)
def test_there_are_no_more_lanes_than_the_pieces_are_enough_for(pieces: int, most: int, lanes: int) -> None:
    assert lane_count(pieces, most) == lanes


# Ranks


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_batch_of_one_process(
    world: int, shards: Make, opened: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = opened(parquet_config(shards()))
    read: dict[str, list[int]] = {}
    real = BlockReader.texts
    who = "alone"

    def texts(self: BlockReader, block: int) -> list[str]:
        read.setdefault(who, []).append(block)
        return real(self, block)

    monkeypatch.setattr(BlockReader, "texts", texts)
    alone = rows(corpus, 25).reshape(25, 4, 8)
    for rank in range(world):
        who = str(rank)
        mine = rows(corpus, 25, rank=rank, world=world).reshape(25, 4 // world, 8)
        assert torch.equal(mine, alone[:, rank::world])
    parts = [set(read[str(rank)]) for rank in range(world)]
    assert not set.intersection(*parts)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"world": 3, "batch_size": 6}, r"3 processes read data\.lanes=4 places .* write data\.lanes=3$"),
        ({"world": 2, "batch_size": 5}, "multiple of the 2 processes"),
    ],
    ids=["lanes", "batch"],
)
def test_a_feed_that_cannot_be_is_refused_when_asked_for(
    arguments: dict[str, int], problem: str, shards: Make, opened: Load
) -> None:
    with pytest.raises(DataError, match=problem):
        feed_of(opened(parquet_config(shards())), **arguments)


# Going on


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 29, 130, 400])
def test_a_feed_goes_on_where_another_stood(taken: int, shards: Make, opened: Load) -> None:
    """Within a chunk, at its end, in a later epoch."""
    config = parquet_config(shards())
    with feed_of(opened(config)) as unbroken, feed_of(opened(config)) as resumed:
        for _ in range(taken):
            next(unbroken)
        kept = json.loads(json.dumps(unbroken.state().values))
        assert len(json.dumps(kept)) < 500
        next(resumed)
        resumed.restore(State(values=kept))
        assert resumed.state() == unbroken.state()
        for _ in range(40):
            assert torch.equal(next(resumed), next(unbroken))


def test_to_go_on_reads_no_more_far_on_than_at_the_start(
    shards: Make, opened: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = opened(parquet_config(shards()))
    read: list[int] = []
    real = BlockReader.texts
    monkeypatch.setattr(BlockReader, "texts", lambda self, block: read.append(block) or real(self, block))
    cost = []
    for taken in (1, 150, 300):
        with feed_of(corpus) as feed:
            feed.restore(state_after(corpus, taken))
            read.clear()
            next(feed)
        cost.append(len(read))
    # The prefetching thread reads on meanwhile, for a few batches.
    assert max(cost) <= min(cost) + 12
    assert max(cost) < 60  # of 200 blocks


def state_after(corpus: StreamCorpus, taken: int) -> State:
    with feed_of(corpus) as feed:
        for _ in range(taken):
            next(feed)
        return feed.state()


def test_state_of_another_text_or_order_is_refused(shards: Make, opened: Load) -> None:
    folder = shards()
    kept = state_after(opened(parquet_config(folder)), 3)
    in_another_order = opened(parquet_config(folder, lanes=2))
    write_parquet(folder / "000.parquet", numbered(120, first=1000))
    of_another_text = opened(parquet_config(folder))
    for corpus in (in_another_order, of_another_text):
        with feed_of(corpus) as feed, pytest.raises(DataError, match="checkpoint"):
            feed.restore(kept)


def test_state_of_another_rank_is_refused(shards: Make, opened: Load) -> None:
    corpus = opened(parquet_config(shards()))
    with feed_of(corpus, rank=1, world=2) as other, feed_of(corpus, rank=0, world=2) as feed:
        with pytest.raises(DataError, match="the checkpoint lacks positions of this process"):
            feed.restore(other.state())
        spoilt = feed.state()
        spoilt.values["lanes"]["2"] = [0, 0, 0, 0, 0, 99]
        with pytest.raises(StateError, match="99 windows"):
            feed.restore(spoilt)
        assert torch.equal(next(feed), rows(corpus, 1)[0::2])


# Files that come and go


def test_the_digest_is_that_of_the_content_wherever_it_lies(
    shards: Make, opened: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shards()
    first = opened(parquet_config(folder))
    shutil.copytree(folder, tmp_path / "elsewhere")
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "another cache"))
    again = opened(parquet_config(tmp_path / "elsewhere"))
    assert again.sha256 == first.sha256
    assert torch.equal(rows(again, 5), rows(first, 5))


@pytest.mark.parametrize(
    "change",
    [
        {"held_out_fraction": 0.3},
        {"held_out_tokens": 50},
        {"test_fraction": 0.2},
        {"test_tokens": 50},
        {"text_key": "other"},
    ],
    ids=str,
)
def test_what_decides_the_sides_is_in_the_digest(
    change: dict[str, Any], tmp_path: Path, opened: Load
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    both = {"text": numbered(300), "other": numbered(300)}
    pq.write_table(pa.table(both), tmp_path / "a.parquet", row_group_size=3)
    one, other = opened(parquet_config(tmp_path)), opened(parquet_config(tmp_path, **change))
    assert one.sha256 != other.sha256


def test_the_tokenizer_is_in_the_digest(shards: Make, opened: Load) -> None:
    config = parquet_config(shards())
    assert opened(config).sha256 != load(config).sha256


def test_files_are_looked_into_once_per_machine(
    shards: Make, opened: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parquet_config(shards("other shards"))
    first = opened(config)
    monkeypatch.setattr(
        "trainer.data.formats.ParquetFormat.read_footer", lambda *_: pytest.fail("it looked again")
    )
    monkeypatch.setattr("trainer.data.held_out.gather", lambda *_: pytest.fail("it gathered again"))
    assert opened(config).sha256 == first.sha256


def test_a_file_that_vanishes_ends_the_run_with_its_name(shards: Make, opened: Load) -> None:
    folder = shards()
    corpus = opened(parquet_config(folder))
    shutil.rmtree(folder)
    with feed_of(corpus) as feed, pytest.raises(DataError, match=r"\.parquet"):
        next(feed)


@pytest.mark.parametrize("texts", [[], [" ", None]], ids=["no-rows", "blank"])
def test_files_without_any_text_are_told(texts: list[str | None], tmp_path: Path, opened: Load) -> None:
    write_parquet(tmp_path / "a.parquet", texts)
    with pytest.raises(DataError, match=r"no document|no held-out text"):
        opened(parquet_config(tmp_path))


def test_a_folder_without_the_files_meant_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ConfigError, match=r"^data\.files: .*\.parquet"):
        load(parquet_config(tmp_path))


def test_no_thread_is_left_behind(shards: Make, opened: Load) -> None:
    rows(opened(parquet_config(shards())), 3)
    assert "training text" not in {thread.name for thread in threading.enumerate()}


def test_text_in_a_bucket_is_streamed_as_on_this_machine(
    gcs: Any, monkeypatch: pytest.MonkeyPatch, shards: Make, opened: Load
) -> None:
    from gcsfs.core import GCSFileSystem

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    GCSFileSystem.clear_instance_cache()
    folder = shards(documents=100)
    GCSFileSystem(token="anon").put(str(folder), "bucket/stream/shards", recursive=True)
    here = opened(parquet_config(folder))
    there = opened(parquet_config("gs://bucket/stream/shards"))
    assert there.sha256 == here.sha256
    assert torch.equal(rows(there, 10), rows(here, 10))
