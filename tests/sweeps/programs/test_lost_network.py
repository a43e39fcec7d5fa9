"""Output that reports a lost network, and is worth another attempt."""

from __future__ import annotations

import pytest

from sweeps.programs.result import network_was_lost


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
        "RuntimeError: [../pair.cc:534] Connection closed by peer [10.0.0.7]:1234",
        "trainer: the connection to another process of this run was lost: it was killed, or ended with an error of its own",
        "curl: (6) ssh: connect to host a port 22: No route to host",
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
        "ModuleNotFoundError: No module named 'requests'", "torch.OutOfMemoryError: CUDA out of memory.",
    ],
)  # fmt: skip
def test_an_ordinary_error(last):
    assert not network_was_lost(f"Traceback (most recent call last):\n  File a\n{last}")


def test_only_the_last_words_count():
    """A program may well have outlived a lost connection, and died of something else."""
    lines = ["ConnectionResetError: Connection reset by peer; trying again", *["step"] * 6, "KeyError: 'lr'"]
    assert not network_was_lost("\n".join(lines))
