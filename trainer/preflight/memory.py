"""Estimates of each stage's peak memory, by kind of tensor, and an upper bound that takes no trace."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trainer.config import Config, OptimizerConfig, RecoveryConfig
from trainer.devices.device import Device
from trainer.optim import muon
from trainer.optim.stochastic_rounding import PIECE
from trainer.preflight.dimensions import AdapterDimensions, Dimensions
from trainer.preflight.trace import Blueprint, Stage, evaluation_peak, step_peak

EVALUATION, LOADING = "evaluation", "loading"

_SMALL = 4096  # elements below which bitsandbytes keeps a tensor's moments in float32
# Of an element that is rounded stochastically: update and new value in float32, its 16 bits and their sum.
_ROUNDED = 14
_BLOCK = 256  # elements that share one of bitsandbytes' scales
# Of the upper bound: float32 copies of each width that a layer may keep, with a wide margin.
_FLOAT = 4
_HIDDEN, _QUERIES, _INNER, _SCORES, _LOGITS = 40, 20, 16, 10, 14
_CHUNKS = 2**30  # of losses that are computed in chunks


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Bytes of the tensors of one stage at its peak.

    Args:
        micro_batch: sequences that are computed at once.
        weights: of the student and its teacher, which stays for the whole run, and the student's average and
            adapters.
        gradients: of what is trained.
        peak: of these and all other tensors.
    """

    name: str
    micro_batch: int
    weights: int
    gradients: int
    optimizer: int
    peak: int

    @property
    def activations(self) -> int:
        """Return the bytes of all other tensors at the peak: activations, logits, temporary copies."""
        return max(0, self.peak - self.weights - self.gradients - self.optimizer)


def stages(config: Config) -> list[tuple[str, Stage]]:
    """Return the stages that are trained, by name."""
    named: list[tuple[str, Stage]] = [
        ("stage1_9", config.stage1_9),
        ("stage2", config.stage2),
        ("stage3", config.stage3),
        ("recovery", config.recovery),
    ]
    return [(name, stage) for name, stage in named if stage.max_steps]


def student_dimensions(config: Config, teacher: Dimensions) -> Dimensions:
    """Return the dimensions of the student that Stage 1 makes from the teacher."""
    return teacher.as_student(
        layers=config.stage1.keep_layers,
        subln=config.stage1.subln != "none",
        master_dtype=config.model.master_dtype,
    )


def trained_dimensions(stage: Stage, student: Dimensions) -> Dimensions:
    """Return the dimensions of what a stage trains: the student, or its adapters."""
    return AdapterDimensions.for_student(student, stage) if isinstance(stage, RecoveryConfig) else student


def shard(size: int, device: Device) -> int:
    """Return the bytes that each process has of what is sharded: all of them but with FSDP."""
    return -(-size // device.ranks.world) if device.ranks.parallel == "fsdp" else size


def student_bytes(config: Config, teacher: Dimensions, device: Device) -> int:
    """Return the bytes of the student's weights on the device between two steps."""
    student = student_dimensions(config, teacher)
    return shard(student.parameters * student.weight_bytes, device)


def teacher_bytes(teacher: Dimensions, device: Device) -> int:
    """Return the bytes of the teacher's weights on the device while it does not compute."""
    ends = teacher.parameters * teacher.weight_bytes - layer_bytes(teacher)
    there = layer_bytes(teacher) if device.teacher == "device" else _sharded_teacher(teacher, device)
    return ends + there


def layer_bytes(model: Dimensions) -> int:
    """Return the bytes of all decoder layers: without embeddings, head and the last norm."""
    ends = sum(o * i for o, i in model.embeddings) + model.hidden
    return (model.parameters - ends) * model.weight_bytes


def _sharded_teacher(teacher: Dimensions, device: Device) -> int:
    return shard(layer_bytes(teacher), device) if device.teacher == "sharded" else 0


def average_bytes(config: Config, student: Dimensions) -> int:
    """Return the bytes of the average of the student's weights, which is float32; 0 if there is none."""
    return 4 * student.parameters if config.averaged_stage else 0


def stage_memory(
    config: Config,
    name: str,
    stage: Stage,
    plan: Blueprint,
    device: Device,
    *,
    micro_batch: int | None = None,
) -> StageMemory:
    """Return the memory of one stage; of each chip, where several share the sequences.

    With FSDP that of one process (`device.ranks`), of which `config` has the sequences.

    Args:
        micro_batch: sequences computed at once, over all chips; None: as configured.
    """
    micro = micro_batch or stage.micro_batch_size or stage.batch_size
    student = student_dimensions(config, plan.dimensions)
    sharded = device.ranks.parallel == "fsdp"
    shards = student_bytes(config, plan.dimensions, device)
    weights = shards + teacher_bytes(plan.dimensions, device)
    trained = trained_dimensions(stage, student)
    gradients = shard(trained.parameters * trained.weight_bytes, device)
    if trained is not student:  # adapters and their gradients are alike
        shards, weights = shards + gradients, weights + gradients
    buckets = gradients if config.device.parallel == "ddp" else 0  # of the all-reduce
    optimizer = _stage_optimizer(stage, student, device)
    average = shard(average_bytes(config, student), device) if name == config.averaged_stage else 0
    # The micro-batch divides the batch of all chips, and would be refused beside that of one.
    own = dataclasses.replace(stage, batch_size=stage.batch_size // device.chips, micro_batch_size=None)
    computing = step_peak(config, own, plan, device, micro_batch=max(1, micro // device.chips))
    if sharded:  # which leaves the shards of weights out of the trace
        computing += shards + _sharded_teacher(plan.dimensions, device)
    lasting = average + buckets + optimizer.state
    # The traced step has weights and gradients in it; in the update, activations are gone.
    peak = lasting + max(computing, weights + gradients + optimizer.temporary)
    weights += average
    return StageMemory(
        name=name,
        micro_batch=micro,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer.state,
        peak=peak,
    )


def _stage_optimizer(stage: Stage, student: Dimensions, device: Device) -> OptimizerMemory:
    return optimizer_memory(
        trained_dimensions(stage, student),
        stage.optimizer,
        processes=device.ranks.world,
        sharded=device.ranks.parallel == "fsdp",
        muon_dtype=muon.muon_dtype(stage.optimizer, device.torch_device),
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerMemory:
    """Bytes of the state between two steps, and of temporary tensors of a step."""

    state: int
    temporary: int


def optimizer_memory(
    student: Dimensions,
    config: OptimizerConfig,
    *,
    processes: int = 1,
    sharded: bool = False,
    muon_dtype: torch.dtype | None = None,
) -> OptimizerMemory:
    """Return the memory of one stage's optimizer, in one process.

    Args:
        processes: that share Muon's stacks of matrices.
        sharded: whether each of them has a shard of weights, gradients and state.
        muon_dtype: of Muon's orthogonalisation; None: float32.
    """
    rounded = config.stochastic_rounding and student.weight_bytes == 2  # then all moments are in float32
    size = 4 if rounded else student.weight_bytes
    matrices = [o * i for o, i in student.matrices]
    embeddings = [o * i for o, i in student.embeddings]
    others = sum(embeddings) + student.gains
    share = processes if sharded else 1
    if config.type == "adamw_8bit":
        state = 8 * student.gains
        for elements in (*matrices, *embeddings):
            scales = 4 * -(-elements // _BLOCK)
            state += 8 * elements if elements < _SMALL else 2 * (elements + scales)
        return OptimizerMemory(state=state, temporary=0)
    # AdamW goes group by group; the hidden matrices are one that Muon and Apollo take from it.
    groups = (sum(embeddings), student.gains, sum(matrices) if config.type == "adamw" else 0)
    temporary = _ROUNDED * min(PIECE, -(-max(groups) // share)) if rounded else 0
    if config.type == "adamw":
        return OptimizerMemory(state=-(-2 * size * student.parameters // share), temporary=temporary)
    if config.type in ("muon", "muonclip"):
        state = -(-size * sum(matrices) // share)
        computed = (muon_dtype or torch.float32).itemsize
        estimate = _sharded_muon_temporary if sharded else _muon_temporary
        temporary = max(temporary, estimate(student, processes, size, computed, rounded=rounded))
    else:  # each process projects whole gradients
        rank = config.apollo.rank if config.type == "apollo" else 1
        state = 0
        for shape in student.matrices:
            small, large = sorted(shape)
            r = min(rank, small)
            state += 4 * (2 * r * large + r * small)  # two moments of the projected gradient; the projection
        # One matrix at a time, in about five copies in float32.
        temporary = max(temporary, 20 * max(matrices))
    return OptimizerMemory(state=state + -(-2 * size * others // share), temporary=temporary)


def _alike(student: Dimensions) -> Iterator[tuple[int, int, int, bool]]:
    """Yield sides and number of the matrices of each shape, and whether some of them are transposed."""
    orientations = set(student.matrices)
    for (small, large), count in Counter(tuple(sorted(shape)) for shape in student.matrices).items():
        yield small, large, count, small != large and {(small, large), (large, small)} <= orientations


def _muon_temporary(student: Dimensions, processes: int, size: int, computed: int, *, rounded: bool) -> int:
    """Return the bytes at the peak of `trainer.optim.muon`, which takes stack after stack.

    Args:
        processes: that share the stacks.
        size: bytes of an element of a momentum.
        computed: bytes of an element where matrices are orthogonalised.
        rounded: whether updated weights are rounded stochastically.
    """
    peak = 0
    for small, large, count, transposed in _alike(student):
        # An iteration's result beside what it came from; in bfloat16, which has no sums in place, beside
        # the stack it began with, too. The momenta are a stack of their own unless it is the same tensor.
        copies = 2 if computed == 4 else 3
        stack = large * ((copies + transposed) * computed + (size if size != computed else 0))
        gram = small * computed
        row = stack + gram
        if rounded:  # the stacks that the update came from are there until it is subtracted
            row = max(row, large * (_ROUNDED + (4 + 2 * computed if computed != 4 else 0)))
        peak = max(peak, small * row * min(count, muon.stack_size(small * large, processes)))
    return peak


def _sharded_muon_temporary(
    student: Dimensions, processes: int, size: int, computed: int, *, rounded: bool
) -> int:
    """Return what `_muon_temporary` does where each process has a shard of every matrix.

    A stack is gathered from all processes.
    """
    peak = 0
    for small, large, count, transposed in _alike(student):
        # What was gathered is put in order; or cast; or lies beside the updates of all processes.
        cast = size + computed if size != computed else 0
        whole = max(2 * size, cast, (2 + transposed) * computed)
        # Of the shard: what is orthogonalised, and the update or an iteration's product.
        own = size + max(computed, _ROUNDED if rounded else 0)
        stack = min(count, muon.stack_size(small * large, processes))
        peak = max(peak, small * large * stack * whole + -(-small * large * stack * own // processes))
    return peak


def with_evaluation_batch(config: Config, size: int) -> Config:
    """Return the configuration with evaluations in batches of another size, for estimates of their memory."""
    # It does not depend on the number of batches, and a single one of one sequence would be refused.
    evaluation = dataclasses.replace(config.eval, batch_size=size, part_batches=config.eval.batches)
    return dataclasses.replace(config, eval=evaluation)


def evaluation_memory(config: Config, plan: Blueprint, device: Device) -> StageMemory:
    """Return the memory while held-out losses are measured; within stages the optimizer's state is there.

    With FSDP each process gathers the student layer by layer, and embeddings and head for all of it.
    """
    rows = config.eval.batch_size
    own = rows // device.chips if rows % device.chips == 0 else rows  # else each chip computes all of them
    student = student_dimensions(config, plan.dimensions)
    sharded = device.ranks.parallel == "fsdp"
    shards = student_bytes(config, plan.dimensions, device)
    weights = shards + teacher_bytes(plan.dimensions, device)
    within = [stage for _, stage in stages(config) if config.eval.measures_within(stage.max_steps)]
    optimizer = max((_stage_optimizer(each, student, device).state for each in within), default=0)
    buckets = student.parameters * student.weight_bytes if within and config.device.parallel == "ddp" else 0
    average = shard(average_bytes(config, student), device)
    traced = evaluation_peak(with_evaluation_batch(config, own), plan, device)
    if sharded:  # which leaves the shards of weights out of the trace
        traced += shards + _sharded_teacher(plan.dimensions, device)
    peak = optimizer + buckets + average + traced
    weights += average
    return StageMemory(
        name=EVALUATION,
        micro_batch=config.eval.batch_size,
        weights=weights,
        gradients=buckets,
        optimizer=optimizer,
        peak=peak,
    )


def loading_memory(config: Config, plan: Blueprint, device: Device) -> StageMemory:
    """Return the memory of a CPU while FSDP shards the student, until when the teacher is whole.

    Other devices get both models layer by layer from the host, and hold less than in a step.
    """
    student, teacher = student_dimensions(config, plan.dimensions), plan.dimensions
    ends = student.parameters * student.weight_bytes - layer_bytes(student)
    weights = teacher.parameters * teacher.weight_bytes + student_bytes(config, teacher, device)
    # A layer that is copied to be sharded; or the ends, gathered in one piece and copied out of it.
    part = max(2 * ends, layer_bytes(student) // student.layers)
    return StageMemory(
        name=LOADING,
        micro_batch=0,
        weights=weights,
        gradients=0,
        optimizer=0,
        peak=weights + part,
    )


def memory_upper_bound(config: Config, teacher: Dimensions) -> int:
    """Return an upper bound on memory, in bytes, over stages, evaluations and the teacher's training.

    It is in closed form, and a test compares it with traces.
    """
    student, length = student_dimensions(config, teacher), config.data.sequence_length
    trained = [(stage, trained_dimensions(stage, student)) for _, stage in stages(config)]
    parameters = student.parameters + sum(each.parameters for _, each in trained if each is not student)
    # Weights, gradients, two moments and a temporary copy, all in float32; their average, and the teacher's.
    lasting = _FLOAT * (5 * parameters + teacher.parameters) + average_bytes(config, student)
    optimizers = [optimizer_memory(each, stage.optimizer) for stage, each in trained]
    lasting += max((optimizer.temporary for optimizer in optimizers), default=0)
    computed = [stage for _, stage in stages(config)]
    recipes = [*computed, config.model.teacher] if config.model.kind != "hf" else computed
    sequences = max([config.eval.batch_size, *(each.micro_batch_size or each.batch_size for each in recipes)])
    queries = teacher.heads * teacher.head_size
    layer = _HIDDEN * teacher.hidden + _QUERIES * queries + _INNER * teacher.intermediate
    layer += _SCORES * teacher.heads * length
    token = (teacher.layers + 1) * layer + _LOGITS * teacher.vocabulary
    chunked = _CHUNKS if config.stage1_9.max_steps and config.stage1_9.loss_type == "kl" else 0
    return lasting + _FLOAT * sequences * length * token + chunked
