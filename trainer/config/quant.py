"""Configuration of quantisation: ternary weights, 8-bit activations. Read by `trainer.quant`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Checked, Count, Decay, FieldError, Fraction, Positive, Text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuantConfig:
    """Quantisation at lambda = 1: the form in which weights and activations are deployed.

    Args:
        weight_scale: of ternary weights: `absmean`, the mean of |w| (BitNet b1.58, arXiv:2402.17764 eq. 3);
            `absmedian`, its median, which outliers do not move (arXiv:2407.09527).
        group_size: weights of one row that share a scale, counted along the inputs; null: one scale for the
            whole matrix. It must divide the inputs of every layer.
        activations: `int8`, per token by its largest magnitude; `none`: not quantised.
    """

    weight_scale: Literal["absmean", "absmedian"]
    group_size: Positive | None
    activations: Literal["int8", "none"]

    def check_group(self, layer: str, inputs: int) -> Iterator[FieldError]:
        """Yield a FieldError if the layer's inputs cannot be divided into groups."""
        if self.group_size and inputs % self.group_size:
            yield FieldError(
                f"{self.group_size} does not divide the {inputs} inputs of {layer}; "
                "take a divisor of them, or null for one scale per matrix",
                key="group_size",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SaliencyConfig(Checked):
    """The share of weight columns kept in full precision, annealed from `initial_k` to `final_k`.

    Args:
        enabled: keep any of them.
        initial_k: share of the columns in the first steps.
        final_k: share in the last step, at most `initial_k`.
        schedule_type: of the way between the two.
        warmup_steps: the first steps, in which k stays at `initial_k`.
        ema_decay: of the columns' L-infinity norms.
        update_interval: optimizer steps between two measurements of the norms.
    """

    enabled: bool
    initial_k: Fraction
    final_k: Fraction
    schedule_type: Literal["linear", "cosine"]
    warmup_steps: Count
    ema_decay: Decay
    update_interval: Positive

    def contradictions(self) -> Iterator[FieldError]:
        if self.final_k > self.initial_k:
            yield FieldError(
                f"{self.final_k} is above initial_k ({self.initial_k}); write that or less", key="final_k"
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Fp8Config:
    """Products of Stage 2 in 8-bit floating point, where `fp8` is true: which, and how they are summed.

    Args:
        products: `backward`: those of the gradients, which leaves the forward pass as it is evaluated;
            `all`: that of the forward pass too, whose 8-bit integer activations are then rounded again.
        accumulator: `fast`: the tensor cores' own; `float32`: partial sums are moved to float32. The
            gradient of the weights, a sum over all tokens, is always summed in float32.
        min_size: layers with fewer inputs or outputs keep the device's products: small ones gain nothing.
        exclude: patterns of the names of layers that keep them, too.
    """

    products: Literal["backward", "all"]
    accumulator: Literal["fast", "float32"]
    min_size: Count
    exclude: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LambdaWarmupConfig(Checked):
    """Lambda in Stage 2: `start` → 1 over `warmup_steps`, then 1; always 1 where it is not `enabled`.

    Args:
        enabled: warm up at all.
        start: lambda of the first step: 0 is full precision, though Stage 1.9 trains at 1; 1 is no warmup.
        warmup_steps: steps until lambda is 1, fewer than the stage has.
        schedule: of the way to 1.
        weights, activations: which of them warm up; the other is fully quantised from the start.
    """

    enabled: bool
    start: Fraction
    warmup_steps: Count
    schedule: Literal["linear", "cosine"]
    weights: bool
    activations: bool

    def contradictions(self) -> Iterator[FieldError]:
        if self.enabled and not (self.weights or self.activations):
            yield FieldError(
                "neither weights nor activations are to warm up; write stage2.lambda_warmup.enabled=false",
                key="weights",
            )
