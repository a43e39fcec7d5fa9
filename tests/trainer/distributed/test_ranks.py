"""What processes tell each other, as one process that has joined a group of its own sees it."""

from __future__ import annotations

import os
import socket

import pytest
import torch

from trainer.api import check
from trainer.config import sha256
from trainer.distributed.launched import Launched, launched
from trainer.distributed.ranks import ALONE, Ranks, choose_device, join
from trainer.errors import MachineError
from trainer.training.evaluation import in_turn


@pytest.fixture
def only_one(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    return join(check(["device=cpu", "device.parallel=ddp"]), Launched(rank=0, world=1, local_rank=0))


def test_a_group_of_one_agrees_with_itself(only_one: Ranks) -> None:
    assert os.environ["NCCL_DEBUG"] == "WARN"
    with only_one as ranks:
        assert (ranks.alone, ranks.first) == (False, True)
        assert [ranks.any(flag) for flag in (True, False)] == [True, False]
        assert [ranks.decided_by_first(flag) for flag in (True, False)] == [True, False]
        assert ranks.all_reduce_max(-2.5) == -2.5
        assert ranks.broadcast("x") == "x"
        assert ranks.all_gather([1.0, 2.0]) == [[1.0, 2.0]]
        torch.testing.assert_close(ranks.mean(torch.tensor([1.0, 3.0])), torch.tensor([1.0, 3.0]))
        largest = [torch.tensor([1.0, -torch.inf]), torch.tensor([3.0])]
        ranks.all_reduce_max_(largest)
        assert [tensor.tolist() for tensor in largest] == [[1.0, -torch.inf], [3.0]]
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("local_rank", "launcher", "refused"),
    [
        (0, {"LOCAL_WORLD_SIZE": "2"}, True),
        (1, {"LOCAL_WORLD_SIZE": "2"}, True),
        (0, {}, False),  # on two machines, or with a device of its own that is the only one it sees
        (1, {}, True),
    ],
    ids=["first", "second", "first-of-how-many", "second-of-how-many"],
)
def test_more_processes_than_devices_are_refused_by_each(
    local_rank: int, launcher: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    ranks = {"RANK": str(local_rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(local_rank)}
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in (ranks | launcher).items():
        monkeypatch.setenv(name, value)
    config, process = check(["device=cuda", "device.parallel=ddp"]), launched()
    assert process is not None
    if refused:
        with pytest.raises(MachineError, match=r"2 processes were .* 1 CUDA device ") as caught:
            choose_device(config, process)
        assert caught.value.key == "device.parallel"
    else:
        choose_device(config, process)
    assert current == ([] if refused else [0])
    choose_device(check(["device=cpu", "device.parallel=ddp"]), process)


def test_processes_know_on_how_many_machines_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, timeout: None)
    config = check(["device=cpu", "device.parallel=fsdp"])
    assert join(config, Launched(rank=5, world=8, local_rank=1, local_world=4)).hosts == 2
    assert join(config, Launched(rank=1, world=2, local_rank=1, local_world=2)).hosts == 1


def test_alone_nothing_is_initialised() -> None:
    assert join(check(["device=cpu"]), Launched(rank=0, world=1, local_rank=0)) is ALONE
    assert ALONE.any(True)
    assert ALONE.all_gather(1) == [1]
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([[1.0, 2.0]], [1.0, 2.0]), ([[1.0, 3.0], [2.0]], [1.0, 2.0, 3.0]), ([[1.0], [2.0], []], [1.0, 2.0])],
    ids=["alone", "two", "more processes than batches"],
)
def test_losses_of_ranks_are_in_the_order_of_the_batches(
    shares: list[list[float]], expected: list[float]
) -> None:
    assert in_turn(shares) == expected


def test_a_run_may_go_on_with_another_number_of_processes() -> None:
    assert (
        sha256(check([])) == sha256(check(["device.parallel=ddp"])) == sha256(check(["device.parallel=fsdp"]))
    )
