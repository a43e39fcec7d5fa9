"""The blocks of a text in many files, and their order in an epoch. Opened by `stream`.

The index of blocks is built once per machine and cached: the footers of a thousand remote files take a minute
to read.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from sweeps.text.regular_file import read_regular
from trainer.cache import artifact
from trainer.config.data import HubConfig, ParquetConfig, StreamConfig, TextConfig
from trainer.data.contents import HEAD, codec, decompress
from trainer.data.files import File, find_files
from trainer.data.formats import (
    LARGEST_LINES_BLOCK,
    FileSummary,
    Format,
    LinesFormat,
    ParquetFormat,
    WholeFileFormat,
    lines_block,
)
from trainer.errors import ConfigError, DataError

FORMAT = 2  # increase it when the same files would get other blocks or digests, or another order
INDEX_THREADS = 16
INDEX = "index.json"
CODECS = "codecs.json"

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """All files of a text, whose blocks are numbered across files.

    Args:
        files: sorted by name.
        starts: [files + 1], the number of each file's first block, and the number of all blocks.
        sha256: of names, sizes and contents, as far as they are known without reading the files.
    """

    config: StreamConfig
    files: Sequence[File]
    starts: npt.NDArray[np.int64]
    sha256: str
    format: Callable[[], Format]

    @property
    def blocks(self) -> int:
        return int(self.starts[-1])

    @property
    def pieces(self) -> int:
        """Return into how many parts the text can be divided: blocks, or 4 MiB of JSON lines."""
        if isinstance(self.format(), LinesFormat):  # a block may be smaller than a document
            return sum(-(-file.size // LARGEST_LINES_BLOCK) for file in self.files)
        return self.blocks

    @property
    def folder(self) -> str:
        """Return the innermost folder of all files, or the one file; "" if some come over the network."""
        is_local = all(file.is_local for file in self.files)
        return os.path.commonpath([file.path for file in self.files]) if is_local else ""

    def epoch_order(self, seed: int, epoch: int) -> Order:
        """Return the numbers of all blocks [blocks], int64, shuffled by seed and epoch.

        Where files are kept open, both files and the blocks of each file are shuffled, but a file's blocks
        stay together, so that few are open at a time.
        """
        random = np.random.default_rng([seed, epoch])
        if not self.format().keeps_open:
            return random.permutation(self.blocks)
        counts = np.diff(self.starts)
        return np.concatenate(
            [self.starts[file] + random.permutation(counts[file]) for file in random.permutation(len(counts))]
        )

    def reader(self) -> BlockReader:
        """Return a reader for one thread, which the caller closes."""
        return BlockReader(self, self.format())


class BlockReader:
    """A reader of blocks by number."""

    def __init__(self, shards: Shards, file_format: Format) -> None:
        self._shards, self._format = shards, file_format

    def texts(self, block: int) -> list[str]:
        """Return the block's documents, or raise DataError."""
        file = int(np.searchsorted(self._shards.starts, block, side="right")) - 1
        return self._format.texts(self._shards.files[file], block - int(self._shards.starts[file]))

    def close(self) -> None:
        self._format.close()


def open_shards(config: StreamConfig) -> Shards:
    """Find and index the files that the configuration names.

    Raises:
        ConfigError: it names no file, or a file has no text under the configured key.
        DataError: a file cannot be read, or there is no text in any.
    """
    files, new_format = _files(config)
    summaries = _summaries(files, new_format(), config)
    counts = [summary.blocks for summary in summaries]
    if not sum(counts):
        raise DataError("the training text has no document in any of its files")
    digest = hashlib.sha256(json.dumps([type(new_format()).__name__, config.text_key]).encode())
    for file, summary in zip(files, summaries, strict=True):
        digest.update(json.dumps([file.name, file.size, summary.digest]).encode())
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Shards(config=config, files=files, starts=starts, sha256=digest.hexdigest(), format=new_format)


def _files(config: StreamConfig) -> tuple[list[File], Callable[[], Format]]:
    if config.name == "hub":
        from trainer.data.hub import dataset_files

        names = dataset_files(config)
        files, new_format = find_files(names, ()), _hub_format(config, names)
    else:
        new_format = _format(config)
        files = find_files(config.files, new_format().suffixes)
    if new_format().is_text:
        files = _plain(files, new_format(), config)
    if isinstance(new_format(), LinesFormat):
        new_format = partial(new_format, block_bytes=lines_block(files))
    return files, new_format


def _plain(files: Sequence[File], file_format: Format, config: StreamConfig) -> list[File]:
    """Return the files, in place of each compressed one its decompressed copy.

    The first bytes of each are read once per machine.

    Raises:
        ConfigError: a file is of another kind.
    """

    def codec_of(file: File) -> str | None:
        head = file.bytes(0, HEAD)
        if name := codec(head):
            plain = decompress(file, name)
            file_format.check(plain, plain.bytes(0, HEAD))
        else:
            file_format.check(file, head)
        return name

    codecs = _of_each("codecs", CODECS, codec_of, files, _listing(files, file_format, config))
    found = [decompress(file, name) if name else file for file, name in zip(files, codecs, strict=True)]
    return [file for file in found if file.size]


def _format(config: TextConfig | ParquetConfig) -> Callable[..., Format]:
    key = config.text_key
    if key is None:
        return WholeFileFormat
    return partial(ParquetFormat if config.name == "parquet" else LinesFormat, key)


def _hub_format(config: HubConfig, names: Sequence[str]) -> Callable[..., Format]:
    for kind in (ParquetFormat, LinesFormat):
        if all(name.endswith(kind.suffixes) for name in names):
            return partial(kind, config.text_key)
    raise ConfigError(
        f"{config.dataset!r} is made of files such as {posixpath.basename(names[0])}; only Parquet and "
        "JSON lines are streamed (the hub has most datasets as Parquet: data.revision=refs/convert/parquet)",
        key="data.dataset",
    )


def _summaries(files: Sequence[File], file_format: Format, config: StreamConfig) -> list[FileSummary]:
    spec = _listing(files, file_format, config) | {"block_bytes": file_format.block_bytes}
    found = _of_each("indexes", INDEX, lambda file: asdict(file_format.summarise(file)), files, spec)
    return [FileSummary(**entry) for entry in found]


def _of_each(
    kind: str, name: str, function: Callable[[File], Any], files: Sequence[File], spec: Mapping[str, object]
) -> list[Any]:
    """Return the JSON value that a function has for each file, from the cache if it is there."""

    def build(folder: Path) -> None:
        with ThreadPoolExecutor(INDEX_THREADS, thread_name_prefix=kind) as pool:
            (folder / name).write_text(json.dumps(list(pool.map(function, files))), encoding="utf-8")

    return list(from_json(read_regular(artifact(kind, spec, build) / name)))


def _listing(files: Sequence[File], file_format: Format, config: StreamConfig) -> dict[str, object]:
    """Return what identifies the files and how they are read."""
    listing = [[file.url, file.size, file.checksum, file.changed] for file in files]
    return {
        "format": FORMAT,
        "kind": type(file_format).__name__,
        "text_key": config.text_key,
        "files": len(files),
        "listing_sha256": hashlib.sha256(json.dumps(listing).encode()).hexdigest(),
    }
