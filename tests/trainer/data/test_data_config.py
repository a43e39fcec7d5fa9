"""trainer.config.data: invalid settings are refused with their key before heavy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trainer
from trainer.api import check
from trainer.config import ParquetConfig
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "wikitext"),
        ("name", "''"),
        ("tokenizer", "''"),
        ("tokenizer", "5"),
        ("vocab_size", "256"),
        ("vocab_size", "1024.0"),
        ("vocab_size", "true"),
        ("vocab_size", "null"),
        ("sequence_length", "1"),
        ("sequence_length", "-128"),
        ("sequence_length", "'128'"),
        ("held_out_fraction", "0.0"),
        ("held_out_fraction", "1.0"),
        ("held_out_fraction", "5"),
        ("held_out_fraction", "nan"),
        ("held_out_fraction", "inf"),
        ("held_out_fraction", "5%"),
        ("held_out_fraction", "true"),
        ("test_fraction", "0.0"),
        ("test_fraction", "0.95"),
        ("test_fraction", "nan"),
        ("max_bytes", "0"),
        ("max_bytes", "1e6"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        check([f"data.{key}={value}"])
    assert error.value.key == f"data.{key}"
    assert "\n" not in str(error.value)


FILES = ("data=parquet", "data.files=shards")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (("data=parquet",), "data.files"),
        (("data=text",), "data.files"),
        (("data=hub",), "data.dataset"),
        (("data=parquet", "data.files=''"), "data.files.0"),
        (("data=parquet", "data.files=[]"), "data.files"),
        (("data=parquet", "data.files=[a,5]"), "data.files.1"),
        (("data=parquet", "data.files=5"), "data.files"),
        ((*FILES, "data.text_key=null"), "data.text_key"),
        ((*FILES, "data.lanes=0"), "data.lanes"),
        ((*FILES, "data.shuffle_windows=0"), "data.shuffle_windows"),
        ((*FILES, "data.held_out_tokens=0"), "data.held_out_tokens"),
        ((*FILES, "data.held_out_fraction=1.0"), "data.held_out_fraction"),
        ((*FILES, "data.test_tokens=0"), "data.test_tokens"),
        ((*FILES, "data.test_fraction=0.98"), "data.test_fraction"),
        ((*FILES, "data.held_out_fraction=0.99"), "data.test_fraction"),
        ((*FILES, "data.max_bytes=100"), "data.max_bytes"),
        (("data.files=shards",), "data.files"),
        (("data=fineweb", "data.name=parquet"), "data.files"),
        (("data=fineweb", "data.split=''"), "data.split"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_text_to_stream_is_checked_alike(given: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(given)
    assert error.value.key == key
    assert "\n" not in error.value.problem


def test_a_key_of_another_source_is_refused_with_the_source() -> None:
    with pytest.raises(ConfigError, match=r"it belongs to data=parquet or data=text$"):
        check(["data.files=shards"])


def test_one_file_is_a_list_of_one() -> None:
    for given, files in (("a.parquet", ("a.parquet",)), ("[a,'gs://b/*']", ("a", "gs://b/*"))):
        data = check(["data=parquet", f"data.files={given}"]).data
        assert isinstance(data, ParquetConfig)
        assert data.files == files


def test_the_smallest_values_are_taken() -> None:
    smallest = {
        "vocab_size": 257,
        "sequence_length": 2,
        "held_out_fraction": 1e-9,
        "test_fraction": 1e-9,
        "max_bytes": 1,
    }
    data = check([f"data.{key}={value}" for key, value in smallest.items()]).data
    assert {key: getattr(data, key) for key in smallest} == smallest


def test_the_errors_need_nothing_heavy() -> None:
    code = (
        "import sys, trainer.config.data; from trainer.errors import DataError; "
        "print(*{'torch', 'numpy', 'transformers', 'tokenizers'} & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(trainer.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == ""


def test_the_package_exports_what_it_says_and_nothing_else() -> None:
    import trainer.data

    assert all(getattr(trainer.data, name) is not None for name in trainer.data.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = trainer.data.nonsense
