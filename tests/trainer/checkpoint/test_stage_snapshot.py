"""Snapshots of Stage 1.9: a run from one ends as the same run from scratch; one that cannot be used costs nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from kept_runs import (
    SHORT,
    Attempt,
    KilledError,
    Publish,
    Uninterrupted,
    flip,
    kill,
    names,
    outcome_of,
    stages_of,
    terminate,
    warnings_in,
)
from safetensors.torch import load_file

from trainer import pipeline
from trainer.api import check, stage_keys
from trainer.checkpoint.manifest import (
    STAGE_FILE,
    STATE_FILE,
    TENSORS,
    WEIGHTS,
    decode,
    verified,
)
from trainer.config import sha256
from trainer.errors import PreemptedError
from trainer.layout import SNAPSHOTS_FOLDER

STAGE = "stage1_9"
WRITE = "snapshots.write=true"
SALIENT = (
    *("stage1_9.saliency.enabled=true", "stage1_9.saliency.initial_k=0.5", "stage1_9.saliency.final_k=0.2"),
    *("stage1_9.saliency.update_interval=1", "stage1_9.saliency.ema_decay=0.5", "stage1_9.optimizer.lr=0.05"),
)
FREEZING = (
    *("auto_freeze.enabled=true", "auto_freeze.every_steps=1", "auto_freeze.start_step=1"),
    *("auto_freeze.patience=1", "auto_freeze.threshold=1e9"),
)
STAGE3 = ("stage3.max_steps=2", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")


CASES = {
    "everything": (*SALIENT, *FREEZING, *STAGE3),
    **{
        f"optimizer {kind}": tuple(f"{stage}.optimizer.type={kind}" for stage in ("stage1_9", "stage2"))
        for kind in ("adamw", "adamw_8bit", "apollo", "apollo_mini", "muonclip")
    },
    "saliency": SALIENT,
    "auto-freeze": FREEZING,
    "blended SubLN": ("stage1.subln=blended",),
    "fewer layers": ("stage1.keep_layers=1", "stage1.subln=none"),
    "Stage 2 with its teacher, micro-batches": ("stage2.distill.weight=0.5", "stage1_9.micro_batch_size=2"),
    "no lambda warmup": ("stage2.lambda_warmup.enabled=false", "device.recompute=true"),
    "no Stage 2": ("stage2.max_steps=0",),
}


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(case, id=name, marks=() if name == "everything" else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def test_a_run_from_a_snapshot_ends_as_from_scratch_bit_for_bit(
    overrides: tuple[str, ...],
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    publish: Publish,
    computed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if any("adamw_8bit" in each for each in overrides):
        pytest.importorskip("bitsandbytes")
    expected = uninterrupted(*SHORT, *overrides)
    folder = tmp_path / "run"
    left = publish(folder, *overrides)
    before = json.loads((left / STAGE_FILE).read_text())
    computed.clear()
    monkeypatch.setattr("trainer.models.subln._input_scales", lambda *given: pytest.fail("calibrates"))
    outcome = attempt(folder, *SHORT, *overrides)
    assert outcome_of(outcome, folder) == expected
    assert STAGE not in computed
    first, *later = stages_of(folder)
    assert first == {"name": STAGE, "reused": True, "cost": 6} | {
        n: before[n] for n in ("key", "seconds", "usd")
    }
    assert not any(stage["reused"] or stage["key"] for stage in later)
    assert outcome.result.provenance.reused_stages == (STAGE,)
    seconds = sum(stage["seconds"] for stage in (first, *later))
    assert outcome.result.metrics.train_seconds == pytest.approx(seconds)


def test_a_snapshot_says_what_the_stage_cost_and_came_to(
    publish: Publish, small: tuple[str, ...], tmp_path: Path
) -> None:
    folder = publish(tmp_path)
    document = json.loads((folder / STAGE_FILE).read_text())
    assert set(document) == {"schema", "key", "seconds", "usd", "metrics"}
    assert document["schema"] == 1
    assert document["key"] == stage_keys([*small, *SHORT])[STAGE]
    metrics = document["metrics"]
    assert (metrics["effective_steps"], metrics["tokens"], metrics["usd"]) == (6, 3 * 64, 0)
    assert metrics["train_seconds"] == document["seconds"] > 0
    assert all(value is not None for value in metrics.values())
    manifest = verified(folder)
    assert (manifest.stage, manifest.step, manifest.of, manifest.over) == (STAGE, 3, 3, True)
    assert {path.name for path in folder.iterdir()} == {*manifest.files, STATE_FILE, STAGE_FILE}


def test_no_snapshot_unless_asked_for(attempt: Attempt, small: tuple[str, ...], tmp_path: Path) -> None:
    assert stage_keys([*small, WRITE]) == stage_keys(small)
    assert sha256(check([*small, WRITE])) == sha256(check(small))
    attempt(tmp_path / "plain", *SHORT, "stage2.max_steps=0")
    attempt(tmp_path / "without", *SHORT, "stage1_9.max_steps=0", WRITE)
    for folder in (tmp_path / "plain", tmp_path / "without"):
        assert not (folder / SNAPSHOTS_FOLDER).exists()
    assert [(stage["name"], stage["key"]) for stage in stages_of(tmp_path / "without")] == [("stage2", "")]


@pytest.mark.slow
def test_losses_on_other_held_out_text_are_not_taken_over(
    attempt: Attempt, uninterrupted: Uninterrupted, publish: Publish, tmp_path: Path
) -> None:
    """How much is evaluated does not change the weights, so it is no part of the key."""
    other = (*SHORT, "eval.batches=3", "stage2.max_steps=0")
    publish(tmp_path)
    outcome = attempt(tmp_path, *other)
    assert outcome.result.provenance.reused_stages == (STAGE,)
    weights, metrics, lines = json.loads(uninterrupted(*other))
    ours = json.loads(outcome_of(outcome, tmp_path))
    assert ours == [weights, metrics, [line for line in lines if line["step"] == 3 or "loss" in line]]


def test_damaged_snapshot_is_ignored(
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    publish: Publish,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = uninterrupted(*SHORT)
    flip(publish(tmp_path) / WEIGHTS)
    capsys.readouterr()
    assert outcome_of(attempt(tmp_path, *SHORT, WRITE), tmp_path) == expected
    (warning,) = warnings_in(capsys)
    assert warning.startswith("trainer: warning: the snapshot of stage1_9 ")
    assert "(model.safetensors " in warning
    assert stages_of(tmp_path)[0]["reused"] is False
    assert verified(tmp_path / SNAPSHOTS_FOLDER / STAGE).over  # its own, in the place of the damaged one


@pytest.mark.slow
def test_a_run_whose_student_is_another_calibrates_it_after_all(
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = uninterrupted(*SHORT)
    publish(tmp_path)
    monkeypatch.setattr("trainer.checkpoint.stage_snapshot.meta_tensors", lambda *_: {})
    assert outcome_of(attempt(tmp_path, *SHORT), tmp_path) == expected
    assert "in the run alone" in warnings_in(capsys)[0]


# Before a stage, after its checkpoint, and before the first step of the next one.
ENDS = {
    "in Stage 1.9": [(terminate, 2)],
    "after its last step": [(terminate, 3)],
    "killed there, and preempted in Stage 2": [(kill, 3), (terminate, 4)],
    "preempted in Stage 2": [(terminate, 4)],
}


@pytest.mark.slow
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_interrupted_run_leaves_the_same_snapshot(
    ends: list, attempt: Attempt, uninterrupted: Uninterrupted, publish: Publish, tmp_path: Path
) -> None:
    expected = uninterrupted(*SHORT, *SALIENT)
    other = publish(tmp_path / "other", *SALIENT)
    unbroken = decode((other / STATE_FILE).read_bytes())
    folder = tmp_path / "run"
    for end, at in ends:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(folder, *SHORT, *SALIENT, WRITE, "checkpoint.every_steps=1", end=end, at=at)
    assert outcome_of(attempt(folder, *SHORT, *SALIENT, WRITE), folder) == expected
    ours = verified(folder / SNAPSHOTS_FOLDER / STAGE)
    assert ours.measured == unbroken.measured
    assert ours.files[WEIGHTS] == unbroken.files[WEIGHTS]
    assert set(ours.files) == set(unbroken.files)
    mine, its = (load_file(at / TENSORS) for at in (folder / SNAPSHOTS_FOLDER / STAGE, other))
    assert mine.keys() == its.keys()
    # Python's and numpy's generators are as the process had them: training draws from torch's alone.
    trained = [name for name in its if name not in ("random/python", "random/numpy")]
    assert len(trained) > 1
    assert all(torch.equal(mine[name], its[name]) for name in trained)
    assert stages_of(folder)[0]["reused"] is False


def test_run_begun_by_another_version_is_not_shared(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its key would say that this version computed all of it. Nor is it once the first one is back."""
    given = (*SHORT, WRITE, "stage2.trunk_every=1", "checkpoint.every_steps=1")
    with monkeypatch.context() as patched:
        patched.setattr("trainer.api.code_version", lambda: "1.0.0+src.old")
        with pytest.raises(PreemptedError):
            attempt(tmp_path, *given, end=terminate, at=1)
    with pytest.raises(PreemptedError):
        attempt(tmp_path, *given, end=terminate, at=1)
    assert "another version of the trainer" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr("trainer.api.code_version", lambda: "1.0.0+src.old")
        attempt(tmp_path, *given)
    folder = tmp_path / SNAPSHOTS_FOLDER
    assert not folder.exists() or not list(folder.iterdir())


def test_resumed_run_that_starts_from_a_snapshot_is_shared(
    attempt: Attempt, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the other version's is left in it."""
    with monkeypatch.context() as patched:
        patched.setattr("trainer.api.code_version", lambda: "1.0.0+src.old")
        with pytest.raises(PreemptedError):
            attempt(tmp_path, *SHORT, end=terminate, at=1)
    publish(tmp_path)
    attempt(tmp_path, *SHORT, "stage2.trunk_every=1")
    assert [path.name for path in (tmp_path / SNAPSHOTS_FOLDER).glob("stage2@*")]


@pytest.mark.parametrize(
    "at", [pytest.param(0, id="before"), pytest.param(2, id="within", marks=pytest.mark.slow)]
)
def test_a_run_from_a_snapshot_that_was_ended_goes_on_in_stage2(
    at: int,
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    publish: Publish,
    computed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = uninterrupted(*SHORT)
    price = json.loads((publish(tmp_path) / STAGE_FILE).read_text())["usd"]
    computed.clear()
    stage2 = pipeline.pretrain.pretrain

    def signalled(*arguments: object, **options: object) -> object:
        terminate()
        return stage2(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        if not at:
            patched.setattr(pipeline.pretrain, "pretrain", signalled)
        with pytest.raises(PreemptedError, match="checkpoint"):
            attempt(tmp_path, *SHORT, end=terminate, at=at)
    assert len(names(tmp_path)) == 1
    shutil.rmtree(tmp_path / SNAPSHOTS_FOLDER)  # the checkpoint stands alone
    assert outcome_of(attempt(tmp_path, *SHORT), tmp_path) == expected
    assert computed == ["stage2"] * 3
    assert stages_of(tmp_path)[0]["reused"] is True
    assert stages_of(tmp_path)[0]["usd"] == price


def test_a_snapshot_beats_a_checkpoint_within_its_stage(
    attempt: Attempt, uninterrupted: Uninterrupted, publish: Publish, computed: list[str], tmp_path: Path
) -> None:
    expected = uninterrupted(*SHORT, *SALIENT)
    with pytest.raises(PreemptedError):
        attempt(tmp_path, *SHORT, *SALIENT, end=terminate, at=2)
    publish(tmp_path, *SALIENT)
    computed.clear()
    assert outcome_of(attempt(tmp_path, *SHORT, *SALIENT), tmp_path) == expected
    assert computed == ["stage2"] * 3


@pytest.mark.slow
def test_checkpoint_of_a_later_stage_beats_a_snapshot(
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    publish: Publish,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = uninterrupted(*SHORT)
    with pytest.raises(PreemptedError):
        attempt(tmp_path, *SHORT, end=terminate, at=4)
    flip(publish(tmp_path) / WEIGHTS)
    capsys.readouterr()
    outcome = attempt(tmp_path, *SHORT)
    assert outcome_of(outcome, tmp_path) == expected
    assert outcome.result.provenance.reused_stages == ()
    assert warnings_in(capsys) == []


@pytest.mark.slow
def test_no_snapshot_from_a_later_checkpoint(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(PreemptedError):
        attempt(tmp_path, *SHORT, end=terminate, at=4)
    attempt(tmp_path, *SHORT, WRITE)
    assert not (tmp_path / SNAPSHOTS_FOLDER).exists()
