"""Peak memory of a stage's training step, from a run on fake tensors. Used by `memory`.

The traced program is the real one (student, teacher, losses, recomputation), so that a change there needs
none here; optimizers, which depend on values, are left to `preflight.memory`. Models of two and three
layers are traced and extrapolated: the peak at every operation of a step grows linearly with the layers.
(That of a whole phase need not: with few layers it may lie in the losses of the head, with many elsewhere.)

Of a model that FSDP shards the trace has whole layers. They are left out, and what FSDP gathers is added
where it does so (`_gathered`), as counted in real runs with torch 2.13.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.config import (
    CachedTeacherConfig,
    Config,
    HfModelConfig,
    RecoveryConfig,
    Stage2Config,
    Stage3Config,
    Stage19Config,
)
from trainer.data.encoder import Encoder
from trainer.data.tokenizer import import_tokenizer
from trainer.devices.device import Device
from trainer.distributed.tensor_group import TensorGroup
from trainer.errors import ConfigError, TokenizerError
from trainer.losses.next_token import NextTokenLoss, cross_entropy
from trainer.losses.sparse import DTYPES, Sample, Targets
from trainer.models.adapters import adapters_for, add_adapters
from trainer.models.causal_lm import (
    build_tiny,
    cast_weights,
    freeze,
    separate_documents,
    with_supported_attention,
)
from trainer.models.depth import shorten
from trainer.models.host_layers import keep_layers_on_host, tensors_on_host
from trainer.models.subln import normalised_projections, quantise
from trainer.models.tensor_parallel import in_parts
from trainer.preflight.dimensions import Dimensions, teacher_dimensions
from trainer.quant.ternary import held_weights
from trainer.quant.warmup import Lambda, SharedScalar
from trainer.stages import distill, layerwise, pretrain
from trainer.stages.distill import from_cache
from trainer.training.loop import recompute_layers
from trainer.training.train_step import Objective

Stage = Stage19Config | Stage2Config | Stage3Config | RecoveryConfig

FEW, ONE_MORE = 2, 3  # layers; with one, the top layer would be the bottom one


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The teacher's architecture.

    Args:
        build: makes a model of so many layers.
    """

    dimensions: Dimensions
    build: Callable[[int], nn.Module]


def blueprint(config: Config, device: Device) -> Blueprint:
    """Return the architecture of the run's model.

    Raises:
        OSError: a pretrained model's configuration cannot be read.
        ValueError: it is not one that transformers knows.
        ConfigError: it lacks a size; or there is no such tokenizer.
        UnreachableError, DataError: a tokenizer cannot be downloaded.
    """
    model = config.model
    if model.kind == "hf":
        return _pretrained_blueprint(config, model, device)
    dimensions = teacher_dimensions(config)
    if name := config.data.tokenizer:  # whose entries count, and not data.vocab_size
        try:
            vocabulary = Encoder.open(import_tokenizer(name)).vocab_size
        except TokenizerError as error:
            raise ConfigError(str(error), key="data.tokenizer") from error
        dimensions = dataclasses.replace(dimensions, vocabulary=vocabulary)

    def build(layers: int) -> nn.Module:
        return build_tiny(
            model.with_layers(layers),
            vocab_size=dimensions.vocabulary,
            sequence_length=config.data.sequence_length,
            attention=device.attention_for(config.data.sequence_length),
        )

    return Blueprint(dimensions=dimensions, build=build)


def _pretrained_blueprint(config: Config, model: HfModelConfig, device: Device) -> Blueprint:
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from trainer.data.remote import local_folder

    found = AutoConfig.from_pretrained(local_folder(model.name))
    dimensions = teacher_dimensions(config, found)
    dtype = torch.bfloat16 if dimensions.weight_bytes == 2 else torch.float32
    attention = device.attention_for(config.data.sequence_length)

    def build(layers: int) -> nn.Module:
        fewer = copy.deepcopy(found)
        shorten(fewer, range(layers))
        made: Any = AutoModelForCausalLM.from_config(fewer, dtype=dtype, attn_implementation=attention)
        return with_supported_attention(cast(nn.Module, made))

    return Blueprint(dimensions=dimensions, build=build)


@dataclass(frozen=True, kw_only=True)
class Models:
    """Student and teacher, and the student's lambda."""

    student: nn.Module
    teacher: nn.Module
    lambda_: Lambda


def step_peak(config: Config, stage: Stage, plan: Blueprint, device: Device, *, micro_batch: int) -> int:
    """Return the peak bytes of forward and backward passes of one step.

    Weights of student and teacher, gradients, activations and logits count; the optimizer's state does not,
    nor do the shards of weights that FSDP leaves a process between two steps.
    """
    sharded = device.ranks.parallel == "fsdp"

    def run(live: LiveStorages, models: Models, config: Config) -> None:
        student = _training_student(models, stage)
        if device.recompute:
            recompute_layers(student)
        _mark_top_layer(student, live)
        with ExitStack() as stack:
            if sharded:
                several = stage.batch_size > micro_batch
                stack.enter_context(_gathered(student, live, device.ranks.world, accumulated=several))
            if device.ranks.tensor > 1:
                stack.enter_context(in_parts(student, _OneOfGroup(device.ranks.tensor)))
            if stage.batch_size > micro_batch and not sharded:
                for parameter in student.parameters():  # of the micro-batches before
                    if parameter.requires_grad:
                        parameter.grad = torch.zeros_like(parameter)
                if device.hold_weights:
                    stack.enter_context(held_weights(student, dtype=device.dtype))
            objective = _objective(config, stage, models, stack)
            ids_bT = torch.zeros(micro_batch, config.data.sequence_length, dtype=torch.long)
            live.begin("forward")
            with device.autocast():
                loss = objective(ids_bT)["loss"]
            live.begin("backward of the top layer")
            loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation here

    return _over_depths(config, plan, device, run)


def step_once(config: Config, stage: Stage, plan: Blueprint, device: Device, *, micro_batch: int) -> None:
    """Compute real forward and backward passes of the full models with random weights, on the default device.

    Raises:
        torch.OutOfMemoryError: they do not fit.
    """
    teacher_layers = plan.dimensions.layers
    student_layers = config.stage1.keep_layers or teacher_layers
    shallow = _without_named_layers(config, student_layers)
    models = _models(shallow, plan, student_layers, teacher_layers, device)
    student = _training_student(models, stage)
    if device.recompute:
        recompute_layers(student)
    with ExitStack() as stack:
        objective = _objective(shallow, stage, models, stack)
        ids_bT = torch.zeros(micro_batch, config.data.sequence_length, dtype=torch.long)
        for _ in range(2 if stage.batch_size > micro_batch else 1):
            with device.autocast():
                loss = objective(ids_bT)["loss"]
            loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation here


def evaluation_peak(config: Config, plan: Blueprint, device: Device) -> int:
    """Return the peak bytes while the held-out loss is measured, weights of both models included.

    Not included are the shards of weights that FSDP leaves a process between two steps.
    """

    def run(live: LiveStorages, models: Models, config: Config) -> None:
        if device.ranks.parallel == "fsdp":  # embeddings, head and the last norm are whole
            _gather_for_forward(models.student, live)
        predict = NextTokenLoss(models.student.eval())
        ids_BT = torch.zeros(config.eval.batch_size, config.data.sequence_length, dtype=torch.long)
        live.begin("forward")
        with torch.no_grad(), device.autocast():
            predict.by_sequence(ids_BT)

    return _over_depths(config, plan, device, run)


def _over_depths(
    config: Config, plan: Blueprint, device: Device, run: Callable[[LiveStorages, Models, Config], None]
) -> int:
    """Return the peak at the run's depths, extrapolated from few layers."""
    teacher_layers = plan.dimensions.layers
    student_layers = config.stage1.keep_layers or teacher_layers

    def peaks(student: int, teacher: int) -> Mapping[Hashable, int]:
        shallow = _without_named_layers(config, student)
        with fake_tensors(device.torch_device) as live:
            models = _models(shallow, plan, student, teacher, device)
            live.leave_out(tensors_on_host(models.teacher))
            if device.teacher == "sharded":
                _gather_for_forward(models.teacher, live)
            run(live, models, shallow)
            return dict(live.peaks)

    if max(student_layers, teacher_layers) <= ONE_MORE:
        return max(peaks(student_layers, teacher_layers).values())
    if student_layers == teacher_layers:
        few, more = peaks(FEW, FEW), peaks(ONE_MORE, ONE_MORE)
        return max(
            few[each] + (student_layers - FEW) * (more[each] - few[each]) for each in few.keys() & more.keys()
        )
    shallow = min(student_layers, FEW)
    few, deeper, both = peaks(shallow, FEW), peaks(shallow, ONE_MORE), peaks(shallow + 1, ONE_MORE)
    return max(
        few[each]
        + (teacher_layers - FEW) * (deeper[each] - few[each])
        + (student_layers - shallow) * (both[each] - deeper[each])
        for each in few.keys() & deeper.keys() & both.keys()
    )


def _without_named_layers(config: Config, layers: int) -> Config:
    """Replace settings that name layers, which do not matter for memory, by some that fit any depth."""
    model = config.model
    if model.kind != "hf":
        model = model.with_layers(layers)
    return dataclasses.replace(
        config,
        model=model,
        stage1=dataclasses.replace(config.stage1, keep_layers=None),
        stage1_9=dataclasses.replace(config.stage1_9, layer_weights="uniform"),
        stage3=dataclasses.replace(config.stage3, attention_layer=-1),
    )


def _models(
    config: Config, plan: Blueprint, student_layers: int, teacher_layers: int, device: Device
) -> Models:
    teacher = freeze(plan.build(teacher_layers))
    if device.teacher == "host":
        keep_layers_on_host(teacher, device)
    student = cast_weights(plan.build(student_layers), config.model.master_dtype)
    lambda_ = Lambda()
    gains = {} if config.stage1.subln == "none" else dict.fromkeys(normalised_projections(student), 1.0)
    quantise(student, lambda_, config.quant, gains, blended=config.stage1.subln == "blended")
    if config.data.document_masks:
        for model in (teacher, student):
            separate_documents(model, 0)  # any token: memory does not depend on where documents end
    return Models(student=student, teacher=teacher, lambda_=lambda_)


class _OneOfGroup(TensorGroup):
    """A process of a tensor group, alone: collectives return what has the right shape."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size

    def all_sum(self, x: Tensor) -> Tensor:
        return x

    def all_max(self, x: Tensor) -> Tensor:
        return x

    def gathered(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat([torch.empty_like(x) for _ in range(self.size)], dim)

    def reduce_scattered(self, x: Tensor, dim: int) -> Tensor:
        parts = [part.contiguous() for part in x.chunk(self.size, dim)]
        return torch.empty_like(parts[0])


def _gather_for_forward(model: nn.Module, live: LiveStorages) -> list[Any]:
    """Count the model's decoder layers only as FSDP gathers them for a forward pass; return the layers.

    Two at a time: the layer that computes, and the buffer that the next one is gathered in.
    """
    layers: list[Any] = [*cast(Any, model).get_decoder().layers]
    size = 2 * max(map(_weight_bytes, layers))
    live.leave_out([parameter for layer in layers for parameter in layer.parameters()])

    def begin(*_: object) -> None:
        before.remove()  # recomputation calls it again
        live.hold(size)

    def end(*_: object) -> None:
        after.remove()
        live.hold(-size)

    before, after = layers[0].register_forward_pre_hook(begin), layers[-1].register_forward_hook(end)
    return layers


@contextmanager
def _gathered(student: nn.Module, live: LiveStorages, world: int, *, accumulated: bool) -> Iterator[None]:
    """Count student and gradients, during a step, as far as FSDP gathers or has not yet reduced them.

    Args:
        accumulated: whether there are shards of gradients already, of the micro-batches before.
    """
    layers = _gather_for_forward(student, live)
    largest, inside = max(map(_weight_bytes, layers)), sum(map(_weight_bytes, layers))
    ends = (
        _weight_bytes(student) - inside
    )  # embeddings, head and the last norm, which are gathered for a step
    in_layers = {parameter for layer in layers for parameter in layer.parameters()}
    live.leave_out([parameter for parameter in student.parameters() if parameter not in in_layers])
    live.hold(ends)

    def backward(_: object, __: object, output: Any) -> None:
        handle.remove()
        hidden = output[0] if isinstance(output, tuple) else output
        # The layer that computes, the next one's buffer, and the reduced gradients of the one before.
        hidden.register_hook(lambda _: live.hold(3 * largest))

    handle = layers[-1].register_forward_hook(backward)
    trained = [[each for each in layer.parameters() if each.requires_grad] for layer in layers]
    for parameters in trained:
        _reduce_when_complete(parameters, live, 0 if accumulated else world)
    if accumulated:
        live.hold(sum(each.nbytes for each in student.parameters() if each.requires_grad) // world)
    yield
    live.hold(ends)  # a copy of their gradients, to be reduced
    live.begin("reduction of the ends' gradients")


def _reduce_when_complete(parameters: Sequence[Tensor], live: LiveStorages, world: int) -> None:
    """Once all of a layer's gradients are there, leave a shard of them (world 0: it was there before)."""
    left = {id(parameter) for parameter in parameters}

    def arrived(parameter: Tensor) -> None:
        left.discard(id(parameter))
        if not left:
            for each in parameters:
                each.grad = None
            live.hold(sum(each.nbytes for each in parameters) // world if world else 0)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call] # torch has no annotation


def _weight_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _mark_top_layer(student: nn.Module, live: LiveStorages) -> None:
    """Begin a new phase when the last gradient of the top layer is there.

    The backward pass frees activations and makes gradients from the top down: before that moment activations
    peak, after it gradients.
    """
    left = set()

    def arrived(parameter: Tensor) -> None:
        left.discard(id(parameter))
        if not left:
            live.begin("backward of the others")

    layer = student.get_decoder().layers[-1]  # type: ignore[operator]
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    # The gradient of the input norm is the last; where the norm is frozen, that of any adapter may be.
    for parameter in [each for each in trained if each.ndim == 1] or trained:
        left.add(id(parameter))
        parameter.register_post_accumulate_grad_hook(arrived)


def _training_student(models: Models, stage: Stage) -> nn.Module:
    """Return the student in training mode, with adapters where the stage trains those."""
    if isinstance(stage, RecoveryConfig):
        add_adapters(models.student, adapters_for(models.student, stage), seed=0)
    return models.student.train()


def _objective(config: Config, stage: Stage, models: Models, stack: ExitStack) -> Objective:
    student, teacher = models.student, models.teacher
    if isinstance(stage, Stage19Config):
        return layerwise.alignment(student, teacher, SharedScalar(1.0), config.stage1_9)
    if isinstance(stage, Stage2Config | RecoveryConfig):
        return pretrain.distillation(student, teacher, stage.distill)
    if stage.teacher.kind == "cached":
        return from_cache(student, _fake_targets(config, stage.teacher), config.stage3, stage.teacher)
    if stage.teacher.kind == "http":  # a remote teacher's candidates are small
        return cross_entropy(student)
    return distill.from_teacher(student, teacher, config.stage3, stack)


def _fake_targets(config: Config, teacher: CachedTeacherConfig) -> Callable[[int], Targets]:
    """Return a cache of so many sequences, whose candidates are all the first token."""
    positions, candidates = config.data.sequence_length - 1, teacher.top_k + teacher.negatives

    def sample(rows: int) -> Sample:
        shape = rows, positions, candidates
        logits = torch.zeros(shape, dtype=DTYPES[teacher.dtype])
        return Sample(ids=torch.zeros(shape, dtype=torch.int32), logits=logits)

    def targets(rows: int) -> Targets:
        return Targets(teacher=sample(rows), anchor=sample(rows) if teacher.anchored else None)

    return targets


_DEVICE = torch.ops.prim.device.default


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no annotations here
    """Count of storages, from the operation that makes them until nothing refers to them.

    Attributes:
        now: bytes alive.
        peaks: most bytes alive in each phase, by its name; and when each of its operations made a storage, by
            phase, operation and size.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._device = device
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now, self.peaks, self._phase = 0, dict[Hashable, int](), "begin"

    def begin(self, phase: str) -> None:
        """Count for this phase from now on; it may be begun more than once."""
        self._phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.now)

    def hold(self, size: int) -> None:
        """Count so many bytes more, or less, from now on."""
        self.now += size
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.now)

    def leave_out(self, tensors: Sequence[Tensor]) -> None:
        """Count these tensors no more, and no peak until now."""
        for tensor in tensors:
            storage: Any = tensor.untyped_storage()
            self._alive[id(storage)] = weakref.ref(storage, partial(self._remove, id(storage), 0))
            self.now -= storage.nbytes()
        if tensors:
            self.peaks.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE:  # called several times per operation; all tensors are on one device
            return self._device
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if not isinstance(leaf, torch.Tensor):
                continue
            storage: Any = leaf.untyped_storage()
            if id(storage) in self._alive:  # a view, or written in place
                continue
            size = storage.nbytes()
            self._alive[id(storage)] = weakref.ref(storage, partial(self._remove, id(storage), size))
            self.now += size
            for moment in (self._phase, (self._phase, func, size)):
                self.peaks[moment] = max(self.peaks.get(moment, 0), self.now)
        return result

    def _remove(self, key: int, size: int, reference: object) -> None:
        del self._alive[key]
        self.now -= size


@contextmanager
def fake_tensors(device: torch.device) -> Iterator[LiveStorages]:
    """Run the block on fake tensors, by default on `device`, and yield the count of their storages."""
    live = LiveStorages(device)
    with FakeTensorMode(allow_non_fake_inputs=True), live, device:
        yield live
