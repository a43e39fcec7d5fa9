"""Checkpoints of stages: their keys, and their folders in `RUN_DIR/snapshots/`, which programs write or find.

stage.json    optional: {"schema": 1, "key": KEY, "step": …, "seconds": …, "usd": …, "metrics": {…}}
…             the program's own files

`STAGE/` has the checkpoint of the stage's end; `STAGE@STEP/` has one within its trunk, after so many steps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeps.errors import EnvironmentFault
from sweeps.space.definition import Space, Value
from sweeps.space.stages import Stages
from sweeps.stages.stage_runs import amount
from sweeps.text import json_reader
from sweeps.text.shorten import one_line
from sweeps.text.step_key import step_key

SNAPSHOTS = "snapshots"
STAGE_FILE = "stage.json"
_SCHEMA = 1
_WITHIN = re.compile(r"(.+)@([1-9][0-9]{0,17})")


class Unfit(EnvironmentFault):
    """A folder that cannot be published as it is; the message is one clause."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state at the end of a stage, or at a step within its trunk.

    Args:
        key: 64 hexadecimal digits; equal keys mean equal weights.
        step: of the stage, within its trunk; None: its end.
    """

    stage: str
    key: str
    step: int | None = None

    @property
    def name(self) -> str:
        """Return the name of its folder in `snapshots/`."""
        return self.stage if self.step is None else f"{self.stage}@{self.step}"


@dataclass(frozen=True, kw_only=True)
class TrunkKey:
    """The trunk that a trial has of a stage.

    Args:
        key: of the trunk, 64 hexadecimal digits; equal keys mean equal results after equal steps.
        until: step of the stage at which the trial leaves it.
    """

    key: str
    until: int


@dataclass(frozen=True, kw_only=True)
class SharedKeys:
    """Keys of everything that a trial may share with others.

    Args:
        ends: keys of the ends of stages, by stage in order.
        trunks: of stages, likewise.
    """

    ends: Mapping[str, str] = field(default_factory=dict)
    trunks: Mapping[str, TrunkKey] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ends or self.trunks)

    def end(self, stage: str) -> Checkpoint:
        """Return the end of a stage that has a key."""
        return Checkpoint(stage=stage, key=self.ends[stage])

    def within(self, stage: str, step: int) -> Checkpoint:
        """Return the checkpoint at a step of a stage that has a trunk."""
        return Checkpoint(stage=stage, step=step, key=step_key(self.trunks[stage].key, step))

    def present(self, folder: Path) -> list[Checkpoint]:
        """Return those in `folder` (`RUN_DIR/snapshots`), in the order in which a trial reaches them."""
        try:
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
        except OSError:  # not there yet
            return []
        matches = filter(None, map(_WITHIN.fullmatch, names))
        steps = sorted((int(match[2]), match[1]) for match in matches)
        found = []
        for stage in dict.fromkeys((*self.ends, *self.trunks)):  # only the last one may have no key
            if stage in self.trunks:
                found += [self.within(stage, step) for step, name in steps if name == stage]
            if stage in self.ends and stage in names:
                found.append(self.end(stage))
        return found

    def require_on_trunk(self, checkpoint: Checkpoint) -> None:
        """Make sure that a checkpoint within a stage lies before its decay. Raises Unfit."""
        step = checkpoint.step
        if step is not None and step > (until := self.trunks[checkpoint.stage].until):
            raise Unfit(f"its trunk ends at step {until}")


# ---- keys of commands and functions; the trainer has its own


# What a key has of a program. Not all fields: a new one would give each stage another key, and so old and new
# workers of one sweep would share nothing.
_OF_PROGRAM = ("kind", "overrides", "command", "function", "processes", "nodes")


def _program(space: Space) -> dict[str, Any]:
    return {name: getattr(space.program, name) for name in _OF_PROGRAM}


def end_keys(space: Space, stages: Stages, parameters: Mapping[str, Value]) -> dict[str, str]:
    """Return the key of the end of each stage but the last, by its name."""
    return {
        name: _digest(
            {
                "program": _program(space),
                "parameters": {n: v for n, v in parameters.items() if stages.position(n) <= position},
                "stage": name,
            }
        )
        for position, name in enumerate(stages.names[:-1])
    }


def trunk_keys(space: Space, stages: Stages, parameters: Mapping[str, Value]) -> dict[str, TrunkKey]:
    """Return the trunk of each stage that has one, by its name."""
    found = {}
    for position, name in enumerate(stages.names):
        if not (until := stages.trunk_end(parameters, position)):
            continue
        common = {
            n: v
            for n, v in parameters.items()
            if stages.position(n) <= position and not stages.is_tail(n, position)
        }
        document = {"program": _program(space), "parameters": common, "stage": name, "part": "trunk"}
        found[name] = TrunkKey(key=_digest(document), until=until)
    return found


def _digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document as canonical JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ---- stage.json


@dataclass(frozen=True, kw_only=True)
class Details:
    """Content of `stage.json`: what it took to compute the stage until there; None: not stated."""

    seconds: float | None = None
    usd: float | None = None


def details(folder: Path, checkpoint: Checkpoint) -> Details:
    """Return what the folder's `stage.json` says; nothing if there is no such file.

    Raises:
        Unfit: it cannot be read, or belongs to another version, key or step.
    """
    try:
        document = json_reader.read(folder / STAGE_FILE)
    except FileNotFoundError:
        return Details()
    except (OSError, ValueError) as error:
        raise Unfit(f"its {STAGE_FILE} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema", _SCHEMA) != _SCHEMA:
        raise Unfit(f"its {STAGE_FILE} is not of schema {_SCHEMA}")
    if document.get("key", checkpoint.key) != checkpoint.key:
        raise Unfit(f"its {STAGE_FILE} names another key")
    if checkpoint.step is not None and document.get("step", checkpoint.step) != checkpoint.step:
        raise Unfit(f"its {STAGE_FILE} names another step")
    return Details(seconds=amount(document.get("seconds")), usd=amount(document.get("usd")))


def clause(error: Exception) -> str:
    """Return an error of a checkpoint as one clause."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return one_line(error)
