"""Configuration of the stages. Read by `trainer.stages`.

In every stage `batch_size` is the number of sequences per optimizer step, and `micro_batch_size` how many of
them are computed at once (null: all); it divides `batch_size` and changes memory and rounding only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic.dataclasses import dataclass

from trainer.config.fields import (
    STRICT,
    AboveZero,
    FieldError,
    Fraction,
    Positive,
    TrunkPoints,
)
from trainer.config.losses import DistillScheduleConfig, LayerWeights, LossType, Stage2DistillConfig
from trainer.config.optimizer import StepsConfig
from trainer.config.quant import Fp8Config, LambdaWarmupConfig, SaliencyConfig


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage1Config:
    """Stage 1, which trains nothing.

    Args:
        subln: of the new SubLN layers. `calibrated`: the gain is the root mean square of the layer's input in
            the teacher, which keeps the network's scales. `blended`: the same gain, and lambda blends the
            normalisation in, so that nothing changes before quantisation. `ones`: the gain is 1. `none`:
            there are no SubLN layers.
        calibration_batches: training batches over which the gain is measured.
        keep_layers: layers of the student, copied from layers spread evenly over the teacher, the first and
            the last among them; null: all.
    """

    subln: Literal["calibrated", "blended", "ones", "none"]
    calibration_batches: Positive
    keep_layers: Positive | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage19Config(StepsConfig):
    """Stage 1.9: (1-a)·w·distillation + a·(CE + KL)/2.

    Args:
        loss_type: the distance between hidden states (see `trainer.losses.hidden_distances`).
        layer_weights: how much each layer's distance counts: `progressive` (1, 2, …, L), `uniform`,
            `exponential` (2, 4, …, 2^L) or a number for each of the student's layers; scaled to sum to 1.
        lm_loss_weight: a, the weight of the losses of predictions; at 1 the hidden states play no part.
        distill_schedule: w over the stage.
        trunk_every: steps between the points at which the run leaves its state for runs of other lengths,
            or a list of these points, with one more where the learning rate begins to fall; 0: none.
    """

    loss_type: LossType
    layer_weights: LayerWeights
    lm_loss_weight: Fraction
    distill_schedule: DistillScheduleConfig
    saliency: SaliencyConfig
    trunk_every: TrunkPoints

    def contradictions(self) -> Iterator[FieldError]:
        yield from super().contradictions()
        if self.lm_loss_weight == 0 and self.distill_schedule.never_positive:
            yield FieldError(
                "with lm_loss_weight=0 and a distillation that weighs nothing, nothing is trained; "
                "write max_steps=0",
                key="distill_schedule.initial",
            )
        if self.saliency.enabled and 0 < self.max_steps - 1 <= self.saliency.warmup_steps:
            yield FieldError(
                f"{self.saliency.warmup_steps} leaves none of the stage's {self.max_steps} steps "
                f"to anneal k in; write {self.max_steps - 2} or fewer, or "
                f"max_steps={self.saliency.warmup_steps + 2} or more",
                key="saliency.warmup_steps",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stage2Config(StepsConfig):
    """Stage 2: continued pre-training.

    Args:
        fp8: compute the ternary layers' matrix products in 8-bit floating point while training.
        fp8_recipe: which of them, where `fp8` is true.
        trunk_every: steps between the points at which the run leaves its state for runs of other lengths,
            or a list of these points, with one more where the learning rate begins to fall; 0: none.
    """

    fp8: bool
    fp8_recipe: Fp8Config
    lambda_warmup: LambdaWarmupConfig
    distill: Stage2DistillConfig
    trunk_every: TrunkPoints

    def contradictions(self) -> Iterator[FieldError]:
        yield from super().contradictions()
        warmup, steps = self.lambda_warmup.warmup_steps, self.max_steps
        # Lambda is 1 from step `warmup` on, counted from 0.
        if self.lambda_warmup.enabled and 0 < steps <= warmup:
            yield FieldError(
                f"{warmup} must be below the stage's max_steps ({steps}), or no step is trained at lambda 1; "
                f"write {steps - 1} or fewer, or max_steps={warmup + 1} or more",
                key="lambda_warmup.warmup_steps",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RecoveryConfig(StepsConfig):
    """Recovery: low-rank adapters (LoRA, arXiv:2106.09685) on the frozen ternary student, after all stages.

    Args:
        max_steps: optimizer steps; 0 skips the stage, and the student gets no adapters.
        rank: r, of the product B·A that is added to what a ternary matrix computes.
        alpha: B·A counts alpha / rank times.
        targets: which ternary matrices get adapters: those of the attention, of the MLP, or all.
    """

    rank: Positive
    alpha: AboveZero
    targets: Literal["all", "attention", "mlp"]
    distill: Stage2DistillConfig

    def contradictions(self) -> Iterator[FieldError]:
        yield from super().contradictions()
        if self.max_steps and self.optimizer.type == "muonclip":
            yield FieldError(
                "muonclip scales queries and keys, which are frozen here; write muon", key="optimizer.type"
            )
        if self.max_steps and self.optimizer.stochastic_rounding:
            yield FieldError(
                "adapters are float32, and only bfloat16 is rounded; write false",
                key="optimizer.stochastic_rounding",
            )
