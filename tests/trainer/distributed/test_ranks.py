"""What processes tell each other, as one process that has joined a group of its own sees it."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist

from sweeps.programs.result import classify_exit
from trainer.api import check
from trainer.config import sha256
from trainer.distributed.launched import Launched, launched
from trainer.distributed.ranks import ALONE, Ranks, choose_device, explain_lost_process, join
from trainer.errors import MachineError, TrainerError
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


NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, {}\n{}: of it.\nLast error:\n{}"


def explained(error: RuntimeError) -> str:
    with pytest.raises(TrainerError) as raised, explain_lost_process(Ranks(world=2, parallel="ddp")):
        raise error
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            NCCL.format(
                "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.7",
                "ncclInvalidUsage",
                "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
            ),
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
        ),
        (
            NCCL.format(
                "unhandled system error, NCCL version 2.21.5",
                "ncclSystemError",
                "Error while creating shared memory segment /dev/shm/nccl-LeXlEJ (size 9637888)\n",
            ),
            "Error while creating shared memory segment /dev/shm/nccl-LeXlEJ (size 9637888)",
        ),
        (
            NCCL.format("internal error, NCCL version 2.21.5", "ncclInternalError", ""),
            "ncclInternalError: of it.",
        ),
    ],
    ids=["one device twice", "shared memory", "without a last error"],
)
def test_processes_that_cannot_communicate_say_why(error: str, reason: str) -> None:
    """And not that another one was killed, which each worker would try again."""
    message = explained(dist.DistBackendError(error))
    assert message == f"the processes cannot exchange tensors: {reason}"
    assert not getattr(classify_exit(1, f"trainer: error: {message}", ["python"]), "retryable", True)


@pytest.mark.parametrize(
    "error",
    [
        dist.DistNetworkError("The client socket has timed out after 60000ms while trying to connect"),
        dist.DistStoreError("wait timeout after 1800000ms, keys: /default_pg/0//cuda//"),
        RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:1234"),
        dist.DistBackendError(
            NCCL.format(
                "remote process exited or there was a network error, NCCL version 2.28.8",
                "ncclRemoteError",
                "socketProgress: Connection closed by remote peer a-1<47861>",
            )
        ),
        dist.DistBackendError(
            NCCL.format("internal error", "ncclInternalError", "Net : Connection closed by remote peer a<4>")
        ),
        dist.DistBackendError(
            "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by "
            "key '0', but store->get('0') got error: Broken pipe\nframe #0: c10::Error. This may indicate a "
            "possible application crash on rank 0 or a network set up issue."
        ),
    ],
    ids=["network", "store", "gloo", "nccl", "nccl-internal", "first"],
)
def test_a_process_that_is_gone_is_a_lost_connection(error: RuntimeError) -> None:
    message = explained(error)
    assert message.startswith(
        "the connection to another process of this run was lost: it was killed, or ended "
    )
    assert getattr(classify_exit(1, f"trainer: error: {message}", ["python"]), "retryable", False)


def test_memory_that_nccl_lacks_is_out_of_memory() -> None:
    failure = "Cuda failure 2 'out of memory'"
    message = explained(
        dist.DistBackendError(NCCL.format("unhandled cuda error", "ncclUnhandledCudaError", failure))
    )
    failed = classify_exit(1, f"trainer: error: {message}", ["python"])
    assert getattr(failed, "failure", None) == "out_of_memory"


def test_other_errors_of_processes_stay_what_they_are() -> None:
    for ranks, error in ((Ranks(world=2, parallel="ddp"), "shapes differ"), (ALONE, "gloo/transport")):
        with pytest.raises(RuntimeError, match=error), explain_lost_process(ranks):
            raise RuntimeError(error)
