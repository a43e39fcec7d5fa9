"""`memory.jsonl`, a JSON object per point of a run. Built by `__main__`, fed by `pipeline` and `loop`.

Nothing here reads a tensor, waits for a device or records an operation: it reads counters of the allocator,
the compiler and the process, and shapes. On XLA it does not change the compiled graphs (there is a test). No
point is inside a step, since a step may be one graph.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.config import Config
from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.memory_log.hlo import hlo_sizes
from trainer.models.causal_lm import embedding_count
from trainer.text import Lines

SCHEMA = 1
LEVELS = ("basic", "tensors", "metrics", "hlo")
WARMUP_STEPS = 2
"""First steps of a stage, in each attempt at it, which may compile."""


class MemoryLog:
    """The file of one run. A failing disk is reported once on stderr, and never ends a run.

    Raises:
        ConfigError: the level needs an XLA device.
    """

    def __init__(self, path: Path, config: Config, device: Device, *, append: bool) -> None:
        level = config.memory_log.level or "basic"
        if level == "hlo" and device.kind != "xla":
            raise ConfigError(
                f"a {device.kind} device has no HLO graphs; write metrics", key="memory_log.level"
            )
        self._path, self._config, self._device = path, config, device
        self._level, self._phases = LEVELS.index(level), frozenset(config.memory_log.phases)
        self._began, self._mode = time.monotonic(), "a" if append else "w"
        self._student: nn.Module | None = None
        self._teacher: nn.Module | None = None
        self._optimizers: Sequence[Optimizer] = ()
        self._stage, self._first, self._done = "", 0, 0
        self._graph: dict[str, Any] | None = None

    def models(self, student: nn.Module, teacher: nn.Module) -> None:
        """Log the memory once both models are on the device."""
        self._student, self._teacher = student, teacher
        self._mark("after_model_init", "init")

    def begin(self, stage: str, optimizers: Sequence[Optimizer], *, done: int) -> None:
        """Begin a stage, or resume it.

        Args:
            optimizers: of the stage; the list is kept, and may change.
            done: steps before a resumed one.
        """
        self._stage, self._optimizers, self._first, self._done = stage, optimizers, done, done
        self._mark("after_optimizer_init", "init")

    def read_graph(self) -> None:
        """Read the graph of the next step, which is recorded but not yet run."""
        phase, _ = self._next_point()
        if self._level >= LEVELS.index("hlo") and phase in self._phases and self._student is not None:
            states = [t for t in self._states() if t.device == self._device.torch_device]
            text = self._device.recorded_graph([*self._student.parameters(), *states])
            self._graph = asdict(hlo_sizes(text))

    def _next_point(self) -> tuple[str, str]:
        """Return phase and point of the next step; "" for one that is not logged."""
        taken = self._done - self._first + 1
        if taken <= WARMUP_STEPS:
            return "warmup", "after_first_step" if taken == 1 else "after_warmup_compile"
        return ("train", "after_step") if (self._done + 1) % self._config.memory_log.every == 0 else ("", "")

    def log_step(self, *, saved: bool, froze: bool) -> None:
        """Log a step that is done.

        Args:
            saved: whether a checkpoint was begun after it.
            froze: whether parameters were frozen after it.
        """
        phase, point = self._next_point()
        self._done += 1
        self._mark(point, phase)
        self._graph = None
        if froze:
            self._mark("after_auto_freeze", "save")
        if saved:
            self._mark("on_checkpoint_save", "save")

    def _mark(self, point: str, phase: str) -> None:
        """Write the line of a point, if its phase is logged."""
        if phase not in self._phases:
            return
        stage = getattr(self._config, self._stage, None)
        micro_batches = 1
        if stage is not None:
            micro_batches = stage.batch_size // (stage.micro_batch_size or stage.batch_size)
        counts = self._device.memory_counts()
        used, total = counts["used_bytes"], counts["total_bytes"]
        line: dict[str, Any] = {
            "schema": SCHEMA,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "point": point,
            "phase": phase,
            "stage": self._stage or None,
            "micro_step": self._done * micro_batches,
            "opt_step": self._done,
            "elapsed_sec": round(time.monotonic() - self._began, 3),
            "device": self._device.name,
            "hbm": counts | {"used_pct": round(100 * used / total, 1) if used and total else None},
        }
        if self._level >= LEVELS.index("tensors"):
            models = [model for model in (self._student, self._teacher) if model is not None]
            weights = [p for model in models for p in (*model.parameters(), *model.buffers())]
            gradients = [] if self._student is None else [p.grad for p in self._student.parameters()]
            line["estimates"] = self._estimates()
            line["tensors"] = {  # those that outlast a step
                "weights_bytes": _bytes(weights),
                "gradients_bytes": _bytes(gradient for gradient in gradients if gradient is not None),
                "optimizer_bytes": _bytes(self._states()),
            }
        if self._level >= LEVELS.index("metrics"):
            line["metrics"] = dict(self._device.counters())
        if self._level >= LEVELS.index("hlo"):
            line["hlo"] = self._graph
        self._write(line)

    def _estimates(self) -> Mapping[str, Any] | None:
        """Return the estimates of the stage's passes; before the first stage, of an evaluation's."""
        if self._student is None:
            return None
        stage = getattr(self._config, self._stage, None)
        batch = self._config.eval.batch_size if stage is None else stage.micro_batch_size or stage.batch_size
        teacher = self._config.stage3.teacher
        return estimates(
            batch=batch,
            heads=int(self._student.config.num_attention_heads),  # type: ignore[union-attr,arg-type]
            length=self._config.data.sequence_length,
            vocabulary=embedding_count(self._student),
            candidates=teacher.logits_read if self._stage == "stage3" and teacher.kind == "cached" else None,
        )

    def _states(self) -> list[Tensor]:
        """Return the tensors of the optimizers' state."""
        return [
            value
            for optimizer in self._optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            with self._path.open(self._mode, encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
            self._mode = "a"
        except OSError as error:
            if self._phases:
                problem = f"{str(self._path)!r} cannot be written: {error.strerror}"
                Lines(sys.stderr).write(f"trainer: warning: {problem}; the run goes on without it")
            self._phases = frozenset()


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the distinct tensors."""
    return sum({id(t): t.numel() * t.element_size() for t in tensors}.values())


_FLOAT = 4  # bytes; both are taken to be float32
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def estimates(
    *, batch: int, heads: int, length: int, vocabulary: int, candidates: int | None = None
) -> dict[str, Any]:
    """Return the sizes in one pass.

    Args:
        batch: B sequences.
        heads: H query heads of a layer.
        length: T tokens of a sequence.
        vocabulary: V entries.
        candidates: C tokens per position, if only their logits are computed; None: all are.

    Returns:
        `attention.worst_case`: the scores [B, H, T, T] of one layer that keeps them. `logits.logits_full`:
        [B, T, V]. `logits.logits_sparse`: [B, T, C]. Each has `bytes` and `formatted`.
    """
    logits = {"logits_full": _size(batch * length * vocabulary)}
    if candidates is not None:
        logits["logits_sparse"] = _size(batch * length * candidates)
    return {"attention": {"worst_case": _size(batch * heads * length * length)}, "logits": logits}


def _size(numbers: int) -> dict[str, Any]:
    return {"bytes": _FLOAT * numbers, "formatted": formatted(_FLOAT * numbers)}


def formatted(size: int) -> str:
    """Return a size for people, in powers of 1,024."""
    power = 0
    while size >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return f"{size / 1024**power:.1f} {_UNITS[power]}" if power else f"{size} B"
