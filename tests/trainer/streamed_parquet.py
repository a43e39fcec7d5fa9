"""A small text in Parquet files, and the overrides of a run that streams it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainer import api


def write_part(path: Path, first: int) -> None:
    texts = [
        " ".join(f"{number * step % 997}" for step in range(1, 21)) for number in range(first, first + 300)
    ]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=4)


def write_parts(folder: Path) -> None:
    for part in range(2):
        write_part(folder / f"{part}.parquet", 300 * part)


def files(folder: Path) -> str:
    return f"data.files={api.quote(str(folder))}"


def streamed(small: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The small run, on Parquet files. Chunks of 5 windows per lane end between batches and within them."""
    source = ("data=parquet", files(folder), "data.held_out_tokens=400")
    order = ("data.lanes=4", "data.shuffle_windows=20")
    return (*source, *order, *(override for override in small if not override.startswith("data.max_bytes")))
