"""Snapshots of a pretrained student: in its own dtype, and of one teacher, which is known by its weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kept_runs import Attempt, outcome_of
from pretrained import save_stand_in
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer.api import quote
from trainer.checkpoint.manifest import WEIGHTS
from trainer.layout import SNAPSHOTS_FOLDER

pytestmark = pytest.mark.slow

SHORT = ("stage1_9.max_steps=2", "stage2.max_steps=2", "stage2.lambda_warmup.warmup_steps=1")
Copy = Callable[[str], Path]


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return save_stand_in(tmp_path / "teacher", "smollm2")


@pytest.fixture
def small(small: tuple[str, ...], teacher: Path) -> tuple[str, ...]:
    common = [each for each in small if not each.startswith(("model.", "data.vocab_size="))]
    model = (
        "model=hf",
        f"model.name={quote(str(teacher))}",
        "model.dtype=bfloat16",
        "model.master_dtype=bfloat16",
    )
    return (*common, *model, "device.dtype=bfloat16", *SHORT)


@pytest.fixture
def copy(attempt: Attempt, tmp_path: Path) -> Copy:
    """`copy(name)`: a run's folder with the snapshot of another run."""
    attempt(tmp_path / "publisher", "stage2.max_steps=0", "snapshots.write=true")

    def copy(name: str) -> Path:
        shutil.copytree(tmp_path / "publisher" / SNAPSHOTS_FOLDER, tmp_path / name / SNAPSHOTS_FOLDER)
        return tmp_path / name

    return copy


def test_a_student_in_bfloat16_is_in_the_snapshot_as_it_is(
    attempt: Attempt, copy: Copy, tmp_path: Path
) -> None:
    folder = copy("reused")
    with safe_open(folder / SNAPSHOTS_FOLDER / "stage1_9" / WEIGHTS, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    reused = attempt(folder)
    assert reused.result.provenance.reused_stages == ("stage1_9",)
    assert outcome_of(reused, folder) == outcome_of(attempt(tmp_path / "scratch"), tmp_path / "scratch")


def test_same_teacher_name_with_other_weights_differs(
    attempt: Attempt, copy: Copy, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy("later")
    path = teacher / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] *= 2
    save_file(tensors, path, metadata={"format": "pt"})
    assert attempt(folder, "stage2.max_steps=0").result.provenance.reused_stages == ()
    assert "(its teacher is " in capsys.readouterr().err
