"""What a loss is measured on, and with which weights: the two ways in which a search could cheat."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from trainer_outcomes import weights_digest, without_times

from trainer.api import check, prepare
from trainer.checkpoint import run_folder
from trainer.data.encoder import Encoder
from trainer.devices.device import open_device
from trainer.errors import ConfigError
from trainer.outcome import Outcome, save
from trainer.training.context import StageContext
from trainer.training.evaluation import HeldOutLoss, Measured, held_out_loss

Run = Callable[..., Outcome]


class Spied(NamedTuple):
    """Calls of a function: their arguments and what came back."""

    arguments: list[dict[str, Any]]
    results: list[Any]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Spied]:
    def watch(target: str) -> Spied:
        module_name, _, name = target.rpartition(".")
        module = importlib.import_module(module_name)
        function, spied = getattr(module, name), Spied([], [])

        def spying(*args: Any, **kwargs: Any) -> Any:
            spied.arguments.append(inspect.signature(function).bind(*args, **kwargs).arguments)
            spied.results.append(function(*args, **kwargs))
            return spied.results[-1]

        monkeypatch.setattr(module, name, spying)
        return spied

    return watch


def test_losses_are_measured_on_held_out_text(run_small: Run, spy: Callable[[str], Spied]) -> None:
    loaded, cut = spy("trainer.data.inputs.load"), spy("trainer.data.inputs.eval_batches")
    fed = spy("trainer.data.memory.WindowFeed")
    measured = [spy("trainer.stages.teacher.held_out_loss"), spy("trainer.pipeline.held_out_loss")]
    run_small("model.teacher.seed=12")  # a teacher that is not cached yet
    corpus = loaded.results[0]
    assert [call["tokens"] is corpus.held_out for call in cut.arguments] == [True]
    assert [len(calls.arguments) for calls in measured] == [1, 3]  # and the teacher, for the paired error
    assert all(call["batches"] is cut.results[0] for calls in measured for call in calls.arguments)
    assert len(fed.arguments) == 4  # teacher, calibration and two stages
    assert all(call["tokens"] is corpus.train for call in fed.arguments)


def test_the_final_loss_is_that_of_fully_ternary_weights(run_small: Run, spy: Callable[[str], Spied]) -> None:
    """Even where the lambda warmup ends with the stage: a half-quantised loss would let a search cheat."""
    from trainer.quant.ternary import ternary_layers

    cut = spy("trainer.data.inputs.eval_batches")
    outcome = run_small("stage2.lambda_warmup.warmup_steps=5")
    device = open_device(check(["device=cpu", "device.threads=1"]).device)
    again = held_out_loss(outcome.student, cut.results[0], device=device, stage="again")
    metrics = outcome.result.metrics
    assert metrics.final_loss == again.mean
    for layer in ternary_layers(outcome.student):
        assert layer.lambda_.complete
        assert layer.saliency is None
        assert layer.effective_weight().unique().numel() == 3


def test_lambda_is_one_whenever_a_loss_is_measured(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import pipeline
    from trainer.quant.ternary import ternary_layers

    complete: list[set[bool]] = []

    def measure(student: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        complete.append({layer.lambda_.complete for layer in ternary_layers(student)})
        return held_out_loss(student, *args, **kwargs)

    monkeypatch.setattr(pipeline, "held_out_loss", measure)
    run_small("stage2.lambda_warmup.warmup_steps=5")
    assert complete[:2] == [{True}, {True}]
    assert complete[2:] in ([], [set()])  # the teacher, unless its loss was cached


@pytest.mark.parametrize("half", ["weights", "activations", "saliency"])
def test_measuring_needs_a_fully_quantised_student(half: str, run_small: Run) -> None:
    from trainer.quant.saliency import ColumnSaliency, Share
    from trainer.quant.ternary import ternary_layers

    student = run_small("stage1_9.max_steps=0", "stage2.max_steps=0").student
    layer = ternary_layers(student)[-1]
    if half == "saliency":
        layer.saliency = ColumnSaliency(layer.weight, Share(0.1), 0.9)
    else:
        layer.lambda_.set(0.999, **{"weights": False, "activations": False, half: True})
    device = open_device(check(["device=cpu", "device.threads=1"]).device)
    with pytest.raises(RuntimeError, match="not fully quantised"):
        held_out_loss(student, [torch.zeros(1, 8, dtype=torch.int64)] * 2, device=device, stage="test")


@pytest.mark.parametrize("overrides", [["eval.batches=5000"], ["eval.batch_size=5000"]], ids=" ".join)
def test_too_little_held_out_text_is_refused_early(
    overrides: list[str], run_small: Run, small: tuple[str, ...], spy: Callable[[str], Spied]
) -> None:
    trained = spy("trainer.stages.teacher.train")
    with pytest.raises(ConfigError, match=r"^eval.batches: "):
        run_small("model.teacher.seed=13", *overrides)
    with pytest.raises(ConfigError, match=r"^eval.batches: "):
        prepare([*small, "model.teacher.seed=13", *overrides])
    assert trained.arguments == []


def clustered(values: list[float], documents: list[int]) -> float:
    """Return the standard error of the mean by the sums of each document's deviations."""
    mean, groups = sum(values) / len(values), sorted(set(documents))
    sums = [
        sum(value - mean for value, document in zip(values, documents, strict=True) if document == group)
        for group in groups
    ]
    return (len(groups) / (len(groups) - 1) * sum(each**2 for each in sums)) ** 0.5 / len(values)


def documents_of(batches: list[torch.Tensor], tokens: Any, end: int) -> list[int]:
    """Return the document that the middle of each sequence is in; the batches take evenly spread windows in turn."""
    (size, length), count = batches[0].shape, len(tokens) // batches[0].shape[1]
    at = [first + row * len(batches) for first in range(len(batches)) for row in range(size)]
    starts = [length * (each * count // (size * len(batches))) for each in at]
    found = [tokens[start : start + length].tolist() for start in starts]
    assert found == torch.cat(batches).tolist()
    return [int((tokens[: start + length // 2] == end).sum()) for start in starts]


def test_standard_error_is_paired_with_the_teacher(run_small: Run, spy: Callable[[str], Spied]) -> None:
    """By hand, from batches of one sequence: what is hard about the text is hard for both."""
    loaded, cut = spy("trainer.data.inputs.load"), spy("trainer.data.inputs.eval_batches")
    teachers = spy("trainer.stages.teacher.prepare_teacher")
    outcome = run_small()
    device = open_device(check(["device=cpu", "device.threads=1"]).device)
    alone = [ids_1T for ids_BT in cut.results[0] for ids_1T in ids_BT.split(1)]
    ours = held_out_loss(outcome.student, alone, device=device, stage="again").by_sequence
    theirs = held_out_loss(teachers.results[0], alone, device=device, stage="again").by_sequence
    assert outcome.held_out.final.by_sequence == pytest.approx(ours, abs=1e-5)
    assert outcome.held_out.reference.by_sequence == pytest.approx(theirs, abs=1e-5)
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    metrics, corpus = outcome.result.metrics, loaded.results[0]
    documents = documents_of(cut.results[0], corpus.held_out, Encoder.open(corpus.tokenizer_dir).end)
    assert 1 < len(set(documents)) < len(documents)
    assert metrics.final_loss_sem == pytest.approx(clustered(differences, documents), rel=1e-3)
    assert metrics.final_loss_text_sem == pytest.approx(clustered(ours, documents), rel=1e-3)
    assert metrics.final_loss == pytest.approx(sum(ours) / len(ours), abs=1e-6)


def test_a_pair_of_losses_on_different_sequences_is_refused() -> None:
    one, other = (HeldOutLoss(mean=1.0, by_sequence=(1.0,) * count) for count in (2, 3))
    with pytest.raises(ValueError, match="longer"):
        _ = Measured(final=one, reference=other).paired_sem


TESTED = ("data.test_fraction=0.2", "eval.test=true")


class Untouchable:
    """Text that nobody may read, not even its length."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the test text was read ({name})")

    def __len__(self) -> int:
        raise AssertionError("the test text was read (its length)")


def test_test_text_is_not_read_unless_asked_for(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.data import inputs
    from trainer.data.inputs import load

    monkeypatch.setattr(
        inputs, "load", lambda *args, **kwargs: dataclasses.replace(load(*args, **kwargs), test=Untouchable())
    )
    outcome = run_small("model.teacher.seed=14")  # a teacher that is not cached yet
    assert outcome.test is None
    assert not any(name.startswith("test") for name in outcome.result.document()["metrics"])
    with pytest.raises(AssertionError, match="the test text was read"):
        run_small("eval.test=true")


def test_the_losses_on_the_test_text_by_hand(
    run_small: Run, spy: Callable[[str], Spied], tmp_path: Path
) -> None:
    loaded, cut = spy("trainer.data.inputs.load"), spy("trainer.data.inputs.eval_batches")
    teachers = spy("trainer.stages.teacher.prepare_teacher")
    outcome = run_small(*TESTED)
    corpus = loaded.results[0]
    assert [call["tokens"] is corpus.test for call in cut.arguments] == [False, True]
    device = open_device(check(["device=cpu", "device.threads=1"]).device)
    alone = [ids_1T for ids_BT in cut.results[1] for ids_1T in ids_BT.split(1)]
    assert len(alone) == 8
    ours = held_out_loss(outcome.student, alone, device=device, stage="again").by_sequence
    theirs = held_out_loss(teachers.results[0], alone, device=device, stage="again").by_sequence
    metrics = outcome.result.document()["metrics"]
    assert metrics["test_loss"] == pytest.approx(sum(ours) / len(ours), abs=1e-5)
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    documents = documents_of(cut.results[1], corpus.test, Encoder.open(corpus.tokenizer_dir).end)
    assert metrics["test_loss_sem"] == pytest.approx(clustered(differences, documents), rel=1e-3)
    assert metrics["test_loss_text_sem"] == pytest.approx(clustered(ours, documents), rel=1e-3)
    assert metrics["test_loss"] != metrics["final_loss"]

    checkpoints, telemetry = Mock(resumable=False), Mock()
    config = check(["samples.enabled=false"])
    save(outcome, config, tmp_path, telemetry, checkpoints, StageContext(device=device), warn=pytest.fail)
    written = json.loads((tmp_path / "held_out.json").read_text())
    assert list(written["documents"]) == ["final", "test"]
    assert written["documents"]["test"] == documents
    losses = written["losses"]
    assert list(losses) == ["final", "teacher", "test", "test_teacher"]
    assert losses["test"] == pytest.approx(ours, abs=1e-5)
    assert losses["test_teacher"] == pytest.approx(theirs, abs=1e-5)


def test_the_test_changes_no_training(
    run_small: Run, small: tuple[str, ...], spy: Callable[[str], Spied]
) -> None:
    plain = run_small(TESTED[0])
    trained = spy("trainer.stages.teacher.train")
    tested = run_small(*TESTED)
    assert trained.arguments == []  # the teacher is that of the other run
    assert weights_digest(tested) == weights_digest(plain)
    ours, theirs = (without_times(outcome) for outcome in (tested, plain))
    tests = {name for name in ours if name.startswith("test_")}
    assert {name for name in ours if ours[name] != theirs[name]} == tests
    assert tested.result.provenance == plain.result.provenance


def test_a_run_goes_on_with_the_test_that_began_without(small: tuple[str, ...], tmp_path: Path) -> None:
    run_folder.pin(check([*small, "eval.test=false"]), tmp_path)
    run_folder.check_pin(check([*small, "eval.test=true"]), tmp_path)
    with pytest.raises(ConfigError, match=r"eval\.batches: 2 → 3"):
        run_folder.check_pin(check([*small, "eval.batches=3"]), tmp_path)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("data.test_fraction=1e-9", "the test text has 0 tokens"),
        pytest.param("eval.batches=150", "the test text has", marks=pytest.mark.slow),
    ],
)
def test_too_little_test_text_is_refused_early(
    more: str, problem: str, run_small: Run, small: tuple[str, ...], spy: Callable[[str], Spied]
) -> None:
    trained = spy("trainer.stages.teacher.train")
    overrides = ("model.teacher.seed=15", "data.held_out_fraction=0.4", "data.test_fraction=0.1", more)
    with pytest.raises(ConfigError, match=rf"^eval\.test: .*{problem}.*\(data\.test_fraction\)$"):
        run_small(*overrides, "eval.test=true")
    with pytest.raises(ConfigError, match=r"^eval\.test: "):
        prepare([*small, *overrides, "eval.test=true"])
    assert trained.arguments == []
    run_small(*overrides)  # without the test it is enough
