"""Host memory beside tensors has limits, which the preflight says: copies of checkpoints, batches ahead and pinned."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from trainer import __main__ as program
from trainer.checkpoint.parts import OptimizerState, Weights
from trainer.checkpoint.writer import HostCopies
from trainer.config.compose import compose_config
from trainer.data.stream import AHEAD_BYTES
from trainer.devices.device import Device, open_device
from trainer.distributed.launched import ALONE, Launched
from trainer.preflight import host_memory, preflight
from trainer.preflight.dimensions import teacher_dimensions
from trainer.preflight.host_memory import HostMemory
from trainer.preflight.memory import layer_bytes

pytestmark = pytest.mark.usefixtures("keep_signals")
GIB = 2**30
EIGHT = Launched(rank=0, world=8, local_rank=0, local_world=4)


def estimated(
    small: tuple[str, ...], *overrides: str, launch: Launched = ALONE, cuda: bool = False
) -> HostMemory:
    config = compose_config([*small, *overrides])
    device = open_device(config.device)
    if cuda:
        device = dataclasses.replace(device, torch_device=torch.device("cuda"))
    teacher = teacher_dimensions(config)
    return host_memory.estimate(config, device, teacher, checkpoint=8 * GIB, launch=launch)


@pytest.mark.parametrize(
    ("overrides", "launch", "copies"),
    [
        ((), ALONE, 8),
        (("device.parallel=ddp",), EIGHT, 8),
        (("device.parallel=fsdp",), EIGHT, 4),
        (("device.parallel=fsdp", "checkpoint.format=whole"), EIGHT, 8),
    ],
)
def test_copies_are_of_a_checkpoint_or_of_this_machine_s_parts(
    overrides: tuple[str, ...], launch: Launched, copies: int, small: tuple[str, ...]
) -> None:
    assert estimated(small, *overrides, launch=launch).copies == copies * GIB


def test_batches_are_counted_where_there_are_some(small: tuple[str, ...]) -> None:
    assert (estimated(small).ahead, estimated(small).pinned) == (0, 0)
    own = tuple(each for each in small if not each.startswith("data."))
    text = ("data=text", "data.files=[missing.txt]", "data.sequence_length=100", "stage1_9.batch_size=6")
    stage = ("stage2.batch_size=4", "stage1_9.micro_batch_size=null", "stage2.micro_batch_size=null")
    found = estimated(own, *text, *stage, cuda=True)
    assert found.ahead == AHEAD_BYTES
    assert found.pinned == 2 * 8192  # two batches of 6 x 100 x 8 bytes, each rounded up to a power of two
    assert found.total == found.copies + found.ahead + found.pinned


def test_teacher_on_the_host_counts_once_for_each_process(small: tuple[str, ...]) -> None:
    config = compose_config([*small, "device.teacher=host"])
    here = estimated(small, "device.teacher=host", "device.parallel=ddp", launch=EIGHT)
    layers = layer_bytes(teacher_dimensions(config))
    assert here.teacher == EIGHT.local_world * layers
    assert here.total == here.copies + here.ahead + here.pinned + here.teacher
    assert "the teacher " in host_memory.line(here)
    assert layers < estimated(small, "device.teacher=host", cuda=True).teacher < 2 * layers
    assert estimated(small).teacher == 0


def test_teacher_that_is_cast_is_whole_in_each_process_as_it_is_loaded(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the other things are there; one that is not cast is pages of its file."""
    monkeypatch.setattr(host_memory, "host_memory", lambda _: GIB)
    config = compose_config([*small, "device.parallel=fsdp"])
    device = dataclasses.replace(open_device(config.device), torch_device=torch.device("cuda"))
    mapped = dataclasses.replace(teacher_dimensions(config), vocabulary=10**7)
    cast = dataclasses.replace(mapped, cast=True)
    found = [
        host_memory.estimate(config, device, teacher, checkpoint=8, launch=EIGHT)
        for teacher in (mapped, cast)
    ]
    assert found[0].total < GIB
    assert found[1].total == found[1].loading == EIGHT.local_world * 4 * cast.parameters
    assert host_memory.warnings(found[0], None) == []
    assert "start fewer processes" in host_memory.warnings(found[1], None)[0]
    on_cpu = open_device(config.device)  # there it is among the run's tensors
    assert host_memory.estimate(config, on_cpu, cast, checkpoint=8, launch=EIGHT).loading == 0


def test_host_copies_take_the_bytes_of_their_tensors_and_no_more() -> None:
    """However often they are taken, also after tensors have changed their shapes."""
    layer = torch.nn.Linear(100, 50)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    weights, moments = Weights(layer).state().tensors, OptimizerState([optimizer], layer).state().tensors
    copies, size = HostCopies(), sum(each.nbytes for each in (*weights.values(), *moments.values()))
    for _ in range(3):
        taken = copies.take({**weights, **moments})
        assert copies.nbytes == size == sum(each.untyped_storage().nbytes() for each in taken.values())
    copies.take({"weight": torch.ones(3)})
    assert copies.nbytes == 12


def test_too_little_memory_is_a_warning(
    small: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = compose_config(small)
    free = 2**20
    monkeypatch.setattr(host_memory, "host_memory", lambda name: free)
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: 8 * GIB)
    found = preflight.run_preflight(config, open_device(config.device), tmp_path)
    (warning,) = found.warnings
    assert warning.startswith("host memory beside tensors: at most ")
    assert "of 1.00 MiB free, and " in warning
    assert warning.endswith("take a machine with more memory")
    assert found.refusals == []
    free = 8 * GIB
    assert preflight.run_preflight(config, open_device(config.device), tmp_path).warnings == []
    assert program.main([*small, f"run_dir={tmp_path}/run", "--preflight"]) == 0
    assert "host memory beside tensors: at most " in capsys.readouterr().out
