"""Losses in chunks: those of whole logits, with their gradients, in a fraction of the memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.tensor_memory import peak_bytes
from trainer.losses import chunked
from trainer.losses.chunked import HeadInputs, head_losses
from trainer.preflight.trace import fake_tensors


def reads(
    tokens: int, vocabulary: int = 11, *, dtype: torch.dtype = torch.float64, seed: int = 0, width: int = 5
) -> tuple[HeadInputs, HeadInputs, Tensor]:
    """Return the inputs of a student and of a teacher of width 3, and labels."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    student = HeadInputs(
        states=draw(tokens, width).requires_grad_(True), head=draw(vocabulary, width).requires_grad_(True)
    )
    teacher = HeadInputs(states=draw(tokens, 3), head=draw(vocabulary, 3))
    return student, teacher, torch.randint(vocabulary, (tokens,), generator=generator)


def unchunked(
    student: HeadInputs, teacher: HeadInputs | None, labels: Tensor, factor: float, temperature: float
) -> Tensor:
    """Return the reference: torch's own losses of all logits at once."""
    z = student.states @ student.head.t()
    ce = F.cross_entropy(z, labels)
    if teacher is None:
        return ce
    u = teacher.states @ teacher.head.t()
    p, q = (z / temperature).log_softmax(-1), (u / temperature).log_softmax(-1)
    return ce + factor * F.kl_div(p, q, log_target=True, reduction="batchmean")


@given(
    tokens=st.integers(1, 9),
    chunk=st.integers(1, 120),
    factor=st.sampled_from([0.0, 1.0, 7.5]),
    temperature=st.sampled_from([0.5, 1.0, 5.0]),
    taught=st.booleans(),
    upstream=st.sampled_from([1.0, 0.25]),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_loss_and_gradients_are_those_of_whole_logits(
    tokens: int, chunk: int, factor: float, temperature: float, taught: bool, upstream: float, seed: int
) -> None:
    """Whether or not the chunks divide the tokens; also where a chunk holds less than one token's logits."""
    student, teacher, labels = reads(tokens, seed=seed)
    compared = teacher if taught else None
    expected = unchunked(student, compared, labels, factor, temperature)
    ours = head_losses(
        student, labels, teacher=compared, factor=factor, temperature=temperature, chunk_elements=chunk
    )
    torch.testing.assert_close(ours.total, expected)
    inputs = (student.states, student.head)
    theirs = torch.autograd.grad(upstream * expected, inputs)
    for a, b in zip(torch.autograd.grad(upstream * ours.total, inputs), theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("chunk", [1000, 6 * 11, 11])
def test_chunks_of_rows_are_those_of_tokens_one_after_the_other(chunk: int) -> None:
    """Of 3 sequences of 5 tokens: all at once, two tokens of each and then the last, and one of each at the least."""
    student, teacher, labels = reads(15)
    rows = [HeadInputs(states=read.states.view(3, 5, -1), head=read.head) for read in (student, teacher)]
    flat = head_losses(student, labels, teacher=teacher, factor=2.0)
    ours = head_losses(rows[0], labels.view(3, 5), teacher=rows[1], factor=2.0, chunk_elements=chunk)
    torch.testing.assert_close((ours.total, ours.ce, ours.kl), (flat.total, flat.ce, flat.kl))
    inputs = (student.states, student.head)
    theirs = torch.autograd.grad(flat.total, inputs)
    for a, b in zip(torch.autograd.grad(ours.total, inputs), theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_parts_are_told_without_a_gradient() -> None:
    student, teacher, labels = reads(7)
    ours = head_losses(student, labels, teacher=teacher, factor=3.0, temperature=2.0, chunk_elements=33)
    assert ours.kl is not None
    torch.testing.assert_close(ours.ce, unchunked(student, None, labels, 1.0, 1.0))
    torch.testing.assert_close(ours.total.detach(), ours.ce + 3.0 * ours.kl)
    assert (ours.total.requires_grad, ours.ce.requires_grad, ours.kl.requires_grad) == (True, False, False)
    assert head_losses(student, labels).kl is None


def test_uniform_predictions_cost_the_log_of_the_vocabulary() -> None:
    student = HeadInputs(states=torch.ones(6, 4), head=torch.zeros(10, 4))
    ours = head_losses(student, torch.arange(6), teacher=student, chunk_elements=20)
    assert ours.ce.item() == pytest.approx(math.log(10))
    assert ours.kl is not None
    assert ours.kl.item() == pytest.approx(0, abs=1e-6)


def test_float32_agrees_to_rounding_and_bfloat16_to_its_own() -> None:
    student, teacher, labels = reads(40, 50)
    expected = torch.autograd.grad(
        unchunked(student, teacher, labels, 1.0, 1.0), (student.states, student.head)
    )
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        ours, theirs, _ = reads(40, 50, dtype=dtype)
        losses = head_losses(ours, labels, teacher=theirs, chunk_elements=700)
        assert losses.total.dtype == torch.float32
        gradients = torch.autograd.grad(losses.total, (ours.states, ours.head))
        for a, b in zip(gradients, expected, strict=True):
            assert a.dtype == dtype
            assert (a.double() - b).norm() < tolerance * b.norm()


def test_what_is_not_finite_is_not_hidden() -> None:
    student, teacher, labels = reads(7)
    states = student.states.detach().clone()
    states[3, 2] = math.nan
    poisoned = HeadInputs(states=states.requires_grad_(True), head=student.head)
    losses = head_losses(poisoned, labels, teacher=teacher, chunk_elements=22)
    losses.total.backward()
    assert losses.total.isnan()
    assert poisoned.head.grad is not None
    assert poisoned.head.grad.isnan().any()


@pytest.mark.parametrize("width", [5, 64])  # with which two chunks are multiplied at once
def test_float32_logits_never_exist_whole(width: int) -> None:
    """The plain losses hold several such matrices; this holds a share of one, gradients included."""
    tokens, vocabulary = 512, 1024
    matrix = tokens * vocabulary * 4
    student, teacher, labels = reads(tokens, vocabulary, dtype=torch.float32, width=width)

    def plain() -> None:
        unchunked(student, teacher, labels, 1.0, 1.0).backward()

    def chunked() -> None:
        head_losses(
            student, labels, teacher=teacher, chunk_elements=tokens * vocabulary // 16
        ).total.backward()

    assert peak_bytes(plain) > 3 * matrix
    head = vocabulary * width * 4
    assert peak_bytes(chunked) < 0.6 * matrix + 2 * head  # its gradient, and as much of the logits'


class Products(TorchDispatchMode):
    """Records the shapes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mm:
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize(("dtype", "together"), [(torch.bfloat16, 32), (torch.float32, 16)])
def test_head_gradient_takes_many_chunks_at_once(dtype: torch.dtype, together: int) -> None:
    """Each such product is added to a float32 matrix as large as the head: with few tokens that takes longest."""
    tokens, vocabulary, width, chunk = 128, 64, 16, 4
    states = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    head = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    with Products() as found:
        head_losses(
            HeadInputs(states=states, head=head),
            torch.zeros(tokens, dtype=torch.long),
            chunk_elements=chunk * vocabulary,
        ).total.backward()
    assert found.shapes.count((chunk, vocabulary)) == tokens // chunk
    assert found.shapes.count((vocabulary, width)) == tokens // together


def test_without_a_gradient_to_come_none_is_computed() -> None:
    student, _, labels = reads(256, 512, dtype=torch.float32)
    with torch.no_grad():
        less = peak_bytes(lambda: head_losses(student, labels, chunk_elements=8192))
    assert less < peak_bytes(lambda: head_losses(student, labels, chunk_elements=8192))


@pytest.mark.parametrize("tokens", [64, 61])
@pytest.mark.parametrize("trained", [True, False])
def test_estimate_of_memory_needs_the_outer_chunks_alone(
    tokens: int, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last chunk may be shorter."""

    def peaks() -> dict[Any, int]:
        with fake_tensors(torch.device("cpu")) as live:
            student = HeadInputs(
                states=torch.zeros(tokens, 8, requires_grad=trained),
                head=torch.zeros(100, 8, requires_grad=trained),
            )
            teacher = HeadInputs(states=torch.zeros(tokens, 6), head=torch.zeros(100, 6))
            labels = torch.zeros(tokens, dtype=torch.long)
            total = head_losses(student, labels, teacher=teacher, chunk_elements=500).total
            if trained:
                total.backward()
            return dict(live.peaks)

    few = peaks()
    monkeypatch.setattr(chunked, "FakeTensor", ())
    assert few == peaks()
    assert max(few.values()) > 0
