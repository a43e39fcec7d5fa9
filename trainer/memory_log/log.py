"""`memory.jsonl`, a JSON object per point of a run. Built by `__main__`, told by `pipeline` and `loop`.

Nothing here reads a tensor, waits for a device or records an operation: counters of the device's allocator,
of the compiler and of the process, and shapes. On XLA a run with it compiles what one without it compiles
(there is a test). There is no point inside a step, since a step may be one graph.
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
from trainer.memory_log.estimates import estimates
from trainer.memory_log.hlo import hlo_sizes
from trainer.models.causal_lm import embedding_count
from trainer.text import Lines

SCHEMA = 1
LEVELS = ("basic", "tensors", "metrics", "hlo")
WARMUP_STEPS = 2
"""Of a stage, in each attempt at it: those that compile, the second for what is other than in the first."""


class MemoryLog:
    """The file of one run. Trouble with it is told once on stderr, and never a reason to end a run.

    Args:
        append: to what an earlier attempt has written.

    Raises:
        ConfigError: the level asks for what the device does not have.
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
        """Both are where they will be trained and asked."""
        self._student, self._teacher = student, teacher
        self._mark("after_model_init", "init")

    def begin(self, stage: str, optimizers: Sequence[Optimizer], *, done: int) -> None:
        """A stage begins, or goes on after `done` steps.

        Args:
            optimizers: as they are at any time of the stage; the list is kept.
        """
        self._stage, self._optimizers, self._first, self._done = stage, optimizers, done, done
        self._mark("after_optimizer_init", "init")

    def recorded(self) -> None:
        """The next step is recorded, and not yet run where it is a graph."""
        phase, _ = self._coming()
        if self._level >= LEVELS.index("hlo") and phase in self._phases and self._student is not None:
            states = [t for t in self._states() if t.device == self._device.torch_device]
            text = self._device.recorded_graph([*self._student.parameters(), *states])
            self._graph = asdict(hlo_sizes(text))

    def _coming(self) -> tuple[str, str]:
        """Phase and point of the step that is done next; "" for one that is not told."""
        taken = self._done - self._first + 1
        if taken <= WARMUP_STEPS:
            return "warmup", "after_first_step" if taken == 1 else "after_warmup_compile"
        return ("train", "after_step") if (self._done + 1) % self._config.memory_log.every == 0 else ("", "")

    def stepped(self, *, saved: bool, froze: bool) -> None:
        """A step of the stage is done; a checkpoint was begun after it, parameters were frozen."""
        phase, point = self._coming()
        self._done += 1
        self._mark(point, phase)
        self._graph = None
        if froze:
            self._mark("after_auto_freeze", "save")
        if saved:
            self._mark("on_checkpoint_save", "save")

    def _mark(self, point: str, phase: str) -> None:
        if phase in self._phases:
            self._write(self._line(point, phase))

    def _line(self, point: str, phase: str) -> dict[str, Any]:
        counted = asdict(self._device.memory_counts())
        used, total = counted["used_bytes"], counted["total_bytes"]
        line: dict[str, Any] = {
            "schema": SCHEMA,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "point": point,
            "phase": phase,
            "stage": self._stage or None,
            "micro_step": self._done * self._parts(),
            "opt_step": self._done,
            "elapsed_sec": round(time.monotonic() - self._began, 3),
            "device": self._device.name,
            "hbm": counted | {"used_pct": round(100 * used / total, 1) if used and total else None},
        }
        if self._level >= LEVELS.index("tensors"):
            line |= {"estimates": self._estimates(), "tensors": self._tensors()}
        if self._level >= LEVELS.index("metrics"):
            line["metrics"] = dict(self._device.counters())
        if self._level >= LEVELS.index("hlo"):
            line["hlo"] = self._graph
        return line

    def _parts(self) -> int:
        """Micro-batches of a step of the stage."""
        stage = getattr(self._config, self._stage, None)
        return 1 if stage is None else stage.batch_size // (stage.micro_batch_size or stage.batch_size)

    def _estimates(self) -> Mapping[str, Any] | None:
        """Of the stage's passes; before the first, of an evaluation's."""
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

    def _tensors(self) -> dict[str, int]:
        """Bytes of what lasts from step to step, by shape and dtype."""
        models = [model for model in (self._student, self._teacher) if model is not None]
        weights = [p for model in models for p in (*model.parameters(), *model.buffers())]
        gradients = [] if self._student is None else [p.grad for p in self._student.parameters()]
        return {
            "weights_bytes": _bytes(weights),
            "gradients_bytes": _bytes(gradient for gradient in gradients if gradient is not None),
            "optimizer_bytes": _bytes(self._states()),
        }

    def _states(self) -> list[Tensor]:
        """Of the optimizers."""
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
                why = f"{str(self._path)!r} cannot be written: {error.strerror}; the run goes on without it"
                Lines(sys.stderr).write(f"trainer: warning: {why}")
            self._phases = frozenset()


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of distinct ones."""
    return sum({id(t): t.numel() * t.element_size() for t in tensors}.values())
