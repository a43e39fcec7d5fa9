"""Checks that a cache fits a run. Called by `build`, and by `pipeline` before any stage is trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import nn

from sweeps.text.counted import counted
from trainer.config import CachedTeacherConfig, Config
from trainer.data.corpus import Corpus
from trainer.data.encoder import tokenizer_sha256
from trainer.errors import ConfigError
from trainer.models.causal_lm import embedding_count, plain_head
from trainer.teachers.cached.index import INDEX, Index, Spec, UnreadableError, decode, differences
from trainer.teachers.cached.location import Location
from trainer.teachers.cached.request import CacheRequest, cache_request

STAGE = "stage3"
COMMAND = "python -m trainer.teacher_cache"
MODEL = "model"  # key in the spec of the digest of weights
_KEY = "stage3.teacher"


def spec(config: Config, teacher_config: CachedTeacherConfig, corpus: Corpus, model: nn.Module) -> Spec:
    """Return what a cache of that model's predictions depends on, without the device and its dtype."""
    return {
        MODEL: weights_sha256(model),
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


def weights_sha256(model: nn.Module) -> str:
    """Return the digest of a model's parameters, names, shapes and dtypes; takes seconds for billions."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}:".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


NO_CACHES = Digests()


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
        return NO_CACHES
    require_candidates(stage.teacher, teacher)
    ours = spec(config, stage.teacher, corpus, teacher)
    overrides = "with the overrides of this run"
    digest, anchor = _check_one(cache_request(config), ours, f"{COMMAND} {overrides}"), None
    if stage.teacher.anchored:
        request = cache_request(config, anchor=True)
        anchor = _check_one(request, ours, f"{COMMAND} --of RUN_DIR {overrides}", any_model=True)
    return Digests(teacher=digest, anchor=anchor)


def _check_one(request: CacheRequest, ours: Spec, command: str, *, any_model: bool = False) -> str:
    """Check one cache, copy it to this machine, and return the digest of the rows that the run takes."""
    location = Location(request.path)
    found = read_index(location, request.path, key=request.key)
    if found is None:
        raise ConfigError(f"there is no cache at {request.path}; build it: {command}", key=request.key)
    if any_model:
        ours = {**ours, MODEL: found.spec.get(MODEL, "")}
    require_same_spec(found, ours, request.path, key=request.key)
    if found.rows < request.rows:
        raise ConfigError(
            f"the cache at {request.path} has {counted(found.rows, 'row')}, and max_steps * batch_size is "
            f"{request.rows}; build it: {command}, which goes on where it ends",
            key=request.key,
        )
    location.local_copy()
    return found.digest(request.rows)
