"""Configuration of optimizers and learning rates. Read by `trainer.optim` and `trainer.training`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, Self

from pydantic.dataclasses import dataclass

from trainer.config.fields import (
    STRICT,
    AboveZero,
    Checked,
    Count,
    Decay,
    Exponent,
    FieldError,
    Fraction,
    NonNegative,
    Positive,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MuonConfig:
    """Fields of `type=muon` and `type=muonclip` alone (see `trainer.optim.muon`).

    Args:
        dtype: of the products that orthogonalise an update, which turn the rounding of bfloat16 into
            differences of about 1e-4 in the losses. `auto` is float32 on every CPU, and elsewhere bfloat16
            where the device has instructions for it: it never asks which CPU it is.
    """

    dtype: Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MuonClipConfig:
    """Fields of `type=muonclip` alone (see `trainer.optim.qk_clip`).

    Args:
        tau: the largest attention logit; a head that went above it has its queries and keys scaled down.
    """

    tau: AboveZero


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ApolloConfig:
    """Fields of `type=apollo` alone (see `trainer.optim.apollo`).

    Args:
        rank: of the random projection in which the moments are kept, at most a matrix's smaller side.
        update_interval: steps between two projections.
        scale: alpha, the factor on every update; null takes √(smaller side / rank) of each matrix, with
            which `lr` means what it means to AdamW.
    """

    rank: Positive
    update_interval: Positive
    scale: AboveZero | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ApolloMiniConfig:
    """Fields of `type=apollo_mini` alone; the rank is 1.

    Args:
        update_interval: steps between two projections.
        scale: factor on every update; null takes √(smaller side) of each matrix.
    """

    update_interval: Positive
    scale: AboveZero | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimizerConfig(Checked):
    """Optimizer of one stage. Learning rates mean the same for all types (see `trainer.optim.build`).

    Args:
        type: `muon`, `muonclip`, `apollo`, `apollo_mini`: that one for the hidden matrices and AdamW for the
            rest; `adamw`: AdamW for everything; `adamw_8bit`: the same with its state in 8 bits.
        lr: peak learning rate.
        base_tokens: tokens of the stage (steps x batch x length) at which `lr` was found; with others it is
            multiplied by (tokens / base_tokens)^tokens_exponent. null: `lr` holds for any number.
        base_batch_tokens: tokens of an optimizer step at which it was found, likewise with batch_exponent.
        tokens_exponent: -0.32 is what was measured for AdamW (arXiv:2409.19913) and for Muon
            (arXiv:2603.28743, §3.4), with weight decay and batch kept.
        batch_exponent: 0.5 is the square root rule for Adam (arXiv:2205.10287), and what minimises a bound of
            sign descent and Muon at a fixed momentum and number of tokens (arXiv:2603.15958).
        weight_decay: decoupled, times the learning rate; matrices only.
        weight_decay_until: share of the stage's steps that have it, from the first on; 1: all. BitNet b1.58
            2B4T (arXiv:2504.12285, §2.2.1) is trained with it first and without it in its second part.
        momentum: of Muon and MuonClip; the others have none.
        adamw_lr_ratio: learning rate of what is no hidden matrix (embeddings, head, norms), over `lr`.
        beta1, beta2: decays of the first and second moments, of AdamW and of Apollo.
        max_grad_norm: gradients are scaled down to this norm; 0 switches clipping off.
        stochastic_rounding: compute updates of bfloat16 weights in float32, with float32 moments, and round
            the weights up or down by chance (see `trainer.optim.stochastic_rounding`).
        muon: what `muon` and `muonclip` read.
        muonclip, apollo, apollo_mini: what only the type of that name reads.
    """

    type: Literal["muon", "muonclip", "adamw", "adamw_8bit", "apollo", "apollo_mini"]
    lr: AboveZero
    base_tokens: AboveZero | None
    base_batch_tokens: AboveZero | None
    tokens_exponent: Exponent
    batch_exponent: Exponent
    weight_decay: NonNegative
    weight_decay_until: Fraction
    momentum: Decay
    adamw_lr_ratio: AboveZero
    beta1: Decay
    beta2: Decay
    max_grad_norm: NonNegative
    stochastic_rounding: bool
    muon: MuonConfig
    muonclip: MuonClipConfig
    apollo: ApolloConfig
    apollo_mini: ApolloMiniConfig

    def contradictions(self) -> Iterator[FieldError]:
        if self.stochastic_rounding and self.type == "adamw_8bit":
            yield FieldError(
                "bitsandbytes' kernels round to the nearest; write type=adamw, or false",
                key="stochastic_rounding",
            )

    def lr_at(self, tokens: int, batch_tokens: int) -> float:
        """Return the peak learning rate in a stage of so many tokens, with so many an optimizer step."""
        lr = self.lr
        if self.base_tokens is not None:
            lr *= (tokens / self.base_tokens) ** self.tokens_exponent
        if self.base_batch_tokens is not None:
            lr *= (batch_tokens / self.base_batch_tokens) ** self.batch_exponent
        return lr

    @property
    def weight_decay_ends(self) -> bool:
        """Return whether there is a weight decay that ends within the stage."""
        return self.weight_decay > 0 and self.weight_decay_until < 1

    def weight_decay_at(self, step: int, steps: int) -> float:
        """Return the weight decay in the zero-based `step` of a stage of `steps`."""
        return self.weight_decay if step < round(self.weight_decay_until * steps) else 0.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ScheduleConfig:
    """Warmup-stable-decay schedule of the learning rate.

    Args:
        warmup_steps: linear warmup.
        decay_fraction: last share of the stage's steps, over which the rate decays linearly.
        final_lr_ratio: last learning rate, over the peak.
    """

    warmup_steps: Count
    decay_fraction: Fraction
    final_lr_ratio: Fraction

    def decay_start(self, steps: int) -> int:
        """Return the number of steps before the decay, in a stage of `steps`."""
        return steps - round(self.decay_fraction * steps)

    def lr_factor(self, step: int, steps: int) -> float:
        """Return the share of the peak learning rate in the zero-based `step` of a stage of `steps`.

        Linear up over the warmup, whose last step is at the peak; stable; linear down over the last
        `decay_fraction` of the stage, ending at `final_lr_ratio`. Where they overlap, the lower counts.
        """
        warmup = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        start = self.decay_start(steps)
        if step < start:
            return warmup
        decay_steps, left = steps - start, steps - 1 - step  # those that follow this one
        decay = self.final_lr_ratio + (1 - self.final_lr_ratio) * left / decay_steps
        return min(warmup, decay)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StepsConfig(Checked):
    """Optimizer steps of a stage, or of the teacher's training.

    Args:
        max_steps: optimizer steps; 0 skips the stage.
        batch_size: sequences of an optimizer step.
        micro_batch_size: sequences computed at once; gradients add up to the batch's. null: all of them.
    """

    max_steps: Count
    batch_size: Positive
    micro_batch_size: Positive | None
    optimizer: OptimizerConfig
    schedule: ScheduleConfig

    def carried_lr(self, sequence_length: int) -> float:
        """Return the learning rate at its own tokens and batch, for sequences of a length."""
        batch = self.batch_size * sequence_length
        return self.optimizer.lr_at(self.max_steps * batch, batch)

    def with_carried_lr(self, sequence_length: int) -> Self:
        """Return this with the learning rate at its own tokens and batch, for sequences of a length."""
        lr = self.carried_lr(sequence_length)
        return dataclasses.replace(self, optimizer=dataclasses.replace(self.optimizer, lr=lr))

    def contradictions(self) -> Iterator[FieldError]:
        warmup, steps = self.schedule.warmup_steps, self.max_steps
        if 0 < steps < warmup:
            yield FieldError(
                f"{warmup} is longer than the stage's max_steps ({steps}); write {steps} or fewer, "
                f"or max_steps={warmup} or more",
                key="schedule.warmup_steps",
            )
        micro, batch = self.micro_batch_size, self.batch_size
        if micro is not None and batch % micro:  # the mean over micro-batches is that over the batch
            divisor = max(size for size in range(1, min(micro, batch) + 1) if batch % size == 0)
            yield FieldError(
                f"{micro} does not divide batch_size ({batch}); write {divisor}, or a batch_size that "
                f"is a multiple of {micro}",
                key="micro_batch_size",
            )
