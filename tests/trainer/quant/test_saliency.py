"""The selection of salient columns and its schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from quant_forms import BITNET
from torch import nn

from trainer.config import SaliencyConfig
from trainer.pipeline import Outcome
from trainer.quant.activations import int8_activation
from trainer.quant.saliency import ColumnSaliency, Share, k_at
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


def test_the_columns_with_the_largest_entries_are_kept() -> None:
    weight = torch.zeros(3, 4)
    weight[1, 2], weight[0, 0], weight[2, 3] = -5.0, 2.0, 1.0
    assert ColumnSaliency(weight, Share(0.5), 0.9).mask().tolist() == [True, False, True, False]


@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (0.1, 1), (0.5, 5), (1.0, 10)])
def test_the_share_sets_how_many(share: float, kept: int) -> None:
    assert int(ColumnSaliency(torch.randn(4, 10), Share(share), 0.9).mask().sum()) == kept


def test_ties_are_broken_the_same_way_everywhere() -> None:
    assert ColumnSaliency(torch.ones(2, 4), Share(0.5), 0.9).mask().tolist() == [True, True, False, False]


def test_the_norms_are_averaged_exponentially() -> None:
    saliency = ColumnSaliency(torch.tensor([[1.0, 0.0]]), Share(0.5), ema_decay=0.75)
    saliency.observe(torch.tensor([[0.0, 2.0]]))
    torch.testing.assert_close(saliency.norms, torch.tensor([0.75, 0.5]))
    assert saliency.mask().tolist() == [True, False]
    saliency.observe(torch.tensor([[0.0, 2.0]]))
    assert saliency.mask().tolist() == [False, True]


def test_k_is_a_tensor_that_layers_share() -> None:
    share = Share(0.0)
    first, second = (ColumnSaliency(torch.randn(4, 8), share, 0.9) for _ in range(2))
    share.set(1.0)
    assert first.mask().all()
    assert second.mask().all()


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
            observed.append((layer.weight.detach().numpy().copy(), layer.saliency.mask().numpy().copy()))
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
