"""Products in 8-bit floats against the same products of the dequantised numbers.

torch multiplies them on a CPU too, slowly, so all but the speed is tested here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer import __main__ as program
from trainer.config import QuantConfig
from trainer.config.compose import compose_config
from trainer.config.quant import Fp8Config
from trainer.errors import ConfigError
from trainer.pipeline import Outcome
from trainer.quant import fp8
from trainer.quant.activations import int8_activation
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda

E4M3_STEP = 2.0**-4  # the largest relative error of rounding to it
BFLOAT16_STEP = 2.0**-8
BACKWARD = Fp8Config(products="backward", accumulator="fast", min_size=0, exclude=())
ALL = dataclasses.replace(BACKWARD, products="all")


@pytest.fixture(autouse=True)
def _products_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply the dequantised numbers on a CPU that refuses scales of rows: with AMX and torch 2.11 it does."""
    product = torch._scaled_mm
    eights, scales = torch.ones(16, 16).to(fp8.FORMAT), torch.ones(16, 1)

    def of_dequantised(a: Tensor, b: Tensor, *, scale_a: Tensor, scale_b: Tensor, **options: Any) -> Tensor:
        if a.device.type != "cpu":
            return product(a, b, scale_a=scale_a, scale_b=scale_b, **options)
        return ((a.float() * scale_a) @ (b.float() * scale_b)).to(options["out_dtype"])

    try:
        product(eights, eights.t(), scale_a=scales, scale_b=scales.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        monkeypatch.setattr(torch, "_scaled_mm", of_dequantised)


def cast(x: Tensor, dim: int) -> Tensor:
    """Dequantise the 8-bit numbers to float32, with one scale over this dimension."""
    scale = x.abs().amax(dim, keepdim=True) / torch.finfo(fp8.FORMAT).max
    return (x / scale).to(fp8.FORMAT).float() * scale


def trained(
    config: Fp8Config | None, x: Tensor, w: Tensor, upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return outputs and the gradients of both factors under autocast; None: of `F.linear`."""
    x, w = (each.detach().clone().requires_grad_(True) for each in (x, w))
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x, w) if config is None else fp8.fp8_linear(x, w, config=config)
    assert y.dtype == torch.bfloat16
    y.backward(upstream.bfloat16())
    assert x.grad is not None
    assert w.grad is not None
    return y.detach(), x.grad, w.grad


def error(ours: Tensor, exact: Tensor) -> float:
    return float((ours.float() - exact.float()).norm() / exact.float().norm())


@pytest.mark.parametrize("config", [BACKWARD, ALL], ids=["backward", "all"])
def test_products_equal_those_of_rounded_factors(config: Fp8Config) -> None:
    torch.manual_seed(0)
    x, w, upstream = torch.randn(2, 16, 32), torch.randn(48, 32), torch.randn(2, 16, 48)
    y, grad_x, grad_w = trained(config, x, w, upstream)
    tokens, gradients = x.flatten(0, 1), upstream.bfloat16().float().flatten(0, 1)
    expected = cast(tokens, 1) @ cast(w, 1).T if config.products == "all" else tokens @ w.T
    close = {"rtol": 2 * BFLOAT16_STEP, "atol": 2 * BFLOAT16_STEP * 10}  # sums of 32 to 48 numbers of about 1
    torch.testing.assert_close(y.float().flatten(0, 1), expected, **close)
    torch.testing.assert_close(grad_x.flatten(0, 1), cast(gradients, 1) @ cast(w, 0), **close)
    torch.testing.assert_close(grad_w, cast(gradients, 0).T @ cast(tokens, 0), **close)


def test_the_forward_pass_is_that_of_a_linear_layer_bit_for_bit() -> None:
    torch.manual_seed(0)
    x, w, upstream = torch.randn(64, 96), torch.randn(48, 96), torch.randn(64, 48)
    ours, plain = (trained(config, x, w, upstream) for config in (BACKWARD, None))
    assert torch.equal(ours[0], plain[0])
    assert all(0 < error(*pair) < E4M3_STEP for pair in zip(ours[1:], plain[1:], strict=True))


def test_the_documented_errors() -> None:
    """Of docs/explanation/quantisation.md: a layer of SmolLM2-135M, ternary weights, gradients that vary between tokens."""
    torch.manual_seed(0)
    x, upstream = torch.randn(1024, 576), torch.randn(1024, 1536) * torch.exp(1.5 * torch.randn(1024, 1))
    form = QuantConfig(weight_scale="absmean", group_size=None, activations="none")
    w = TernaryLinear(nn.Linear(576, 1536), Lambda(), form).effective_weight().detach()
    quantised = int8_activation(x)
    exact, int8 = x @ w.T, quantised @ w.T
    assert error(int8, exact) == pytest.approx(0.0075, abs=0.0005)
    y, grad_x, grad_w = trained(ALL, quantised, w, upstream)
    assert error(y, int8) == pytest.approx(0.0265, abs=0.001)
    assert error(y, exact) == pytest.approx(0.0275, abs=0.001)
    g = upstream.bfloat16().float()
    assert error(grad_x, g @ w) == pytest.approx(0.027, abs=0.001)
    assert error(grad_w, g.T @ quantised) == pytest.approx(0.035, abs=0.002)
    y, _, _ = trained(BACKWARD, quantised, w, upstream)
    assert error(y, int8) < 0.004


def test_ternary_weights_are_exact() -> None:
    torch.manual_seed(0)
    form = QuantConfig(weight_scale="absmean", group_size=None, activations="none")
    w = TernaryLinear(nn.Linear(32, 16), Lambda(), form).effective_weight().detach()
    for dim in (0, 1):
        torch.testing.assert_close(cast(w, dim), w, rtol=1e-6, atol=0)


def test_one_large_token_keeps_other_gradients() -> None:
    """A scale per tensor would push the others below the smallest number of the format."""
    torch.manual_seed(0)
    x, w, upstream = torch.randn(32, 64), torch.randn(48, 64), torch.randn(32, 48)
    upstream[5] *= 1e6
    _, ours, _ = trained(BACKWARD, x, w, upstream)
    _, exact, _ = trained(None, x, w, upstream)
    assert all(error(row, other) < E4M3_STEP for row, other in zip(ours, exact, strict=True))


@pytest.mark.parametrize("magnitude", [1e-30, 1e30])
def test_tiny_and_huge_inputs_keep_their_size(magnitude: float) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 16) * magnitude, torch.randn(16, 16)
    y, expected = fp8.fp8_linear(x, w, config=ALL).float(), x @ w.T
    if magnitude < fp8._TINY:  # below the floor of the scale: gone, and not noise
        assert y.abs().max() <= expected.abs().max() * 2
    else:
        torch.testing.assert_close(y, expected, rtol=0, atol=float(expected.abs().max()) * 2 * E4M3_STEP)


@pytest.mark.parametrize("config", [BACKWARD, ALL], ids=["backward", "all"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(poison: float, config: Fp8Config) -> None:
    x, w, upstream = torch.randn(16, 16), torch.randn(16, 16), torch.randn(16, 16)
    x[3, 5] = poison
    y, _, grad_w = trained(config, x, w, upstream)
    assert not y[3].isfinite().any()
    assert not grad_w[:, 5].isfinite().any()
    upstream[2, 1] = poison
    _, grad_x, grad_w = trained(config, x.nan_to_num(0, 0, 0), w, upstream)
    assert not grad_x[2].isfinite().any()
    assert not grad_w[1].isfinite().any()


def test_zeros_stay_zeros() -> None:
    zeros = torch.zeros(16, 16)
    assert all(torch.equal(each.float(), zeros) for each in trained(ALL, zeros, zeros, zeros))


@pytest.mark.parametrize("which", [0, 1], ids=["inputs", "weights"])
def test_factor_without_gradient_is_not_multiplied(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted_products(monkeypatch)
    factors = [torch.randn(16, 32), torch.randn(48, 32)]
    factors[which].requires_grad_(True)
    fp8.fp8_linear(*factors, config=BACKWARD).sum().backward()
    assert factors[which].grad is not None
    assert len(calls) == 1


def counted_products(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the list that `use_fast_accum` of each product is appended to."""
    calls, original = list[bool](), torch._scaled_mm

    def product(*factors: Any, use_fast_accum: bool, **more: Any) -> Tensor:
        calls.append(use_fast_accum)
        return original(*factors, use_fast_accum=use_fast_accum, **more)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    return calls


@pytest.mark.parametrize(
    ("config", "fast"),
    [
        (ALL, [True, True, False]),
        (dataclasses.replace(ALL, accumulator="float32"), [False] * 3),
        (BACKWARD, [True, False]),
    ],
)
def test_weight_gradient_is_summed_in_float32(
    config: Fp8Config, fast: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted_products(monkeypatch)
    trained(config, torch.randn(16, 32), torch.randn(48, 32), torch.randn(16, 48))
    assert calls == fast


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch does
def test_it_is_one_graph() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 32), torch.randn(48, 32, requires_grad=True)
    layer = partial(fp8.fp8_linear, config=BACKWARD)
    (eager,) = torch.autograd.grad(layer(x, w).square().sum(), w)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    (graph,) = torch.autograd.grad(compiled(x, w).square().sum(), w)
    torch.testing.assert_close(graph, eager)


def layers() -> nn.Module:
    form = QuantConfig(weight_scale="absmean", group_size=None, activations="int8")
    sizes = {"wide": (64, 32), "small": (16, 32), "odd": (40, 64), "left_out": (64, 64)}
    return nn.ModuleDict(
        {name: TernaryLinear(nn.Linear(*size), Lambda(), form) for name, size in sizes.items()}
    )


def stage2(*overrides: str) -> Any:
    return compose_config(["stage2.fp8=true", "stage2.fp8_recipe.min_size=32", *overrides]).stage2


def test_small_odd_or_excluded_layers_keep_device_products(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, config = layers(), stage2('stage2.fp8_recipe.exclude=["*left_out*"]')
    with fp8.fp8_products(model, config.fp8_recipe):
        chosen = [name for name, layer in model.items() if layer.linear is not F.linear]
    assert chosen == ["wide"]
    assert all(layer.linear is F.linear for layer in model.values())
    with caplog.at_level(logging.WARNING):
        fp8.require_multiples(model, config, 16, processes=1)
    (message,) = caplog.messages
    assert message.startswith("stage2.fp8: 1 of 2 layers (odd) ")


@pytest.mark.parametrize("key", ['stage2.fp8_recipe.exclude=["*"]', "stage2.fp8_recipe.min_size=65"])
def test_a_recipe_that_leaves_no_layer_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^stage2.fp8: "):
        fp8.require_multiples(layers(), stage2(key), 16, processes=1)


Run = Callable[..., Outcome]
ON = ("stage2.fp8=true", "stage2.fp8_recipe.min_size=0")


def test_only_stage_2_trains_in_fp8(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    grads = []
    original = fp8.fp8_linear

    def count(x: Tensor, w: Tensor, bias: Tensor | None = None, *, config: Fp8Config) -> Tensor:
        grads.append(torch.is_grad_enabled())
        return original(x, w, bias, config=config)

    monkeypatch.setattr(fp8, "fp8_linear", count)
    plain = run_small("stage2.max_steps=4")
    assert not grads
    eight_bit = run_small("stage2.max_steps=4", *ON)
    assert grads == [True] * (4 * 2 * 7)  # steps, layers, projections
    assert eight_bit.result.metrics.stage2_start_loss == plain.result.metrics.stage2_start_loss
    assert eight_bit.result.metrics.final_loss != plain.result.metrics.final_loss
    assert eight_bit.result.metrics.final_loss == pytest.approx(plain.result.metrics.final_loss, abs=0.05)


def test_device_without_fp8_is_refused_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        (
            ("model.hidden_size=24", "model.intermediate_size=40"),
            "16 does not divide inputs and outputs of 14",
        ),
    ],
)
def test_sides_that_are_no_multiples_of_16_are_refused(
    overrides: tuple[str, ...], message: str, run_small: Run
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_small(*ON, *overrides)


@pytest.mark.parametrize(
    ("micro_batch_size", "processes", "tokens"),
    [("null", 1, None), ("null", 2, 24), ("null", 4, 12), ("4", 2, None), ("2", 1, 24)],
)
def test_tokens_are_those_of_one_process(micro_batch_size: str, processes: int, tokens: int | None) -> None:
    """Four sequences of twelve tokens; a micro-batch belongs to one process."""
    words = ["stage2.fp8=true", "stage2.batch_size=4", f"stage2.micro_batch_size={micro_batch_size}"]
    config = stage2(*words)
    if tokens is None:
        fp8.require_multiples(layers(), config, 12, processes=processes)
    else:
        with pytest.raises(ConfigError, match=f" {tokens} tokens"):
            fp8.require_multiples(layers(), config, 12, processes=processes)


@pytest.mark.cuda
@pytest.mark.skipif(
    not (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)),
    reason="needs a CUDA device of compute capability 8.9 or more",
)
@pytest.mark.parametrize("config", [BACKWARD, ALL], ids=["backward", "all"])
def test_on_the_device_it_agrees_with_the_cpu(config: Fp8Config) -> None:
    torch.manual_seed(0)
    x, w, upstream = torch.randn(64, 128), torch.randn(96, 128), torch.randn(64, 96).bfloat16()
    results = []
    for device in ("cpu", "cuda"):
        xd, wd = (each.to(device).detach().requires_grad_(True) for each in (x, w))
        y = fp8.fp8_linear(xd, wd, config=config)
        y.backward(upstream.to(device))
        results.append([each.cpu().float() for each in (y.detach(), xd.grad, wd.grad)])  # type: ignore[union-attr]
    for ours, theirs in zip(*results, strict=True):
        # Single numbers may be rounded to the next code, 6 % away, where the devices' scales differ in a bit.
        assert (ours - theirs).norm() < 0.01 * theirs.norm()
