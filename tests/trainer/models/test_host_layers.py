"""A teacher whose layers lie in host memory: it computes the same bits, and two layers at most are copied."""

from __future__ import annotations

import pytest
import torch
from same_training import BASE
from torch import nn

from benchmarks.equivalence import trace
from benchmarks.tensor_memory import peak_bytes
from trainer.api import check
from trainer.devices.device import Device, open_device
from trainer.errors import ConfigError
from trainer.models.causal_lm import build_tiny, freeze, run, weights_sha256
from trainer.models.host_layers import device_copy, place_teacher

LAYERS = 5
ON_HOST = "device.teacher=host"


def placed(*overrides: str) -> tuple[nn.Module, Device]:
    config = check([*BASE, f"model.layers={LAYERS}", *overrides])
    assert config.model.kind == "tiny"
    device = open_device(config.device)
    torch.manual_seed(0)
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    return place_teacher(freeze(model), device), device


@torch.no_grad()
def states(model: nn.Module) -> tuple[torch.Tensor, ...]:
    outputs = run(model, torch.arange(32).reshape(2, 16), hidden=True)
    return outputs.logits, *outputs.hidden


def test_logits_and_hidden_states_are_the_same_bits() -> None:
    (here, _), (host, _) = placed(), placed(ON_HOST)
    for _ in range(2):  # the second pass finds what the first has left
        assert all(torch.equal(a, b) for a, b in zip(states(here), states(host), strict=True))
    assert weights_sha256(host) == weights_sha256(here)


def test_two_layers_are_on_the_device() -> None:
    host, _ = placed(ON_HOST)
    layer = sum(parameter.nbytes for parameter in host.model.layers[0].parameters())  # type: ignore[union-attr,index] # nn.Module has any attribute
    (here, _) = placed()
    peak = peak_bytes(lambda: states(host))
    assert 2 * layer <= peak < peak_bytes(lambda: states(here)) + 2.1 * layer
    assert LAYERS > 3


def test_a_pass_that_failed_leaves_weights_and_passes_as_they_were() -> None:
    host, _ = placed(ON_HOST)
    before, digest = states(host), weights_sha256(host)
    last = host.model.layers[-1].mlp  # type: ignore[union-attr,index] # nn.Module has any attribute
    broken = last.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        states(host)
    broken.remove()
    assert torch.equal(before[0], states(host)[0])
    assert weights_sha256(host) == digest


def test_a_copy_for_the_student_is_a_model_of_its_own() -> None:
    host, device = placed(ON_HOST)
    whole = device_copy(host, device)
    before = states(host)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.zero_()
    assert not states(whole)[0].any()
    assert torch.equal(before[0], states(host)[0])


@pytest.mark.parametrize("stage", ["stage1_9", "stage3"])
def test_a_student_learns_the_same(stage: str) -> None:
    here, host = (
        trace([*BASE, f"{stage}.micro_batch_size=8", *more], stage=stage) for more in ((), (ON_HOST,))
    )
    assert host.losses == here.losses
    assert torch.equal(host.after, here.after)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    _, device = placed(ON_HOST)
    with pytest.raises(ConfigError, match=r"^device.teacher: Linear has no list of decoder layers"):
        place_teacher(nn.Linear(2, 2), device)


def test_one_graph_of_a_step_cannot_read_the_host() -> None:
    with pytest.raises(ConfigError, match=r"device\.teacher: .* write device"):
        check([ON_HOST, "device.compile=true"])
