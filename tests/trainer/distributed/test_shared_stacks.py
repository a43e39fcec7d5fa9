"""Muon's stacks of matrices, shared by two processes: each orthogonalises a half, both get all updates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.tensors import full_tensor, redistribute_like
from trainer.optim import muon
from trainer.optim.muon import BatchedMuon
from trainer.optim.stochastic_rounding import StochasticRounding

pytestmark = pytest.mark.timeout(600)  # processes that load torch, on a busy machine

InTwo = Callable[[Callable[[], Any]], list[Any]]
SHAPES = ((24, 24), (16, 40), (40, 16), (40, 16), (24, 24), (24, 24), (5, 100))
"""Three of each but of one, which a second process has no part of."""
CASES = {
    "float32": (torch.float32, torch.float32, False),
    "bfloat16": (torch.float32, torch.bfloat16, False),
    "rounded": (torch.bfloat16, torch.bfloat16, True),
}


def trained(
    ranks: Ranks, weights_in: torch.dtype, dtype: torch.dtype, rounded: bool, *, sharded: bool = False
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator).to(weights_in) for shape in SHAPES]
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        weights = [distribute_tensor(weight, mesh, [Shard(0)]) for weight in weights]
    matrices = [nn.Parameter(weight) for weight in weights]
    rounding = StochasticRounding("muon", 0) if rounded else None
    optimizer = BatchedMuon(matrices, lr=0.1, dtype=dtype, ranks=ranks, rounding=rounding)
    for _ in range(3):
        for matrix in matrices:
            drawn = torch.randn(matrix.shape, generator=generator).to(weights_in)
            matrix.grad = redistribute_like(matrix, drawn)
        optimizer.step()
    return [full_tensor(matrix.detach()) for matrix in matrices]


def shared(parallel: Literal["ddp", "fsdp"]) -> tuple[dict[str, list[Tensor]], int]:
    """What every case comes to in this process, and how many matrices it has orthogonalised."""
    ranks = Ranks(rank=torch.distributed.get_rank(), world=2, parallel=parallel)
    counts, iterate = [], muon.newton_schulz

    def counting(x_NSL: Tensor, *arguments: Any, **options: Any) -> Tensor:
        counts.append(len(x_NSL))
        return iterate(x_NSL, *arguments, **options)

    muon.newton_schulz = counting
    cases = {name: case for name, case in CASES.items() if parallel == "ddp" or name != "rounded"}
    found = {name: trained(ranks, *case, sharded=parallel == "fsdp") for name, case in cases.items()}
    return found, sum(counts) // (3 * len(cases))


ddp, fsdp = partial(shared, "ddp"), partial(shared, "fsdp")
ddp.__name__, fsdp.__name__ = "ddp", "fsdp"  # type: ignore[attr-defined] # `in_two` names its files by it


@pytest.mark.parametrize("strategy", [ddp, fsdp], ids=["ddp", "fsdp"])
def test_processes_share_stacks_bit_for_bit(strategy: Callable[[], Any], in_two: InTwo) -> None:
    expected = {name: trained(ALONE, *case) for name, case in CASES.items()}
    for found, orthogonalised in in_two(strategy):
        assert orthogonalised == 2 + 2 + 1  # of 7 matrices
        for name, weights in found.items():
            for mine, theirs in zip(weights, expected[name], strict=True):
                assert torch.equal(mine, theirs), name
