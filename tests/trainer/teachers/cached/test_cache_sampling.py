"""Selection of the stored tokens: the likeliest, and others with equal probability."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainer.teachers.cached.sampling import draw, uniforms

N, V = 3, 13


def logits(seed: int) -> Tensor:
    return torch.randn(N, V, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**31), st.integers(1, V), st.data())
def test_the_likeliest_and_others_that_are_none_of_them(seed: int, top_k: int, data: st.DataObject) -> None:
    negatives = data.draw(st.integers(0, V - top_k))
    given_NV = logits(seed)
    kept = draw(given_NV, top_k, torch.from_numpy(uniforms(seed, 1, N, negatives)))
    logprobs = given_NV.log_softmax(dim=-1)
    for ids, values, width in (
        (kept.topk_idx, kept.topk_logits, top_k),
        (kept.rand_idx, kept.rand_logits, negatives),
    ):
        assert (ids.shape, ids.dtype) == ((N, width), torch.int32)
        torch.testing.assert_close(values, logprobs.gather(-1, ids.long()))
    assert kept.topk_logits.diff(dim=-1).le(0).all()
    for top, rand, row in zip(kept.topk_idx.tolist(), kept.rand_idx.tolist(), logprobs, strict=True):
        assert set(top) == set(row.topk(top_k).indices.tolist())
        assert not set(top) & set(rand)
        assert rand == sorted(rand)
        assert all(0 <= token < V for token in rand)
        if negatives == V - top_k:
            assert sorted(top + rand) == list(range(V))


@pytest.mark.parametrize(("top_k", "negatives"), [(3, 5), (3, 4), (1, 1), (4, 7), (5, 8)])
def test_each_other_token_is_expected_equally_often(top_k: int, negatives: int) -> None:
    """R/(V-K) times, with random numbers over their full range, also if strata have fractional lengths."""
    given_1V, steps = logits(0)[:1], 2000
    chance = ((torch.arange(steps, dtype=torch.float64) + 0.5) / steps).unsqueeze(-1).expand(-1, negatives)
    kept = draw(given_1V.expand(steps, -1), top_k, chance)
    counts = torch.bincount(kept.rand_idx.flatten(), minlength=V) / steps
    others = [token for token in range(V) if token not in kept.topk_idx[0].tolist()]
    expected = torch.full((len(others),), negatives / (V - top_k))
    torch.testing.assert_close(counts[others], expected, rtol=0, atol=2 / steps * negatives)


def test_chance_is_that_of_the_row_and_the_seed() -> None:
    same, row, seed = uniforms(1, 2, 4, 3), uniforms(1, 3, 4, 3), uniforms(2, 2, 4, 3)
    assert (same == uniforms(1, 2, 4, 3)).all()
    assert not (same == row).any()
    assert not (same == seed).any()
