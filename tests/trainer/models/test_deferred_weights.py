"""A student that is made without weights, for FSDP, is the one that others get, once it has them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from benchmarks.tensor_memory import peak_bytes
from trainer.api import check
from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.models.causal_lm import build_tiny, freeze, run
from trainer.models.deferred_weights import fill
from trainer.models.host_layers import place_teacher
from trainer.models.subln import make_student

IDS = torch.arange(48).reshape(2, 24) % 300
CPU = torch.device("cpu")
SIZE = ("model.layers=4", "model.hidden_size=64", "model.intermediate_size=160", "model.heads=2")


def device(*, parallel: bool, teacher: str = "device") -> Device:
    """A CPU, of one of two processes that share a run with FSDP, or of one process."""
    ranks = Ranks(world=2, parallel="fsdp") if parallel else Ranks()
    return Device(
        torch_device=CPU, dtype=torch.float32, name="CPU", attention="eager", ranks=ranks, teacher=teacher
    )  # type: ignore[arg-type] # one of its literals


def made(*overrides: str, parallel: bool, teacher: str = "device") -> nn.Module:
    config = check([*SIZE, *overrides])
    torch.manual_seed(0)
    assert config.model.kind == "tiny"
    model = build_tiny(config.model, vocab_size=300, sequence_length=24, attention="eager")
    here = device(parallel=parallel, teacher=teacher)
    student, _ = make_student(
        place_teacher(freeze(model), here),
        config.stage1,
        [IDS],
        quant=config.quant,
        device=here,
        master_dtype=config.model.master_dtype,
    )
    return student


@pytest.mark.parametrize(
    ("overrides", "teacher"),
    [
        ((), "sharded"),
        (("stage1.keep_layers=2",), "device"),
        (("model.master_dtype=bfloat16", "device.dtype=bfloat16", "stage1.subln=blended"), "host"),
    ],
    ids=["same", "fewer layers", "bfloat16"],
)
def test_filled_student_is_that_of_one_process(overrides: tuple[str, ...], teacher: str) -> None:
    """Its gains too, which come from a forward pass."""
    ours, theirs = made(*overrides, parallel=True, teacher=teacher), made(*overrides, parallel=False)
    assert {name: (p.shape, p.dtype) for name, p in ours.named_parameters()} == {
        name: (p.shape, p.dtype) for name, p in theirs.named_parameters()
    }
    fill(ours, CPU)
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert str(ours.config.to_dict()) == str(theirs.config.to_dict())
    assert torch.equal(run(ours, IDS).logits, run(theirs, IDS).logits)


def test_calibration_holds_one_layer_at_a_time() -> None:
    """Also under autocast, which would keep a cast of every weight."""
    taken = {}
    for layers in (4, 12):
        config = check([*SIZE, f"model.layers={layers}"])
        assert config.model.kind == "tiny"
        model = freeze(build_tiny(config.model, vocab_size=300, sequence_length=24, attention="eager"))
        here = dataclasses.replace(device(parallel=True), dtype=torch.bfloat16)
        stage1 = dataclasses.replace(config.stage1, subln="calibrated")
        kept = []

        def make(model=model, stage1=stage1, here=here, config=config, kept=kept) -> None:
            kept.append(make_student(model, stage1, [IDS], quant=config.quant, device=here))

        taken[layers] = peak_bytes(make)
    layer = 2 * sum(p.numel() for p in model.get_decoder().layers[0].parameters())  # in bfloat16
    assert taken[12] - taken[4] < 4 * layer


def test_student_has_no_memory_before() -> None:
    config = check(list(SIZE))
    assert config.model.kind == "tiny"
    model = build_tiny(config.model, vocab_size=300, sequence_length=24, attention="eager")
    ones = dataclasses.replace(config.stage1, subln="ones")
    students = []

    def make() -> None:
        students.append(make_student(model, ones, [], quant=config.quant, device=device(parallel=True)))

    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert peak_bytes(make) < weights / 50  # SubLN's gains
