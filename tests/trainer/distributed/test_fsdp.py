"""What FSDP is told: nothing is fetched ahead while layers recompute, and parameters have one dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.distributed.tensors import is_dtensor
from trainer.errors import ConfigError
from trainer.training.parallel import FSDPStrategy

pytestmark = pytest.mark.timeout(600)  # processes that load torch, on a busy machine


class Stack(nn.Module):
    """As much of a model as FSDP looks at."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def get_decoder(self) -> nn.Module:
        return self

    def loss(self, x_BT: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x_BT = layer(x_BT).tanh()
        return {"loss": x_BT.square().mean()}


def rows() -> Tensor:
    return torch.arange(16.0).view(4, 4) / 16


def fetched_ahead() -> dict[bool, int]:
    """How often a layer was fetched before its time in one step, with and without recomputation; and on the
    way, that the gradient is that of all rows, and that everybody can run the model after the stage."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    known, fetch = Stack(), FSDPParamGroup._backward_prefetch
    known.loss(rows())["loss"].backward()
    counts = {}
    for recompute in (False, True):
        calls: list[object] = []
        FSDPParamGroup._backward_prefetch = lambda group, calls=calls: (calls.append(group), fetch(group))[1]
        model, rank = Stack(), torch.distributed.get_rank()
        device = Device(
            torch_device=torch.device("cpu"),
            dtype=torch.float32,
            name="CPU",
            attention="eager",
            recompute=recompute,
            ranks=Ranks(rank=rank, world=2, parallel="fsdp"),
        )
        strategy = FSDPStrategy(model, device)
        strategy.begin()
        with strategy:
            assert all(is_dtensor(parameter) for parameter in model.parameters())
            strategy(model.loss, rows()[rank::2])["loss"].backward()
            for parameter, other in zip(model.parameters(), known.parameters(), strict=True):
                torch.testing.assert_close(parameter.grad.full_tensor(), other.grad)
        with strategy.running(), torch.no_grad():
            torch.testing.assert_close(model.loss(rows()), known.loss(rows()))
        assert all(is_dtensor(parameter) for parameter in model.parameters())
        counts[recompute] = len(calls)
    return counts


def test_nothing_is_fetched_ahead_while_layers_recompute(
    in_two: Callable[[Callable[[], Any]], list[Any]],
) -> None:
    for counts in in_two(fetched_ahead):
        assert counts[True] == 0
        assert counts[False] > 0


def test_parameters_of_several_dtypes_are_refused() -> None:
    model = Stack()
    model.layers[1].bfloat16()
    device = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
    with pytest.raises(ConfigError, match=r"bfloat16 and float32; .*model.dtype=bf"):
        FSDPStrategy(model, device)
