"""Snapshots of finished stages: a run starts from one that is there, and may leave one. Used by `pipeline`.

    RUN_DIR/snapshots/STAGE/    a checkpoint at the end of the stage, without the state of its optimizer
        stage.json              written last: schema, key, seconds, usd and metrics of the stage
        state.json, …           see `manifest`; its values have the identity of the run that wrote it
    RUN_DIR/snapshots/.…        a draft, or one that cannot be used; nobody reads it

Whoever moves snapshots between runs reads `stage.json` alone. A run verifies all files, and starts from
scratch where anything is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic_core import from_json
from safetensors import SafetensorError
from torch import nn

from trainer.checkpoint import layout
from trainer.checkpoint.checkpoints import TRACE, Checkpoints
from trainer.checkpoint.discover import Found
from trainer.checkpoint.manifest import (
    IDENTITY,
    STAGE_FILE,
    STATE_FILE,
    Manifest,
    UnusableError,
    decode,
    verified,
)
from trainer.checkpoint.parts import MODEL, Weights
from trainer.checkpoint.policy import CheckpointPolicy
from trainer.checkpoint.reader import read
from trainer.checkpoint.state import StateError
from trainer.distributed.ranks import ALONE, Ranks

SCHEMA = 1
_REUSED, _USD = "reused", "usd"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Properties that a run shares with the snapshot that it starts from.

    Args:
        key: of the stage's end, `trainer.api.stage_keys`.
        data_sha256: of the text and its tokenizer.
        teacher: digest of its weights, or of what a teacher that runs train themselves depends on.
        device: its kind.
        dtype: of matrix products.
    """

    key: str
    data_sha256: str
    teacher: str
    device: str
    dtype: str


@dataclass(frozen=True, kw_only=True)
class StageNumbers:
    """Numbers of a finished stage.

    Args:
        seconds: of training.
        usd: dollars; None: the price is not known.
        metrics: of the result, as far as they are known at the end of the stage.
        evaluation: settings of the held-out losses that are measured there.
    """

    seconds: float
    usd: float | None
    metrics: Mapping[str, float | None]
    evaluation: Mapping[str, int]


class StageSnapshots:
    """The snapshots in the folder of one run.

    Args:
        root: their folder, made with the first one.
        keys: of the ends of stages by name; other stages have no snapshots.
        write: whether to write them.
        checkpoints: of the run.
        warn: called with one line for people.
        ranks: the processes that share the run. All must call each method; the first verifies and writes.
    """

    def __init__(
        self,
        root: Path,
        keys: Mapping[str, str],
        *,
        write: bool,
        checkpoints: Checkpoints,
        warn: Callable[[str], None],
        ranks: Ranks = ALONE,
    ) -> None:
        self.keys = dict(keys)
        self._root, self._write, self._checkpoints = root, write, checkpoints
        self._warn, self._ranks = warn, ranks

    def find(self, stage: str, identity: Callable[[], Identity]) -> Found | None:
        """Return the snapshot of a stage that the run can start from, or None.

        A checkpoint of the stage's end, or later, takes precedence. A snapshot that cannot be used is hidden,
        and reported.

        Args:
            stage: its name, the first that is trained.
            identity: called in the first process if there is a snapshot.
        """
        if stage not in self.keys or self._checkpoints.past(stage):
            return None
        path = self._root / stage
        if self._ranks.first:
            with contextlib.suppress(OSError):
                layout.remove_drafts(self._root)
        if not self._ranks.decided_by_first(path.exists()):
            return None
        found, problem = None, ""
        try:
            found = Found(path=path, manifest=self._opened(path, stage, identity))
        except UnusableError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot be read: {error.strerror}"
        return None if self._refused(path, problem) else found

    def start(self, found: Found, student: nn.Module, evaluation: Mapping[str, int]) -> bool:
        """Let the run start from a snapshot, and return whether it does: not if its tensors do not fit.

        Args:
            found: by `find`.
            student: whose weights will be restored when the stage begins.
            evaluation: as of `StageNumbers`. Losses with other settings are measured again.
        """
        problem = ""
        try:
            Weights(student).check(read(found, MODEL))
        except StateError as error:
            problem = error.problem
        except (OSError, SafetensorError) as error:
            problem = f"its weights cannot be read: {error}"
        if self._refused(found.path, problem):
            return False
        manifest, about = found.manifest, found.manifest.values[IDENTITY]
        measured = dict(manifest.measured) if measured_alike(found, evaluation) else {}
        price = {} if about[_USD] is None else {_USD: about[_USD]}
        measured[_name(manifest.stage)] = {_REUSED: 1.0, **price}
        manifest = dataclasses.replace(manifest, measured=measured)
        self._checkpoints.start_from(dataclasses.replace(found, manifest=manifest))
        return True

    def write(
        self, stage: str, identity: Callable[[], Identity], numbers: Callable[[], StageNumbers]
    ) -> None:
        """Begin to write a stage that has just ended, if that is wanted and there is no snapshot of it.

        Args:
            stage: its name.
            identity: called in the first process if something is written.
            numbers: likewise.
        """
        path = self._root / stage
        if self._write and stage in self.keys and self._ranks.decided_by_first(not path.exists()):
            self._checkpoints.save_stage(stage, path, lambda: self._described(stage, identity(), numbers()))

    def _described(
        self, stage: str, identity: Identity, numbers: StageNumbers
    ) -> tuple[bytes, Mapping[str, object]]:
        """Return the content of `stage.json`, and what else the manifest has."""
        document = {"schema": SCHEMA, "key": self.keys[stage], "seconds": numbers.seconds, _USD: numbers.usd}
        document["metrics"] = dict(numbers.metrics)
        values = {"identity": asdict(identity), "evaluation": dict(numbers.evaluation), _USD: numbers.usd}
        return (
            (json.dumps(document, indent=1, allow_nan=False) + "\n").encode(),
            values | {"torch": torch.__version__},
        )

    def _opened(self, path: Path, stage: str, identity: Callable[[], Identity]) -> Manifest:
        """Return the manifest, which the first process has verified."""
        if not self._ranks.first:
            return decode((path / STATE_FILE).read_bytes())
        _require_key(path / STAGE_FILE, self.keys[stage])
        manifest = verified(path)
        about = manifest.values.get(IDENTITY)
        if (
            about is None
            or manifest.stage != stage
            or not manifest.over
            or TRACE + stage not in manifest.values
        ):
            raise UnusableError(f"it is not the end of {stage}")
        theirs = about["identity"]
        for name, ours in asdict(identity()).items():
            if theirs.get(name) != ours:
                raise UnusableError(f"its {name} is {theirs.get(name)}, and this run's is {ours}")
        return manifest

    def _refused(self, path: Path, problem: str) -> bool:
        """Return whether any process has a problem; hide and report the snapshot then."""
        problems = [each for each in self._ranks.all_gather(problem) if each]
        if problems and self._ranks.first:
            with contextlib.suppress(OSError):
                layout.set_aside(path)
            self._warn(f"the snapshot of {path.name} cannot be used ({problems[0]}); the stage is computed")
        return bool(problems)


def measured_alike(found: Found, evaluation: Mapping[str, int]) -> bool:
    """Return whether the held-out losses of a snapshot are of these settings, as of `StageNumbers`."""
    return bool(found.manifest.values[IDENTITY]["evaluation"] == evaluation)


def origin(checkpoints: CheckpointPolicy, stage: str) -> tuple[bool, float | None]:
    """Return whether a stage of this run was taken from a snapshot, and then its dollars, if known."""
    noted = checkpoints.once(_name(stage), lambda: {_REUSED: 0.0})
    return bool(noted[_REUSED]), noted.get(_USD)


def _name(stage: str) -> str:
    """Return the name among a checkpoint's measurements of how a stage was come by."""
    return f"{stage}_{IDENTITY}"


def _require_key(file: Path, key: str) -> None:
    """Raise UnusableError unless a `stage.json` is complete and has this key."""
    try:
        document = from_json(file.read_bytes())
    except FileNotFoundError:
        raise UnusableError(f"{STAGE_FILE} is missing") from None
    except ValueError:
        raise UnusableError(f"{STAGE_FILE} is cut off or damaged") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UnusableError(f"its {STAGE_FILE} has another schema than {SCHEMA}")
    if document.get("key") != key:
        raise UnusableError(f"its key is {document.get('key')}, and this run's is {key}")
