"""trainer.config.data: invalid settings are refused with their key before heavy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import trainer
from trainer.api import check
from trainer.config import ParquetConfig


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
