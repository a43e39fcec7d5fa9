"""Files of a snapshot: written completely or not at all, and verified before a run starts from them."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from kept_runs import SHORT, KilledError, Publish, flip
from test_checkpoint_files import snapshot as small_snapshot
from torch import nn

from trainer.api import stage_keys
from trainer.checkpoint import writer
from trainer.checkpoint.layout import Found
from trainer.checkpoint.manifest import IDENTITY, STAGE_FILE, STATE_FILE, WEIGHTS, decode, encode, verified
from trainer.checkpoint.stage_snapshot import Identity, StageSnapshots
from trainer.checkpoint.writer import Writer, write_folder
from trainer.layout import SNAPSHOTS_FOLDER

STAGE = "stage1_9"


def _cut(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


def _say(folder: Path, **fields: object) -> None:
    file = folder / STAGE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def _restate(folder: Path, **fields: object) -> None:
    """Another manifest, with a valid checksum."""
    file = folder / STATE_FILE
    file.write_bytes(encode(dataclasses.replace(decode(file.read_bytes()), **fields)))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (lambda folder: (folder / STAGE_FILE).unlink(), "stage.json is missing"),
    "cut off": (lambda folder: _cut(folder, STAGE_FILE), "stage.json is cut off or damaged"),
    "no object": (
        lambda folder: (folder / STAGE_FILE).write_text("[]"),
        "its stage.json has another schema than 1",
    ),
    "another schema": (lambda folder: _say(folder, schema=2), "its stage.json has another schema than 1"),
    "another key": (lambda folder: _say(folder, key="0" * 64), f"its key is {'0' * 64}, and this run's is"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "damaged weights": (lambda folder: flip(folder / WEIGHTS), f"{WEIGHTS} does not match its checksum"),
    "short weights": (lambda folder: _cut(folder, WEIGHTS), f"{WEIGHTS} has "),
    "damaged manifest": (lambda folder: flip(folder / STATE_FILE), f"{STATE_FILE} "),
    "a plain checkpoint": (lambda folder: _restate(folder, values={}), "it is not the end of stage1_9"),
    "within the stage": (lambda folder: _restate(folder, over=False), "it is not the end of stage1_9"),
    "another stage": (lambda folder: _restate(folder, stage="stage2"), "it is not the end of stage1_9"),
    "a file": (lambda folder: (shutil.rmtree(folder), folder.touch()), "it cannot be read"),
}


@pytest.fixture
def reader(small: tuple[str, ...], tmp_path: Path) -> tuple[StageSnapshots, list[str], Mock]:
    """The snapshots of a run in `tmp_path`, its warnings, and its checkpoints."""
    warnings: list[str] = []
    checkpoints = Mock()
    checkpoints.position.return_value = None
    return (
        StageSnapshots(
            tmp_path / SNAPSHOTS_FOLDER,
            stage_keys([*small, *SHORT]),
            write=True,
            checkpoints=checkpoints,
            warn=warnings.append,
        ),
        warnings,
        checkpoints,
    )


Reader = tuple[StageSnapshots, list[str], Mock]


def _find(snapshots: StageSnapshots, identity: Identity) -> Found | None:
    found = (snapshots.find(place, lambda key: identity) for place in snapshots.candidates())
    return next((each for each in found if each is not None), None)


def _identity(folder: Path) -> Identity:
    return Identity(**decode((folder / STATE_FILE).read_bytes()).values[IDENTITY]["identity"])


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_unusable_snapshot_is_hidden_and_reported(
    damage: Callable[[Path], object], message: str, reader: Reader, publish: Publish, tmp_path: Path
) -> None:
    snapshots, warnings, _ = reader
    folder = publish(tmp_path)
    identity = _identity(folder)
    damage(folder)
    assert _find(snapshots, identity) is None
    (warning,) = warnings
    assert warning.startswith(f"the snapshot of stage1_9 cannot be used ({message}")
    assert [
        path.name.startswith(".stage1_9.unusable.") for path in (tmp_path / SNAPSHOTS_FOLDER).iterdir()
    ] == [True]
    assert _find(snapshots, identity) is None
    assert len(warnings) == 1


@pytest.mark.parametrize("name", ["key", "data_sha256", "teacher", "device", "dtype"])
def test_a_snapshot_of_a_run_that_was_another_is_not_used(
    name: str, reader: Reader, publish: Publish, tmp_path: Path
) -> None:
    snapshots, warnings, _ = reader
    identity = _identity(publish(tmp_path))
    ours = dataclasses.replace(identity, **{name: "other"})
    assert _find(snapshots, ours) is None
    assert f"its {name} is {getattr(identity, name)}" in warnings[0]


def test_a_snapshot_whose_tensors_do_not_fit_is_not_used(
    reader: Reader, publish: Publish, tmp_path: Path
) -> None:
    snapshots, warnings, checkpoints = reader
    identity = _identity(publish(tmp_path))
    found = _find(snapshots, identity)
    assert found is not None
    assert not snapshots.start(found, snapshots.candidates()[0], nn.Linear(2, 2), {})
    assert "alone)" in warnings[0]
    checkpoints.start_from.assert_not_called()


def test_drafts_of_a_killed_program_are_removed(reader: Reader, tmp_path: Path) -> None:
    snapshots, warnings, _ = reader
    draft = tmp_path / SNAPSHOTS_FOLDER / ".abc.tmp"
    draft.mkdir(parents=True)
    assert _find(snapshots, Mock()) is None
    assert not draft.exists()
    assert warnings == []


CALLS = ("save_file", "sync 1", "sync 3", "sync 4", "sync 5", "rename")
"""Of those that write a snapshot: weights, then each file, `state.json`, `stage.json`, the folder."""


@pytest.mark.parametrize("at", CALLS)
def test_killed_writer_leaves_no_snapshot(
    at: str, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, warnings, _ = reader
    name, _, number = at.partition(" ")
    target, calls = (Path, name) if name == "rename" else (writer, name), []
    real = getattr(*target)

    def killed(*given: object, **named: object) -> object:
        calls.append(given)
        if len(calls) == int(number or 1):
            raise KilledError
        return real(*given, **named)

    final = tmp_path / SNAPSHOTS_FOLDER / STAGE
    with monkeypatch.context() as patched:
        patched.setattr(*target, killed)
        patched.setattr(shutil, "rmtree", lambda *given, **named: None)  # SIGKILL cleans nothing up
        with pytest.raises(KilledError):
            write_folder(final, small_snapshot(tmp_path, 3), {STAGE_FILE: b"{}"})
    assert [path.name.endswith(".tmp") for path in final.parent.iterdir()] == [True]
    assert _find(snapshots, Mock()) is None
    assert (list(final.parent.iterdir()), warnings) == ([], [])
    write_folder(final, small_snapshot(tmp_path, 3), {STAGE_FILE: b"{}"})
    assert (final / STAGE_FILE).read_bytes() == b"{}"
    assert verified(final).steps == 3


def test_a_disk_that_is_full_costs_the_snapshot_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where there is no checkpoint yet, without which a full disk ends a run."""
    refuse = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(writer, "save_file", refuse)
    warnings: list[str] = []
    background = Writer(tmp_path / "checkpoints", keep=2, last=None, warn=warnings.append)
    background.begin_stage(tmp_path / SNAPSHOTS_FOLDER / STAGE, b"{}", small_snapshot(tmp_path, 3))
    background.wait()
    (warning,) = warnings
    assert warning.startswith("the snapshot of stage2 ")
    assert "(No space left on device)" in warning
    assert (background.full, background.last) == ("", None)
    assert list((tmp_path / SNAPSHOTS_FOLDER).iterdir()) == []
