"""Output that reports a lost network, and is worth another attempt."""

from __future__ import annotations

import pytest

from sweeps.programs.result import classify_exit, disk_failed, network_was_lost

LOST = "error: the connection to another process of this run was lost: it was killed, or ended with an error of its own"
OTHERS = "\n".join([f"trainer: {LOST}", *(f"trainer: process {rank}: {LOST}" for rank in range(2, 8))])


@pytest.mark.parametrize(
    "last",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "TimeoutError",
        "TimeoutError: [Errno 110] Connection timed out",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443)",
        "urllib3.exceptions.ProtocolError: ('Connection broken', IncompleteRead(0 bytes read))",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443): Read timed out.",
        "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected",
        "aiohttp.client_exceptions.ClientConnectorDNSError: Cannot connect to host storage.googleapis.com",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "httpx.ConnectError: All connection attempts failed",
        "torch.distributed.DistNetworkError: The client socket has timed out",
        "RuntimeError: NCCL error in: x.cpp:1, remote process exited\nncclRemoteError: A call failed possibly due to a network error",
        "RuntimeError: NCCL error in: x.cpp:1\nncclSystemError: System call failed.\nLast error:\nCall to ibv_reg_mr failed",
        "RuntimeError: [../pair.cc:534] Connection closed by peer [10.0.0.7]:1234",
        "trainer: the connection to another process of this run was lost: it was killed, or ended with an error of its own",
        "curl: (6) ssh: connect to host a port 22: No route to host",
        "trainer: error: lost the network: cannot read gs://b/x.parquet: HttpError: Service Unavailable, 503",
        "trainer: process 3: error: lost the network: no training text has come for 900 s",
        "trainer: process 3: error: a disk or a mount hangs: no training text has come for 900 s from /mnt/text",
    ],
)
def test_a_lost_network(last):
    assert network_was_lost(f"Traceback (most recent call last):\n  File a\n{last}")


@pytest.mark.parametrize(
    "last",
    [
        "", "KeyError: 'lr'", "KeyError: 'TimeoutError'",
        "ValueError: the connection weights must be positive", "ValueError: timeout must be positive",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        "AttributeError: module 'net' has no attribute 'ConnectionError'",
        "NCCL error in: x.cpp:1\nncclSystemError: System call failed.\nLast error:\n"
        "Error while creating shared memory segment /dev/shm/nccl-LeXlEJ (size 9637888)",
        "ModuleNotFoundError: No module named 'requests'", "torch.OutOfMemoryError: CUDA out of memory.",
        "trainer: error: there is no gs://b/x.parquet", "trainer: error: cannot read gs://b/x.parquet: OSError: Forbidden: b",
        "no trial has lost the network: good",
    ],
)  # fmt: skip
def test_an_ordinary_error(last):
    assert not network_was_lost(f"Traceback (most recent call last):\n  File a\n{last}")


def test_only_the_last_words_count():
    """A program may well have outlived a lost connection, and died of something else."""
    lines = ["ConnectionResetError: Connection reset by peer; trying again", *["step"] * 6, "KeyError: 'lr'"]
    assert not network_was_lost("\n".join(lines))


@pytest.mark.parametrize(
    "cause",
    [
        "trainer: process 1: error: /data/b.jsonl, line 70213: no key 'text' (data.text_key)",
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File a\n[rank1]: KeyError: 'lr'",
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["last", "first"])
def test_the_process_that_was_lost_says_why(cause, before):
    """The others of its run say only that it is gone, and mostly after it."""
    output = f"{OTHERS}\n{cause}" if before else f"preflight: 4.20 MiB\n{cause}\n{OTHERS}"
    failed = classify_exit(1, output, ["python"])
    assert not failed.retryable
    assert failed.error.splitlines()[0].endswith(f"its last words: {cause.splitlines()[-1]}")
    assert not network_was_lost(output)  # by which a leader finds the host that failed first


def test_a_full_disk_of_one_process_is_one_of_the_trial():
    cause = "trainer: process 1: error: cannot write checkpoints: No space left on device"
    failed = classify_exit(1, f"{cause}\n{OTHERS}", ["python"])
    assert failed.retryable
    assert disk_failed(failed.error)


def test_an_exception_of_a_thread_is_no_cause():
    thread = "Exception in thread Thread-3:\nTraceback (most recent call last):\n  File a\nKeyError: 'id'"
    failed = classify_exit(1, f"{thread}\nstage2 6/9\n{OTHERS}", ["python"])
    assert failed.retryable


def test_a_process_that_lost_the_network_is_worth_another_attempt():
    cause = "[rank1]: Traceback (most recent call last):\n[rank1]: requests.exceptions.ReadTimeout: timed out"
    assert classify_exit(1, f"{cause}\n{OTHERS}", ["python"]).retryable


def test_a_process_that_was_lost_without_a_word_is_worth_another_attempt():
    failed = classify_exit(1, f"preflight: 4.20 MiB\n{OTHERS}", ["python"])
    assert failed.retryable
    assert "was lost" in failed.error
