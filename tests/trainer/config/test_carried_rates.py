"""Learning rates carried from a base run to other numbers of tokens and batch sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trainer_outcomes import weights_digest

from trainer.api import check
from trainer.config import OptimizerConfig
from trainer.outcome import Outcome

STAGES = ("stage1_9", "stage2")
STEPS, BATCH_TOKENS = 6, 4 * 16  # of both stages of `run_small`


def optimizer(**keys: float) -> OptimizerConfig:
    overrides = (f"stage2.optimizer.{key}={value}" for key, value in keys.items())
    return check(["stage2.optimizer.lr=0.004", *overrides]).stage2.optimizer


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (1e6, 0.004),
        (1e7, 0.0019145),
        (1e5, 0.0083572),
        (2e6, 0.0032043),
    ],  # 0.004 times 1, 10, 1/10, 2 ^ -0.32
)
def test_ten_times_the_tokens_take_less_than_half_of_the_rate(tokens: float, expected: float) -> None:
    assert optimizer(base_tokens=1e6).lr_at(int(tokens), 4096) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("batch", "expected"), [(4096, 0.004), (16384, 0.008), (1024, 0.002)])
def test_four_times_the_batch_takes_twice_the_rate(batch: int, expected: float) -> None:
    assert optimizer(base_batch_tokens=4096).lr_at(10**6, batch) == pytest.approx(expected)


def test_more_sequences_in_as_many_steps_are_more_tokens_and_a_larger_batch() -> None:
    """4 times the batch: 0.004 x 4^0.5 x 4^-0.32 = 0.004 x 2 x 0.64171."""
    both = optimizer(base_tokens=4096_000, base_batch_tokens=4096)
    assert both.lr_at(4 * 4096_000, 4 * 4096) == pytest.approx(0.0051337, rel=1e-4)


def test_exponents_are_those_that_are_given() -> None:
    found = optimizer(base_tokens=1000, base_batch_tokens=10, tokens_exponent=0.5, batch_exponent=-1.0)
    assert found.lr_at(100_000, 20) == pytest.approx(0.004 * 10 / 2)


def test_without_a_base_the_rate_is_the_same_number() -> None:
    assert optimizer(tokens_exponent=-0.9, batch_exponent=0.9).lr_at(123_456_789, 7) == 0.004


def test_a_stage_counts_its_own_tokens() -> None:
    config = check(
        [
            *("data.sequence_length=128", "stage1_9.max_steps=10", "stage1_9.batch_size=2"),
            *("stage2.max_steps=40", "stage2.batch_size=8"),
            *(f"{stage}.optimizer.base_tokens=2560" for stage in STAGES),
            *(f"{stage}.optimizer.base_batch_tokens=256" for stage in STAGES),
            *(f"{stage}.optimizer.lr=0.004" for stage in STAGES),
        ]
    )
    # Stage 2: 16 times the tokens and 4 times the batch of Stage 1.9, 16^-0.32 = 0.41181.
    first, second = (getattr(config, stage).with_carried_lr(128).optimizer.lr for stage in STAGES)
    assert first == 0.004
    assert second == pytest.approx(0.004 * 0.41181 * 2, rel=1e-4)


def test_a_run_has_the_bits_of_one_whose_rates_were_set_by_hand(run_small: Callable[..., Outcome]) -> None:
    lr = 0.004 * (STEPS * BATCH_TOKENS / 1000) ** -0.32 * (BATCH_TOKENS / 256) ** 0.5
    carried = [
        f"{stage}.optimizer.{key}"
        for stage in STAGES
        for key in ("lr=0.004", "base_tokens=1000", "base_batch_tokens=256")
    ]
    by_hand = run_small(*(f"{stage}.optimizer.lr={lr!r}" for stage in STAGES))
    assert weights_digest(run_small(*carried)) == weights_digest(by_hand)
    assert weights_digest(by_hand) != weights_digest(run_small())


def test_at_the_base_nothing_changes(run_small: Callable[..., Outcome]) -> None:
    at_the_base = (
        f"{stage}.optimizer.{key}"
        for stage in STAGES
        for key in (f"base_tokens={STEPS * BATCH_TOKENS}", f"base_batch_tokens={BATCH_TOKENS}")
    )
    assert weights_digest(run_small(*at_the_base)) == weights_digest(run_small())


def test_the_teacher_follows_its_own(run_small: Callable[..., Outcome]) -> None:
    four_steps = "model.teacher.optimizer.base_tokens=256"  # of 4 sequences of 16 tokens
    plain, same, other = (
        run_small(*keys).held_out.reference
        for keys in ((), (four_steps,), ("model.teacher.optimizer.base_tokens=1000",))
    )
    assert plain == same != other
