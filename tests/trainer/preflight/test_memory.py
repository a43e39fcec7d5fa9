"""Estimated memory: against the tensors of real stages on a CPU, counted while they train; a bound that is above
it; and the numbers of a model and its optimizer without weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
import torch
from pretrained import save_stand_in
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from benchmarks.tensor_memory import peak_bytes
from trainer.api import check, quote
from trainer.checkpoint.state import State
from trainer.config import CachedTeacherConfig, Config
from trainer.cost.flops import forward_flops_per_token
from trainer.data.feed import Feed
from trainer.devices.device import Device, open_device
from trainer.losses.sparse import DTYPES, Sample
from trainer.models.adapters import adapters_for, add_adapters
from trainer.models.causal_lm import freeze, parameter_count
from trainer.models.host_layers import place_teacher
from trainer.models.subln import make_student
from trainer.optim.build import build_optimizer
from trainer.preflight.memory import (
    evaluation_memory,
    memory_upper_bound,
    optimizer_memory,
    stage_memory,
    stages,
    student_dimensions,
)
from trainer.preflight.trace import FEW, Blueprint, blueprint
from trainer.stages import distill, layerwise, pretrain, recover
from trainer.teachers.cached import reader
from trainer.training.context import StageContext, StageHooks
from trainer.training.weight_average import WeightAverage

# Small, but large enough that activations, weights and logits all count; deeper than what is estimated from.
SHAPE = (
    "model.layers=5", "model.hidden_size=64", "model.intermediate_size=160", "model.heads=2",
    "data.vocab_size=600", "data.sequence_length=48", "stage1_9.batch_size=4", "stage2.batch_size=4",
    "stage2.lambda_warmup.warmup_steps=1", "device=cpu", "device.threads=1", "device.dtype=float32",
)  # fmt: skip
ONLY = {
    "stage1_9": ("stage1_9.max_steps=2", "stage2.max_steps=0"),
    "stage2": ("stage1_9.max_steps=0", "stage2.max_steps=2"),
    "stage3": ("stage1_9.max_steps=0", "stage2.max_steps=0", "stage3.max_steps=2", "stage3.batch_size=4"),
    "recovery": (
        *("stage1_9.max_steps=0", "stage2.max_steps=0", "recovery.max_steps=2", "recovery.batch_size=4"),
    ),
}
CACHED = "stage3/teacher=cached stage3.teacher.path=x stage3.attention_weight=0.0"
ANCHORED = "stage3.teacher.anchor_weight=1.0 stage3.teacher.anchor=y"
NO_WARMUP = tuple(f"{stage}.schedule.warmup_steps=0" for stage in ONLY)


def configured(stage: str, *overrides: str) -> tuple[Config, Blueprint, Device]:
    config = check([*SHAPE, *ONLY[stage], *NO_WARMUP, *overrides])
    device = open_device(config.device)
    return config, blueprint(config, device), device


class Zeros(Feed):
    """Batches of nothing but the first token."""

    def __init__(self, *shape: int) -> None:
        self.ids = torch.zeros(shape, dtype=torch.long)

    def __next__(self) -> Tensor:
        return self.ids

    def state(self) -> State:
        return State(values={"rows": 0})

    def restore(self, state: State) -> None:
        pass


class ZeroCache:
    """What a teacher might have said of it."""

    def __init__(self, config: CachedTeacherConfig) -> None:
        self.kept, self.dtype = config.top_k + config.negatives, DTYPES[config.dtype]
        self.digest = ""

    def rows(self, numbers: Sequence[int], ids_BT: Tensor) -> Sample:
        shape = len(ids_BT), ids_BT.shape[1] - 1, self.kept
        return Sample(ids=torch.zeros(shape, dtype=torch.int32), logits=torch.zeros(shape, dtype=self.dtype))


def build_teacher(plan: Blueprint, device: Device) -> nn.Module:
    return place_teacher(freeze(plan.build(plan.dimensions.layers)), device)


def train_stage(config: Config, plan: Blueprint, device: Device, teacher: nn.Module) -> None:
    """The one stage of the run, of models with random weights on text of zeros."""
    ((name, stage),) = stages(config)
    train = {
        "stage1_9": layerwise.align,
        "stage2": pretrain.pretrain,
        "stage3": distill.distill,
        "recovery": recover.recover,
    }[name]
    without_text = dataclasses.replace(config.stage1, subln="ones")
    student, lambda_ = make_student(
        teacher, without_text, [], quant=config.quant, device=device, master_dtype=config.model.master_dtype
    )
    if name == "recovery":
        add_adapters(student, adapters_for(student, config.recovery), seed=0)
    average = None
    if config.averaged_stage:
        average = WeightAverage(student, config.average, stage=name, steps=stage.max_steps)
    train(  # type: ignore[operator]
        student,
        teacher,
        lambda_,
        stage,
        Zeros(stage.batch_size, config.data.sequence_length),
        StageContext(device=device, hooks=StageHooks(average=average)),
    )


def measured(config: Config, plan: Blueprint, device: Device) -> int:
    """Bytes of all tensors of a stage of two steps, both models included."""
    teacher = config.stage3.teacher

    def open_cache(path: str, **how: object) -> ZeroCache:
        assert teacher.kind == "cached"
        return ZeroCache(teacher)

    with mock.patch.object(reader, "open_cache", open_cache):
        if device.teacher == "device":
            return peak_bytes(lambda: train_stage(config, plan, device, build_teacher(plan, device)))
        # Here the host's memory is the device's: what was there before is not counted.
        host = build_teacher(plan, device)
        on_host = {id(parameter) for parameter in host.get_decoder().layers.parameters()}  # type: ignore[operator] # nn.Module has any attribute
        others = sum(each.nbytes for each in host.parameters() if id(each) not in on_host)
        return others + peak_bytes(lambda: train_stage(config, plan, device, host))


# Little but weights.
WEIGHTS = "stage2.batch_size=1 data.sequence_length=8 model.hidden_size=256 data.vocab_size=5000"
# Where the teacher and the weights that are held over micro-batches would be the most.
SMALLEST = (
    "stage1_9.micro_batch_size=1 data.sequence_length=8 model.hidden_size=256 stage1_9.optimizer.type=adamw"
)
BFLOAT16 = "model.master_dtype=bfloat16 device.dtype=bfloat16"
ROUNDED = "model.master_dtype=bfloat16 device.dtype=bfloat16 stage2.optimizer.stochastic_rounding=true"
SHORT = ["stage3"]
LONG = [
    "stage1_9",
    "stage2 stage2.micro_batch_size=2 stage2.optimizer.type=adamw",
    "recovery",
    "stage1_9 stage1_9.loss_type=kl",
    "stage1_9 stage1.keep_layers=3 stage1_9.micro_batch_size=1",
    f"stage1_9 {SMALLEST} device.hold_weights=false",
    f"stage1_9 {SMALLEST} device.hold_weights=false device.teacher=host",
    "stage1_9 device.teacher=host stage1.keep_layers=3",
    f"stage1_9 {SMALLEST} {BFLOAT16} device.hold_weights=false device.teacher=host",
    "stage1_9 data.vocab_size=40000 device.dtype=bfloat16",  # logits in chunks
    "stage2 stage2.distill.weight=1.0 device.recompute=true",
    "stage2 stage2.optimizer.type=muonclip quant.activations=none",
    f"stage2 {WEIGHTS}",
    f"stage2 {WEIGHTS} model.intermediate_size=512 stage2.optimizer.muon.dtype=bfloat16",
    f"stage2 {WEIGHTS} average.type=ema",
    f"stage2 {WEIGHTS} model.master_dtype=bfloat16 device.dtype=bfloat16",
    f"stage2 {ROUNDED} stage2.optimizer.type=adamw",
    f"stage2 {WEIGHTS} {ROUNDED}",
    f"stage2 {WEIGHTS} {ROUNDED} stage2.optimizer.muon.dtype=bfloat16",
    f"stage2 {WEIGHTS} {ROUNDED} stage2.optimizer.type=adamw",
    "stage2 stage2.micro_batch_size=1 device.dtype=bfloat16",
    "recovery recovery.rank=32 recovery.micro_batch_size=1 recovery.optimizer.type=muon",
    "recovery recovery.targets=mlp recovery.distill.weight=0.0 device.recompute=true",
    "recovery recovery.targets=attention model.master_dtype=bfloat16 device.dtype=bfloat16",
    f"stage3 {CACHED} stage3.teacher.top_k=20 data.vocab_size=40000 {ANCHORED}",
    f"stage3 {CACHED} stage3.teacher.cross_entropy=exact data.vocab_size=40000 stage3.micro_batch_size=2",
]


@pytest.mark.parametrize(
    "case", [*SHORT, *(pytest.param(case, id=case[-60:], marks=pytest.mark.slow) for case in LONG)]
)
def test_estimate_is_within_5_percent_of_tensors(case: str) -> None:
    if case.startswith("recovery"):
        pytest.importorskip("peft")
    config, plan, device = configured(*case.split())
    ((name, stage),) = stages(config)
    estimate = stage_memory(config, name, stage, plan, device)
    assert plan.dimensions.layers > FEW
    assert estimate.peak == pytest.approx(measured(config, plan, device), rel=0.05)
    assert estimate.peak == (
        estimate.weights + estimate.gradients + estimate.optimizer + estimate.activations
    )
    assert memory_upper_bound(config, plan.dimensions) > estimate.peak
    assert memory_upper_bound(config, plan.dimensions) > evaluation_memory(config, plan, device).peak


@pytest.mark.slow
def test_chip_of_several_takes_memory_of_its_own_rows() -> None:
    class TwoChips(Device):
        chips = 2  # type: ignore[assignment]  # a property there

    # What is valid of all rows need not be of a chip's.
    valid = ("stage2.micro_batch_size=4", "eval.part_batches=1")
    config, plan, device = configured("stage2", "stage2.batch_size=4", "eval.batch_size=2", *valid)
    half, _, _ = configured("stage2", "stage2.batch_size=2", "eval.batch_size=1")
    both = TwoChips(**vars(device))
    ((name, stage),), ((_, own),) = stages(config), stages(half)
    of_each, alone = (
        stage_memory(config, name, stage, plan, both),
        stage_memory(half, name, own, plan, device),
    )
    assert dataclasses.replace(of_each, micro_batch=2) == alone
    assert evaluation_memory(config, plan, both).peak == evaluation_memory(half, plan, device).peak


@pytest.mark.slow
def test_extrapolation_from_few_layers_equals_full_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a step's peak is in the head's losses with few layers, and in the layers' distances with many."""
    large = ("data.vocab_size=12288", "data.sequence_length=512", "stage1_9.batch_size=32", "model.layers=30")
    config, plan, device = configured("stage1_9", *large)

    def peak() -> int:
        return stage_memory(config, "stage1_9", config.stage1_9, plan, device).peak

    estimated = peak()
    monkeypatch.setattr("trainer.preflight.trace.ONE_MORE", 30)
    assert estimated == pytest.approx(peak(), rel=0.001)


def test_evaluation_within_a_stage_counts_optimizer_state() -> None:
    config, plan, device = configured("stage2", "stage2.optimizer.type=adamw", "eval.at=[0.5]")
    after, _, _ = configured("stage2", "eval.at=[]")
    within, alone = evaluation_memory(config, plan, device), evaluation_memory(after, plan, device)
    assert alone.optimizer == 0
    assert (
        within.optimizer
        == optimizer_memory(student_dimensions(config, plan.dimensions), config.stage2.optimizer).state
    )
    assert within.peak == alone.peak + within.optimizer
    assert memory_upper_bound(config, plan.dimensions) > within.peak


@pytest.mark.parametrize("optimizer", ["muon", "adamw", "adamw_8bit", "apollo", "apollo_mini"])
def test_optimizer_estimates_equal_their_state(optimizer: str) -> None:
    config, plan, _ = configured("stage2", f"stage2.optimizer.type={optimizer}")
    model = plan.build(plan.dimensions.layers)
    made = build_optimizer(model, config.stage2.optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    state = {  # by place: the tables of 8-bit values are shared
        tensor.data_ptr(): tensor.nbytes
        for each in made.optimizers
        for values in each.state.values()
        for tensor in values.values()
        if isinstance(tensor, torch.Tensor) and tensor.ndim
    }
    projected = (getattr(each, "_projections", {}).values() for each in made.optimizers)  # Apollo's
    projections = sum(tensor.nbytes for kept in projected for _, tensor in kept)
    expected = optimizer_memory(plan.dimensions, config.stage2.optimizer).state
    assert expected == pytest.approx(sum(state.values()) + projections, rel=0.02)


def test_model_trained_here_has_the_vocabulary_of_its_tokenizer(tmp_path: Path) -> None:
    """`data.vocab_size` is that of a tokenizer which is trained here, too."""
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(5000)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    _, plan, _ = configured("stage2", f"data.tokenizer={quote(str(tmp_path))}")
    assert plan.dimensions.vocabulary == 5000
    assert plan.dimensions.parameters == parameter_count(plan.build(plan.dimensions.layers))


@pytest.mark.parametrize("architecture", ["smollm2", "qwen3"])
def test_pretrained_dimensions_come_from_the_configuration(architecture: str, tmp_path: Path) -> None:
    folder = save_stand_in(tmp_path, architecture)
    (folder / "model.safetensors").unlink()
    config = check(["model=smollm2_135m", f"model.name={quote(str(folder))}", "device=cpu", *SHAPE[-2:]])
    plan = blueprint(config, open_device(config.device))
    model = plan.build(2)
    assert plan.dimensions.parameters == parameter_count(model)
    assert plan.dimensions.forward_flops(64) == forward_flops_per_token(model, 64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    student, _ = make_student(
        freeze(model),
        dataclasses.replace(config.stage1, subln="ones"),
        [],
        quant=config.quant,
        device=open_device(config.device),
    )
    assert student_dimensions(config, plan.dimensions).parameters == parameter_count(student)
