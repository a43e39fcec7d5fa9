"""The anchor: a fixed model that the student is kept close to, from a second cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cached_runs import LENGTH, VOCABULARY, Make, Prepared, cached, logged
from torch import Tensor, nn

from trainer import teacher_cache as command
from trainer.api import check
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.losses.distillation import tempered_divergence
from trainer.losses.sparse import Sample, Targets
from trainer.models.causal_lm import build_tiny, run
from trainer.pipeline import Outcome
from trainer.stages.distill import from_cache
from trainer.teachers.cached.reader import open_cache

Run = Callable[..., Outcome]


def anchored(teacher: object, anchor: object, weight: float = 2.0) -> tuple[str, ...]:
    return (*cached(teacher), f"stage3.teacher.anchor={anchor}", f"stage3.teacher.anchor_weight={weight}")


def fresh(config: Config, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    assert config.model.kind == "tiny"
    model = build_tiny(config.model, vocab_size=VOCABULARY, sequence_length=LENGTH, attention="eager")
    return model.double()


def everything(model: nn.Module, ids_BT: Tensor) -> Sample:
    """The contents of a cache of all tokens."""
    with torch.no_grad():
        logits = run(model, ids_BT).logits[:, :-1].log_softmax(dim=-1)
    ids = torch.arange(VOCABULARY, dtype=torch.int32).expand(*logits.shape[:2], -1)
    return Sample(ids=ids, logits=logits)


@pytest.mark.parametrize("cross_entropy", ["sampled", "exact"])
def test_all_tokens_give_the_dense_divergence(cross_entropy: str, configured: Callable[..., Config]) -> None:
    """The full objective for a student with random weights, in float64, to 1e-7."""
    overrides = (f"stage3.teacher.cross_entropy={cross_entropy}", "stage3.temperature=2.0")
    config = configured(
        *anchored("x", "y"), *overrides, "stage3.teacher.top_k=300", "stage3.teacher.negatives=0"
    )
    stage, teacher = config.stage3, config.stage3.teacher
    assert teacher.kind == "cached"
    student, theirs, anchor = (fresh(config, seed) for seed in range(3))
    ids_BT = torch.randint(VOCABULARY, (2, LENGTH))
    said = Targets(teacher=everything(theirs, ids_BT), anchor=everything(anchor, ids_BT))
    ours = from_cache(student, lambda rows: said.rows(0, rows), stage, teacher)(ids_BT)

    logits = run(student, ids_BT).logits
    with torch.no_grad():
        dense = [run(model, ids_BT).logits for model in (theirs, anchor)]
    kl = [tempered_divergence(logits, each, temperature=2.0) for each in dense]
    ce = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())
    expected = {"ce": ce, "logits_kl": kl[0], "anchor_kl": kl[1], "loss": ce + 25.0 * kl[0] + 2.0 * kl[1]}
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-7, atol=1e-9)
    parameters = list(student.parameters())
    for one, other in zip(
        torch.autograd.grad(ours["loss"], parameters),
        torch.autograd.grad(expected["loss"], parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_a_runs_student_anchors_another_run(
    small: tuple[str, ...],
    run_small: Run,
    make: Make,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The student before Stage 3 is the anchor: the divergence is 0 in the first step and grows later."""
    from trainer import __main__ as program
    from trainer.training.preemption import StopSignal

    overrides = anchored(tmp_path / "teacher", tmp_path / "anchor")
    make(*overrides)
    with pytest.raises(ConfigError, match=r"anchor: .*anchor; .* --of RUN_DIR"):
        run_small(*overrides)
    before = check(
        [*small, *overrides, "stage3.max_steps=0", "save_model=true", f"run_dir={tmp_path / 'before'}"]
    )
    program.train_in(tmp_path / "before", before, StopSignal())
    monkeypatch.setattr(command.StopSignal, "install", lambda stop: None)
    assert command.main([*small, *overrides, "--of", str(tmp_path / "before")]) == 0
    result = run_small(*overrides).result
    metrics, provenance = result.metrics, result.provenance
    for kept, digest in (
        ("teacher", provenance.teacher_cache_sha256),
        ("anchor", provenance.anchor_cache_sha256),
    ):
        assert digest == open_cache(str(tmp_path / kept), rows=16, preload=False).digest, kept
    lines = logged(tmp_path)
    assert lines[0]["anchor_kl"] == pytest.approx(0, abs=1e-7)
    assert min(line["anchor_kl"] for line in lines[1:]) > 1e-6
    for line in lines:
        total = line["ce"] + 25.0 * line["logits_kl"] + 2.0 * line["anchor_kl"]
        assert line["loss"] == pytest.approx(total, rel=1e-5)
    run_small(*anchored(tmp_path / "teacher", tmp_path / "anchor", weight=50.0))
    assert logged(tmp_path)[-1]["anchor_kl"] < lines[-1]["anchor_kl"]
    alone = run_small(*cached(tmp_path / "teacher")).result
    assert alone.provenance.teacher_cache_sha256 == provenance.teacher_cache_sha256
    assert alone.provenance.anchor_cache_sha256 is None
    without = alone.metrics
    hidden, tokens = 32, 4 * 4 * 15
    assert metrics.train_flops - without.train_flops == pytest.approx(3 * 2 * hidden * 8 * tokens)
    with pytest.raises(ConfigError, match=r"^stage3.teacher.anchor: .*model .*, seed 0 \(here 1\)$"):
        make(*overrides, "seed=1", model=prepared.teacher)
