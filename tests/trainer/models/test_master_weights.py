"""The dtype of master weights: which tensors have it, what it costs, and what goes on from where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrained import save_stand_in
from torch import Tensor

from trainer.api import check
from trainer.config.compose import compose_config
from trainer.devices.device import open_device
from trainer.models.causal_lm import cast_weights, load_pretrained, parameter_count
from trainer.models.subln import make_student
from trainer.pipeline import Outcome
from trainer.preflight.memory import stage_memory, student_dimensions
from trainer.preflight.trace import blueprint

Run = Callable[..., Outcome]
DEVICE = open_device(compose_config(["device=cpu", "device.threads=1"]).device)
CONFIG = compose_config([])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in bfloat16 with tied embeddings."""
    return save_stand_in(tmp_path_factory.mktemp("pretrained"), "smollm2")


def test_the_student_is_cast_and_its_teacher_is_not(saved: Path) -> None:
    teacher = load_pretrained(str(saved), dtype="auto", attention="eager")
    ids = torch.arange(32).view(2, 16)
    student, _ = make_student(
        teacher, CONFIG.stage1, [ids], quant=CONFIG.quant, device=DEVICE, master_dtype="float32"
    )
    assert {each.dtype for each in student.parameters()} == {torch.float32}
    assert {each.dtype for each in teacher.parameters()} == {torch.bfloat16}
    assert student.config.dtype == torch.float32
    assert teacher.config.dtype == torch.bfloat16
    theirs, ours = dict(teacher.named_parameters()), dict(student.named_parameters())
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(ours[name], theirs[name].float())
    assert student.get_input_embeddings().weight is student.get_output_embeddings().weight


def test_cast_keeps_buffers_and_weights_of_the_same_dtype(saved: Path) -> None:
    model = load_pretrained(str(saved), dtype="float32", attention="eager")
    storages = [each.data_ptr() for each in model.parameters()]
    cast_weights(model, "float32")
    cast_weights(model, "auto")
    assert [each.data_ptr() for each in model.parameters()] == storages
    cast_weights(model, "bfloat16")
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in model.buffers()} == {torch.float32}


def moved(student: torch.nn.Module, start: dict[str, Tensor]) -> float:
    """Return the share of the ternary layers' weights that training has changed."""
    now = {name: each for name, each in student.named_parameters() if name in start}
    changed = sum(int((each != start[name]).sum()) for name, each in now.items())
    return changed / sum(each.numel() for each in now.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_updates_are_kept_in_float32_and_lost_in_bfloat16(dtype: str, run_small: Run) -> None:
    """At this rate an update is a thousandth of most weights."""
    common = (f"model.master_dtype={dtype}", "stage1_9.max_steps=0", "stage1.subln=none")
    start = run_small(*common, "stage2.max_steps=0").student
    before = {name: each.clone() for name, each in start.named_parameters() if "proj" in name}
    trained = run_small(
        *common,
        *("stage2.max_steps=3", "stage2.lambda_warmup.enabled=false", "stage2.schedule.warmup_steps=0"),
        *("stage2.optimizer.type=adamw", "stage2.optimizer.lr=1e-5", "stage2.optimizer.weight_decay=0"),
    ).student
    assert {each.dtype for each in trained.parameters()} == {getattr(torch, dtype)}
    share = moved(trained, before)
    assert share > 0.99 if dtype == "float32" else share < 0.5


def test_tiny_teacher_does_not_depend_on_master_dtype(run_small: Run) -> None:
    here, there = run_small("stage1_9.max_steps=0"), run_small("model.master_dtype=bfloat16")
    assert here.held_out.reference == there.held_out.reference
    assert (here.result.provenance.dtype, there.result.provenance.dtype) == ("float32", "bfloat16")


@pytest.mark.parametrize(
    "overrides",
    [
        ("stage1_9.loss_type=kl",),
        ("stage2.distill.weight=0.5",),
        ("stage3.max_steps=2", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1"),
    ],
    ids=["kl", "distilled", "stage3"],
)
def test_losses_accept_student_and_teacher_of_different_dtypes(
    overrides: tuple[str, ...], run_small: Run
) -> None:
    losses = [
        run_small(f"model.master_dtype={dtype}", *overrides).result.metrics.final_loss
        for dtype in ("float32", "bfloat16")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=0.05)


@pytest.mark.slow
def test_estimates_count_the_student_in_its_own_dtype(saved: Path) -> None:
    peaks = {}
    for dtype, size in {"float32": 4, "bfloat16": 2, "auto": 2}.items():
        config = check(
            ["model=hf", f"model.name={saved}", f"model.master_dtype={dtype}", "data.sequence_length=32"]
        )
        plan = blueprint(config, DEVICE)
        student = student_dimensions(config, plan.dimensions)
        memory = stage_memory(config, "stage2", config.stage2, plan, DEVICE)
        teacher = parameter_count(plan.build(2))
        assert student.weight_bytes == size
        assert memory.gradients == size * student.parameters
        assert memory.weights == size * student.parameters + 2 * teacher
        peaks[dtype] = memory.peak
    assert peaks["float32"] > peaks["bfloat16"] == peaks["auto"]
