"""`result.json`, schema 1: what a run was for. Written once, atomically, at the very end, by `pipeline`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer.errors import TrainerError

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The numbers of a finished run; docs/telemetry.md defines each. None: that stage was left out, or the
    price of the device is not known."""

    final_loss: float
    final_loss_sem: float
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


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the numbers came from.

    Args:
        dtype: of matrix products, what `device.dtype` came to; with pretrained weights in bfloat16, theirs.
        muon_dtype: in which Muon's updates were orthogonalised, by the part of the configuration that has
            the optimizer (`stage2`, `model.teacher`); empty where nothing has Muon.
        forced: what the preflight said against the run, where `force` passed over it.
        teacher_cache_sha256, anchor_cache_sha256: of the rows that Stage 3 took from a teacher's cache, and
            from an anchor's; None: it took none.
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
class Result:
    """A finished run. `warnings`: what looked wrong on the way, each with check, stage, step and message."""

    metrics: Metrics
    provenance: Provenance
    warnings: tuple[Mapping[str, Any], ...] = ()

    def document(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {"schema": SCHEMA, "status": "completed"} | asdict(self)


def write(result: Result, path: Path, *, resumable: bool = False) -> None:
    """Write it whole or not at all: a reader never sees half a file, and a crash leaves none.

    Args:
        resumable: whether a checkpoint stands, which the error then says.

    Raises:
        TrainerError: the disk refuses it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            json.dump(result.document(), stream, indent=1, allow_nan=False)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        end = "the same command goes on from its checkpoint" if resumable else "the run is lost"
        raise TrainerError(f"cannot write {str(path)!r}: {error.strerror}; {end}") from error
    finally:
        with contextlib.suppress(OSError):  # of a file system that has become read-only
            temporary.unlink(missing_ok=True)


@cache
def code_version() -> str:
    """The package's version and a digest of the trainer's source, so that an edited checkout tells itself."""
    try:
        version = metadata.version("stagesweep")
    except metadata.PackageNotFoundError:
        version = "0"
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(p for suffix in ("*.py", "*.yaml") for p in root.rglob(suffix)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{version}+src.{digest.hexdigest()[:12]}"
