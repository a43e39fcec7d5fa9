"""Small texts in every format that is streamed, and their configurations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config import ParquetConfig, TextConfig
from trainer.data.corpus import side

WORDS = 2000
END = WORDS  # the id of the end of a text
STREAM = {
    "tokenizer": None,
    "vocab_size": 300,
    "sequence_length": 8,
    "document_masks": False,
    "held_out_fraction": 0.2,
    "held_out_tokens": 100,
    "test_fraction": 0.1,
    "test_tokens": 100,
    "lanes": 4,
    "shuffle_windows": 16,
}


def numbered(documents: int, *, first: int = 0) -> list[str]:
    """Documents of one to five words, each of them the document's own number."""
    return [" ".join([str(number)] * (1 + number % 5)) for number in range(first, first + documents)]


def side_of(text: str) -> str:
    """The side of a document with these fractions."""
    return side(text, held_out_fraction=0.2, test_fraction=0.1)


def write_parquet(path: Path, texts: Sequence[str | None], *, rows: int = 3, column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": range(len(texts)), column: pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=rows)


def write_lines(path: Path, texts: Sequence[str | None], *, key: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": 1, key: text}) + "\n" for text in texts))


def parquet_config(files: Path | str | tuple[str, ...], **changes: Any) -> ParquetConfig:
    where = files if isinstance(files, tuple) else str(files)
    return ParquetConfig(**({**STREAM, "name": "parquet", "files": where, "text_key": "text"} | changes))


def text_config(files: Path | str | tuple[str, ...], **changes: Any) -> TextConfig:
    where = files if isinstance(files, tuple) else str(files)
    return TextConfig(**({**STREAM, "name": "text", "files": where, "text_key": None} | changes))
