"""Whether a cache is that of a run. Called by `build`, and by `pipeline` before any stage is trained."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import nn

from trainer.config import CachedTeacherConfig, Config
from trainer.data.corpus import Corpus
from trainer.data.encoder import tokenizer_sha256
from trainer.errors import ConfigError
from trainer.models.causal_lm import embedding_count, plain_head
from trainer.teachers.cached.index import INDEX, Index, Spec, UnreadableError, decode, differences
from trainer.teachers.cached.location import Place
from trainer.teachers.cached.request import Asked, asked_for
from trainer.text import counted

STAGE = "stage3"
COMMAND = "python -m trainer.teacher_cache"
MODEL = "model"  # of the spec: a digest of weights
_KEY = "stage3.teacher"


def spec(config: Config, teacher_config: CachedTeacherConfig, corpus: Corpus, model: nn.Module) -> Spec:
    """What a cache of that model's predictions depends on. Where it was computed, and in which products, is
    not part of it."""
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
    }


def weights_sha256(model: nn.Module) -> str:
    """Of a model's parameters, with their names, shapes and dtypes; tied ones once. Seconds for billions."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}:".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def require_candidates(config: CachedTeacherConfig, teacher: nn.Module) -> None:
    """That there are so many tokens, and a head to gather them from. Raises ConfigError."""
    vocabulary = embedding_count(teacher)
    if config.top_k > vocabulary:
        raise ConfigError(
            f"{config.top_k} is more than the vocabulary has ({vocabulary}); write that at most",
            key=f"{_KEY}.top_k",
        )
    if config.top_k + config.negatives > vocabulary:
        raise ConfigError(
            f"beside the {config.top_k} of top_k there is room for {vocabulary - config.top_k} more; write "
            "that at most",
            key=f"{_KEY}.negatives",
        )
    if plain_head(teacher) is None:
        raise ConfigError(
            f"{type(teacher).__name__} does more to its logits than a linear layer, so that a few of them "
            "cannot be computed alone; write stage3/teacher=in_process",
            key=_KEY,
        )


def read_index(place: Place, path: str, *, key: str) -> Index | None:
    """The cache's document; None: there is no cache. Raises ConfigError, TrainerError."""
    data = place.read(INDEX)
    try:
        return None if data is None else decode(data)
    except UnreadableError as error:
        raise ConfigError(f"the cache at {path} cannot be used: {error}", key=key) from None


def refuse_another(found: Index, ours: Spec, path: str, *, key: str) -> None:
    """Raises ConfigError if the cache was made for something else, and says for what."""
    if told := differences(found.spec, ours):
        raise ConfigError(f"the cache at {path} is of another {told}", key=key)


@dataclass(frozen=True, kw_only=True)
class Digests:
    """Of the rows that a run takes from its caches; None: it takes none."""

    teacher: str | None = None
    anchor: str | None = None


NO_CACHES = Digests()


def check(config: Config, corpus: Corpus, teacher: nn.Module) -> Digests:
    """Whether Stage 3 can be trained from its caches; does nothing where it has no steps, or another teacher.

    What lies elsewhere is copied to this machine, so that hours later the stage begins with what it needs.

    Returns:
        Which caches those are: `read` gives the same digests of what it opens.

    Raises:
        ConfigError: there is none, it is of something else, or too short.
        DataError: it cannot be copied.
    """
    stage = config.stage3
    if not stage.max_steps or stage.teacher.kind != "cached":
        return NO_CACHES
    require_candidates(stage.teacher, teacher)
    ours = spec(config, stage.teacher, corpus, teacher)
    kept, anchor = _check_one(asked_for(config), ours, f"{COMMAND} with the overrides of this run"), None
    if stage.teacher.anchored:
        asked = asked_for(config, anchor=True)
        build_it = f"{COMMAND} --of RUN_DIR with the overrides of this run"
        anchor = _check_one(asked, ours, build_it, any_model=True)
    return Digests(teacher=kept, anchor=anchor)


def _check_one(asked: Asked, ours: Spec, build_it: str, *, any_model: bool = False) -> str:
    """The digest of what the run takes."""
    place = Place(asked.path)
    found = read_index(place, asked.path, key=asked.key)
    if found is None:
        raise ConfigError(f"there is no cache at {asked.path}; build it: {build_it}", key=asked.key)
    if any_model:
        ours = {**ours, MODEL: found.spec.get(MODEL, "")}
    refuse_another(found, ours, asked.path, key=asked.key)
    if found.rows < asked.rows:
        raise ConfigError(
            f"the cache at {asked.path} has {counted(found.rows, 'row')}, and max_steps * batch_size is "
            f"{asked.rows}; build it: {build_it}, which goes on where it ends",
            key=asked.key,
        )
    place.here()
    return found.digest(asked.rows)
