"""trainer.models.network: faults of the network among the errors of libraries."""

from __future__ import annotations

import errno
import socket
import urllib.error
from email.message import Message
from types import SimpleNamespace

import aiohttp
import gcsfs.retry
import pytest
import requests
from google.auth import exceptions as google_auth

from trainer.errors import MachineError, UnreachableError
from trainer.models import network


def caused(error: Exception, *causes: BaseException) -> Exception:
    """Return an error with a chain of causes, as `raise … from …` makes one."""
    above: BaseException = error
    for cause in causes:
        above.__cause__ = cause
        above = cause
    return error


class ClientError(Exception):
    """Likewise."""

    def __init__(self, status: int) -> None:
        super().__init__(f"An error occurred ({status})")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class HTTPClientError(Exception):
    """The base of botocore's errors of connections."""


class HfHubHTTPError(OSError):
    """Like that of huggingface_hub, whose response is httpx's or requests'."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} for url: https://huggingface.co/api/datasets/a/b")
        self.response = SimpleNamespace(status_code=status)


class LocalEntryNotFoundError(FileNotFoundError):
    """Raised by huggingface_hub for any answer that is no file, also where there is permission for none."""


FAULTS = [
    ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    TimeoutError(),
    socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    OSError(errno.ENETUNREACH, "Network is unreachable"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError("Response payload is not completed"),
    requests.ConnectionError("HTTPSConnectionPool(host='huggingface.co', port=443)"),
    requests.exceptions.ChunkedEncodingError("IncompleteRead(0 bytes read)"),
    google_auth.TransportError("Failed to retrieve http://metadata.google.internal"),
    gcsfs.retry.HttpError({"code": 503, "message": "Service Unavailable"}),
    gcsfs.retry.HttpError({"code": 429, "message": "rateLimitExceeded"}),
    urllib.error.HTTPError("https://x", 502, "Bad Gateway", Message(), None),
    HfHubHTTPError(503),
    HfHubHTTPError(429),
    caused(OSError("We couldn't connect to 'https://hub'"), LocalEntryNotFoundError(), HfHubHTTPError(503)),
    caused(OSError("We couldn't connect to 'https://hub'"), LocalEntryNotFoundError(), TimeoutError()),
    caused(OSError(errno.EBUSY, "Reduce your request rate"), ClientError(503)),
    type("ReadTimeoutError", (HTTPClientError,), {})(),
]

OUTAGE = caused(
    OSError("We couldn't connect to 'https://hub'\nCheck your internet connection"),
    LocalEntryNotFoundError("An error happened"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
)
NOT_CACHED = caused(OSError("We couldn't connect to 'https://hub'"), LocalEntryNotFoundError("offline"))
FORBIDDEN = caused(
    OSError("We couldn't connect to 'https://hub'"), LocalEntryNotFoundError(), HfHubHTTPError(403)
)

ANSWERS = [
    FORBIDDEN,
    type("OfflineModeIsEnabled", (ConnectionError,), {})("offline mode is enabled"),  # nothing was asked
    OSError("Couldn't deserialize thrift: TProtocolException"),
    OSError("12 bytes came of 13"),
    OSError("Forbidden: bucket/x"),
    ValueError("not JSON"),
    gcsfs.retry.HttpError({"code": 401, "message": "Invalid Credentials"}),
    HfHubHTTPError(404),
    caused(OSError("a/b is not a valid model identifier"), HfHubHTTPError(404)),
    caused(PermissionError("Access Denied"), ClientError(403)),
]


@pytest.mark.parametrize("error", FAULTS, ids=repr)
def test_what_another_try_may_mend_is_a_fault_of_the_network(error: Exception) -> None:
    assert network.is_fault(error)


@pytest.mark.parametrize("error", ANSWERS, ids=repr)
def test_an_answer_of_the_service_is_none(error: Exception) -> None:
    assert not network.is_fault(error)


def test_hub_that_is_down_is_tried_by_another_attempt() -> None:
    error = network.hub_error(OUTAGE, "cannot load 'a/b'")
    assert isinstance(error, UnreachableError)
    assert str(error) == "cannot load 'a/b': We couldn't connect to 'https://hub'"


@pytest.mark.parametrize("raised", [NOT_CACHED, OUTAGE, ConnectionError("Couldn't reach it")], ids=str)
def test_machine_that_may_not_ask_the_hub_hands_the_trial_to_another(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = network.hub_error(raised, "cannot load 'a/b'")
    assert isinstance(error, MachineError)
    assert str(error).startswith("cannot load 'a/b': HF_HUB_OFFLINE is set ")


@pytest.mark.parametrize(
    ("error", "offline"),
    [(FORBIDDEN, False), (HfHubHTTPError(404), False), (OSError("it has no file named config.json"), True)],
)
def test_answer_of_the_hub_is_left_to_the_caller(
    error: Exception, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    assert network.hub_error(error, "cannot load 'a/b'") is None


def test_errors_that_are_each_others_causes_end() -> None:
    first, second = OSError("a"), OSError("b")
    first.__cause__, second.__cause__ = second, first
    assert not network.is_fault(first)
