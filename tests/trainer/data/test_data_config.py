"""trainer.data.config: what cannot work is refused before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import trainer
from trainer.data.config import DataConfig
from trainer.errors import ConfigError

VALID = {
    "name": "stdlib",
    "vocab_size": 1024,
    "sequence_length": 128,
    "held_out_fraction": 0.05,
    "max_bytes": None,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "wikitext"),
        ("name", ""),
        ("vocab_size", 256),
        ("vocab_size", 1024.0),
        ("vocab_size", True),
        ("vocab_size", None),
        ("sequence_length", 1),
        ("sequence_length", -128),
        ("sequence_length", "128"),
        ("held_out_fraction", 0.0),
        ("held_out_fraction", 1.0),
        ("held_out_fraction", 5),
        ("held_out_fraction", float("nan")),
        ("held_out_fraction", float("inf")),
        ("held_out_fraction", "5%"),
        ("held_out_fraction", True),
        ("max_bytes", 0),
        ("max_bytes", 1e6),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        DataConfig(**{**VALID, key: value})
    assert error.value.key == f"data.{key}"
    assert repr(value) in str(error.value)
    assert "write" in str(error.value)


def test_the_smallest_values_are_taken() -> None:
    DataConfig(name="stdlib", vocab_size=257, sequence_length=2, held_out_fraction=1e-9, max_bytes=1)


def test_a_config_is_frozen_and_by_keyword_only() -> None:
    with pytest.raises(FrozenInstanceError):
        DataConfig(**VALID).name = "other"  # type: ignore[misc]  # that is what is tried
    with pytest.raises(TypeError):
        DataConfig("stdlib", **{key: value for key, value in VALID.items() if key != "name"})  # type: ignore[misc]  # that is what is tried


def test_the_config_needs_nothing_heavy() -> None:
    code = (
        "import sys, trainer.data.config; "
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
