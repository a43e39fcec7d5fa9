"""What has cost others days on TPUs, each by its name. What is compiled and when is in test_xla_steps; what must
not stand in the code at all, in test_trainer_hot_path."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from stage_runs import SMALL
from torch import Tensor, nn

from trainer.api import check
from trainer.checkpoint.writer import HostCopies
from trainer.config import CachedTeacherConfig
from trainer.devices.device import Device, open_device
from trainer.losses.sparse import Sample, Targets
from trainer.models.causal_lm import build_tiny, freeze
from trainer.stages.distill import from_cache, from_teacher
from trainer.telemetry.heartbeat import Heartbeat

pytestmark = pytest.mark.xla

VOCABULARY, LENGTH, BATCH, KEPT, DRAWN = 97, 16, 4, 5, 3  # numbers that no other side of a tensor has
POSITIONS = BATCH * (LENGTH - 1)


@pytest.fixture
def device() -> Device:
    return open_device(check([*SMALL, "device=xla"]).device)


def student_of(device: Device) -> nn.Module:
    config = check(list(SMALL))
    assert config.model.kind == "tiny"
    torch.manual_seed(0)
    return device.move(
        build_tiny(config.model, vocab_size=VOCABULARY, sequence_length=LENGTH, attention="eager")
    )


def step_graph(device: Device, student: nn.Module, losses: Callable[[Tensor], dict[str, Tensor]]) -> str:
    """The text of a forward and backward pass, as it is recorded."""
    ids_BT = device.place(torch.randint(VOCABULARY, (BATCH, LENGTH)))
    device.end_step()
    losses(ids_BT)["loss"].backward()
    graph = device.recorded_graph([p.grad for p in student.parameters() if p.grad is not None])
    student.zero_grad()
    return graph


def sample(device: Device) -> Sample:
    ids_BPC = torch.randint(VOCABULARY, (BATCH, LENGTH - 1, KEPT + DRAWN), dtype=torch.int32)
    return Sample(ids=ids_BPC, logits=torch.randn(ids_BPC.shape)).mapped(device.place)


def full_logits(graph: str) -> list[str]:
    """Shapes with a number for every entry of the vocabulary at every position."""
    found = re.findall(r"\w+\[[\d,]+\]", graph)
    wanted = rf"\[(?:{BATCH},{LENGTH - 1}|{BATCH},{LENGTH}|{POSITIONS}),{VOCABULARY}\]$"
    return sorted({shape for shape in found if re.search(wanted, shape)})


def test_sparse_distillation_has_no_full_logits(
    device: Device,
) -> None:
    """Neither forward nor backward, nor for an anchor; those of the candidates are. The dense objective shows
    that one could see it."""
    config = check([*SMALL, "stage3.attention_weight=0"]).stage3
    teacher = CachedTeacherConfig(
        kind="cached",
        path="nowhere",
        top_k=KEPT,
        negatives=DRAWN,
        dtype="float32",
        cross_entropy="sampled",
        preload=True,
        anchor="nowhere",
        anchor_weight=1.0,
    )
    student = student_of(device)
    kept = Targets(teacher=sample(device), anchor=sample(device))
    sparse = step_graph(device, student, from_cache(student, lambda rows: kept, config, teacher))
    assert full_logits(sparse) == []
    assert re.search(rf"\[{POSITIONS},{2 * (KEPT + DRAWN) + 1}\]", sparse)

    with ExitStack() as stack:
        dense = step_graph(device, student, from_teacher(student, freeze(student_of(device)), config, stack))
    assert full_logits(dense)


def test_the_batch_is_an_input_of_the_graph_and_no_part_of_it(device: Device) -> None:
    """Data that is recorded with the step once made a graph of 62 GB. Micro-batches come from outside, one input each."""
    config = check([*SMALL, "stage3.attention_weight=0"]).stage3
    student = student_of(device)
    with ExitStack() as stack:
        losses = from_teacher(student, freeze(student_of(device)), config, stack)
        graph = step_graph(device, student, losses)
    entry = graph[graph.index("ENTRY") :]
    assert len(re.findall(rf"= s64\[{BATCH},{LENGTH}\]\S* parameter\(", entry)) == 1
    constants = re.findall(r"= \w+\[([\d,]*)\]\S* constant\(", entry)
    assert max((shape.count(",") for shape in constants), default=0) == 0
    assert all(int(shape or 1) <= LENGTH for shape in constants)


def test_the_heart_beats_while_a_graph_is_compiled(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour of compiling must not look like a process that is gone: the compiler leaves Python's lock."""
    beats = list[float]()
    monkeypatch.setattr(Heartbeat, "write", lambda self: beats.append(time.perf_counter()))
    heart = Heartbeat(tmp_path / "heartbeat.json", device=device, every_s=0.01)
    x = device.place(torch.randn(4, 8))
    layers = device.move(nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(40))))
    device.end_step()
    layers(x).square().mean().backward()
    before = device.compile_seconds()
    heart.start()
    began = time.perf_counter()
    device.end_step()
    ended = time.perf_counter()
    heart.close(0)
    inside = [began, *(beat for beat in beats if began <= beat <= ended), ended]
    compiled = device.compile_seconds() - before
    assert compiled > 0.1
    assert max(after - beat for beat, after in pairwise(inside)) < compiled / 2


def test_copies_for_a_checkpoint_are_transfers_and_no_graphs(device: Device) -> None:
    """Of what a step has left behind, they compile nothing and run nothing."""
    layer = device.move(nn.Linear(3, 5))
    with torch.no_grad():
        layer.weight.mul_(2.0)
    device.end_step()
    before = device.counters()
    copies = HostCopies().take(dict(layer.named_parameters()))
    after = device.counters()
    for graphs in ("compiles", "cached_compiles"):  # one of them is counted for each that is run
        assert after[graphs] == before[graphs]
    assert after["reads"] > before["reads"]
    assert {copy.device.type for copy in copies.values()} == {"cpu"}
    assert torch.equal(copies["weight"], layer.weight.cpu())


def test_several_chips_are_one_device_whose_memory_nobody_counts(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch_xla raises where it is asked for it; a run asks at every line and every heartbeat."""
    counted = {"bytes_used": 3, "bytes_limit": 10, "peak_bytes_used": 4}

    def of_one_chip(asked: torch.device) -> dict[str, int]:
        if several:
            raise RuntimeError("MemoryInfo not supported for SPMD virtual device.")
        return counted

    from trainer.devices import xla  # only here: the module needs torch_xla, this file is read without it

    monkeypatch.setattr(xla, "on_tpu", lambda: True)
    monkeypatch.setattr(xla.xm, "get_memory_info", of_one_chip)
    several = False
    assert list(device.memory_counts().values()) == [3, 7, 10, 4, None]
    assert device.free_memory_bytes() == 7
    several, four = True, dataclasses.replace(device, mesh=object())
    assert set(four.memory_counts().values()) == {None}
    assert four.free_memory_bytes() is None  # and not the host's
    assert four.memory_bytes() > 0  # the process's
    assert four.peak_memory_bytes() > 0
