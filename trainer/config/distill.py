"""Configuration of Stage 3, distillation after BitDistill. Read by `trainer.stages.distill`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import (
    STRICT,
    AboveZero,
    Checked,
    Count,
    FieldError,
    NonNegative,
    Positive,
    Text,
)
from trainer.config.optimizer import StepsConfig
from trainer.errors import ConfigError

TEACHER_PATH = "stage3.teacher.path"
# How a remote or cached teacher is reached, which does not change its predictions.
TEACHER_ACCESS = ("url", "timeout_s", "patience_s", "prefetch", "api_key_env", "path", "preload")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class InProcessTeacherConfig:
    """The full-precision model that the student was made from, on the student's device.

    Args:
        kind: set by the group `stage3/teacher`.
    """

    kind: Literal["in_process"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HttpTeacherConfig(Checked):
    """A teacher behind an OpenAI-compatible completions server with prompt logprobs, such as vLLM.

    Args:
        kind: set by the group `stage3/teacher`.
        url: of the server, without `/v1/completions`.
        model: the server's name for the teacher. Its token ids must mean what the student's mean.
        top_k: likeliest tokens returned per position; the server may limit them (vLLM: `--max-logprobs`).
        timeout_s: deadline of one request, in seconds.
        patience_s: deadline of one batch with all its retries, in seconds.
        prefetch: batches requested ahead of the one that is trained on.
        api_key_env: name of the environment variable that holds the server's key; null sends none. The key
            itself must not stand in a configuration, which is recorded.
    """

    kind: Literal["http"]
    url: Text
    model: Text
    top_k: Positive
    timeout_s: AboveZero
    patience_s: AboveZero
    prefetch: Count
    api_key_env: str | None

    def contradictions(self) -> Iterator[FieldError]:
        yield from _check_url(self.url)
        if self.patience_s < self.timeout_s:
            yield FieldError(
                f"{self.patience_s:g} is below timeout_s ({self.timeout_s:g}); write that or more",
                key="patience_s",
            )
        name = self.api_key_env
        if name is not None and not (name.isascii() and name.isidentifier() and name == name.upper()):
            # Not repeated in the message: it may be the key.
            yield FieldError(
                "write the NAME of an environment variable, in capitals; the key itself stays out of the "
                "configuration",
                key="api_key_env",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CachedTeacherConfig(Checked):
    """The in-process teacher's predictions, cached by `python -m trainer.teacher_cache`.

    The student's logits are computed for the cached tokens only.

    Args:
        kind: set by the group `stage3/teacher`.
        path: folder of the cache, or its URL (`gs://…`).
        top_k: K likeliest tokens cached per position.
        negatives: R tokens sampled from the others and cached as well. With 0, only an `exact` cross-entropy
            depends on the student's probabilities of the others.
        dtype: of the log probabilities. float16 takes half the space and rounds them to 1/2048.
        cross_entropy: `sampled`: of the true token among the candidates; `exact`: over the full vocabulary,
            a chunk of positions at a time.
        preload: load the cache into memory before the stage; otherwise batches are read from its files.
        anchor_weight: of KL(anchor ‖ student), which holds the student near a fixed model: the student that
            the stage starts from, or any other. With 0, `anchor` has no effect.
        anchor: folder or URL of the cache of that model's predictions, of the same K, R and dtype.
    """

    kind: Literal["cached"]
    path: Text
    top_k: Positive
    negatives: Count
    dtype: Literal["float32", "float16"]
    cross_entropy: Literal["sampled", "exact"]
    preload: bool
    anchor_weight: NonNegative
    anchor: Text | None

    def contradictions(self) -> Iterator[FieldError]:
        if self.anchor_weight and self.anchor is None:
            yield FieldError(
                "there is no cache to hold the student near; write its folder, or anchor_weight=0",
                key="anchor",
            )

    @property
    def anchored(self) -> str | None:
        """Return the anchor's cache, or None if it has no weight."""
        return self.anchor if self.anchor_weight else None

    @property
    def logits_read(self) -> int:
        """Return the number of the student's logits gathered at each position."""
        kept = self.top_k + self.negatives
        return kept * (2 if self.anchored else 1) + (self.cross_entropy == "sampled")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage3Config(StepsConfig):
    """Stage 3 (arXiv:2510.13998 §3.3): CE + λ·logits KL + γ·attention KL.

    Args:
        logits_weight: λ of eq. 13; by default τ² (arXiv:1503.02531), as eq. 8 has no such factor.
        attention_weight: γ of eq. 13; 0 leaves the attention relations out, and `attention_*` has no effect.
        temperature: τ of eq. 9, of both models' predictions.
        attention_layer: the one layer of the student whose queries, keys and values are compared (-1 is the
            last), with those of the teacher's layer that it was copied from.
        attention_heads: heads that each projection is split into for it; null takes the model's
            key-value heads.
        attention_relation: `scaled`: softmax(A·Aᵀ/√d), eq. 12; `cosine`: of unit vectors and without √d, as
            in the paper's algorithm 1.
    """

    logits_weight: NonNegative
    attention_weight: NonNegative
    temperature: AboveZero
    attention_layer: int
    attention_heads: Positive | None
    attention_relation: Literal["scaled", "cosine"]
    teacher: Annotated[
        InProcessTeacherConfig | HttpTeacherConfig | CachedTeacherConfig, Field(discriminator="kind")
    ]

    def contradictions(self) -> Iterator[FieldError]:
        yield from super().contradictions()
        if self.teacher.kind != "in_process" and self.attention_weight:
            remote = self.teacher.kind == "http"
            source = "a teacher over HTTP tells its" if remote else "a cache holds its teacher's"
            yield FieldError(
                f"{source} predictions and not its attention; write 0 here, or stage3/teacher=in_process",
                key="attention_weight",
            )
        if not self.logits_weight and not self.attention_weight:
            yield FieldError(
                "without it, and with attention_weight 0, nothing is distilled; give stage2 the steps",
                key="logits_weight",
            )

    @property
    def compares_attention(self) -> bool:
        """Return whether any step computes attention relations."""
        return self.max_steps > 0 and self.attention_weight > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheRequest:
    """A cache that a run needs.

    Args:
        path: a folder or URL.
        key: of `path` in the configuration.
        rows: number of rows that the run takes.
    """

    path: str
    key: str
    rows: int
    teacher: CachedTeacherConfig


def cache_request(stage: Stage3Config, *, anchor: bool = False) -> CacheRequest:
    """Return the request for the teacher's or the anchor's cache; raise ConfigError if the run has none."""
    if stage.teacher.kind != "cached":
        raise ConfigError(
            "a cache is for stage3/teacher=cached; give this command the overrides of the run",
            key="stage3.teacher",
        )
    if not stage.max_steps:
        raise ConfigError(
            "a cache has max_steps * batch_size rows, and there are no steps; write how many the run takes",
            key="stage3.max_steps",
        )
    rows = stage.max_steps * stage.batch_size
    if not anchor:
        return CacheRequest(path=stage.teacher.path, key=TEACHER_PATH, rows=rows, teacher=stage.teacher)
    if stage.teacher.anchored is None:
        raise ConfigError(
            "without a weight the run takes no anchor; give this command the overrides of the run",
            key="stage3.teacher.anchor_weight",
        )
    return CacheRequest(
        path=stage.teacher.anchored, key="stage3.teacher.anchor", rows=rows, teacher=stage.teacher
    )


def check_attention_layer(stage3: Stage3Config, layers: int) -> Iterator[FieldError]:
    """Yield a FieldError if the student, of so many layers, does not have the layer to compare."""
    if stage3.compares_attention and not -layers <= stage3.attention_layer < layers:
        yield FieldError(
            f"there is no layer {stage3.attention_layer}: the student has {layers}, 0 to {layers - 1}, "
            f"or -1 to -{layers} from the end; write one of these",
            key="stage3.attention_layer",
        )


def check_attention_heads(
    stage3: Stage3Config, *, widths: Sequence[int], key_heads: int
) -> Iterator[FieldError]:
    """Yield a FieldError if queries, keys and values cannot be split into heads.

    Args:
        stage3: whose `attention_heads` are checked.
        widths: output features of the query, key and value projections.
        key_heads: the model's key-value heads, the default of `attention_heads`.
    """
    heads = stage3.attention_heads or key_heads
    if stage3.compares_attention and any(width % heads for width in widths):
        listed = ", ".join(map(str, widths))
        yield FieldError(
            f"{heads} does not divide the widths of queries, keys and values ({listed}); write "
            f"{math.gcd(*widths)} or a divisor of it",
            key="stage3.attention_heads",
        )


def _check_url(url: str) -> Iterator[FieldError]:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it raises
    except ValueError:
        yield FieldError("is no URL; write http://HOST:PORT", key="url")
        return
    if "@" in parts.netloc or parts.query or parts.fragment:
        # Not repeated in the message: there may be a key in it.
        yield FieldError(
            "takes no user, password or query; a key goes into the variable of api_key_env", key="url"
        )
    elif parts.scheme not in ("http", "https") or not parts.hostname:
        yield FieldError(f"{url!r} is not of the form http://HOST:PORT (or https)", key="url")
