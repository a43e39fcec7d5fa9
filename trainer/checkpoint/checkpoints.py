"""Saving and restoring of a run: the `CheckpointPolicy` that writes checkpoints.

Built by `trainer.__main__`, which wraps the run in it; `loop` reports every step, `pipeline` measurements.
The training step pays for a copy of the state in host memory; the rest happens in the background.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoint import layout
from trainer.checkpoint.layout import Found
from trainer.checkpoint.manifest import IDENTITY, TENSORS, WEIGHTS, Manifest
from trainer.checkpoint.parts import EQUAL, MODEL, read
from trainer.checkpoint.policy import CheckpointPolicy, Measured, Parts, StageCheckpoint
from trainer.checkpoint.sharded import ALONE_SAVING, SaveGroup, own_share
from trainer.checkpoint.state import State, Stateful
from trainer.checkpoint.writer import SHARD, HostCopies, Snapshot, Writer, contribute
from trainer.config import CheckpointConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import DivergedError, PreemptedError, TrainerError
from trainer.result import code_version

During = Callable[[str, str], AbstractContextManager[None]]

TRACE = "trace."


class Checkpoints(CheckpointPolicy):
    """Checkpoints of one run. A context manager around it, which writes the checkpoint of a preempted run.

    Args:
        root: folder of the checkpoints, made with the first one.
        metrics: the run's `metrics.jsonl`, a copy of which is part of a checkpoint.
        peak_memory: returns the peak memory of this attempt so far, in bytes.
        compile_seconds: returns the seconds of compilation of this attempt so far.
        ranks: the processes that share the run. All must report every step, as each may have a shard of the
            state; the first decides when to save, and writes all that is not sharded.
        during: entered with a phase and its detail while the run waits for saving.
    """

    def __init__(
        self,
        root: Path,
        *,
        metrics: Path,
        config: CheckpointConfig,
        config_sha256: str,
        found: Found | None,
        peak_memory: Callable[[], int],
        warn: Callable[[str], None],
        compile_seconds: Callable[[], float] = lambda: 0.0,
        ranks: Ranks = ALONE,
        during: During = lambda phase, detail: nullcontext(),
    ) -> None:
        self._ranks, self._during = ranks, during
        self._root, self._metrics, self._config = root, metrics, config
        self._config_sha256, self._found, self._peak_memory = config_sha256, found, peak_memory
        self._compile_seconds = compile_seconds
        self._measured = dict(found.manifest.measured) if found else {}
        self._kept: dict[str, Mapping[str, Any]] = {}
        self._traces: dict[str, Stateful] = {}
        self._done: dict[str, int] = {}  # optimizer steps of each stage
        self._restored = found is None  # until then the weights are not the run's
        self._has_left = False  # the processes that share the run
        self._stage: _Stage | None = None  # the last that has begun since
        self._group = SaveGroup(ranks) if config.is_sharded(ranks.parallel) else ALONE_SAVING
        self._copies = {file: HostCopies() for file in (WEIGHTS, TENSORS, SHARD)}
        last = found.manifest.steps if found else None
        self._writer = Writer(root, keep=config.keep, last=last, warn=warn)
        self._due, self._saved_at = False, time.monotonic()

    @contextmanager
    def stage(self, name: str, steps: int, parts: Callable[[], Parts]) -> Iterator[StageCheckpoint]:
        """Handle a signal inside here, while all parts of the stage exist."""
        stage = _Stage(self, name, steps, parts())
        if found := self._found:
            self._restore(stage, found)
        self._stage = stage if self._restored else None
        # After the stage: a signal may come between the two lines, and a checkpoint of the stage before that
        # has this trace says that this one is over.
        self._traces[TRACE + name] = stage.parts.trace
        self._done[name] = stage.done
        try:
            yield stage
        except PreemptedError as error:
            self._save_preempted(error)
            raise
        stage.over = True
        stage.parts = Parts(lasting=stage.parts.lasting, passing={}, trace=stage.parts.trace)

    def once(self, name: str, measure: Callable[[], Measured]) -> Measured:
        if name not in self._measured:
            self._measured[name] = measure()
        return self._measured[name]

    def keep_names(self) -> None:
        if self._stage is not None:
            self._stage.weights = self._stage.parts.lasting[MODEL].state()

    def keep(self, name: str, values: Mapping[str, Any]) -> bool:
        """Write these values into each checkpoint, and return whether those of all attempts so far have them.

        If not, none are written: no later attempt has the values of all.
        """
        same = self._found is None or self._found.manifest.values.get(name) == values
        self._kept[name] = values if same else {}
        return same

    def position(self) -> tuple[str, float] | None:
        """Return stage and step of the checkpoint that the run goes on from; None without one.

        The step is infinite at the end of a stage.
        """
        if self._found is None:
            return None
        manifest = self._found.manifest
        return manifest.stage, math.inf if manifest.over else manifest.step

    def start_from(self, found: Found) -> None:
        """Restore from this snapshot instead. To be called before any stage."""
        self._found, self._measured, self._restored = found, dict(found.manifest.measured), False

    def save_stage(
        self, name: str, folder: Path, describe: Callable[[], tuple[bytes, Mapping[str, Any]]]
    ) -> None:
        """Begin to write a stage as it is now as a snapshot, which appears as `folder`.

        Nothing is written where the weights are not those of this stage: a later checkpoint has to restore
        them.

        Args:
            name: of the stage that is running, or has just ended.
            describe: called in the first process; returns the content of its `stage.json` and its identity.
        """
        stage = self._stage
        if stage is None or stage.name != name:
            return
        self._writer.wait()  # it reads the copies that are about to be overwritten
        with self._during("saving", f"a snapshot of {name}"):
            document, identity = describe() if self._ranks.first else (b"", {})
            self._save(stage, partial(self._writer.begin_stage, folder, document), {IDENTITY: identity})

    def peak(self, peak_memory_bytes: int) -> int:
        return max(peak_memory_bytes, self._found.manifest.peak_memory_bytes if self._found else 0)

    def compiled(self, seconds: float) -> float:
        return seconds + (self._found.manifest.compile_seconds if self._found else 0.0)

    @property
    def busy(self) -> bool:
        return self._writer.busy

    @property
    def resumable(self) -> bool:
        """Return whether there is a checkpoint that the same command would resume from."""
        self._writer.wait()
        return self._writer.last is not None

    def discard(self) -> None:
        """Delete all checkpoints of a run that has ended for good."""
        self._writer.wait()
        if self._ranks.first:
            layout.remove(self._root)

    def leave(self) -> None:
        """Write the run as it is, in all processes that share it, before they leave each other.

        A signal after that finds nobody to write a checkpoint with.
        """
        self._save_last()
        self._has_left = True

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PreemptedError):
            self._save_preempted(error)
        self._writer.wait()
        if isinstance(error, DivergedError):
            self.discard()  # a resumed run would diverge again

    def _restore(self, stage: _Stage, found: Found) -> None:
        """Restore a stage as the checkpoint has it: over, in its middle, or not yet begun."""
        manifest, parts = found.manifest, stage.parts
        if TRACE + stage.name in manifest.values:
            parts.trace.restore(read(found, TRACE + stage.name))
            stage.done = stage.steps
        if manifest.stage == stage.name:
            stage.done = manifest.step
            for name, part in (*parts.lasting.items(), *(() if manifest.over else parts.passing.items())):
                part.restore(read(found, name, part))
            self._restored = True

    def after_step(self, stage: _Stage) -> bool:
        """Record a step of the stage, and begin a checkpoint if one is due; return whether it was.

        Raises:
            TrainerError: the disk is full and no checkpoint stands.
        """
        self._done[stage.name] = stage.done
        if self._writer.full:
            raise TrainerError(
                f"no checkpoint could be written to {str(self._root)!r} ({self._writer.full}) and none "
                "stands, so an end would lose everything; make room there, or write another run_dir"
            )
        now = time.monotonic()
        every_steps, every_seconds = self._config.every_steps, self._config.every_seconds
        if every_steps and sum(self._done.values()) % every_steps == 0:
            self._due = True
        if every_seconds and now - self._saved_at >= every_seconds:
            self._due = True
        if not self._ranks.decided_by_first(self._due and not self._writer.busy):
            return False
        self._due, self._saved_at = False, now
        with self._during("saving", f"a copy after step {stage.done} of {stage.name}"):
            self._save(stage)
        return True

    def _save_preempted(self, error: PreemptedError) -> None:
        """Save a run that a signal ends, and note in the error whether it can be resumed."""
        if not self._has_left:
            self._save_last()
        error.resumable = self.resumable

    def _save_last(self) -> None:
        """Save the run after its last step, in all processes, unless a checkpoint of that stands."""
        with self._during("saving", "before it ends"):
            self._writer.wait()
            steps = sum(self._done.values())
            if self._stage is not None and steps:
                if self._ranks.decided_by_first(self._writer.last != steps):
                    self._save(self._stage)
                    self._writer.wait()
                self._ranks.barrier()  # when one process ends, the launcher ends the others

    def _save(
        self,
        stage: _Stage,
        begin: Callable[[Snapshot], None] | None = None,
        more: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin to write the run as it is now, as a checkpoint or as `begin` does, with more values."""
        parts: dict[str, Stateful] = {**stage.parts.lasting, **stage.parts.passing, **self._traces}
        states = {name: part.state() for name, part in parts.items()}
        if stage.weights is not None:
            states[MODEL] = stage.weights
        values = {name: self._values_of_all(state) for name, state in states.items()}
        values |= self._kept | dict(more or {})
        tensors = {
            f"{part}/{name}": tensor
            for part, state in states.items()
            for name, tensor in state.tensors.items()
        }
        if self._group is not ALONE_SAVING:
            own = own_share(tensors, self._ranks, EQUAL)
            copies = {SHARD: self._copies[SHARD].take(own, in_parts=True)}
        else:
            others = {name: each for name, each in tensors.items() if name.partition("/")[0] != MODEL}
            files = {WEIGHTS: states[MODEL].tensors, TENSORS: others}
            if not self._ranks.first:
                for each in files.values():
                    contribute(each)
                return
            copies = {file: self._copies[file].take(each) for file, each in files.items()}
        (begin or self._writer.begin)(self._snapshot(stage, values, copies))

    def _values_of_all(self, state: State) -> Mapping[str, Any]:
        """Return the values of a part, with the entries of all processes where each has its own."""
        merged = dict(state.values)
        for name in state.per_process:
            merged[name] = {k: v for own in self._ranks.all_gather(merged[name]) for k, v in own.items()}
        return merged

    def _snapshot(
        self,
        stage: _Stage,
        values: Mapping[str, Mapping[str, Any]],
        copies: Mapping[str, Mapping[str, Tensor]],
    ) -> Snapshot:
        manifest = Manifest(
            stage=stage.name,
            step=stage.done,
            of=stage.steps,
            over=stage.over,
            steps=sum(self._done.values()),
            config_sha256=self._config_sha256,
            code_version=code_version(),
            details=stage.details,
            values=values,
            measured=self._measured,
            peak_memory_bytes=self.peak(self._peak_memory()),
            compile_seconds=self.compiled(self._compile_seconds()),
            files={},
        )
        return Snapshot(
            manifest=manifest,
            tensors=copies,
            metrics=self._metrics,
            metrics_bytes=self._metrics.stat().st_size if self._ranks.first else 0,
            group=self._group,
        )


class _Stage(StageCheckpoint):
    """A stage that is running, or was the last to run."""

    def __init__(self, owner: Checkpoints, name: str, steps: int, parts: Parts) -> None:
        self._owner = owner
        self.name, self.steps, self.parts = name, steps, parts
        self.over = False
        self.weights: State | None = None  # see `keep_names`
        self.details: Mapping[str, float] = {}

    def after(self, step: int, details: Mapping[str, float]) -> bool:
        self.done, self.details = step, dict(details)
        return self._owner.after_step(self)
