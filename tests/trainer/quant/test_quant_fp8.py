"""Products in 8-bit floats against the same products of the dequantised numbers.

torch multiplies them on a CPU too, slowly, so all but the speed is tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainer import __main__ as program
from trainer.config import QuantConfig
from trainer.config.compose import compose_config
from trainer.errors import ConfigError
from trainer.pipeline import Outcome
from trainer.quant import fp8
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda

E4M3_STEP, E5M2_STEP = 2.0**-4, 2.0**-3  # the largest relative error of rounding to each
BFLOAT16_STEP = 2.0**-8


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantise the 8-bit numbers to float32."""
    scale = x.abs().amax() / torch.finfo(dtype).max
    return (x / scale).to(dtype).float() * scale


def test_the_three_products_are_those_of_the_rounded_factors() -> None:
    torch.manual_seed(0)
    x, w, upstream = torch.randn(2, 16, 32), torch.randn(48, 32), torch.randn(2, 16, 48)
    x.requires_grad_(True)
    w.requires_grad_(True)
    bias = torch.randn(48)
    with torch.autocast("cpu", torch.bfloat16):
        y = fp8.fp8_linear(x, w, bias)
    assert y.dtype == torch.bfloat16
    y.backward(upstream.bfloat16())

    x8, w8 = cast(x.detach(), fp8.FORWARD), cast(w.detach(), fp8.FORWARD)
    g8 = cast(upstream.bfloat16().float(), fp8.BACKWARD)
    close = {"rtol": 2 * BFLOAT16_STEP, "atol": 2 * BFLOAT16_STEP * 10}  # sums of 32 to 48 numbers of about 1
    torch.testing.assert_close(y.float(), x8 @ w8.T + bias, **close)
    torch.testing.assert_close(x.grad, g8 @ w8, **close)
    torch.testing.assert_close(w.grad, g8.flatten(0, 1).T @ x8.flatten(0, 1), **close)


def test_it_is_the_linear_layer_but_for_the_rounding() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(64, 256), torch.randn(128, 256)
    exact, rounded = x @ w.T, fp8.fp8_linear(x, w).float()
    error = (rounded - exact).norm() / exact.norm()
    assert 0 < error < 2 * E4M3_STEP


def test_ternary_weights_are_exact() -> None:
    torch.manual_seed(0)
    form = QuantConfig(weight_scale="absmean", group_size=None, activations="none")
    w = TernaryLinear(nn.Linear(32, 16), Lambda(), form).effective_weight().detach()
    torch.testing.assert_close(cast(w, fp8.FORWARD), w, rtol=1e-6, atol=0)


@pytest.mark.parametrize("magnitude", [1e-30, 1e30])
def test_tiny_and_huge_inputs_keep_their_size(magnitude: float) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 16) * magnitude, torch.randn(16, 16)
    y, expected = fp8.fp8_linear(x, w).float(), x @ w.T
    if magnitude < fp8._TINY:  # below the floor of the scale: gone, and not noise
        assert y.abs().max() <= expected.abs().max() * 2
    else:
        torch.testing.assert_close(y, expected, rtol=0, atol=float(expected.abs().max()) * 2 * E4M3_STEP)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(poison: float) -> None:
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    x[3, 5] = poison
    assert not fp8.fp8_linear(x, w).isfinite().any()


def test_zeros_stay_zeros() -> None:
    assert torch.equal(fp8.fp8_linear(torch.zeros(16, 16), torch.zeros(16, 16)).float(), torch.zeros(16, 16))


Run = Callable[..., Outcome]


def test_only_stage_2_is_trained_with_it_and_evaluation_never_sees_it(
    run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    grads = []
    original = fp8.fp8_linear

    def count(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        grads.append(torch.is_grad_enabled())
        return original(x, w, bias)

    monkeypatch.setattr(fp8, "fp8_linear", count)
    plain = run_small("stage2.max_steps=4")
    assert not grads
    eight_bit = run_small("stage2.max_steps=4", "stage2.fp8=true")
    assert grads == [True] * (4 * 2 * 7)  # steps, layers, projections
    assert eight_bit.result.metrics.stage2_start_loss == plain.result.metrics.stage2_start_loss
    assert eight_bit.result.metrics.final_loss != plain.result.metrics.final_loss
    assert eight_bit.result.metrics.final_loss == pytest.approx(plain.result.metrics.final_loss, abs=0.05)


def test_a_device_without_it_is_refused_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert program.main(["device=cpu", "stage2.fp8=true", f"run_dir={run_dir}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trainer: error: not on this machine: stage2.fp8: ")
    assert "write stage2.fp8=false" in error
    assert error.count("\n") == 1
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("stage2.batch_size=3", "data.sequence_length=12"), "36 tokens"),
        (("model.intermediate_size=40",), "32 inputs and 40 outputs"),
    ],
)
def test_sides_that_are_no_multiples_of_16_are_refused(
    overrides: tuple[str, ...], message: str, run_small: Run
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_small("stage2.fp8=true", *overrides)


@pytest.mark.parametrize(
    ("micro_batch_size", "processes", "tokens"),
    [("null", 1, None), ("null", 2, 24), ("null", 4, 12), ("4", 2, None), ("2", 1, 24)],
)
def test_tokens_are_those_of_one_process(micro_batch_size: str, processes: int, tokens: int | None) -> None:
    """Four sequences of twelve tokens; a micro-batch belongs to one process."""
    words = ["stage2.fp8=true", "stage2.batch_size=4", f"stage2.micro_batch_size={micro_batch_size}"]
    stage2 = compose_config(words).stage2
    if tokens is None:
        fp8.require_multiples(nn.Identity(), stage2, 12, processes=processes)
    else:
        with pytest.raises(ConfigError, match=f" has {tokens} tokens, which 16 does not divide"):
            fp8.require_multiples(nn.Identity(), stage2, 12, processes=processes)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)),
    reason="needs a CUDA device of compute capability 8.9 or more",
)
def test_on_the_device_it_agrees_with_the_cpu() -> None:
    torch.manual_seed(0)
    x, w, upstream = torch.randn(64, 128), torch.randn(96, 128), torch.randn(64, 96).bfloat16()
    results = []
    for device in ("cpu", "cuda"):
        xd, wd = (each.to(device).detach().requires_grad_(True) for each in (x, w))
        y = fp8.fp8_linear(xd, wd)
        y.backward(upstream.to(device))
        results.append([each.cpu().float() for each in (y.detach(), xd.grad, wd.grad)])  # type: ignore[union-attr]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0.2)
