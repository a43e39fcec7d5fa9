"""Losses over candidates: the dense ones with every token among them, sound and nearly unbiased with fewer.

No tensor is of the size of all logits, in either direction.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from benchmarks.tensor_memory import most_bytes
from trainer.losses.chunked import HeadInputs
from trainer.losses.distillation import tempered_divergence
from trainer.losses.gathered import candidate_logits
from trainer.losses.sparse import log_weights, sampled_cross_entropy, sparse_divergence
from trainer.teachers.cached.sampling import Drawn, draw, uniforms

N, V, H = 6, 11, 4
CPU = torch.device("cpu")


def seeded(seed: int, *shape: int) -> Tensor:
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(logits_NV: Tensor, top_k: int, negatives: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and logits of the candidates, [N, C]."""
    chance = torch.from_numpy(uniforms(seed, 0, len(logits_NV), negatives))
    kept: Drawn = draw(logits_NV, top_k, chance)
    ids_NC = torch.cat([kept.topk_idx, kept.rand_idx], dim=-1)
    return ids_NC, logits_NV.gather(-1, ids_NC.long())


def weights(top_k: int, negatives: int, vocabulary: int = V) -> Tensor:
    return log_weights(top_k, negatives, vocabulary=vocabulary, device=CPU)


ALL_TOKENS = {"K = V": (V, 0), "K + R = V": (4, V - 4)}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("case", ALL_TOKENS)
def test_all_tokens_sampled_equal_the_dense_losses(case: str, temperature: float) -> None:
    """From hidden states through a head, in float64: to 1e-12."""
    top_k, negatives = ALL_TOKENS[case]
    states, head = seeded(1, N, H).requires_grad_(), seeded(2, V, H).requires_grad_()
    teacher, labels = seeded(3, N, V), torch.arange(N)
    ids, theirs = drawn(teacher, top_k, negatives)
    log_w = weights(top_k, negatives)

    named = torch.cat([labels.int().unsqueeze(-1), ids], dim=-1)
    ours = candidate_logits(HeadInputs(states=states, head=head), named, chunk_elements=3 * H * (V + 1))
    sparse = {
        "kl": sparse_divergence(ours[:, 1:], theirs, log_w, temperature=temperature),
        "ce": sampled_cross_entropy(ours[:, 0], ours[:, 1:], log_w, ids_NC=ids, labels_N=labels),
    }
    logits = states @ head.T
    pad = torch.zeros(1, 1, V, dtype=torch.float64)  # the last position predicts nothing
    dense = {
        "kl": tempered_divergence(
            torch.cat([logits[None], pad], 1), torch.cat([teacher[None], pad], 1), temperature=temperature
        ),
        "ce": F.cross_entropy(logits, labels),
    }
    for name in dense:
        torch.testing.assert_close(sparse[name], dense[name], rtol=1e-7, atol=1e-12)
        for parameter in (states, head):
            torch.testing.assert_close(
                torch.autograd.grad(sparse[name], parameter, retain_graph=True)[0],
                torch.autograd.grad(dense[name], parameter, retain_graph=True)[0],
                rtol=1e-7,
                atol=1e-12,
            )


@given(st.integers(0, 2**31), st.integers(1, V), st.floats(0.25, 8), st.data())
def test_it_is_a_divergence_whatever_the_candidates(
    seed: int, top_k: int, temperature: float, data: st.DataObject
) -> None:
    negatives = data.draw(st.integers(0, V - top_k))
    student, teacher = seeded(seed, N, V), seeded(seed + 1, N, V)
    ids, theirs = drawn(teacher, top_k, negatives, seed)
    log_w = weights(top_k, negatives)
    ours = student.gather(-1, ids.long())
    assert sparse_divergence(ours, theirs, log_w, temperature=temperature) >= -1e-12
    agreed = (theirs + torch.arange(N).unsqueeze(-1)).requires_grad_()  # up to a constant per position
    loss = sparse_divergence(agreed, theirs, log_w, temperature=temperature)
    assert loss.item() == pytest.approx(0, abs=1e-9)
    assert torch.autograd.grad(loss, agreed)[0].abs().max() < 1e-9


@pytest.mark.parametrize("label", ["likeliest", "rarest"])
def test_sampled_normaliser_is_unbiased(label: str) -> None:
    """Over 700 draws of 16 of 300 tokens: the mean of Z to 1 %, that of log Z below it by Jensen's amount.

    A label among the candidates is not counted twice.
    """
    vocabulary, top_k, negatives, draws = 300, 8, 16, 700
    student = seeded(5, vocabulary)
    labels = torch.full((draws,), int(student.argmax() if label == "likeliest" else student.argmin()))
    ids, ours = drawn(student.expand(draws, -1), top_k, negatives)
    label_N = student[labels]
    # One position at a time: the mean over positions is of logarithms.
    each = torch.stack(
        [
            sampled_cross_entropy(
                label_N[n : n + 1],
                ours[n : n + 1],
                weights(top_k, negatives, vocabulary),
                ids_NC=ids[n : n + 1],
                labels_N=labels[n : n + 1],
            )
            for n in range(draws)
        ]
    )
    log_z, exact = each + label_N, student.logsumexp(dim=-1)
    assert (log_z - exact).exp().mean().item() == pytest.approx(1, abs=0.01)
    bias, jensen = (log_z.mean() - exact).item(), -(log_z - exact).exp().var().item() / 2
    assert -0.1 < bias < 0
    assert bias == pytest.approx(jensen, rel=0.5)


def test_without_negatives_other_tokens_do_not_count() -> None:
    student, teacher = seeded(1, N, V), seeded(2, N, V)
    ids, theirs = drawn(teacher, 3, 0)
    labels = torch.arange(N)
    log_w = weights(3, 0)
    for n in range(N):
        at = ids[n : n + 1].long()
        p, q = student[n, at[0]].log_softmax(-1), teacher[n, at[0]].log_softmax(-1)
        kl = sparse_divergence(student[n : n + 1].gather(-1, at), theirs[n : n + 1], log_w, temperature=1.0)
        assert kl.item() == pytest.approx((q.exp() * (q - p)).sum().item(), rel=1e-9)
        among = sorted({*at[0].tolist(), n})
        ce = sampled_cross_entropy(
            student[n, n : n + 1],
            student[n : n + 1].gather(-1, at),
            log_w,
            ids_NC=at,
            labels_N=labels[n : n + 1],
        )
        assert ce.item() == pytest.approx((student[n, among].logsumexp(-1) - student[n, n]).item(), rel=1e-9)


@pytest.mark.parametrize("chunk_elements", [1, 2 * 4 * H, 10**6])
@pytest.mark.parametrize("frozen", ["", "states", "head"])
@pytest.mark.parametrize("positions", [(N,), (2, N // 2)], ids=["flat", "in rows"])
def test_gathered_logits_equal_those_of_the_head(
    chunk_elements: int, frozen: str, positions: tuple[int, ...]
) -> None:
    """Gradients too; ids that come again add up, and what is frozen gets none."""
    ids = torch.tensor([0, 0, 3, 10]).expand(*positions, 4)
    given = {"states": seeded(1, *positions, H), "head": seeded(2, V, H)}
    for name, tensor in given.items():
        tensor.requires_grad_(name != frozen)
    ours = candidate_logits(HeadInputs(**given), ids, chunk_elements=chunk_elements)
    dense = (given["states"] @ given["head"].T).gather(-1, ids)
    torch.testing.assert_close(ours, dense)
    trained = [tensor for name, tensor in given.items() if name != frozen]
    factor = seeded(4, *positions, 4)
    for one, other in zip(
        torch.autograd.grad((ours * factor).sum(), trained),
        torch.autograd.grad((dense * factor).sum(), trained),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_products_in_states_dtype_sums_in_float32() -> None:
    """States in bfloat16 and a head in float32, as under autocast.

    256 positions add 1/256 each to one row; in bfloat16 the sum would stop growing at 1/2 of it.
    """
    states = torch.ones(512, H, dtype=torch.bfloat16)
    head = torch.ones(V, H).requires_grad_()
    ids = torch.zeros(512, 1, dtype=torch.int32)
    logits = candidate_logits(HeadInputs(states=states, head=head), ids, chunk_elements=H)
    assert logits.dtype == torch.float32
    (grad,) = torch.autograd.grad(logits.sum() / 512, head)
    assert grad.dtype == torch.float32
    torch.testing.assert_close(grad[0], torch.ones(H))


def test_tied_head_gets_both_gradients() -> None:
    table = seeded(1, V, H).requires_grad_()
    ids = torch.tensor([[1, 2], [2, 2], [0, 9]])
    sparse = candidate_logits(HeadInputs(states=table[:3] * 2, head=table), ids)
    dense = (table[:3] * 2 @ table.T).gather(-1, ids)
    torch.testing.assert_close(
        torch.autograd.grad(sparse.square().sum(), table)[0],
        torch.autograd.grad(dense.square().sum(), table)[0],
    )


def test_more_candidates_than_tokens_raise() -> None:
    with pytest.raises(ValueError, match=r"9 \+ 3 candidates of 11 tokens"):
        weights(9, 3)


def test_no_tensor_is_as_large_as_all_logits() -> None:
    """L = 1024, V = 151,936, K = 128, R = 64: 768 KiB of logits in place of 593.5 MiB.

    Forward and backward pass make no tensor above the rows of one chunk.
    """
    length, vocabulary, top_k, negatives, hidden = 1024, 151_936, 128, 64, 8
    states = torch.randn(length, hidden, requires_grad=True)
    head = torch.randn(vocabulary, hidden, requires_grad=True)
    ids = torch.randint(vocabulary, (length, top_k + negatives), dtype=torch.int32)
    labels = torch.randint(vocabulary, (length,))
    theirs = torch.randn(ids.shape)
    log_w = weights(top_k, negatives, vocabulary)
    sizes: list[int] = []

    def step() -> None:
        logits = candidate_logits(HeadInputs(states=states, head=head), ids)
        sizes.append(logits.nbytes)
        named = candidate_logits(HeadInputs(states=states, head=head), labels.unsqueeze(-1)).squeeze(-1)
        loss = sparse_divergence(logits, theirs, log_w, temperature=5.0)
        loss = loss + sampled_cross_entropy(named, logits, log_w, ids_NC=ids, labels_N=labels)
        loss.backward()  # type: ignore[no-untyped-call]

    most = most_bytes(step)
    full = 4 * length * vocabulary
    assert sizes == [768 * 2**10]
    assert full == pytest.approx(593.5 * 2**20)
    assert head.grad is not None
    assert most.largest <= max(head.grad.nbytes, 4 * 2**22)  # the head's gradient; the rows of one chunk
    assert most.at_once < full / 8
