"""A run that was ended and gone on with is the run that was never ended: weights, metrics and lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from kept_runs import Attempt, KilledError, Uninterrupted, kill, names, outcome_of, terminate

from trainer import pipeline
from trainer.api import HEARTBEAT_FILE, METRICS_FILE, RESULT_FILE
from trainer.checkpoint.manifest import decode
from trainer.config.compose import groups
from trainer.errors import PreemptedError
from trainer.layout import HELD_OUT_FILE

# A curriculum whose norms change from step to step, so that a forgotten average or rank would show.
SALIENT = (
    "stage1_9.saliency.enabled=true", "stage1_9.saliency.initial_k=0.5", "stage1_9.saliency.final_k=0.2",
    "stage1_9.saliency.update_interval=2", "stage1_9.saliency.ema_decay=0.5", "stage1_9.optimizer.lr=0.05",
)  # fmt: skip
ALL_STAGES = (
    *SALIENT,
    *("stage3.max_steps=4", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1"),
    *("eval.every_steps=2", "eval.at=[0.5,1.0]"),  # after steps with a checkpoint, and after others
)
ENDS = {
    "killed in Stage 1.9": [(kill, 4)],
    "killed in Stage 2, then in its repetition": [(kill, 10), (kill, 2)],
    "preempted after the last step of each": [(terminate, 6), (terminate, 6)],
    "preempted after each step": [(terminate, 1)] * 4,
    "killed in Stage 3": [(kill, 14)],
    "preempted in Stage 3": [(terminate, 13)],
}
QUICK_ENDS = (
    "killed in Stage 2, then in its repetition",
    "preempted after the last step of each",
    "preempted in Stage 3",
)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(ends, id=name, marks=() if name in QUICK_ENDS else pytest.mark.slow)
        for name, ends in ENDS.items()
    ],
)
def test_a_run_that_was_ended_comes_to_the_same_bit_for_bit(
    ends: list, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    expected = uninterrupted(*ALL_STAGES)
    folder = tmp_path / "run"
    for end, at in ends:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(folder, *ALL_STAGES, "checkpoint.every_steps=3", end=end, at=at)
    assert outcome_of(attempt(folder, *ALL_STAGES), folder) == expected
    assert {path.name for path in folder.iterdir()} == {
        RESULT_FILE,
        HELD_OUT_FILE,
        METRICS_FILE,
        HEARTBEAT_FILE,
        "config.json",
    }


@pytest.mark.parametrize("where", ["the start of stage2", "the final evaluation"])
def test_a_signal_while_the_loss_is_measured_loses_no_step(
    where: str,
    attempt: Attempt,
    uninterrupted: Uninterrupted,
    tmp_path: Path,
    signal_in_evaluation: Callable[[str], list[str]],
) -> None:
    expected = uninterrupted(*SALIENT)
    signal_in_evaluation(where)
    folder = tmp_path / "run"
    with pytest.raises(PreemptedError, match="checkpoint"):
        attempt(folder, *SALIENT)
    (name,) = names(folder)
    document = decode((folder / "checkpoints" / name / "state.json").read_bytes())
    assert (document.over, document.step) == (True, 6)
    before = len((folder / METRICS_FILE).read_text().splitlines())
    assert outcome_of(attempt(folder, *SALIENT), folder) == expected
    assert before == (6 if where == "the start of stage2" else 12)


def test_what_was_measured_on_the_way_is_not_measured_again(
    attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss at the start of Stage 2 is one of weights that are gone."""
    expected = uninterrupted()
    folder = tmp_path / "run"
    with pytest.raises(PreemptedError):
        attempt(folder, end=terminate, at=9)
    measure, measured = pipeline.held_out_loss, []

    def measuring(*arguments, stage, **options):
        measured.append(stage)
        return measure(*arguments, stage=stage, **options)

    monkeypatch.setattr(pipeline, "held_out_loss", measuring)
    assert outcome_of(attempt(folder), folder) == expected
    assert [stage for stage in measured if "teacher" not in stage] == ["the final evaluation"]


def test_early_signal_after_resuming_overwrites_nothing(
    attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage 1.9 was over: until Stage 2 brings the weights back, those in memory are Stage 1's."""
    expected = uninterrupted()
    folder = tmp_path / "run"
    with pytest.raises(PreemptedError):
        attempt(folder, end=terminate, at=9)
    before = names(folder)
    stage2 = pipeline.pretrain.pretrain

    def signalled(*arguments, **options):
        terminate()
        return stage2(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(pipeline.pretrain, "pretrain", signalled)
        with pytest.raises(PreemptedError, match="checkpoint"):
            attempt(folder)
    assert names(folder) == before == ["00000009"]
    assert outcome_of(attempt(folder), folder) == expected


def test_a_signal_before_the_first_step_leaves_no_checkpoint(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    align = pipeline.layerwise.align

    def signalled(*arguments, **options):
        terminate()
        return align(*arguments, **options)

    monkeypatch.setattr(pipeline.layerwise, "align", signalled)
    with pytest.raises(PreemptedError, match=r"^stopped by SIGTERM$"):
        attempt(tmp_path / "run")
    assert names(tmp_path / "run") == []


def test_seconds_and_tokens_are_those_of_all_attempts(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(PreemptedError):
        attempt(tmp_path, end=terminate, at=9)
    (path,) = (tmp_path / "checkpoints").glob("*/state.json")
    document = decode(path.read_bytes())
    seconds = sum(document.values[f"trace.{name}"]["seconds"] for name in ("stage1_9", "stage2"))
    tokens = sum(document.values[f"trace.{name}"]["tokens"] for name in ("stage1_9", "stage2"))
    assert tokens == 9 * 4 * 16
    metrics = attempt(tmp_path).result.metrics
    assert metrics.tokens == 12 * 4 * 16
    assert metrics.train_seconds > seconds > 0
    assert metrics.tokens_per_second == pytest.approx(metrics.tokens / metrics.train_seconds)


def test_memory_and_compilation_of_all_attempts_are_reported(
    attempt: Attempt, tmp_path: Path, monkeypatch
) -> None:
    """A takeover in Stage 2 never sees the teacher and the student side by side in training."""
    from trainer.devices.device import Device

    monkeypatch.setattr(Device, "peak_memory_bytes", lambda self: 5 * 2**30)
    monkeypatch.setattr(Device, "compile_seconds", lambda self: 3.0)
    with pytest.raises(PreemptedError):
        attempt(tmp_path, end=terminate, at=9)
    monkeypatch.setattr(Device, "peak_memory_bytes", lambda self: 2**30)
    monkeypatch.setattr(Device, "compile_seconds", lambda self: 2.0)
    metrics = attempt(tmp_path).result.metrics
    assert (metrics.peak_memory_gib, metrics.compile_seconds) == (5, 5)


def test_a_run_goes_on_elsewhere_and_names_no_place(
    attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    expected = uninterrupted()
    with pytest.raises(PreemptedError):
        attempt(tmp_path / "here", end=terminate, at=8)
    for path in (tmp_path / "here" / "checkpoints").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "checkpoints").rename(tmp_path / "there" / "checkpoints")  # nothing but this
    assert outcome_of(attempt(tmp_path / "there"), tmp_path / "there") == expected


def test_a_finished_run_begins_anew_where_it_may_be_lost(attempt: Attempt, tmp_path: Path, capsys) -> None:
    first = outcome_of(attempt(tmp_path), tmp_path)
    with pytest.raises(KilledError):
        attempt(tmp_path, "overwrite=true", end=kill, at=2)
    assert not (tmp_path / RESULT_FILE).exists()
    assert outcome_of(attempt(tmp_path), tmp_path) == first
    assert "going on" not in capsys.readouterr().out


def test_checkpoints_next_to_a_result_are_not_resumed(attempt: Attempt, tmp_path: Path) -> None:
    with pytest.raises(PreemptedError):
        attempt(tmp_path, end=terminate, at=9)
    (tmp_path / RESULT_FILE).write_text("{}")
    steps = []
    with pytest.raises(KilledError):
        attempt(tmp_path, "seed=1", end=lambda: (steps.append(1), kill()), at=1)
    assert steps == [1]
    line = json.loads((tmp_path / METRICS_FILE).read_text())
    assert (line["stage"], line["step"], names(tmp_path)) == ("stage1_9", 1, [])


def test_diverged_run_leaves_no_new_checkpoint(attempt: Attempt, tmp_path: Path) -> None:
    from trainer.errors import DivergedError

    wild = ("stage2.optimizer.lr=1e30", "stage2.optimizer.type=adamw", "checkpoint.every_steps=1")
    with pytest.raises(DivergedError):
        attempt(tmp_path, *wild)
    assert not (tmp_path / "checkpoints").exists()
    assert attempt(tmp_path).result.metrics.final_loss > 0


def test_a_line_says_from_where_it_goes_on(attempt: Attempt, tmp_path: Path, capsys) -> None:
    with pytest.raises(PreemptedError):
        attempt(tmp_path, end=terminate, at=8)
    attempt(tmp_path)
    assert "step 2 of stage2, from checkpoint 00000008\n" in capsys.readouterr().out


@pytest.mark.parametrize("damaged", [1, 2])
def test_damaged_checkpoints_cost_steps_and_no_result(
    damaged: int, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path, capsys
) -> None:
    expected = uninterrupted()
    folder = tmp_path / "run"
    with pytest.raises(PreemptedError):
        attempt(folder, "checkpoint.every_steps=4", end=terminate, at=9)
    assert names(folder) == ["00000008", "00000009"]
    for name in names(folder)[-damaged:]:
        path = folder / "checkpoints" / name / "training.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert outcome_of(attempt(folder), folder) == expected
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == damaged + 1
    assert warnings[0].startswith("trainer: warning: checkpoint 00000009 ")
    assert "(training.safetensors has " in warnings[0]
    then = "going back to 00000008" if damaged == 1 else "no checkpoint is left; starting anew"
    assert warnings[-1] == f"trainer: warning: {then}"


QUICK = ("muonclip",)
"""Optimizers that `make test` tries here; each goes on bit for bit in optim/test_optimizer_resumes.py."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow)
        for kind in sorted(groups()["optimizer"])
    ],
)
def test_every_optimizer_goes_on_bit_for_bit(
    kind: str, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    """Preempted in Stage 1.9, then killed in Stage 2; with clips and projections that are made anew meanwhile."""
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    often = {"muonclip.tau": 0.001, "apollo.update_interval": 2, "apollo_mini.update_interval": 2}
    chosen = [
        override
        for stage in ("stage1_9", "stage2")
        for override in (
            f"optimizer@{stage}.optimizer={kind}",
            *(f"{stage}.optimizer.{key}={value}" for key, value in often.items()),
        )
    ]
    expected = uninterrupted(*chosen)
    with pytest.raises(PreemptedError):
        attempt(tmp_path, *chosen, end=terminate, at=4)
    with pytest.raises(KilledError):
        attempt(tmp_path, *chosen, "checkpoint.every_steps=3", end=kill, at=6)
    assert outcome_of(attempt(tmp_path, *chosen), tmp_path) == expected


@pytest.mark.parametrize(
    "kind",
    ["muon", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("adamw", "apollo"))],
)
def test_stochastic_rounding_goes_on_bit_for_bit(
    kind: str, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    """Preempted in Stage 1.9, then killed in Stage 2; the random numbers go on where they were."""
    chosen = [
        "model.master_dtype=bfloat16",
        *(f"{stage}.optimizer.type={kind}" for stage in ("stage1_9", "stage2")),
        *(f"{stage}.optimizer.stochastic_rounding=true" for stage in ("stage1_9", "stage2")),
    ]
    expected = uninterrupted(*chosen)
    with pytest.raises(PreemptedError):
        attempt(tmp_path, *chosen, end=terminate, at=4)
    with pytest.raises(KilledError):
        attempt(tmp_path, *chosen, "checkpoint.every_steps=3", end=kill, at=6)
    assert outcome_of(attempt(tmp_path, *chosen), tmp_path) == expected
