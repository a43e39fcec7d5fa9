"""Files of a checkpoint: complete, versioned, and recognised when they are damaged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kept_runs import names

from trainer.checkpoint import layout
from trainer.checkpoint.layout import newest
from trainer.checkpoint.manifest import (
    METRICS,
    STATE_FILE,
    TENSORS,
    WEIGHTS,
    Manifest,
    decode,
    encode,
    verified,
)
from trainer.checkpoint.writer import Snapshot, retain, write

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoint_v1.json"


def snapshot(folder: Path, steps: int, sha256: str = "mine") -> Snapshot:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("one\ntwo\nand more\n")
    manifest = Manifest(
        stage="stage2",
        step=steps - 6,
        of=30,
        over=False,
        steps=steps,
        config_sha256=sha256,
        code_version="1",
        details={"lambda": 0.5},
        values={"batches": {"position": steps}},
        measured={"stage2_start": {"mean": 0.1 + 0.2, "sem": 1e-17}},
        peak_memory_bytes=7,
        compile_seconds=0.5,
        files={},
    )
    tensors = {WEIGHTS: {"weight": torch.full((50,), float(steps))}, TENSORS: {"random/torch": torch.ones(3)}}
    return Snapshot(manifest=manifest, tensors=tensors, metrics=folder / "metrics.jsonl", metrics_bytes=8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints after 10, 20 and 30 steps."""
    for steps in (10, 20, 30):
        write(tmp_path / "checkpoints", snapshot(tmp_path, steps))
    return tmp_path / "checkpoints"


def test_checkpoint_round_trip(root: Path) -> None:
    folder = root / "00000020"
    assert {path.name for path in folder.iterdir()} == {STATE_FILE, WEIGHTS, TENSORS, METRICS}
    document = verified(folder)
    assert (document.where, document.steps) == ("step 14 of stage2", 20)
    assert document.measured["stage2_start"] == {"mean": 0.1 + 0.2, "sem": 1e-17}
    assert document.values["batches"]["position"] == 20
    assert (folder / METRICS).read_text() == "one\ntwo\n"
    assert json.loads((folder / STATE_FILE).read_text())["schema"] == 1
    assert (root / "latest").read_text() == "00000030\n"


def test_schema_1_is_read() -> None:
    document = decode(GOLDEN.read_bytes())
    written, read = json.loads(encode(document)), json.loads(GOLDEN.read_bytes())
    assert written == read
    assert (document.stage, document.step, document.steps, document.over) == ("second", 1, 8, False)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


DAMAGE = {
    "weights truncated": (WEIGHTS, truncate, "model.safetensors has .* bytes instead of"),
    "weights with another bit": (WEIGHTS, flip, "model.safetensors does not match its checksum"),
    "weights missing": (WEIGHTS, Path.unlink, "model.safetensors is missing"),
    "training state empty": (TENSORS, empty, "training.safetensors has 0 bytes"),
    "training state missing": (TENSORS, Path.unlink, "training.safetensors is missing"),
    "metrics missing": (METRICS, Path.unlink, "metrics.copy is missing"),
    "document missing": (STATE_FILE, Path.unlink, "state.json is missing"),
    "document truncated": (STATE_FILE, lambda path: path.write_bytes(path.read_bytes()[:-40]), "cut off"),
    "document empty": (STATE_FILE, empty, "state.json is cut off or damaged"),
    "document of another kind": (STATE_FILE, lambda path: path.write_text("[1]"), "state.json is no JSON object"),
    "document edited": (STATE_FILE, edit(step=29), "state.json does not match its own checksum"),
    "document without checksum": (STATE_FILE, edit(sha256=None), "does not match its own checksum"),
    "document of a later schema": (STATE_FILE, edit(schema=2), "its schema is 2, and this program reads 1"),
    "document that is a folder": (
        STATE_FILE,
        lambda path: (path.unlink(), path.mkdir()),
        "it cannot be read: Is a directory",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "damage", "why"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_newest_falls_back_to_the_one_before(file, damage, why, root: Path) -> None:
    damage(root / "00000030" / file)
    warnings: list[str] = []
    found = newest(root, "mine", warnings.append)
    assert found is not None
    assert (found.path.name, found.manifest.steps) == ("00000020", 20)
    assert len(warnings) == 2

    assert re.search(rf"^checkpoint 00000030 cannot be used \(.*{why}.*\)$", warnings[0])
    assert warnings[1] == "going back to 00000020"
    assert names(root.parent) == ["00000010", "00000020"]
    assert (root / "latest").read_text() == "00000020\n"


def test_all_damaged_starts_anew_and_deletes_nothing(root: Path) -> None:
    for path in layout.listing(root):
        flip(path / TENSORS)
    warnings: list[str] = []
    assert newest(root, "mine", warnings.append) is None
    assert "no checkpoint" in warnings[-1]
    assert len(warnings) == 4
    assert names(root.parent) == []
    assert len(list(root.glob(".*.unusable.*/*.safetensors"))) == 6


def test_one_of_another_configuration_is_not_gone_on_from(root: Path, tmp_path: Path) -> None:
    write(root, snapshot(tmp_path, 40, sha256="other"))
    warnings: list[str] = []
    found = newest(root, "mine", warnings.append)
    assert found is not None
    assert found.path.name == "00000030"
    assert warnings[0] == (
        "checkpoint 00000040 cannot be used (it is of another configuration, or of other keys: "
        "version 1 wrote it)"
    )


def test_no_checkpoints_is_no_warning(tmp_path: Path) -> None:
    assert newest(tmp_path / "checkpoints", "mine", pytest.fail) is None
    assert list(tmp_path.iterdir()) == []


def test_drafts_are_removed_and_other_files_are_left(root: Path) -> None:
    shutil.copytree(root / "00000030", root / ".0123456789.tmp")
    (root / "notes").mkdir()
    (root / "00000099").write_text("a file")
    found = newest(root, "mine", pytest.fail)
    assert found is not None
    assert found.path.name == "00000030"
    assert {path.name for path in root.iterdir()} == {
        *("00000010", "00000020", "00000030", "00000099", "latest", "notes"),
    }


def test_names_sort_as_their_numbers_do_beyond_their_width_too(tmp_path: Path) -> None:
    for steps in (99_999_999, 100_000_000, 7):
        write(tmp_path, snapshot(tmp_path / "run", steps))
    assert [int(path.name) for path in layout.listing(tmp_path)] == [100_000_000, 99_999_999, 7]
    retain(tmp_path, 1)
    assert [int(path.name) for path in layout.listing(tmp_path)] == [100_000_000]


def test_nothing_in_a_checkpoint_needs_pickle(root: Path) -> None:
    """A pickle begins with the protocol's mark, and torch's own format is a zip of one."""
    for path in root.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".safetensors", ".copy", "")
            assert not path.read_bytes().startswith((b"\x80", b"PK"))
