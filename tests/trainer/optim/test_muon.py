"""trainer.optim.muon: torch's Muon over stacks of matrices, in either precision."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_outcomes import weights_digest, without_times

from benchmarks.tensor_memory import peak_bytes
from trainer.api import check
from trainer.distributed.ranks import Ranks
from trainer.models.causal_lm import build_tiny
from trainer.optim import muon
from trainer.optim.build import build_optimizer
from trainer.optim.muon import BatchedMuon, LazyMuon, orthogonalised, stack_size, stacks
from trainer.pipeline import Outcome
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import optimizer_memory

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SHAPES = ((6, 6), (5, 9), (12, 4), (9, 5), (6, 6))
# Products of fewer than 400 multiplications are other kernels of torch's where they are in stacks.
LARGER = ((24, 24), (16, 40), (40, 16), (24, 24), (40, 16), (16, 40), (8, 24), (24, 24))
SMOLLM2_135M = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def stepped(
    kind: Callable[..., torch.optim.Muon],
    steps: int = 4,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    weights_in: torch.dtype = torch.float32,
    **settings: Any,
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator).to(weights_in)) for shape in shapes]
    idle = nn.Parameter(torch.ones(3, 3))
    optimizer = kind([*weights, idle], lr=0.02, **settings)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(weights_in)
        optimizer.step()
    assert torch.equal(idle, torch.ones(3, 3))
    return [weight.detach() for weight in weights]


def torchs(*arguments: Any, **settings: Any) -> torch.optim.Muon:
    return torch.optim.Muon(*arguments, adjust_lr_fn="match_rms_adamw", **settings)


def in_float32(*args: Tensor, **kwargs: object) -> Tensor:
    return orthogonalised(args[0], COEFFICIENTS, steps=5, eps=1e-7)


SETTINGS = pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.8}, {"weight_decay": 0.5}, {"weight_decay": 0.0}, {"nesterov": False}],
    ids=["defaults", "momentum", "weight decay", "no weight decay", "no nesterov"],
)


@SETTINGS
def test_steps_equal_torchs_muon_with_the_same_iteration(
    settings: dict[str, float | bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own step, with only its orthogonalisation replaced by the float32 one, is the reference."""
    ours = stepped(BatchedMuon, **settings)
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", in_float32)
    for mine, reference in zip(ours, stepped(torchs, **settings), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-6)


@SETTINGS
def test_stacks_have_the_bits_of_matrix_by_matrix(
    settings: dict[str, float | bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a stack has matrices and transposed ones, and of a size that leaves some over."""
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", in_float32)
    reference = stepped(torchs, shapes=LARGER, **settings)
    for most in (1, 2 * 640, muon.STACK):
        monkeypatch.setattr(muon, "STACK", most)
        for mine, theirs in zip(stepped(BatchedMuon, shapes=LARGER, **settings), reference, strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("weights_in", [torch.float32, torch.bfloat16], ids=str)
@SETTINGS
def test_in_bfloat16_it_has_the_bits_of_torchs(
    settings: dict[str, float | bool], weights_in: torch.dtype
) -> None:
    if weights_in == torch.bfloat16 and not settings.get("nesterov", True):
        pytest.skip("torch divides the momentum itself by its norm there")
    own = {"shapes": LARGER, "weights_in": weights_in, **settings}
    ours, theirs = stepped(BatchedMuon, dtype=torch.bfloat16, **own), stepped(torchs, **own)
    assert all(torch.equal(mine, yours) for mine, yours in zip(ours, theirs, strict=True))


def test_equals_torchs_muon_up_to_bfloat16_rounding() -> None:
    for mine, yours in zip(stepped(BatchedMuon), stepped(torchs), strict=True):
        # Four updates of root mean square 0.2 x 0.02, each to about 2 decimals.
        torch.testing.assert_close(mine, yours, rtol=0, atol=2e-3)
        assert not torch.equal(mine, yours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_sums_alone_take_the_same_steps(dtype: torch.dtype) -> None:
    """Those of XLA, matrix by matrix."""
    for ours, theirs in zip(stepped(LazyMuon, dtype=dtype), stepped(BatchedMuon, dtype=dtype), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if dtype == torch.float32 else 2e-3)


@given(
    shapes=st.lists(st.sampled_from([(2, 3), (3, 2), (3, 3), (2, 8), (8, 2), (1, 1)]), max_size=30),
    world=st.integers(1, 4),
    most=st.integers(1, 60),
)
def test_stacks_cover_every_matrix_and_are_bounded(
    shapes: list[tuple[int, int]], world: int, most: int
) -> None:
    weights = [nn.Parameter(torch.empty(shape)) for shape in shapes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "STACK", most)
        found = list(stacks(weights, world))
        sizes = {len(stack): stack_size(stack[0].numel(), world) for stack in found}
    assert Counter(map(id, weights)) == Counter(id(weight) for stack in found for weight in stack)
    for stack in found:
        assert len({tuple(sorted(weight.shape)) for weight in stack}) == 1
        tall = [weight.shape[0] > weight.shape[1] for weight in stack]
        assert tall == sorted(tall)
        assert sum(weight.numel() for weight in stack) <= max(most, world * stack[0].numel())
    assert all(length <= size and size % world == 0 for length, size in sizes.items())


class Operations(TorchDispatchMode):
    """Counts the aten operations that are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).startswith("aten.")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def smollm2_135m() -> Iterator[Callable[[], nn.Module]]:
    """A model in these shapes whose tensors have no memory."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    with FakeTensorMode():
        yield lambda: LlamaForCausalLM(LlamaConfig(**SMOLLM2_135M))


def give_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 400), ("float32", 600)])
def test_a_step_of_smollm2_135m_is_few_operations(
    smollm2_135m: Callable[[], nn.Module], dtype: str, most: int
) -> None:
    """Muon's, AdamW's and those of the clipping. Matrix by matrix Muon alone took 6,002, in bfloat16."""
    overrides = ["stage2.optimizer.type=muonclip", f"stage2.optimizer.muon.dtype={dtype}"]
    model = smollm2_135m()
    optimizer = build_optimizer(model, check(overrides).stage2.optimizer)
    for _ in range(2):  # the first step makes the state
        give_gradients(model)
        with Operations() as operations:
            optimizer.readings()
            optimizer.step()
    assert 0 < operations.count <= most


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_temporary_memory_is_what_the_preflight_counts(
    dtype: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of stacks that are smaller than all matrices of a shape together."""
    monkeypatch.setattr(muon, "STACK", 60_000)
    sizes = {"hidden": 64, "intermediate": 192, "heads": 4, "key_heads": 2, "head_size": 16}
    student = Dimensions(layers=6, **sizes, vocabulary=9, tied=True, weight_bytes=4, vectors=128)
    matrices = [nn.Parameter(torch.zeros(shape)) for shape in student.matrices]
    ranks = Ranks(world=world)  # alone, with the stacks of several
    optimizer = BatchedMuon(matrices, lr=0.1, dtype=getattr(torch, dtype), ranks=ranks)
    for _ in range(2):  # the first step makes the state
        for matrix in matrices:
            matrix.grad = torch.ones_like(matrix)
        taken = peak_bytes(optimizer.step)
    config = check([f"stage2.optimizer.muon.dtype={dtype}"]).stage2.optimizer
    counted = optimizer_memory(student, config, processes=world, muon_dtype=getattr(torch, dtype)).temporary
    assert taken == pytest.approx(counted, rel=0.02)
    assert counted < sum(matrix.numel() for matrix in matrices) * 4


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_iteration_keeps_singular_vectors(
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


def test_infinite_gradient_reaches_its_own_matrix_alone() -> None:
    weights = [nn.Parameter(torch.eye(24)) for _ in range(3)]
    optimizer = BatchedMuon(weights, lr=0.1)
    for number, weight in enumerate(weights):
        weight.grad = torch.full_like(weight, torch.nan if number == 1 else 1.0)
    optimizer.step()
    assert [bool(weight.isfinite().all()) for weight in weights] == [True, False, True]


@pytest.mark.parametrize(("before", "after"), [(BatchedMuon, BatchedMuon), (torchs, BatchedMuon)])
def test_state_comes_back_and_the_next_step_is_the_same(
    before: Callable[..., Any], after: Callable[..., Any]
) -> None:
    """Torch's own too, which checkpoints have from when it was used in bfloat16."""
    grads = [torch.randn(24, 24, generator=torch.Generator().manual_seed(n)) for n in range(3)]

    def fresh(kind: Callable[..., Any], start: Tensor) -> tuple[nn.Parameter, torch.optim.Muon]:
        weight = nn.Parameter(start.clone())
        options = {"dtype": torch.bfloat16} if kind is BatchedMuon else {}
        return weight, kind([weight], lr=0.1, **options)

    first, optimizer = fresh(before, torch.eye(24))
    for grad in grads[:2]:
        first.grad = grad
        optimizer.step()
    second, restored = fresh(after, first.detach())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for weight, stepper in ((first, optimizer), (second, restored)):
        weight.grad = grads[2]
        stepper.step()
    assert torch.equal(first, second)


@pytest.mark.parametrize("processor_has_bfloat16", ["0", "1"])
@pytest.mark.parametrize("optimizer", ["muon", "muonclip"])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_precision_follows_the_setting_not_the_processor(
    dtype: str,
    expected: torch.dtype,
    optimizer: str,
    processor_has_bfloat16: str,
    small: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGESWEEP_CPU_BFLOAT16", processor_has_bfloat16)
    config = check([*small, f"stage2.optimizer.type={optimizer}", f"stage2.optimizer.muon.dtype={dtype}"])
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    (hidden, _) = build_optimizer(model, config.stage2.optimizer).optimizers
    assert isinstance(hidden, BatchedMuon)
    assert hidden.dtype == expected


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


def test_auto_run_is_bitwise_equal_on_any_processor(
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
