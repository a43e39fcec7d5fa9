"""One training step: micro-batches add up to the batch, and what is not finite stops before the weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from trainer_precision import FLOAT32

from trainer.api import check
from trainer.devices.device import Device
from trainer.errors import DivergedError
from trainer.optim.build import OptimizerSet, build_optimizer
from trainer.pipeline import Outcome
from trainer.training.context import StagePlan
from trainer.training.train_step import TrainStep, micro_batches

DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")


class Bigram(nn.Module):
    """With the two ends that the trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.middle = nn.Linear(4, 4, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def losses(self, ids_BT: Tensor) -> Mapping[str, Tensor]:
        logits = self.head(self.middle(self.embedding(ids_BT[:, :-1])))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())
        by_feature = logits.detach().square().mean(dim=(0, 1))
        return {"loss": loss, "squared": logits.square().mean(), "by_feature": by_feature}


def step_of(
    model: Bigram, *, losses: object = None, micro: int | None = None, clip: float = 0.0
) -> TrainStep:
    stage2 = check(["optimizer@stage2.optimizer=adamw", f"stage2.optimizer.max_grad_norm={clip}"]).stage2
    return TrainStep(
        dataclasses.replace(StagePlan.from_config("toy", stage2), micro_batch_size=micro),
        model,
        losses or model.losses,  # type: ignore[arg-type]
        build_optimizer(model, stage2.optimizer),
        DEVICE,
    )


def ids(sequences: int = 8) -> Tensor:
    return torch.randint(8, (sequences, 6), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_micro_batches_give_loss_and_gradient_of_the_batch(micro: int) -> None:
    full, parts = Bigram(), Bigram()
    one = step_of(full)(ids(), number=1)
    many = step_of(parts, micro=micro)(ids(), number=1)
    assert many.losses == pytest.approx(one.losses, rel=1e-6)
    assert set(one.losses) == {"loss", "squared"}
    torch.testing.assert_close(many.details["by_feature"], one.details["by_feature"])
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
    for a, b in zip(full.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_optimizer_steps_once_for_all_micro_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, sizes = Bigram(), list[int]()

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        sizes.append(len(ids_BT))
        return model.losses(ids_BT)

    taken = list[OptimizerSet]()
    step = OptimizerSet.step
    monkeypatch.setattr(OptimizerSet, "step", lambda optimizer: (taken.append(optimizer), step(optimizer)))
    step_of(model, losses=losses, micro=2)(ids(), number=1)
    assert sizes == [2, 2, 2, 2]
    (optimizer,) = taken
    assert {int(state["step"]) for state in optimizer.optimizers[0].state.values()} == {1}


def test_a_batch_is_split_without_loss_or_disorder() -> None:
    assert torch.equal(torch.cat(micro_batches(ids(), 2)), ids())
    assert [part.shape[0] for part in micro_batches(ids(), None)] == [8]


def test_clipping_scales_the_gradient_of_the_whole_batch() -> None:
    """The norm is reported as it was; the weights move as with the batch in one."""
    full, parts = Bigram(), Bigram()
    one, many = step_of(full, clip=1e-3), step_of(parts, clip=1e-3, micro=1)
    for number in (1, 2, 3):
        assert many(ids(), number=number).grad_norm == pytest.approx(
            one(ids(), number=number).grad_norm, rel=1e-4
        )
    for a, b in zip(full.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_no_gradient_is_left_for_the_next_step() -> None:
    model = Bigram()
    step_of(model)(ids(), number=1)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_micro_batch_that_is_not_finite_changes_no_weight() -> None:
    model, calls = Bigram(), list[int]()
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        calls.append(1)
        loss = model.losses(ids_BT)["loss"]
        return {"loss": loss * math.nan if len(calls) == 2 else loss}

    with pytest.raises(DivergedError, match="nan at step 7 of toy"):
        step_of(model, losses=losses, micro=2)(ids(), number=7)
    for a, b in zip(before, model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_run_in_micro_batches_equals_the_plain_one(
    run_small: Callable[..., Outcome],
) -> None:
    """All stages, the teacher's training and the calibration among them; float32, so that rounding is small."""
    plain = run_small(*FLOAT32).result.metrics
    micro = run_small(
        *FLOAT32,
        *(f"{stage}.micro_batch_size=2" for stage in ("model.teacher", "stage1_9", "stage2")),
    ).result.metrics
    assert micro.tokens == plain.tokens
    # A weight near a rounding edge may quantise otherwise, hence no more than four digits.
    assert micro.final_loss == pytest.approx(plain.final_loss, rel=1e-3)
    assert micro.stage1_9_final_loss == pytest.approx(plain.stage1_9_final_loss, rel=1e-3)
