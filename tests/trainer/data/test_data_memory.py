"""trainer.data.memory and tokenizer: text to ids, once per machine, without loss.

Most tests run on a part of the real library, so that what `data=stdlib` gives is what they see.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from trainer.cache import ROOT_VARIABLE
from trainer.config import StdlibConfig
from trainer.data import memory, tokenizer
from trainer.data.corpus import HELD_OUT, TEST
from trainer.data.inputs import load as load_any
from trainer.data.memory import MemoryCorpus as Corpus
from trainer.data.memory import split
from trainer.data.stdlib import Document, documents
from trainer.errors import DataError, UnreachableError

SMALL = StdlibConfig(
    name="stdlib",
    tokenizer=None,
    vocab_size=400,
    sequence_length=128,
    document_masks=False,
    held_out_fraction=0.2,
    test_fraction=0.1,
    max_bytes=300_000,
)


def load(config: StdlibConfig, own_tokenizer: str | Path | None = None) -> Corpus:
    """Load through the public function."""
    found = load_any(config, own_tokenizer=own_tokenizer)
    assert isinstance(found, Corpus)
    return found


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ROOT_VARIABLE, str(shared_cache))
    return shared_cache


@pytest.fixture
def small(cache: Path) -> Corpus:
    return load(SMALL)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Document]]:
    """A small library whose files a test may change."""
    found = documents(SMALL.max_bytes)
    monkeypatch.setattr(memory, "documents", lambda max_bytes: found)
    return found


def same(one: Corpus, other: Corpus) -> bool:
    return (
        np.array_equal(one.train, other.train)
        and np.array_equal(one.held_out, other.held_out)
        and np.array_equal(one.test, other.test)
        and (one.sha256, one.vocab_size) == (other.sha256, other.vocab_size)
    )


def test_the_ids_decode_to_the_very_text_of_each_side(small: Corpus) -> None:
    decoder = AutoTokenizer.from_pretrained(small.tokenizer_dir)
    texts = (small.train, small.held_out, small.test)
    for ids, files in zip(texts, split(documents(300_000), 0.2, 0.1).values(), strict=True):
        assert files
        text = decoder.decode(ids, clean_up_tokenization_spaces=False)
        assert text == "".join(file.data.decode() + tokenizer.END_OF_TEXT for file in files)


def test_each_file_ends_with_the_end_of_text_token(small: Corpus) -> None:
    decoder = AutoTokenizer.from_pretrained(small.tokenizer_dir)
    assert decoder.eos_token == tokenizer.END_OF_TEXT
    for name, files in split(documents(300_000), 0.2, 0.1).items():
        assert np.count_nonzero(getattr(small, name) == decoder.eos_token_id) == len(files)
    assert small.held_out[-1] == decoder.eos_token_id


def test_the_vocabulary_is_as_large_as_asked_and_holds_every_id(small: Corpus) -> None:
    assert small.vocab_size == 400
    assert len(AutoTokenizer.from_pretrained(small.tokenizer_dir)) == 400
    assert max(small.train.max(), small.held_out.max()) < 400
    assert small.train.dtype == np.uint16


def test_the_ids_are_mapped_and_read_only(small: Corpus) -> None:
    assert isinstance(small.train, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        small.train[0] = 1


def test_bytes_per_token_is_that_of_the_held_out_text(small: Corpus) -> None:
    held_out = split(documents(300_000), 0.2, 0.1)[HELD_OUT]
    assert small.bytes_per_token * len(small.held_out) == pytest.approx(
        sum(len(file.data) for file in held_out)
    )
    assert 1.5 < small.bytes_per_token < 4


def test_a_second_load_builds_nothing(small: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(memory, "tokenise", refuse)
    monkeypatch.setattr(tokenizer, "train_bpe", refuse)
    assert same(load(SMALL), small)


def test_another_machine_gets_the_same_bits(
    small: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    again = load(SMALL)
    assert again.tokenizer_dir.is_relative_to(tmp_path)
    assert same(again, small)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (again.tokenizer_dir / name).read_bytes() == (small.tokenizer_dir / name).read_bytes()


@pytest.mark.parametrize(
    "change",
    [{"vocab_size": 401}, {"held_out_fraction": 0.3}, {"test_fraction": 0.2}, {"max_bytes": 250_000}],
    ids=lambda c: next(iter(c)),
)
def test_each_setting_has_its_effect(change: dict[str, Any], small: Corpus) -> None:
    other = load(dataclasses.replace(SMALL, **change))
    assert other.sha256 != small.sha256
    assert not np.array_equal(other.train, small.train)


def test_the_sequence_length_does_not_change_the_corpus(small: Corpus) -> None:
    assert same(load(dataclasses.replace(SMALL, sequence_length=64)), small)


def test_a_changed_file_is_noticed(library: list[Document], small: Corpus) -> None:
    library[3] = dataclasses.replace(library[3], data=library[3].data + b"# changed\n")
    assert load(SMALL).sha256 != small.sha256


@pytest.mark.parametrize("side", [HELD_OUT, TEST])
def test_measured_text_does_not_reach_the_tokenizer(
    side: str, library: list[Document], small: Corpus
) -> None:
    measured = split(library, SMALL.held_out_fraction, SMALL.test_fraction)[side]
    place = library.index(measured[0])
    strange = "".join(f"strange_word_{number} " for number in range(2000)).encode()
    library[place] = dataclasses.replace(library[place], data=strange)
    other = load(SMALL)
    assert other.sha256 != small.sha256
    vocabularies = [json.loads((c.tokenizer_dir / "tokenizer.json").read_text()) for c in (small, other)]
    assert vocabularies[0] == vocabularies[1]


def test_the_name_of_a_special_token_in_a_program_is_text(library: list[Document]) -> None:
    library[0] = dataclasses.replace(library[0], data=b"END = '<|endoftext|>'  # not the end of this text\n")
    found = load(SMALL)
    decoder = AutoTokenizer.from_pretrained(found.tokenizer_dir)
    ids = np.concatenate((found.train, found.held_out, found.test))
    assert np.count_nonzero(ids == decoder.eos_token_id) == sum(
        map(len, split(library, SMALL.held_out_fraction, SMALL.test_fraction).values())
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"vocab_size": 100_000}, r"only \d+ of data\.vocab_size=100000"),
        ({"sequence_length": 10_000_000}, r"fewer than data\.sequence_length=10000000"),
        ({"max_bytes": 10}, r"data\.max_bytes is 10"),
        ({"held_out_fraction": 1e-9}, "no held-out text"),
    ],
    ids=["vocabulary", "sequence", "bytes", "held-out"],
)
def test_too_little_text_names_the_setting(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem) as error:
        load(dataclasses.replace(SMALL, **change))
    assert "\n" not in str(error.value)


def test_a_damaged_corpus_is_mended(small: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    load(SMALL)
    (path,) = tmp_path.glob("corpora/*/train.bin")
    path.write_bytes(path.read_bytes()[:-100])
    assert same(load(SMALL), small)


@pytest.mark.parametrize(("chosen", "expected"), [(None, "false"), ("true", "true")], ids=["unset", "chosen"])
def test_the_tokenizer_takes_one_core_unless_told_otherwise(
    chosen: str | None, expected: str, small: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", chosen or "")
    if chosen is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    load(SMALL, own_tokenizer=small.tokenizer_dir)
    assert os.environ["TOKENIZERS_PARALLELISM"] == expected


# A tokenizer that a model brings


def save_with_gaps(corpus_of: Corpus, folder: Path) -> None:
    """A tokenizer as models have: settings, special tokens, a gap between ids."""
    shutil.copytree(corpus_of.tokenizer_dir, folder)
    (folder / "manifest.json").unlink()
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 5000},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": tokenizer.END_OF_TEXT,
    }
    content["model"]["vocab"]["never used"] = 70_000
    path.write_text(json.dumps(content))


def test_existing_tokenizer_is_used(small: Corpus, tmp_path: Path) -> None:
    save_with_gaps(small, tmp_path / "model")
    found = load(SMALL, own_tokenizer=tmp_path / "model")
    assert np.array_equal(found.train, small.train)
    assert found.vocab_size == 70_001
    assert found.train.dtype == np.uint32
    assert found.sha256 != small.sha256
    assert same(load(SMALL, own_tokenizer=str(tmp_path / "model")), found)


def test_the_configured_tokenizer_goes_before_the_models(small: Corpus, tmp_path: Path) -> None:
    save_with_gaps(small, tmp_path / "chosen")
    chosen = dataclasses.replace(SMALL, tokenizer=str(tmp_path / "chosen"))
    assert load(chosen).vocab_size == 70_001
    assert same(load(chosen, own_tokenizer=small.tokenizer_dir), load(chosen))


def test_the_copy_in_the_cache_outlives_the_original(small: Corpus, tmp_path: Path) -> None:
    shutil.copytree(small.tokenizer_dir, tmp_path / "model")
    found = load(SMALL, own_tokenizer=tmp_path / "model")
    shutil.rmtree(tmp_path / "model")
    copied = AutoTokenizer.from_pretrained(found.tokenizer_dir)
    assert (
        copied("import os")["input_ids"]
        == AutoTokenizer.from_pretrained(small.tokenizer_dir)("import os")["input_ids"]
    )


def test_a_tokenizer_without_an_end_separates_nothing(small: Corpus, tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_file=str(small.tokenizer_dir / "tokenizer.json")).save_pretrained(
        tmp_path / "endless"
    )
    found = load(SMALL, own_tokenizer=tmp_path / "endless")
    assert np.array_equal(found.train, small.train[small.train != 0])


@pytest.mark.parametrize("kind", ["missing", "empty", "damaged", "slow"])
def test_a_tokenizer_that_cannot_be_used_is_told(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    if kind != "missing":
        folder.mkdir()
    if kind == "damaged":
        (folder / "tokenizer.json").write_text("{")
    if kind == "slow":
        ByT5Tokenizer().save_pretrained(folder)
    with pytest.raises(DataError) as error:
        load(SMALL, own_tokenizer=folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_tokenizer_that_the_hub_does_not_send_is_no_fault_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError("We couldn't connect to the hub") from ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(
        UnreachableError, match=r"^no tokenizer can be loaded from 'a/b': We couldn't connect"
    ):
        load(SMALL, own_tokenizer="a/b")


# Two workers at once


def load_and_tell(root: str, answers: Any) -> None:
    os.environ[ROOT_VARIABLE] = root
    found = load(SMALL)
    answers.put((found.sha256, int(np.sum(found.train, dtype=np.int64)), str(found.tokenizer_dir)))


@pytest.mark.slow
def test_two_workers_on_an_empty_cache_share_one_build(small: Corpus, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    workers = [spawn.Process(target=load_and_tell, args=(str(tmp_path), answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    assert [worker.exitcode for worker in workers] == [0, 0]
    first, second = answers.get(), answers.get()
    answers.close()
    assert first == second
    assert first[:2] == (small.sha256, int(np.sum(small.train, dtype=np.int64)))
    assert len([path for path in (tmp_path / "corpora").iterdir() if path.is_dir()]) == 1
