"""The selection of salient columns and its schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from quant_forms import BITNET
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import SaliencyConfig
from trainer.pipeline import Outcome
from trainer.quant.activations import int8_activation
from trainer.quant.saliency import ColumnSaliency, Share, k_at, observe
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda
from trainer.quant.weights import ternary_weight

CONFIG = SaliencyConfig(
    enabled=True,
    initial_k=0.2,
    final_k=0.0,
    schedule_type="linear",
    warmup_steps=0,
    ema_decay=0.9,
    update_interval=10,
)


class CountedOperations(TorchDispatchMode):
    """Counts the operations that torch dispatches within it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        self.number += 1
        return func(*args, **(kwargs or {}))


def test_the_columns_with_the_largest_entries_are_kept() -> None:
    weight = torch.zeros(3, 4)
    weight[1, 2], weight[0, 0], weight[2, 3] = -5.0, 2.0, 1.0
    assert ColumnSaliency(weight, Share(0.5), 0.9).mask.tolist() == [True, False, True, False]


@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (0.1, 1), (0.5, 5), (1.0, 10)])
def test_the_share_sets_how_many(share: float, kept: int) -> None:
    assert int(ColumnSaliency(torch.randn(4, 10), Share(share), 0.9).mask.sum()) == kept


def test_ties_are_broken_the_same_way_everywhere() -> None:
    assert ColumnSaliency(torch.ones(2, 4), Share(0.5), 0.9).mask.tolist() == [True, True, False, False]


def test_the_norms_are_averaged_exponentially() -> None:
    share = Share(0.5)
    saliency = ColumnSaliency(torch.tensor([[1.0, 0.0]]), share, ema_decay=0.75)
    weight = torch.tensor([[0.0, 2.0]])
    observe([saliency], [weight])
    torch.testing.assert_close(saliency.norms, torch.tensor([0.75, 0.5]))
    share.set(0.5)
    assert saliency.mask.tolist() == [True, False]
    observe([saliency], [weight])
    share.set(0.5)
    assert saliency.mask.tolist() == [False, True]


def test_layers_of_two_widths_select_as_each_alone_would() -> None:
    """To the bit: the widths are ranked and compared in stacks."""
    torch.manual_seed(0)
    weights = [torch.randn(5, width).round(decimals=1) for width in (8, 12, 8, 12, 12)]  # with ties
    together, later = Share(0.4), [weight * torch.rand(weight.shape[1]) for weight in weights]
    layers = [ColumnSaliency(weight, together, 0.9) for weight in weights]
    alone = [ColumnSaliency(weight, Share(0.4), 0.9) for weight in weights]
    observe(layers, later)
    together.set(0.3)
    for ours, theirs, weight in zip(layers, alone, later, strict=True):
        observe([theirs], [weight])
        theirs.share.set(0.3)
        for name in ("norms", "ranks", "mask"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert int(ours.mask.sum()) == round(0.3 * weight.shape[1])


def test_salient_step_has_one_more_operation_a_layer() -> None:
    """To keep the columns; masks and ranks are made for all layers at once, whatever their number."""

    def operations(layers: int) -> int:
        share = Share(0.3)
        for _ in range(layers):
            ColumnSaliency(torch.randn(4, 8), share, 0.9)
        with CountedOperations() as counted:
            share.set(0.2)
        return counted.number

    assert operations(1) == operations(56)
    layer = TernaryLinear(nn.Linear(8, 4), Lambda(), BITNET)
    with CountedOperations() as plain:
        layer.effective_weight()
    layer.saliency = ColumnSaliency(layer.weight, Share(0.3), 0.9)
    with CountedOperations() as salient:
        layer.effective_weight()
    assert salient.number == plain.number + 1


def test_k_is_a_tensor_that_layers_share() -> None:
    share = Share(0.0)
    first, second = (ColumnSaliency(torch.randn(4, 8), share, 0.9) for _ in range(2))
    share.set(1.0)
    assert first.mask.all()
    assert second.mask.all()


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_k_goes_from_the_initial_to_the_final_share(kind: str) -> None:
    config = dataclasses.replace(CONFIG, schedule_type=kind)
    values = [k_at(config, step, 11) for step in range(11)]
    assert values[0] == pytest.approx(0.2)
    assert values[5] == pytest.approx(0.1)
    assert values[-1] == pytest.approx(0.0, abs=1e-12)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_k_starts_after_warmup_and_reaches_final_share(kind: str) -> None:
    config = dataclasses.replace(CONFIG, schedule_type=kind, warmup_steps=4)
    values = [k_at(config, step, 11) for step in range(11)]
    assert values[:5] == [0.2] * 5
    assert values[7] == pytest.approx(0.1)
    assert values[-1] == pytest.approx(0.0, abs=1e-12)
    assert values == sorted(values, reverse=True)


def test_a_stage_of_one_step_is_not_annealed() -> None:
    assert k_at(CONFIG, 0, 1) == 0.2


def test_cosine_and_linear_differ_in_between() -> None:
    cosine = dataclasses.replace(CONFIG, schedule_type="cosine")
    assert k_at(cosine, 2, 11) > k_at(CONFIG, 2, 11)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0])
def test_salient_layer_obeys_lambda(lambda_: float) -> None:
    """Its saliency-aware layer quantised other columns and all activations fully at every lambda.
    The reference is computed column by column."""
    torch.manual_seed(0)
    linear = nn.Linear(10, 6)
    layer = TernaryLinear(linear, Lambda(), BITNET)
    layer.saliency = ColumnSaliency(linear.weight, Share(0.3), 0.9)
    layer.lambda_.set(lambda_)
    salient = linear.weight.abs().amax(dim=0).topk(3).indices.tolist()
    weight, ternary = linear.weight.detach(), ternary_weight(linear.weight.detach(), "absmean", None)
    columns = [
        weight[:, i] if i in salient else (1 - lambda_) * weight[:, i] + lambda_ * ternary[:, i]
        for i in range(10)
    ]
    x = torch.randn(4, 10)
    blended = (1 - lambda_) * x + lambda_ * int8_activation(x)
    torch.testing.assert_close(layer(x), blended @ torch.stack(columns, dim=1).T + linear.bias)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_keeps_the_columns_that_numpy_says(
    schedule: str, run_small: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Top k by L-infinity norm, k annealed, norms averaged at every `update_interval`-th step: the full
    curriculum in numpy, on the weights that the layer had at each step."""
    observed: list[tuple[np.ndarray, np.ndarray]] = []
    forward = TernaryLinear.forward

    def spying(layer: TernaryLinear, x: torch.Tensor) -> torch.Tensor:
        if layer.training and layer.saliency is not None and layer.in_features == 48:
            observed.append((layer.weight.detach().numpy().copy(), layer.saliency.mask.numpy().copy()))
        return forward(layer, x)

    monkeypatch.setattr(TernaryLinear, "forward", spying)
    steps, interval, decay, initial, final = 12, 3, 0.5, 0.5, 0.1
    run_small(
        f"stage1_9.max_steps={steps}",
        "stage1_9.optimizer.lr=0.05",
        "stage1_9.saliency.enabled=true",
        f"stage1_9.saliency.schedule_type={schedule}",
        f"stage1_9.saliency.update_interval={interval}",
        f"stage1_9.saliency.ema_decay={decay}",
        f"stage1_9.saliency.initial_k={initial}",
        f"stage1_9.saliency.final_k={final}",
        "stage2.max_steps=0",
        "model.layers=1",
    )
    assert len(observed) == steps
    norms, order = np.abs(observed[0][0]).max(axis=0), []
    for step, (weight, mask) in enumerate(observed):
        if step and step % interval == 0:
            norms = decay * norms + (1 - decay) * np.abs(weight).max(axis=0)
        share = step / (steps - 1)
        share = share if schedule == "linear" else (1 - np.cos(np.pi * share)) / 2
        count = round((initial + (final - initial) * share) * 48)
        salient = np.argsort(-norms, kind="stable")[:count]
        assert set(np.flatnonzero(mask)) == set(salient), step
        order.append(tuple(np.argsort(-norms, kind="stable")))
    assert len(set(order)) == steps // interval, "the ranks never changed: this compares nothing"
