"""Text in many files, block by block: what there is, and in which order an epoch shows it.

Opened by `stream`. Which blocks a file has is looked up once per machine and kept in the cache: the footers
of a thousand remote files take a minute to read.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from trainer.cache import artifact
from trainer.config.data import HubConfig, ParquetConfig, StreamConfig, TextConfig
from trainer.data.errors import DataError
from trainer.data.files import File, find_files
from trainer.data.formats import Format, LinesFormat, ParquetFormat, Shape, WholeFileFormat
from trainer.errors import ConfigError

FORMAT = 1  # raise it when the same files would get other blocks or digests
LOOKED_UP_AT_ONCE = 16
INDEX = "index.json"

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """All files of a text. A block is named by its number among those of all files.

    Args:
        files: sorted by name.
        starts: [files + 1], the number of each file's first block; the last is how many there are.
        sha256: of names, sizes and contents as far as they are known without reading them.
        format: makes what reads such files.
    """

    config: StreamConfig
    files: Sequence[File]
    starts: npt.NDArray[np.int64]
    sha256: str
    format: Callable[[], Format]

    @property
    def blocks(self) -> int:
        return int(self.starts[-1])

    def epoch_order(self, seed: int, epoch: int) -> Order:
        """All blocks once: files in an order of this seed and epoch, the blocks of each likewise.

        File by file, so that a few files are open at a time.
        """
        random = np.random.default_rng([seed, epoch])
        counts = np.diff(self.starts)
        return np.concatenate(
            [self.starts[file] + random.permutation(counts[file]) for file in random.permutation(len(counts))]
        )

    def reader(self) -> BlockReader:
        """A reader for one thread. To be closed."""
        return BlockReader(self, self.format())


class BlockReader:
    """Reads blocks by their number."""

    def __init__(self, shards: Shards, how: Format) -> None:
        self._shards, self._format = shards, how

    def texts(self, block: int) -> list[str]:
        """The block's documents. Raises DataError."""
        file = int(np.searchsorted(self._shards.starts, block, side="right")) - 1
        return self._format.texts(self._shards.files[file], block - int(self._shards.starts[file]))

    def close(self) -> None:
        self._format.close()


def open_shards(config: StreamConfig) -> Shards:
    """What the configuration names.

    Raises:
        ConfigError: it names nothing, or what has no text where it should.
        DataError: it cannot be read, or there is nothing in it.
    """
    files, how = _files(config)
    shapes = _shapes(files, how(), config)
    counts = [shape.blocks for shape in shapes]
    if not sum(counts):
        raise DataError("the training text has no document in any of its files")
    digest = hashlib.sha256(json.dumps([type(how()).__name__, config.text_key]).encode())
    for file, shape in zip(files, shapes, strict=True):
        digest.update(json.dumps([file.name, file.size, shape.digest]).encode())
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Shards(config=config, files=files, starts=starts, sha256=digest.hexdigest(), format=how)


def _files(config: StreamConfig) -> tuple[list[File], Callable[[], Format]]:
    if config.name == "hub":
        from trainer.data.hub import files_of

        names = files_of(config)
        how = _hub_format(config, names)
        return find_files(names, ()), how
    how = _format(config)
    return find_files(config.files, how().suffixes), how


def _format(config: TextConfig | ParquetConfig) -> Callable[[], Format]:
    key = config.text_key
    if key is None:
        return WholeFileFormat
    return partial(ParquetFormat if config.name == "parquet" else LinesFormat, key)


def _hub_format(config: HubConfig, names: Sequence[str]) -> Callable[[], Format]:
    for kind in (ParquetFormat, LinesFormat):
        if all(name.endswith(kind.suffixes) for name in names):
            return partial(kind, config.text_key)
    raise ConfigError(
        f"{config.dataset!r} is made of files such as {posixpath.basename(names[0])}; only Parquet and "
        "JSON lines are streamed (the hub has most datasets as Parquet: data.revision=refs/convert/parquet)",
        key="data.dataset",
    )


def _shapes(files: Sequence[File], how: Format, config: StreamConfig) -> list[Shape]:
    listing = [[file.url, file.size, file.checksum, file.changed] for file in files]
    spec = {
        "format": FORMAT,
        "kind": type(how).__name__,
        "text_key": config.text_key,
        "files": len(files),
        "listing_sha256": hashlib.sha256(json.dumps(listing).encode()).hexdigest(),
    }

    def look_up(folder: Path) -> None:
        with ThreadPoolExecutor(LOOKED_UP_AT_ONCE, thread_name_prefix="index") as pool:
            shapes = list(pool.map(how.shape, files))
        (folder / INDEX).write_text(json.dumps([asdict(shape) for shape in shapes]), encoding="utf-8")

    index = artifact("indexes", spec, look_up) / INDEX
    return [Shape(**entry) for entry in from_json(index.read_text(encoding="utf-8"))]
