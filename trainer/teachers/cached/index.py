"""A cache as it is stored: its folder or bucket, its index, and whether it fits a run.

`build` writes it, `reader` reads it, and `pipeline` checks it before any stage is trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from torch import nn

from sweeps.text.atomic_file import atomic_write, sync
from sweeps.text.counted import counted
from sweeps.text.regular_file import read_regular
from trainer.cache import file_digest, locked
from trainer.config import CachedTeacherConfig, Config
from trainer.config.distill import CacheRequest, cache_request
from trainer.data.corpus import Corpus
from trainer.data.encoder import tokenizer_sha256
from trainer.data.remote import download, is_url, open_filesystem
from trainer.errors import ConfigError, TrainerError, UnreachableError
from trainer.models import network
from trainer.models.causal_lm import embedding_count, plain_head, weights_sha256

INDEX = "index.json"
SCHEMA = 1
STAGE = "stage3"
COMMAND = "python -m trainer.teacher_cache"
_KEY = "stage3.teacher"
_LOCK = ".lock"
_MODEL = "model"  # key in the spec of the digest of weights
_ON_THIS_MACHINE = "file://"

Spec = Mapping[str, str | int]
"""All that decides the predictions but for rounding."""


class UnreadableError(ValueError):
    """An index that this version cannot read. The message is one line without the path."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file of a cache.

    Args:
        sha256: of the file.
        after: the state of the text's feed after its last row, where a builder resumes.
    """

    file: str
    first: int
    rows: int
    size: int
    sha256: str
    after: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Index:
    """The contents of `index.json`.

    Args:
        spec: decides the predictions.
        made_with: device, dtype and versions, which may affect rounding. Informational.
        shards: contiguous, from row 0 on.
    """

    spec: Spec
    made_with: Mapping[str, str]
    shards: tuple[Shard, ...] = ()

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def digest(self, rows: int) -> str:
        """Return the digest of the shards that have the first `rows`; rows added later do not change it."""
        shards = [shard.sha256 for shard in self.shards if shard.first < rows]
        return hashlib.sha256(json.dumps([dict(self.spec), shards], sort_keys=True).encode()).hexdigest()


def encode(index: Index) -> bytes:
    """Encode an index as JSON."""
    return (json.dumps({"schema": SCHEMA, **asdict(index)}, indent=1) + "\n").encode()


def decode(data: bytes) -> Index:
    """Decode an index, or raise UnreadableError."""
    try:
        document = from_json(data)
        schema = document["schema"]
        if schema != SCHEMA:
            raise UnreadableError(f"its schema is {schema!r}, this version reads {SCHEMA}; build it anew")
        shards = tuple(Shard(**shard) for shard in document["shards"])
        index = Index(spec=document["spec"], made_with=document["made_with"], shards=shards)
        firsts = [sum(shard.rows for shard in shards[:number]) for number in range(len(shards))]
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"its {INDEX} is damaged; build it anew in another folder") from error
    if firsts != [shard.first for shard in shards]:
        raise UnreadableError(f"its {INDEX} leaves rows out; build it anew in another folder")
    return index


def differences(theirs: Spec, ours: Spec) -> str:
    """Describe each name that differs with both values; return "" if none does."""
    names = [name for name in (*ours, *(theirs.keys() - ours.keys())) if theirs.get(name) != ours.get(name)]
    return ", ".join(f"{name} {_short(theirs.get(name))} (here {_short(ours.get(name))})" for name in names)


def _short(value: object) -> str:
    return value[:12] if isinstance(value, str) else str(value)


class Location:
    """A folder or bucket prefix of files that are written once each, but for the index."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder: Path | None = None
        self._filesystem: Any = None
        if is_url(path) and not path.startswith(_ON_THIS_MACHINE):
            self._filesystem, root = open_filesystem(path)
            self._root = root.rstrip("/")
        else:
            self._folder = Path(path.removeprefix(_ON_THIS_MACHINE)).expanduser()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other builders from a folder; a bucket has no lock.

        There concurrent builders repeat each other's work, and the one that writes the index last has written
        all of its shards.
        """
        if self._folder is None:
            yield
            return
        with self._reporting():
            self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder / _LOCK):
            for draft in self._folder.glob(".*.tmp"):
                draft.unlink()  # left by a builder that was killed
            yield

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file; raise TrainerError if it cannot be read."""
        with self._reporting():
            try:
                if self._folder is not None:
                    return read_regular(self._folder / name)
                data: bytes = self._filesystem.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return data

    def is_intact(self, name: str, *, size: int, sha256: str) -> bool:
        """Return whether the file is there as it was written, or raise TrainerError if it cannot be read.

        In a bucket, which has checksums of its own, only the size in bytes is compared.
        """
        with self._reporting():
            try:
                if self._folder is None:
                    return int(self._filesystem.info(f"{self._root}/{name}")["size"]) == size
                return file_digest(self._folder / name) == sha256
            except FileNotFoundError:
                return False

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file, or raise TrainerError."""
        with self._reporting():
            if self._folder is None:
                self._filesystem.pipe_file(f"{self._root}/{name}", data)
                return
            with atomic_write(self._folder / name, durable=True) as draft:
                draft.write_bytes(data)
            sync(self._folder)

    def local_copy(self) -> Path:
        """Return the folder, after copying a remote one into the trainer's cache, or raise DataError."""
        return self._folder if self._folder is not None else download(self._path)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turn errors of the file system into TrainerErrors."""
        try:
            yield
        except TrainerError:
            raise
        except Exception as error:  # every file system has errors of its own
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            is_fault = self._folder is None and network.is_fault(error)
            failure = UnreachableError if is_fault else TrainerError
            raise failure(f"cannot use the teacher's cache at {self._path}: {reason}") from error


def spec(config: Config, teacher_config: CachedTeacherConfig, corpus: Corpus, model: nn.Module) -> Spec:
    """Return what a cache of that model's predictions depends on, without the device and its dtype."""
    return {
        _MODEL: weights_sha256(model),
        "tokenizer": tokenizer_sha256(corpus.tokenizer_dir),
        "text": corpus.order_sha256,
        "sequence_length": config.data.sequence_length,
        "seed": config.seed,
        "stage": STAGE,
        "vocabulary": embedding_count(model),
        "top_k": teacher_config.top_k,
        "negatives": teacher_config.negatives,
        "dtype": teacher_config.dtype,
        **({"document_masks": True} if config.data.document_masks else {}),
    }


def require_candidates(config: CachedTeacherConfig, teacher: nn.Module) -> None:
    """Raise ConfigError unless the vocabulary has enough tokens and the teacher has a linear head."""
    vocabulary = embedding_count(teacher)
    if config.top_k > vocabulary:
        raise ConfigError(
            f"{config.top_k} is more than the vocabulary has ({vocabulary}); write that at most",
            key=f"{_KEY}.top_k",
        )
    if config.top_k + config.negatives > vocabulary:
        raise ConfigError(
            f"top_k={config.top_k} leaves {vocabulary - config.top_k} tokens of the vocabulary; write that "
            "at most",
            key=f"{_KEY}.negatives",
        )
    if plain_head(teacher) is None:
        raise ConfigError(
            f"{type(teacher).__name__} does more to its logits than a linear layer, so that a few of them "
            "cannot be computed alone; write stage3/teacher=in_process",
            key=_KEY,
        )


def read_index(location: Location, path: str, *, key: str) -> Index | None:
    """Return the index of the cache; None if there is no cache.

    Raises:
        ConfigError: this version cannot use the cache; `path` and `key` are named in the message.
        TrainerError: the location cannot be read.
    """
    data = location.read(INDEX)
    try:
        return None if data is None else decode(data)
    except UnreadableError as error:
        raise ConfigError(f"the cache at {path} cannot be used: {error}", key=key) from None


def require_same_spec(found: Index, ours: Spec, path: str, *, key: str) -> None:
    """Raise ConfigError with the differences if the cache was made for another spec."""
    if different := differences(found.spec, ours):
        raise ConfigError(f"the cache at {path} is of another {different}", key=key)


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Digests of the rows that a run takes from its caches; None for a cache that it does not use."""

    teacher: str | None = None
    anchor: str | None = None


def check(config: Config, corpus: Corpus, teacher: nn.Module) -> Digests:
    """Check that Stage 3 can be trained from its caches, if it has steps and a cached teacher.

    Remote caches are copied to this machine, so that the stage finds them when it begins hours later.

    Returns:
        The digests that `reader` gives for the same caches.

    Raises:
        ConfigError: a cache is missing, too short, or has another spec.
        DataError: it cannot be copied.
    """
    stage = config.stage3
    if not stage.max_steps or stage.teacher.kind != "cached":
        return Digests()
    require_candidates(stage.teacher, teacher)
    ours = spec(config, stage.teacher, corpus, teacher)
    overrides = "with the overrides of this run"
    digest, anchor = _check_one(cache_request(stage), ours, f"{COMMAND} {overrides}"), None
    if stage.teacher.anchored:
        request = cache_request(stage, anchor=True)
        anchor = _check_one(request, ours, f"{COMMAND} --of RUN_DIR {overrides}", any_model=True)
    return Digests(teacher=digest, anchor=anchor)


def _check_one(request: CacheRequest, ours: Spec, command: str, *, any_model: bool = False) -> str:
    """Check one cache, copy it to this machine, and return the digest of the rows that the run takes."""
    location = Location(request.path)
    found = read_index(location, request.path, key=request.key)
    if found is None:
        raise ConfigError(f"there is no cache at {request.path}; build it: {command}", key=request.key)
    if any_model:
        ours = {**ours, _MODEL: found.spec.get(_MODEL, "")}
    require_same_spec(found, ours, request.path, key=request.key)
    if found.rows < request.rows:
        raise ConfigError(
            f"the cache at {request.path} has {counted(found.rows, 'row')}, and max_steps * batch_size is "
            f"{request.rows}; build it: {command}, which goes on where it ends",
            key=request.key,
        )
    location.local_copy()
    return found.digest(request.rows)
