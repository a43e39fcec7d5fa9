"""`result.json`, schema 1: metrics and provenance of a run. Written atomically at its end, by `pipeline`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from sweeps.text.atomic_file import atomic_write
from trainer.errors import TrainerError

SCHEMA = 1
TEST_METRICS = ("test_loss", "test_loss_sem", "test_loss_text_sem")
_ABSENT = (
    *TEST_METRICS,
    "unaveraged_loss",
    "recovery_start_loss",
    "recovery_train_loss",
)  # where the configuration did not ask for them


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The numbers of a finished run; docs/reference/files.md defines each.

    A stage that was taken from a snapshot counts as if this run had computed it, with the numbers of the run
    that did. None: that stage was left out, the price of the device is not known, or the test text or an
    average was not asked for.
    """

    final_loss: float
    final_loss_sem: float
    final_loss_text_sem: float
    perplexity: float
    bits_per_byte: float | None
    stage1_9_final_loss: float | None
    stage1_9_distill_loss: float | None
    stage1_9_ce_loss: float | None
    stage1_9_kl_loss: float | None
    stage2_start_loss: float
    stage2_train_loss: float | None
    stage3_final_loss: float | None
    effective_steps: int
    train_flops: float
    train_seconds: float
    tokens: int
    tokens_per_second: float
    peak_memory_gib: float
    usd: float | None
    compile_seconds: float = 0.0
    eval_seconds: float = 0.0
    test_loss: float | None = None
    test_loss_sem: float | None = None
    test_loss_text_sem: float | None = None
    unaveraged_loss: float | None = None
    recovery_start_loss: float | None = None
    recovery_train_loss: float | None = None
    model_parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Code, data and settings that the numbers came from.

    Args:
        dtype: of matrix products: `device.dtype` as resolved; bfloat16 where the student's weights are.
        muon_dtype: in which Muon's updates were orthogonalised, by the part of the configuration that has
            the optimizer (`stage2`, `model.teacher`); empty where nothing has Muon.
        forced: refusals of the preflight that `force` passed over.
        teacher_cache_sha256: of the rows that Stage 3 read from a teacher's cache; None: it read none.
        anchor_cache_sha256: of those that it read from an anchor's cache.
    """

    config_sha256: str
    code_version: str
    device: str
    torch: str
    seed: int
    data_sha256: str
    dtype: str
    muon_dtype: Mapping[str, str]
    reused_stages: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    teacher_cache_sha256: str | None = None
    anchor_cache_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A stage of a run.

    Args:
        key: of its end, `trainer.api.stage_keys`; "": runs cannot share it.
        reused: whether the run started from its snapshot; the rest is then of the run that computed it.
        cost: effective steps.
        seconds: of training.
        usd: dollars; None: the price is not known.
        branched_at: steps of it that were taken from another run's trunk; None: none.
        saved: effective steps of those, a part of `cost`.
    """

    name: str
    key: str
    reused: bool
    cost: int
    seconds: float
    usd: float | None
    branched_at: int | None = None
    saved: int = 0


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run.

    Args:
        warnings: of its health checks, each with check, stage, step and message.
        stages: those that have steps, in order.
        scores: metrics of evaluation hooks, by their full names.
        hooks: evaluation hooks that were called, each with why it failed; None: it did not.
    """

    metrics: Metrics
    provenance: Provenance
    warnings: tuple[Mapping[str, Any], ...] = ()
    stages: tuple[StageResult, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    hooks: Mapping[str, str | None] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the content of the file, without metrics that were not asked for."""
        content = asdict(replace(self, scores={}, hooks={}))  # asdict cannot copy a mapping proxy
        del content["scores"]
        content["metrics"] |= self.scores
        content["hooks"] = dict(self.hooks)
        if not self.hooks:
            del content["hooks"]
        for name in _ABSENT:
            if content["metrics"][name] is None:
                del content["metrics"][name]
        for stage in content["stages"]:
            if stage["branched_at"] is None:
                del stage["branched_at"], stage["saved"]
        return {"schema": SCHEMA, "status": "completed"} | content


def write(result: Result, path: Path, *, resumable: bool = False) -> None:
    """Write the file atomically: a reader never sees half of it, and a crash leaves none.

    Raises:
        TrainerError: the disk refuses it.
    """
    _write(result.document(), path, resumable=resumable)


def write_held_out(
    sequences: Mapping[str, Sequence[float]],
    documents: Mapping[str, Sequence[int]],
    path: Path,
    *,
    resumable: bool = False,
) -> None:
    """Write held-out losses of each sequence, schema 1, as `write` does.

    Args:
        sequences: in nats per token, by model: `final` is the student, `teacher` its reference; `test` and
            `test_teacher` are theirs on the test text.
        documents: number of the document of each sequence, of `final` and `test`, as far as they are known.
        resumable: whether there is a checkpoint, for the error.

    Raises:
        TrainerError: the disk refuses it.
    """
    losses = {name: [round(loss, 7) for loss in values] for name, values in sequences.items()}
    content = {"schema": SCHEMA, "unit": "nats per token", "losses": losses}
    if documents:
        content["documents"] = {name: [*numbers] for name, numbers in documents.items()}
    _write(content, path, resumable=resumable)


def _write(document: Mapping[str, Any], path: Path, *, resumable: bool) -> None:
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    try:
        with atomic_write(path, durable=True) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        end = "the same command goes on from its checkpoint" if resumable else "the run is lost"
        raise TrainerError(f"cannot write {str(path)!r}: {error.strerror}; {end}") from error


@cache
def version(package: str) -> str:
    """Return a package's version, read once: its file takes a millisecond, and a run asks seven times."""
    return metadata.version(package)


@cache
def code_version() -> str:
    """Return the package's version and a digest of the trainer's source, which shows an edited checkout."""
    try:
        own = version("stagesweep")
    except metadata.PackageNotFoundError:
        own = "0"
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for suffix in ("*.py", "*.yaml") for p in root.rglob(suffix)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{own}+src.{digest.hexdigest()[:12]}"
