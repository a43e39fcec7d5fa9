"""Under DDP, FSDP and a tensor group the decoder layers are compiled, and the training stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from same_training import BASE
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from trainer.api import check
from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.distributed.tensors import full_tensor
from trainer.models.causal_lm import build_tiny
from trainer.models.subln import make_student
from trainer.stages.pretrain import pretrain
from trainer.training.context import StageContext
from trainer.training.loop import Step

# Processes that load torch and its compiler: half a minute, more on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def trained(parallel: Any, tensor: int, compile: Any) -> tuple[list[float], Tensor]:
    """The losses and the weights after four steps of Stage 2 in this process, one of two."""
    config: Any = check([*BASE, "model.layers=4", "stage2.max_steps=4", "optimizer@stage2.optimizer=adamw"])
    place: dict[str, Any] = {"torch_device": torch.device("cpu"), "dtype": torch.float32, "name": "CPU"}
    device = Device(**place, attention="eager")
    shared = Device(
        **place,
        attention="eager",
        compile=compile,
        ranks=Ranks(rank=torch.distributed.get_rank(), world=2, parallel=parallel, tensor=tensor),
    )
    torch.manual_seed(0)
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    student, lambda_ = make_student(model, config.stage1, [ids(4, 0)], quant=config.quant, device=device)
    losses = list[float]()

    def batches() -> Iterator[Tensor]:
        for step in range(4):
            yield ids(8, 1 + step)[shared.ranks.data_rank :: shared.ranks.data_world]

    def watch(step: Step) -> None:
        losses.append(step.losses["loss"])

    context = StageContext(device=shared, watch=watch)
    pretrain(student, model, lambda_, config.stage2, batches(), context)  # type: ignore[arg-type]
    return losses, torch.cat([full_tensor(each.detach()).flatten() for each in student.parameters()])


def ids(rows: int, seed: int) -> Tensor:
    return torch.randint(300, (rows, 16), generator=torch.Generator().manual_seed(seed))


def compiled_and_eager() -> list[Any]:
    found, compile = list[Any](), torch.compile
    for parallel, tensor in (("ddp", 1), ("fsdp", 1), ("fsdp", 2)):
        torch.compiler.reset()
        counter = CompileCounter()

        def counting(forward: Any, counter: Any = counter, **settings: Any) -> Any:
            return compile(forward, backend=counter, fullgraph=True, **settings)

        eager = trained(parallel, tensor, False)
        with mock.patch.object(torch, "compile", counting):
            compiled = trained(parallel, tensor, "layers")
        found.append((counter.frame_count, eager, compiled))
    return found


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_one_graph_for_all_layers_trains_as_eager(
    in_two: Callable[[Callable[[], Any]], list[Any]],
) -> None:
    for found in in_two(compiled_and_eager):
        # In a tensor group the losses of a chunk of logits are another: it has some of the vocabulary.
        assert [graphs for graphs, *_ in found] == [1, 1, 2]
        for _, (losses, weights), (our_losses, our_weights) in found:
            assert our_losses == pytest.approx(losses, rel=1e-3)
            assert our_losses[0] == pytest.approx(losses[0], rel=1e-6)
            torch.testing.assert_close(our_weights, weights, rtol=1e-2, atol=1e-3)
