"""Snapshots of stages: a run starts from one that is there, and may leave some. Used by `pipeline`.

    RUN_DIR/snapshots/STAGE/         a checkpoint at the end of the stage, without the state of its optimizer
    RUN_DIR/snapshots/STAGE@STEP/    a point of the stage's trunk: a checkpoint after so many of its steps
        stage.json                   written last: schema, key, seconds, usd and metrics, of a point its step
        state.json, …                see `manifest`; its values have the identity of the run that wrote it
    RUN_DIR/snapshots/.…             a draft, or one that cannot be used; nobody reads it

Whoever moves snapshots between runs reads `stage.json` alone. A run verifies all files, and starts from what
comes before, or from scratch, where anything is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from pydantic_core import from_json
from safetensors import SafetensorError
from torch import nn

from sweeps.text.regular_file import read_regular
from sweeps.text.step_key import step_key
from trainer.checkpoint import layout
from trainer.checkpoint.checkpoints import TRACE, Checkpoints
from trainer.checkpoint.layout import Found
from trainer.checkpoint.manifest import (
    IDENTITY,
    STAGE_FILE,
    STATE_FILE,
    Manifest,
    UnusableError,
    decode,
    verified,
)
from trainer.checkpoint.parts import MODEL, Weights, meta_tensors
from trainer.checkpoint.policy import CheckpointPolicy
from trainer.checkpoint.state import State, StateError
from trainer.config.stage_key import StageTrunk
from trainer.distributed.ranks import ALONE, Ranks

SCHEMA = 1
_REUSED, _STEPS, _SECONDS, _USD, _EARLIER = "reused", "steps", "seconds", "usd", "usd_of_earlier"
_KEYS = "keys"  # the name among `values` of a checkpoint of the keys that the run had
_STEP = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)

_ORDER = ("stage1_9", "stage2", "stage3", "recovery")


def position(stage: str, step: float) -> tuple[int, float]:
    """Return a key to sort by of a step in a stage, infinite at its end."""
    return _ORDER.index(stage), step


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a run that others can start from.

    Args:
        step: of a point of the stage's trunk, the steps until there; None: the end of the stage.
    """

    stage: str
    step: int | None
    key: str

    @property
    def folder(self) -> str:
        """Return the name of its folder."""
        return self.stage if self.step is None else f"{self.stage}@{self.step}"

    @property
    def order(self) -> tuple[int, float]:
        """Return a key to sort places along a run by."""
        return position(self.stage, math.inf if self.step is None else self.step)

    def __str__(self) -> str:
        return f"the end of {self.stage}" if self.step is None else f"step {self.step} of {self.stage}"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Properties that a run shares with the snapshot that it starts from.

    Args:
        teacher: digest of its weights, or of what a teacher that runs train themselves depends on.
    """

    key: str
    data_sha256: str
    teacher: str
    device: str
    dtype: str


@dataclass(frozen=True, kw_only=True)
class StageNumbers:
    """Numbers of a stage until a place.

    Args:
        usd: dollars; None: the price is not known.
        metrics: of the result, as far as they are known at the end of the stage.
        evaluation: settings of the held-out losses that were measured on the way.
        usd_of_earlier: dollars of the stages before, by name.
    """

    seconds: float
    usd: float | None
    metrics: Mapping[str, float | None]
    evaluation: Mapping[str, int]
    usd_of_earlier: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The part of a stage that a run took from a snapshot.

    Args:
        reused: whether that is all of it.
        steps: its steps, of a part.
        seconds: of training it took the run that computed a part.
        usd: dollars, likewise; of all of it too. None: not known.
    """

    reused: bool = False
    steps: int = 0
    seconds: float = 0.0
    usd: float | None = None


class StageSnapshots:
    """The snapshots in the folder of one run.

    Args:
        keys: of the ends of stages by name; other stages have no snapshots of their ends.
        write: whether to write those.
        trunks: of stages by name; other stages have no points.
        every: steps between two points, by stage, or the points; 0: none.
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
        trunks: Mapping[str, StageTrunk] = MappingProxyType({}),
        every: Mapping[str, int | Sequence[int]] = MappingProxyType({}),
        ranks: Ranks = ALONE,
    ) -> None:
        self.keys = dict(keys)
        self._trunks, self._every = dict(trunks), dict(every)
        self._root, self._write, self._checkpoints = root, write, checkpoints
        self._warn, self._ranks = warn, ranks
        self._kept = {"ends": self.keys, "trunks": {name: trunk.key for name, trunk in trunks.items()}}
        # The keys are of this code and these libraries. Weights that others have begun are not what they say.
        self._is_of_keys = checkpoints.keep(_KEYS, self._kept)
        if not self._is_of_keys and (self.keys or trunks) and ranks.first:
            warn(
                "the run goes on from a checkpoint of another version of the trainer or its libraries: "
                "no other trial will start from it"
            )

    def candidates(self) -> list[Place]:
        """Return the places that the run may start from, the furthest first.

        None of them is behind the run's own checkpoint. Drafts of killed processes are removed.
        """
        names: list[str] = []
        if self._ranks.first:
            with contextlib.suppress(OSError):
                layout.remove_drafts(self._root)
            with contextlib.suppress(OSError):
                names = [path.name for path in self._root.iterdir()]
        places = filter(None, map(self._place, self._ranks.broadcast(names)))
        own = self._checkpoints.position()
        here = (-1, 0.0) if own is None else position(*own)
        return sorted((p for p in places if p.order > here), key=lambda p: p.order, reverse=True)

    def _place(self, name: str) -> Place | None:
        """Return the place of a folder's name; None for what is none of this run's."""
        stage, at, digits = name.partition("@")
        if not at:
            return Place(stage=stage, step=None, key=self.keys[stage]) if stage in self.keys else None
        if stage not in self._trunks or not _STEP.fullmatch(digits):
            return None
        trunk, step = self._trunks[stage], int(digits)
        if step > trunk.until:
            return None
        return Place(stage=stage, step=step, key=step_key(trunk.key, step))

    def find(self, place: Place, identity: Callable[[str], Identity]) -> Found | None:
        """Return the snapshot of a place, or None where it cannot be used: it is then hidden, and reported.

        Args:
            place: one of `candidates`.
            identity: called in the first process with the place's key.
        """
        path = self._root / place.folder
        found, problem = None, ""
        try:
            found = Found(path=path, manifest=self._read_manifest(path, place, identity))
        except UnusableError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot be read: {error.strerror}"
        return None if self._reject(path, place, problem) else found

    def start(self, found: Found, place: Place, student: nn.Module, evaluation: Mapping[str, int]) -> bool:
        """Let the run start from a snapshot, and return whether it does: not if it does not fit the run.

        Args:
            student: whose weights will be restored when the stage begins.
            evaluation: as of `StageNumbers`. Losses with other settings are measured again.
        """
        alike, problem = measured_alike(found, evaluation), _misfit(found, student)
        if not alike and place.order > position("stage2", 0):  # too late to measure it again
            problem = "its loss at the start of stage2 is of another evaluation"
        if self._reject(found.path, place, problem):
            return False
        manifest = found.manifest
        measured = dict(manifest.measured) if alike else {}
        for stage, origin_ in _origins(found, place).items():
            noted = {_REUSED: float(origin_.reused), _STEPS: origin_.steps, _SECONDS: origin_.seconds}
            measured[_name(stage)] = noted | ({} if origin_.usd is None else {_USD: origin_.usd})
        manifest = dataclasses.replace(manifest, measured=measured)
        values = {**manifest.values, _KEYS: self._kept}
        self._checkpoints.start_from(
            dataclasses.replace(found, manifest=dataclasses.replace(manifest, values=values))
        )
        self._is_of_keys = self._checkpoints.keep(_KEYS, self._kept)
        return True

    def write(
        self, stage: str, identity: Callable[[str], Identity], numbers: Callable[[], StageNumbers]
    ) -> None:
        """Begin to write the end of a stage, if that is wanted and there is no snapshot of it.

        Args:
            identity: called in the first process with the key, if something is written.
            numbers: called there likewise.
        """
        if self._write and stage in self.keys and self._is_of_keys:
            self._save(Place(stage=stage, step=None, key=self.keys[stage]), identity, numbers)

    def is_due(self, stage: str, step: int) -> bool:
        """Return whether there is to be a point after a step of the stage."""
        every, trunk = self._every.get(stage, 0), self._trunks.get(stage)
        if not every or trunk is None or step > trunk.until or not self._is_of_keys:
            return False
        regular = step % every == 0 if isinstance(every, int) else step in every
        return regular or step == trunk.until

    def write_point(
        self, stage: str, step: int, identity: Callable[[str], Identity], numbers: Callable[[], StageNumbers]
    ) -> None:
        """Begin to write a point of the running stage, unless it is there. Arguments as of `write`."""
        key = step_key(self._trunks[stage].key, step)
        self._save(Place(stage=stage, step=step, key=key), identity, numbers)

    def _save(
        self, place: Place, identity: Callable[[str], Identity], numbers: Callable[[], StageNumbers]
    ) -> None:
        path = self._root / place.folder
        if self._ranks.decided_by_first(not path.exists()):
            self._checkpoints.save_stage(
                place.stage, path, lambda: self._contents(place, identity(place.key), numbers())
            )

    def _contents(
        self, place: Place, identity: Identity, numbers: StageNumbers
    ) -> tuple[bytes, Mapping[str, object]]:
        """Return the content of `stage.json`, and what else the manifest has."""
        document: dict[str, object] = {"schema": SCHEMA, "key": place.key}
        if place.step is not None:
            document["step"] = place.step
        document |= {"seconds": numbers.seconds, _USD: numbers.usd, "metrics": dict(numbers.metrics)}
        values = {
            "identity": asdict(identity),
            "evaluation": dict(numbers.evaluation),
            _SECONDS: numbers.seconds,
            _USD: numbers.usd,
            _EARLIER: dict(numbers.usd_of_earlier),
        }
        return (
            (json.dumps(document, indent=1, allow_nan=False) + "\n").encode(),
            values | {"torch": torch.__version__},
        )

    def _read_manifest(self, path: Path, place: Place, identity: Callable[[str], Identity]) -> Manifest:
        """Return the manifest, which the first process has verified."""
        if not self._ranks.first:
            return decode(read_regular(path / STATE_FILE))
        _require_key(path / STAGE_FILE, place.key)
        manifest = verified(path)
        about = manifest.values.get(IDENTITY)
        is_end = manifest.over and TRACE + place.stage in manifest.values
        is_there = is_end if place.step is None else (manifest.step == place.step and not manifest.over)
        if about is None or manifest.stage != place.stage or not is_there:
            raise UnusableError(f"it is not {place}")
        theirs = about["identity"]
        for name, ours in asdict(identity(place.key)).items():
            if theirs.get(name) != ours:
                raise UnusableError(f"its {name} is {theirs.get(name)}, and this run's is {ours}")
        return manifest

    def _reject(self, path: Path, place: Place, problem: str) -> bool:
        """Return whether any process has a problem; hide and report the snapshot then."""
        problems = [each for each in self._ranks.all_gather(problem) if each]
        if problems and self._ranks.first:
            with contextlib.suppress(OSError):
                layout.set_aside(path)
            is_end = place.step is None
            of, instead = (
                (place.stage, "the stage is computed") if is_end else (place, "the run begins earlier")
            )
            self._warn(f"the snapshot of {of} cannot be used ({problems[0]}); {instead}")
        return bool(problems)


def _misfit(found: Found, student: nn.Module) -> str:
    """Return why the weights do not fit the student, or ""."""
    try:
        Weights(student).targets(State(tensors=meta_tensors(found, MODEL)))
    except StateError as error:
        return error.problem
    except (OSError, SafetensorError) as error:
        return f"its weights cannot be read: {error}"
    return ""


def _origins(found: Found, place: Place) -> dict[str, Origin]:
    """Return what a run that starts there takes from the snapshot, by stage."""
    about = found.manifest.values[IDENTITY]
    if place.step is None:
        return {place.stage: Origin(reused=True, usd=about[_USD])}
    part = Origin(steps=place.step, seconds=about[_SECONDS], usd=about[_USD])
    return {name: Origin(reused=True, usd=usd) for name, usd in about[_EARLIER].items()} | {place.stage: part}


def measured_alike(found: Found, evaluation: Mapping[str, int]) -> bool:
    """Return whether the held-out losses of a snapshot are of these settings, as of `StageNumbers`."""
    return bool(found.manifest.values[IDENTITY]["evaluation"] == evaluation)


def origin(checkpoints: CheckpointPolicy, stage: str) -> Origin:
    """Return what of a stage of this run was taken from a snapshot."""
    noted = checkpoints.once(_name(stage), lambda: {_REUSED: 0.0})
    return Origin(
        reused=bool(noted[_REUSED]),
        steps=int(noted.get(_STEPS, 0)),
        seconds=noted.get(_SECONDS, 0.0),
        usd=noted.get(_USD),
    )


def _name(stage: str) -> str:
    """Return the name among a checkpoint's measurements of how a stage was come by."""
    return f"{stage}_{IDENTITY}"


def _require_key(file: Path, key: str) -> None:
    """Raise UnusableError unless a `stage.json` is complete and has this key."""
    try:
        document = from_json(read_regular(file))
    except FileNotFoundError:
        raise UnusableError(f"{STAGE_FILE} is missing") from None
    except ValueError:
        raise UnusableError(f"{STAGE_FILE} is cut off or damaged") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UnusableError(f"its {STAGE_FILE} has another schema than {SCHEMA}")
    if document.get("key") != key:
        raise UnusableError(f"its key is {document.get('key')}, and this run's is {key}")
