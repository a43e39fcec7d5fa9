"""Where the compiler fails, processes go on without it as long as they have exchanged nothing of the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from same_training import BASE
from torch import Tensor, nn

from trainer.api import check
from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.errors import TrainerError
from trainer.models.causal_lm import build_tiny
from trainer.optim.build import build_optimizer
from trainer.training.context import StagePlan
from trainer.training.parallel import strategy_for
from trainer.training.train_step import TrainStep

pytestmark = pytest.mark.timeout(600)  # processes that load torch, on a busy machine

CASES = {
    "ddp, forward": ("ddp", None, 0),
    "ddp, backward": ("ddp", None, 1),
    "ddp, first of two": ("ddp", 2, 1),
    "ddp, second of two": ("ddp", 2, 2),
    "fsdp, forward": ("fsdp", None, 0),
    "fsdp, backward": ("fsdp", None, 1),
}
"""The strategy, sequences at once of four, and in which backward pass compiling fails; 0: in the forward pass."""


def failing(model: nn.Module, number: int, message: str) -> Callable[..., object]:
    def refuse(*_: object) -> None:
        raise RuntimeError(message)

    def later(_: object, __: object, output: Any) -> None:
        """In the middle of the backward pass: some gradients are there by then."""
        (output[0] if isinstance(output, tuple) else output).register_hook(refuse)

    def compile(objective: Callable[[Tensor], Mapping[str, Tensor]], **_: object) -> object:
        calls: list[int] = []

        def fail(ids_BT: Tensor) -> Mapping[str, Tensor]:
            calls.append(1)
            if len(calls) != number:
                return objective(ids_BT)
            # torch types a module's attributes as tensors or modules.
            hook = model.get_decoder().layers[0].register_forward_hook(later)  # type: ignore[operator, union-attr]
            try:
                return objective(ids_BT)
            finally:
                hook.remove()

        return refuse if number == 0 else fail

    return compile


def step(parallel: Any, micro: int | None, number: int, message: str) -> str | Tensor:
    """The weights after a step in this process, one of two, or the reason that it could not be taken."""
    config: Any = check([*BASE, "model.layers=2", "optimizer@stage2.optimizer=adamw"])
    ranks = Ranks(rank=torch.distributed.get_rank(), world=2, parallel=parallel)
    place: dict[str, Any] = {"torch_device": torch.device("cpu"), "dtype": torch.float32, "name": "CPU"}
    device = Device(**place, attention="eager", compile=number >= 0, ranks=ranks)
    torch.manual_seed(0)
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    strategy = strategy_for(model, device)
    plan = dataclasses.replace(StagePlan.from_config("toy", config.stage2), micro_batch_size=micro)

    def objective(ids_BT: Tensor) -> Mapping[str, Tensor]:
        return {"loss": model(ids_BT).logits.square().mean()}

    with mock.patch.object(torch, "compile", failing(model, number, message)):
        optimizer = build_optimizer(model, plan.optimizer, ranks=ranks)
        step = TrainStep(plan, model, objective, optimizer, device, strategy=strategy)
        generator = torch.Generator().manual_seed(ranks.rank)
        try:
            step(torch.randint(300, (4, 16), generator=generator), number=1)
        except TrainerError as error:
            return str(error)
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def taken() -> dict[str, str | Tensor]:
    found = {case: step(*given, "no C++ compiler\nand a page") for case, given in CASES.items()}
    lost = step("fsdp", None, 1, "[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    return found | {"lost": lost, "eager": step("ddp", None, -1, "")}


def test_processes_that_have_exchanged_nothing_go_on(
    in_two: Callable[[Callable[[], Any]], list[Any]],
) -> None:
    for found in in_two(taken):
        for case in ("ddp, forward", "ddp, first of two"):
            assert isinstance(found[case], Tensor), found[case]
            torch.testing.assert_close(found[case], found["eager"])
        for case in ("ddp, backward", "ddp, second of two", "fsdp, forward", "fsdp, backward"):
            assert found[case] == (
                "torch.compile failed (RuntimeError: no C++ compiler); processes that share a run cannot go on "
                "within a step; write device.compile=false"
            ), case
        assert found["lost"].startswith("RuntimeError: [/pytorch/gloo/transport/")
