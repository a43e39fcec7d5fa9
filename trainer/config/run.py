"""Configuration of a full run: model, text, stages, device and telemetry."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from sweeps.text.counted import counted
from trainer.config.data import DataConfig
from trainer.config.distill import TEACHER_ACCESS, Stage3Config, check_attention_heads, check_attention_layer
from trainer.config.evaluation import HooksConfig, SamplesConfig
from trainer.config.fields import STRICT, AboveZero, Checked, Count, FieldError, NonNegative, Positive, Text
from trainer.config.losses import check_layer_weights
from trainer.config.model import HfModelConfig, ScaleRuleConfig, TrainedHereConfig
from trainer.config.quant import QuantConfig
from trainer.config.stages import RecoveryConfig, Stage1Config, Stage2Config, Stage19Config
from trainer.config.telemetry import MemoryLogConfig, TelemetryConfig, WandbConfig
from trainer.config.training import AutoFreezeConfig, AverageConfig, CheckpointConfig, SnapshotsConfig

_TELEMETRY = ("wandb", "telemetry", "memory_log", "log_every")
_AFTERWARDS = ("samples", "hooks")  # of the finished student
INDECISIVE = (
    *("run_dir", "save_model", "checkpoint", "snapshots", "force", "overwrite"),
    *_AFTERWARDS,
    *_TELEMETRY,
)
TRUNK_EVERY = "trunk_every"
# Which processes or chips compute a run, and which of them hold what: it changes rounding at most.
PLACEMENT = ("parallel", "mesh", "num_chips", "hold_weights", "teacher")
_NO_PART_OF_TRAINING = ("at", "every_steps", "part_batches", "test")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MeshConfig:
    """Dimensions of the mesh of processes, or of a TPU's chips, that share a run with `device.parallel=fsdp`.

    Args:
        data: number of tensor groups, which share out each batch; null: as many as there are.
        tensor: successive processes or chips that have the same part of a batch, and each compute some heads,
            some of the MLPs' features, and some of the tokens and of the vocabulary elsewhere. Divides the
            heads, the key heads, and the tokens of a sequence. Changes rounding only.
    """

    data: Positive | None
    tensor: Positive

    def check_sizes(self, sizes: Mapping[str, int]) -> Iterator[FieldError]:
        """Yield a FieldError for the sizes of a model, by what they count, that cannot be split."""
        for what, size in sizes.items():
            if size % self.tensor:
                yield FieldError(
                    f"{size} {what} cannot be shared out evenly among {self.tensor}; write a divisor",
                    key="mesh.tensor",
                )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeviceConfig:
    """Device of the run, and how it computes.

    Args:
        type: `auto` takes a TPU if PJRT_DEVICE=TPU is set, else CUDA if there is one. `xla` computes through
            torch_xla on the device of PJRT_DEVICE: a TPU, or XLA's own CPU device.
        threads: CPU threads of one process.
        dtype: of matrix products; master weights have their own (`model.master_dtype`). `auto` is float32 on
            every CPU, so that a result does not depend on which one it is, and elsewhere bfloat16 where the
            device has instructions for it. `fastest` is bfloat16 on CPUs, too, whose instructions for it
            are quick, and else as `auto`. `float32` is refused for weights in bfloat16, the teacher's too,
            whose products cannot be.
        compile: torch.compile the training steps: each as one graph, or (`layers`) the decoder layers of
            student and teacher, whose one small graph is compiled many times sooner and does not depend on
            their number or on a stage's weights and temperatures. `auto`: the layers, on CUDA devices alone,
            as compiling takes a CPU longer than it saves in a short run. Where it fails, training goes on
            without it.
        recompute: activation checkpointing of each layer: less memory for about a third more time. Changes
            no loss.
        hold_weights: keep the quantised weights of all layers over the micro-batches of a step, in the dtype
            of the products. false: each layer quantises its own in every pass, for less memory. Changes no
            loss.
        teacher: where the frozen teacher's decoder layers are: on the `device`; in memory of the `host`, from
            where each is copied to the device while the one before it computes; or, with `parallel=fsdp`,
            `sharded` over all processes, from which each is gathered when it computes. Changes no loss.
        parallel: how the processes that torchrun started share one run: `ddp` (each has the full model and
            optimizer) or `fsdp` (each has a shard of them). Changes rounding only. `none` is for one process.
            The chips of a TPU are in one process and share each batch anyway; with `fsdp` student, optimizer
            and teacher are sharded over them, and `ddp` is refused.
        mesh: how those processes or chips divide the work, with `parallel=fsdp`. Changes rounding only.
        num_chips: chips of the host's TPU that share each batch, with `type=xla`. Changes rounding only.
            null: all that there are.
        auto_micro_batch: give each stage whose `micro_batch_size` is null the largest that fits into memory
            (or into `memory_target_gib`), and remember it. Changes rounding only.
        memory_target_gib: memory limit of each chip, in GiB; a run with a larger estimate is refused. null:
            what is free when it starts.
        usd_per_hour: price of each machine that shares the run; null: from the table in `trainer.cost.flops`.
        pricing: which price of the table: on demand, or of a spot machine, which may be preempted. No effect
            with `usd_per_hour`; `usd` is null where the table has no such price.
    """

    type: Literal["auto", "cpu", "cuda", "xla"]
    threads: Annotated[int, Field(ge=1, le=1024)]
    dtype: Literal["auto", "fastest", "float32", "bfloat16"]
    compile: bool | Literal["auto", "layers"]
    recompute: bool
    hold_weights: bool
    teacher: Literal["device", "host", "sharded"]
    parallel: Literal["none", "ddp", "fsdp"]
    mesh: MeshConfig
    num_chips: Positive | None
    auto_micro_batch: bool
    memory_target_gib: AboveZero | None
    usd_per_hour: NonNegative | None
    pricing: Literal["on_demand", "spot"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvalConfig(Checked):
    """Held-out text that losses are measured on, and when they are measured within a stage.

    Args:
        batches: of the final loss; at least two, as one has no standard error.
        batch_size: sequences of a batch.
        at: shares of a stage's steps, above 0 and at most 1, after which the loss is measured.
        every_steps: measure it after every so many steps of a stage, too; 0: at those shares alone.
        part_batches: of the batches, so many are measured within a stage: the first.
        test: measure the finished student on as much of the test text too. Changes no training.
    """

    batches: Annotated[int, Field(ge=2)]
    batch_size: Positive
    at: tuple[Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)], ...]
    every_steps: Count
    part_batches: Positive
    test: bool

    def contradictions(self) -> Iterator[FieldError]:
        if self.part_batches > self.batches:
            yield FieldError(
                f"there are only eval.batches={self.batches}; write that at most", key="part_batches"
            )
        if self.part_batches * self.batch_size < 2:
            yield FieldError("one sequence is too few to measure a loss on; write 2", key="part_batches")

    def measures_after(self, step: int, of: int) -> bool:
        """Return whether the held-out loss is measured after the one-based `step` of a stage of so many."""
        regular = self.every_steps > 0 and step % self.every_steps == 0
        return regular or any(step == max(1, round(share * of)) for share in self.at)

    def measures_within(self, steps: int) -> bool:
        """Return whether it is measured after any step of a stage of `steps` steps."""
        return steps > 0 and (len(self.at) > 0 or 0 < self.every_steps <= steps)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config(Checked):
    """One run of the trainer.

    Args:
        seed: of the student's new parameters and of the order of the text.
        run_dir: folder of its files; needed to run, not to check.
        save_model: keep the student in `run_dir`, for `python -m trainer.export`.
        log_every: optimizer steps between two lines of `metrics.jsonl`, after the first of a stage.
        force: train even if the preflight check refuses; the result records its reasons.
        overwrite: begin anew in a folder that holds a finished run, which is lost.
    """

    model: Annotated[TrainedHereConfig | HfModelConfig, Field(discriminator="kind")]
    data: DataConfig
    quant: QuantConfig
    stage1: Stage1Config
    stage1_9: Stage19Config
    stage2: Stage2Config
    stage3: Stage3Config
    recovery: RecoveryConfig
    average: AverageConfig
    scale_rule: ScaleRuleConfig
    device: DeviceConfig
    eval: EvalConfig
    samples: SamplesConfig
    hooks: HooksConfig
    checkpoint: CheckpointConfig
    snapshots: SnapshotsConfig
    auto_freeze: AutoFreezeConfig
    telemetry: TelemetryConfig
    memory_log: MemoryLogConfig
    wandb: WandbConfig
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    run_dir: Text | None
    save_model: bool
    log_every: Positive
    force: bool
    overwrite: bool

    def contradictions(self) -> Iterator[FieldError]:
        if self.model.kind != "hf":  # the layers of other models are unknown until they are loaded
            yield from self.check_depth(self.model.layers)
            width, heads = self.model.hidden_size, self.model.heads
            yield from check_attention_heads(self.stage3, widths=(width, width, width), key_heads=heads)
        yield from self._check_quant()
        if self.model.master_dtype == "bfloat16" and self.device.dtype == "float32":
            yield FieldError(
                "products of bfloat16 weights are bfloat16; write model.master_dtype=float32 or "
                "device.dtype=bfloat16",
                key="device.dtype",
            )
        if self.hooks.names and (self.device.parallel == "fsdp" or self.device.type == "xla"):
            yield FieldError(
                "hooks call the student in one process, on a CPU or a CUDA device; write hooks.names=[] and "
                "save_model=true, and evaluate what `python -m trainer.export` makes",
                key="hooks.names",
            )
        if self.data.document_masks and self.stage3.max_steps and self.stage3.teacher.kind == "http":
            yield FieldError(
                "a teacher over HTTP reads each window as one text; write false, or "
                "stage3/teacher=in_process",
                key="data.document_masks",
            )
        if self.device.num_chips is not None and self.device.type in ("cpu", "cuda"):
            yield FieldError(
                f"the chips of a TPU are meant, not of device={self.device.type}; write null",
                key="device.num_chips",
            )
        if self.device.num_chips == 1 and self.device.parallel == "fsdp":
            yield FieldError(
                "fsdp shares the weights among chips, and one is asked for; write none", key="device.parallel"
            )
        yield from self._check_rates()
        yield from self._check_parallel()
        yield from self._check_teacher()
        for error in self.average.check(self._steps):
            yield FieldError(error.problem, key=f"average.{error.key}")
        if self.auto_freeze.enabled:
            if self.device.parallel != "none" and self.device.type != "xla":
                yield FieldError(
                    "processes that share a run exchange the gradients of what was trained when a stage "
                    "began; write false, or device.parallel=none",
                    key="auto_freeze.enabled",
                )
            for error in self.auto_freeze.check(max(self._steps.values())):
                yield FieldError(error.problem, key=f"auto_freeze.{error.key}")
        yield from self._check_recovery()
        if self.memory_log.level == "hlo" and self.device.type in ("cpu", "cuda"):
            yield FieldError("only XLA has HLO graphs; write metrics", key="memory_log.level")

    def _check_rates(self) -> Iterator[FieldError]:
        stages = {name: getattr(self, name) for name in (*self._steps, "recovery")}
        if self.model.kind != "hf":
            stages["model.teacher"] = self.model.teacher
        for name, stage in stages.items():
            if not stage.max_steps:
                continue
            lr = stage.carried_lr(self.data.sequence_length)
            if not 0 < lr < math.inf:
                yield FieldError(
                    f"carried to the stage's tokens and batch it is {lr}; write other bases or exponents",
                    key=f"{name}.optimizer.lr",
                )

    def _check_teacher(self) -> Iterator[FieldError]:
        if self.device.teacher == "host" and (self.device.type == "xla" or self.device.compile is True):
            what = "a TPU's graph" if self.device.type == "xla" else "a step that is one graph"
            yield FieldError(
                f"{what} reads no weights of the host; write device"
                + (", or device.compile=layers" if self.device.type != "xla" else ""),
                key="device.teacher",
            )
        if self.device.teacher == "sharded" and (self.device.parallel != "fsdp" or self.device.type == "xla"):
            instead = (
                "the chips of a TPU share the teacher with fsdp in any case; write device"
                if self.device.type == "xla"
                else "processes share the teacher as they do the student; write device or host, or "
                "device.parallel=fsdp"
            )
            yield FieldError(instead, key="device.teacher")

    def _check_quant(self) -> Iterator[FieldError]:
        warmup = self.stage2.lambda_warmup
        if self.quant.activations == "none" and warmup.enabled and not warmup.weights:
            yield FieldError(
                "with quant.activations=none there is nothing else to warm up; "
                "write stage2.lambda_warmup.enabled=false",
                key="stage2.lambda_warmup.weights",
            )
        if self.model.kind == "hf":
            return
        tiny = self.model.kind == "tiny"
        widths = {
            f"q_proj (model.{'hidden_size' if tiny else 'width'})": self.model.hidden_size,
            f"down_proj (model.{'intermediate_size' if tiny else 'width'})": self.model.intermediate_size,
        }
        for error in chain(*(self.quant.check_group(layer, inputs) for layer, inputs in widths.items())):
            yield FieldError(error.problem, key=f"quant.{error.key}")

    def _check_parallel(self) -> Iterator[FieldError]:
        """Refuse what several processes cannot do. On XLA there is one; `auto` may resolve to either."""
        mesh = self.device.mesh
        if (mesh.tensor > 1 or mesh.data is not None) and self.device.parallel != "fsdp":
            yield FieldError(
                "a mesh is of processes or chips that share the weights; write device.parallel=fsdp, or "
                "device.mesh={data: null, tensor: 1}",
                key="device.mesh",
            )
        if mesh.tensor > 1:
            yield from self._check_tensor_parallel()
        if self.device.parallel == "none" or self.device.type == "xla":
            if self.checkpoint.format == "sharded":
                yield FieldError("one process writes whole checkpoints; write auto", key="checkpoint.format")
            return
        if self.stage3.max_steps and self.stage3.teacher.kind == "http":
            yield FieldError(
                "a teacher over HTTP can be asked by one process only; write device.parallel=none or "
                "stage3/teacher=in_process",
                key="stage3.teacher",
            )
        if self.device.compile is True:
            yield FieldError(
                "processes that share a run compile no step as one graph; write device.compile=layers",
                key="device.compile",
            )
        if self.device.parallel == "ddp":
            return
        for name, stage in (("stage1_9", self.stage1_9), ("stage2", self.stage2), ("stage3", self.stage3)):
            if stage.max_steps and stage.optimizer.type == "adamw_8bit":
                yield FieldError(
                    "adamw_8bit cannot train parameters that are in parts; write adamw, or "
                    "device.parallel=ddp",
                    key=f"{name}.optimizer.type",
                )

    def _check_tensor_parallel(self) -> Iterator[FieldError]:
        sizes = {"tokens of a sequence": self.data.sequence_length}
        if self.model.kind != "hf":  # of other models `models.tensor_parallel` knows
            sizes |= {"heads": self.model.heads, "features of an MLP": self.model.intermediate_size}
        for error in self.device.mesh.check_sizes(sizes):
            yield FieldError(error.problem, key=f"device.{error.key}")
        if self.stage2.max_steps and self.stage2.fp8:
            yield FieldError(
                "8-bit products have a scale for each whole row; write false, or device.mesh.tensor=1",
                key="stage2.fp8",
            )

    def _check_recovery(self) -> Iterator[FieldError]:
        if not self.recovery.max_steps:
            return
        if self.averaged_stage is not None:
            yield FieldError(
                "adapters are trained on the weights of the last step, and not on an average; write none, or "
                "recovery.max_steps=0",
                key="average.type",
            )
        if self.device.parallel == "fsdp":
            yield FieldError(
                "adapters cannot be added to weights that are in parts; write ddp, none, or "
                "recovery.max_steps=0",
                key="device.parallel",
            )
        if self.scale_rule.type != "none":
            yield FieldError(
                "it has no rates for adapters, whose rank does not grow with the model; write none, or "
                "recovery.max_steps=0",
                key="scale_rule.type",
            )

    @property
    def _steps(self) -> dict[str, int]:
        return {name: getattr(self, name).max_steps for name in ("stage1_9", "stage2", "stage3")}

    @property
    def averaged_stage(self) -> str | None:
        """Return the stage whose weights are averaged; None: there is none."""
        return self.average.stage(self._steps)

    def check_depth(self, layers: int) -> Iterator[FieldError]:
        """Yield a FieldError if what the stages say of layers does not fit a teacher of so many layers."""
        kept = self.stage1.keep_layers
        if kept is not None and kept > layers:
            yield FieldError(
                f"the teacher has only {counted(layers, 'layer')}; write that at most, or null for all",
                key="stage1.keep_layers",
            )
            return
        yield from check_layer_weights(self.stage1_9.layer_weights, kept or layers)
        yield from check_attention_layer(self.stage3, kept or layers)


def decisive(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that can change the result; a resumed run must agree in all of it.

    Left out are the run's folder, checkpoints, snapshots and telemetry, with it the losses that are measured
    within a stage and on the test text, the number of processes or chips that share the run, how a remote
    teacher is reached, and the settings of recovery, of an average and of a rule of scale that are off.
    """
    off = {
        "recovery": not document["recovery"]["max_steps"],
        "average": document["average"]["type"] == "none",
        "scale_rule": document["scale_rule"]["type"] == "none",
    }
    kept = {key: value for key, value in document.items() if key not in INDECISIVE and not off.get(key)}
    device = {key: value for key, value in kept["device"].items() if key not in PLACEMENT}
    evaluation = {key: value for key, value in kept["eval"].items() if key not in _NO_PART_OF_TRAINING}
    trunks = {
        stage: {key: value for key, value in kept[stage].items() if key != TRUNK_EVERY}
        for stage in ("stage1_9", "stage2")
    }
    stage3 = kept["stage3"]
    teacher = {key: value for key, value in stage3["teacher"].items() if key not in TEACHER_ACCESS}
    return kept | trunks | {"device": device, "eval": evaluation, "stage3": {**stage3, "teacher": teacher}}


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each leaf of a tree of mappings."""
    if isinstance(node, Mapping) and node:
        for key, child in node.items():
            yield from leaves(child, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def is_below(key: str, groups: Collection[str]) -> bool:
    """Return whether a dotted key is one of these, or below one of them."""
    parts = key.split(".")
    return any(".".join(parts[:depth]) in groups for depth in range(1, len(parts) + 1))


def sha256(config: Config) -> str:
    """Return the digest of the decisive part."""
    document = decisive(asdict(config))  # pydantic dataclasses are dataclasses
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def runs_teacher(stage: Stage19Config | Stage2Config | Stage3Config | RecoveryConfig) -> bool:
    """Return whether each step of a stage runs the teacher's forward pass in this process."""
    if isinstance(stage, Stage3Config):
        return stage.teacher.kind == "in_process"
    return isinstance(stage, Stage19Config) or stage.distill.enabled


def step_weights(config: Config) -> dict[str, int]:
    """Return the effective steps that one step of each stage counts for, in the order of the stages.

    They are the research notebook's measure of compute: a forward pass of the teacher makes a step count
    twice.
    """
    alone, taught = 1, 2
    # A cache's predictions were made before the run, and for many runs; a server's are made for this one.
    cached = config.stage3.teacher.kind == "cached"
    return {
        "stage1_9": taught,
        "stage2": taught if config.stage2.distill.enabled else alone,
        "stage3": alone if cached else taught,
        "recovery": taught if config.recovery.distill.enabled else alone,
    }
