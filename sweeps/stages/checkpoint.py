"""Folders of a trial's stages in `RUN_DIR/snapshots/`, as its program writes or finds them.

stage.json    optional: {"schema": 1, "key": KEY, "step": …, "seconds": …, "usd": …, "metrics": {…}}
…             the program's own files

`STAGE/` has the end of the stage; `STAGE@STEP/` has a point of its trunk, after so many of its steps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeps.errors import EnvironmentFault
from sweeps.space.trunks import point_key
from sweeps.stages.stage_runs import TrunkKey, amount
from sweeps.text import json_reader

SNAPSHOTS = "snapshots"
STAGE_FILE = "stage.json"
_SCHEMA = 1
_POINT = re.compile(r"(.+)@([1-9][0-9]{0,17})")


class Unfit(EnvironmentFault):
    """A folder that cannot be published as it is; the message is one clause."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stage, or its trunk until a point, as the content of a snapshot.

    Args:
        stage: its name.
        key: of the stage's end, or of the point.
        step: of a point, the steps of the stage until there; None: the stage to its end.
    """

    stage: str
    key: str
    step: int | None = None

    @property
    def name(self) -> str:
        """Return the name of its folder in `snapshots/`."""
        return self.stage if self.step is None else f"{self.stage}@{self.step}"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The ends of stages and the trunks that a trial may share with others.

    Args:
        keys: of the ends of stages, by stage in order.
        trunks: of stages, likewise.
    """

    keys: Mapping[str, str]
    trunks: Mapping[str, TrunkKey]

    def __bool__(self) -> bool:
        return bool(self.keys or self.trunks)

    def end(self, stage: str) -> Part:
        """Return the end of a stage that has a key."""
        return Part(stage=stage, key=self.keys[stage])

    def point(self, stage: str, step: int) -> Part:
        """Return a point of a stage that has a trunk."""
        return Part(stage=stage, step=step, key=point_key(self.trunks[stage].key, step))

    def present(self, folder: Path) -> list[Part]:
        """Return those in `folder` (`RUN_DIR/snapshots`), in the order in which a trial reaches them."""
        try:
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
        except OSError:  # not there yet
            return []
        matches = filter(None, map(_POINT.fullmatch, names))
        steps = sorted((int(match[2]), match[1]) for match in matches)
        found = []
        for stage in dict.fromkeys((*self.keys, *self.trunks)):  # only the last one may have no key
            if stage in self.trunks:
                found += [self.point(stage, step) for step, of in steps if of == stage]
            if stage in self.keys and stage in names:
                found.append(self.end(stage))
        return found

    def require_on_trunk(self, part: Part) -> None:
        """Make sure that a trial's point lies before its decay. Raises Unfit."""
        if part.step is not None and part.step > (until := self.trunks[part.stage].until):
            raise Unfit(f"its trunk ends at step {until}")


@dataclass(frozen=True, kw_only=True)
class Details:
    """Content of `stage.json`: what it took to compute the part; None: not stated."""

    seconds: float | None = None
    usd: float | None = None


def details(folder: Path, part: Part) -> Details:
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
    if document.get("key", part.key) != part.key:
        raise Unfit(f"its {STAGE_FILE} names another key")
    if part.step is not None and document.get("step", part.step) != part.step:
        raise Unfit(f"its {STAGE_FILE} names another step")
    return Details(seconds=amount(document.get("seconds")), usd=amount(document.get("usd")))


def clause(error: Exception) -> str:
    """Return an error of a snapshot as one clause."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return " ".join(str(error).split()) or type(error).__name__
