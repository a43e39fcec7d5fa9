"""trainer.config.data: what cannot work is refused with its key, before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trainer
from trainer.api import check
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
        ("max_bytes", "0"),
        ("max_bytes", "1e6"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigError) as error:
        check([f"data.{key}={value}"])
    assert error.value.key == f"data.{key}"
    assert "\n" not in str(error.value)


def test_the_smallest_values_are_taken() -> None:
    smallest = {"vocab_size": 257, "sequence_length": 2, "held_out_fraction": 1e-9, "max_bytes": 1}
    data = check([f"data.{key}={value}" for key, value in smallest.items()]).data
    assert {key: getattr(data, key) for key in smallest} == smallest


def test_the_errors_need_nothing_heavy() -> None:
    code = (
        "import sys, trainer.config.data; from trainer.data import DataError; "
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
