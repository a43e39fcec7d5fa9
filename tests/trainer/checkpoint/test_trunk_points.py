"""Points of trunks: a run that branches off at one ends as from scratch; one that cannot be used costs nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept_runs import (
    Attempt,
    KilledError,
    Uninterrupted,
    flip,
    kill,
    outcome_of,
    stages_of,
    terminate,
    warnings_in,
)
from safetensors.torch import load_file

from sweeps.text.step_key import step_key
from trainer import pipeline
from trainer.api import check, stage_keys, stage_trunks
from trainer.checkpoint.manifest import STAGE_FILE, TENSORS, WEIGHTS, verified
from trainer.config import sha256
from trainer.errors import PreemptedError
from trainer.layout import SNAPSHOTS_FOLDER

EVERY = ("stage1_9.trunk_every=2", "stage2.trunk_every=2")
COMMON = ("eval.at=[]", "eval.every_steps=1", "log_every=1", "stage2.lambda_warmup.warmup_steps=2")
LONG = ("stage1_9.max_steps=8", "stage2.max_steps=8")
"""Both leave their trunks after 6 steps."""
SHORTER = ("stage1_9.max_steps=5", "stage2.max_steps=4")
"""Decay starts after 3 and 3 steps, by 0.3 of each rounded to whole steps, half to even."""
WHOLE_FIRST = ("stage1_9.max_steps=8", "stage2.max_steps=5", "stage2.schedule.decay_fraction=0.2")

Publish = Callable[..., Path]


@pytest.fixture
def leave(
    attempt: Attempt,
    remembered: Callable[[str, Callable[[], str]], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Publish:
    """`leave(folder, *names, overrides=())`: a run's folder gets these points of the long run."""

    def leave(folder: Path, *names: str, overrides: tuple[str, ...] = ()) -> Path:
        def run() -> str:
            source = tmp_path_factory.mktemp("trunk")
            attempt(source, *COMMON, *LONG, *EVERY, *overrides)
            return str(source / SNAPSHOTS_FOLDER)

        source = Path(remembered(f"trunk {overrides}", run))
        for name in names:
            shutil.copytree(source / name, folder / SNAPSHOTS_FOLDER / name)
        return source

    return leave


def test_points_are_written_until_the_decay(leave: Publish, small: tuple[str, ...], tmp_path: Path) -> None:
    source = leave(tmp_path)
    expected = {f"{stage}@{step}" for stage in ("stage1_9", "stage2") for step in (2, 4, 6)}
    assert {path.name for path in source.iterdir()} == expected
    trunks = stage_trunks([*small, *COMMON, *LONG])
    document = json.loads((source / "stage2@4" / STAGE_FILE).read_text())
    assert set(document) == {"schema", "key", "step", "seconds", "usd", "metrics"}
    assert (document["step"], document["key"]) == (4, step_key(trunks["stage2"].key, 4))
    manifest = verified(source / "stage2@4")
    assert (manifest.stage, manifest.step, manifest.over) == ("stage2", 4, False)
    optimizer = [name for name in load_file(source / "stage2@4" / TENSORS) if name.startswith("optimizer/")]
    assert optimizer


def test_points_are_not_pinned(small: tuple[str, ...]) -> None:
    assert sha256(check([*small, *EVERY])) == sha256(check(small))
    assert stage_keys([*small, *EVERY]) == stage_keys(small)
    assert stage_trunks([*small, *EVERY]) == stage_trunks(small)


CASES = {
    "muon": (),
    **{
        f"optimizer {kind}": tuple(f"{stage}.optimizer.type={kind}" for stage in ("stage1_9", "stage2"))
        for kind in ("adamw", "adamw_8bit", "apollo", "apollo_mini", "muonclip")
    },
    "no lambda warmup": ("stage2.lambda_warmup.enabled=false",),
    "Stage 2 with its teacher": ("stage2.distill.weight=0.5", "stage1_9.micro_batch_size=2"),
    "auto-freeze": (
        *("auto_freeze.enabled=true", "auto_freeze.every_steps=1", "auto_freeze.start_step=1"),
        *("auto_freeze.patience=1", "auto_freeze.threshold=1e9"),
    ),
}


PLACES = {
    "stage 1.9": (SHORTER, "stage1_9@2", 3 + 4, {"stage1_9": 4}),
    "stage 2": (WHOLE_FIRST, "stage2@4", 1, {"stage1_9": None, "stage2": 4}),
    "longer": (("stage1_9.max_steps=11", "stage2.max_steps=2"), "stage1_9@6", 5 + 2, {"stage1_9": 12}),
}
# Where each case leaves the trunk, if not in Stage 1.9 alone: both stages save and load an optimizer by the same code.
PLACES_OF = {
    "muon": tuple(PLACES),
    "optimizer muonclip": ("stage 1.9", "stage 2"),
    "no lambda warmup": ("stage 2",),
    "Stage 2 with its teacher": ("stage 2",),
    "auto-freeze": ("stage 1.9", "stage 2"),
}
assert PLACES_OF.keys() <= CASES.keys()


@pytest.mark.parametrize(
    ("lengths", "point", "steps", "saved", "overrides"),
    [
        pytest.param(
            *PLACES[place], case, id=f"{place}-{name}", marks=() if name == "muon" else pytest.mark.slow
        )
        for name, case in CASES.items()
        for place in PLACES_OF.get(name, ("stage 1.9",))
    ],
)
def test_a_branch_ends_as_from_scratch_bit_for_bit(
    overrides: tuple[str, ...],
    lengths: tuple[str, ...],
    point: str,
    steps: int,
    saved: dict[str, int | None],
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    leave: Publish,
    computed: list[str],
    tmp_path: Path,
) -> None:
    if any("adamw_8bit" in each for each in overrides):
        pytest.importorskip("bitsandbytes")
    if "max_steps=2" in lengths[1]:
        overrides = (*overrides, "stage2.lambda_warmup.warmup_steps=1")
    expected = uninterrupted(*COMMON, *lengths, *overrides)
    folder = tmp_path / "run"
    leave(folder, point, overrides=tuple(each for each in overrides if "warmup_steps=1" not in each))
    computed.clear()
    outcome = attempt(folder, *COMMON, *lengths, *overrides)
    assert outcome_of(outcome, folder) == expected
    assert len(computed) == steps
    for stage in stages_of(folder):
        taken = saved.get(stage["name"], 0)
        if stage["name"] == "stage2" and "stage2.distill.weight=0.5" in overrides:
            taken *= 2  # the teacher's forward pass counts, too
        assert stage["reused"] is (taken is None)
        assert stage.get("saved", 0) == (taken or 0)
    assert outcome.result.metrics.train_seconds == pytest.approx(sum(s["seconds"] for s in stages_of(folder)))


def test_stage2_alone_branches_off_its_own_trunk(
    attempt: Attempt, uninterrupted: Uninterrupted, leave: Publish, computed: list[str], tmp_path: Path
) -> None:
    alone = ("stage1_9.max_steps=0",)
    lengths = (*alone, "stage2.max_steps=5", "stage2.schedule.decay_fraction=0.2")
    expected = uninterrupted(*COMMON, *lengths)
    folder = tmp_path / "run"
    leave(folder, "stage2@4", overrides=alone)
    computed.clear()
    assert outcome_of(attempt(folder, *COMMON, *lengths), folder) == expected
    assert len(computed) == 1


@pytest.mark.parametrize(("steps", "left"), [pytest.param(8, 0, marks=pytest.mark.slow), (9, 1)])
def test_a_stage_without_a_decay_is_all_trunk(
    steps: int,
    left: int,
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    leave: Publish,
    computed: list[str],
    tmp_path: Path,
) -> None:
    flat = ("stage2.schedule.decay_fraction=0.0",)
    given = (*COMMON, *LONG, *flat, f"stage2.max_steps={steps}")
    expected = uninterrupted(*given)
    leave(tmp_path, "stage2@8", overrides=flat)
    computed.clear()
    outcome = attempt(tmp_path, *given)
    assert outcome_of(outcome, tmp_path) == expected
    assert len(computed) == left
    assert stages_of(tmp_path)[1]["branched_at"] == 8


def test_teacher_is_digested_once_for_all_points(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    digest = pipeline.teacher_sha256

    def counting(*given: Any) -> str:
        calls.append(given)
        return digest(*given)

    monkeypatch.setattr(pipeline, "teacher_sha256", counting)
    numbers = []
    for every in (6, 1):
        calls.clear()
        attempt(tmp_path / str(every), *COMMON, *LONG, f"stage2.trunk_every={every}")
        numbers.append(len(calls))
    assert numbers == [1, 1]


def test_points_can_be_listed(attempt: Attempt, tmp_path: Path) -> None:
    """Those behind the trunk are left out; where the decay begins there is one in any case."""
    attempt(tmp_path, *COMMON, *LONG, "stage1_9.trunk_every=[3,5,7]", "stage2.trunk_every=[]")
    found = {folder.name for folder in (tmp_path / SNAPSHOTS_FOLDER).iterdir() if "@" in folder.name}
    assert found == {"stage1_9@3", "stage1_9@5", "stage1_9@6"}


def test_the_furthest_point_that_can_be_used_is_taken(
    attempt: Attempt, leave: Publish, computed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are behind its decay, of another trunk, or damaged."""
    leave(tmp_path, "stage1_9@2", "stage1_9@4", "stage1_9@6", "stage2@2")
    flip(tmp_path / SNAPSHOTS_FOLDER / "stage1_9@4" / WEIGHTS)
    computed.clear()
    capsys.readouterr()
    attempt(tmp_path, *COMMON, "stage1_9.max_steps=6", "stage2.max_steps=4")
    assert len(computed) == 4 + 4
    other, damaged = warnings_in(capsys)
    assert "step 2 of stage2" in other
    assert "step 4 of stage1_9 " in damaged
    assert (tmp_path / SNAPSHOTS_FOLDER / "stage1_9@6").is_dir()


@pytest.mark.parametrize("end", [terminate, kill], ids=["preempted", "killed"])
def test_a_branch_that_is_ended_goes_on_from_its_own_checkpoint(
    end: Callable[[], None],
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    leave: Publish,
    computed: list[str],
    tmp_path: Path,
) -> None:
    given = (*COMMON, *WHOLE_FIRST)
    expected = uninterrupted(*given)
    leave(tmp_path, "stage2@2")
    with pytest.raises((PreemptedError, KilledError)):
        attempt(tmp_path, *given, "checkpoint.every_steps=1", end=end, at=2)
    computed.clear()
    outcome = attempt(tmp_path, *given, "checkpoint.every_steps=1")
    assert outcome_of(outcome, tmp_path) == expected
    assert len(computed) < 3
    (first, second) = stages_of(tmp_path)
    assert (first["reused"], second["branched_at"], second["saved"]) == (True, 2, 2)


def test_point_within_stage2_needs_the_same_evaluation(
    attempt: Attempt, leave: Publish, computed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, "stage2@2", "stage1_9@6")
    computed.clear()
    capsys.readouterr()
    attempt(tmp_path, *COMMON, *WHOLE_FIRST, "eval.batches=3")
    (warning,) = warnings_in(capsys)
    assert "another evaluation" in warning
    assert [stage for stage in computed if stage != "teacher"] == ["stage1_9"] * 2 + ["stage2"] * 5


@pytest.mark.parametrize(
    "overrides",
    [
        (
            "stage1_9.saliency.enabled=true",
            "stage1_9.saliency.initial_k=0.5",
            "stage1_9.saliency.update_interval=1",
        ),
        ("stage1_9.distill_schedule.type=linear", "stage1_9.distill_schedule.final=0.1"),
    ],
    ids=["saliency", "distillation ramp"],
)
def test_length_dependent_stage_has_no_trunk(
    overrides: tuple[str, ...],
    attempt: Attempt,
    small: tuple[str, ...],
    tmp_path: Path,
) -> None:
    given = (*COMMON, *overrides, "stage2.max_steps=0", *EVERY)
    assert "stage1_9" not in stage_trunks([*small, *given])
    weights = []
    for steps in (6, 8):
        folder = tmp_path / str(steps)
        with pytest.raises(KilledError):
            attempt(folder, *given, f"stage1_9.max_steps={steps}", "checkpoint.every_steps=4", end=kill, at=5)
        assert not (folder / SNAPSHOTS_FOLDER).exists()
        weights.append(load_file(folder / "checkpoints" / "00000004" / WEIGHTS))
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
