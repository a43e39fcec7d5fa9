"""trainer.optim.muon: torch's Muon in float32, and which variant each device gets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from trainer_outcomes import weights_digest, without_times

from trainer.api import check
from trainer.models.causal_lm import build_tiny
from trainer.optim.build import build_optimizer
from trainer.optim.muon import Float32Muon, PlainMuon, orthogonalised
from trainer.pipeline import Outcome

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SHAPES = ((6, 6), (5, 9), (12, 4))


def stepped(kind: Callable[..., torch.optim.Muon], steps: int = 4, **settings: float | bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    idle = nn.Parameter(torch.ones(3, 3))
    optimizer = kind([*weights, idle], lr=0.02, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    assert torch.equal(idle, torch.ones(3, 3))
    return [weight.detach() for weight in weights]


def in_float32(*args: Tensor, **kwargs: object) -> Tensor:
    return orthogonalised(args[0], COEFFICIENTS, steps=5, eps=1e-7)


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.8}, {"weight_decay": 0.5}, {"nesterov": False}],
    ids=["defaults", "momentum", "weight_decay", "no nesterov"],
)
def test_it_steps_as_torchs_muon_does_around_the_same_iteration(
    settings: dict[str, float | bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own step, with only its orthogonalisation replaced by the float32 one, is the reference."""
    ours = stepped(Float32Muon, **settings)
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", in_float32)
    for mine, reference in zip(ours, stepped(torch.optim.Muon, **settings), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-6)


def test_it_is_torchs_muon_up_to_the_rounding_of_bfloat16() -> None:
    for mine, torchs in zip(stepped(Float32Muon), stepped(torch.optim.Muon), strict=True):
        # Four updates of root mean square 0.2 x 0.02, each to about 2 decimals.
        torch.testing.assert_close(mine, torchs, rtol=0, atol=2e-3)
        assert not torch.equal(mine, torchs)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_iteration_keeps_the_singular_vectors_and_brings_the_values_near_one(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    made = orthogonalised(matrix, COEFFICIENTS, steps=5, eps=1e-7)
    inside = u.T @ made @ v.T
    torch.testing.assert_close(inside, inside.diagonal().diag(), rtol=0, atol=1e-9)
    # The polynomial itself, applied five times to each singular value.
    expected = values / values.norm()
    for _ in range(5):
        expected = 3.4445 * expected - 4.7750 * expected**3 + 2.0315 * expected**5
    torch.testing.assert_close(inside.diagonal(), expected, rtol=1e-9, atol=1e-9)
    assert inside.diagonal().min() > 0.5
    assert inside.diagonal().max() < 1.3


def test_a_gradient_of_zeros_leaves_the_weights_finite() -> None:
    assert torch.equal(orthogonalised(torch.zeros(3, 4), COEFFICIENTS, steps=5, eps=1e-7), torch.zeros(3, 4))


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned() -> None:
    weight = nn.Parameter(torch.eye(3))
    optimizer = Float32Muon([weight], adjust_lr_fn="match_rms_adamw")

    def closure() -> Tensor:
        loss = (weight**2).sum()
        loss.backward()
        return loss.detach()

    assert optimizer.step(closure) == 3
    assert not torch.equal(weight, torch.eye(3))


def test_state_comes_back_and_the_next_step_is_the_same() -> None:
    grads = [torch.randn(4, 4, generator=torch.Generator().manual_seed(n)) for n in range(3)]

    def fresh(start: Tensor) -> tuple[nn.Parameter, Float32Muon]:
        weight = nn.Parameter(start.clone())
        return weight, Float32Muon([weight], lr=0.1, adjust_lr_fn="match_rms_adamw")

    first, optimizer = fresh(torch.eye(4))
    for grad in grads[:2]:
        first.grad = grad
        optimizer.step()
    second, restored = fresh(first.detach())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for weight, stepper in ((first, optimizer), (second, restored)):
        weight.grad = grads[2]
        stepper.step()
    assert torch.equal(first, second)


@pytest.mark.parametrize("processor_has_bfloat16", ["0", "1"])
@pytest.mark.parametrize("optimizer", ["muon", "muonclip"])
@pytest.mark.parametrize(
    ("dtype", "kind"), [("auto", Float32Muon), ("float32", Float32Muon), ("bfloat16", torch.optim.Muon)]
)
def test_the_setting_says_the_precision_and_the_processor_does_not(
    dtype: str,
    kind: type,
    optimizer: str,
    processor_has_bfloat16: str,
    small: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGESWEEP_CPU_BFLOAT16", processor_has_bfloat16)
    config = check([*small, f"stage2.optimizer.type={optimizer}", f"stage2.optimizer.muon.dtype={dtype}"])
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    assert type(build_optimizer(model, config.stage2.optimizer).optimizers[0]) is kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_sums_alone_take_the_steps_of_either_precision(dtype: torch.dtype) -> None:
    """Those of XLA, and of matrices in parts, with the same setting."""

    def plain(*arguments: object, **settings: object) -> PlainMuon:
        return PlainMuon(*arguments, dtype=dtype, **settings)

    reference = Float32Muon if dtype == torch.float32 else torch.optim.Muon
    for ours, theirs in zip(stepped(plain), stepped(reference), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), {"model.teacher": "float32", "stage1_9": "float32", "stage2": "float32"}),
        (
            ("stage2.optimizer.muon.dtype=bfloat16", "stage1_9.optimizer.type=adamw"),
            {"model.teacher": "float32", "stage2": "bfloat16"},
        ),
    ],
    ids=["defaults", "one of each"],
)
def test_the_result_says_what_was_used(
    overrides: tuple[str, ...], expected: dict[str, str], run_small: Callable[..., Outcome]
) -> None:
    """And nothing of a stage that was left out, or that has another optimizer."""
    provenance = run_small(*overrides).result.provenance
    assert dict(provenance.muon_dtype) == expected
    assert provenance.dtype == "float32"


def test_a_run_ends_the_same_bit_for_bit_whatever_the_processor_is_said_to_have(
    run_small: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As two workers of one sweep would: every default, the teacher trained by each."""
    ends = []
    for has in ("0", "1"):
        monkeypatch.setenv("STAGESWEEP_CPU_BFLOAT16", has)
        monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / has))
        outcome = run_small()
        ends.append((weights_digest(outcome), without_times(outcome)))
    assert ends[0] == ends[1]
