"""A tokenizer that needs no training text, and a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from data_texts import END, WORDS, numbered, write_parquet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose words are numbers equal to their ids, so that batches are readable."""
    folder = tmp_path_factory.mktemp("words")
    vocabulary = {str(number): number for number in range(WORDS)} | {"<end>": END, "<unknown>": END + 1}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Callable[..., Path]:
    """A folder of Parquet files with 600 numbered documents in 200 row groups."""

    def make(name: str = "shards", *, documents: int = 600, files: int = 5) -> Path:
        each = documents // files
        for file in range(files):
            write_parquet(tmp_path / name / f"{file:03d}.parquet", numbered(each, first=file * each))
        return tmp_path / name

    return make
