"""An HTTP client with retries for the teacher's server. Used by `feed`, inside its event loop.

Transient failures (no connection, a timeout, 429, 5xx) are retried with exponential backoff; others (another
4xx, an invalid answer) are errors at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

import aiohttp
from google.api_core import exceptions, retry

from sweeps.text.counted import counted
from trainer.config import HttpTeacherConfig
from trainer.errors import ConfigError, TeacherServerError, UnreachableError
from trainer.losses.candidates import Candidates
from trainer.teachers.http import protocol

_MIN_TIMEOUT_S = 1.0  # of the last request, so that its error can say more than that it was cut short
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Seconds between two requests: about `first_s` at first, doubling up to `most_s`."""

    first_s: float = 0.5
    most_s: float = 20.0


class _TransientError(Exception):
    """A failure that a retry may resolve."""


class Client:
    """An asynchronous context manager that requests predictions, for one event loop.

    Raises:
        ConfigError: the variable that should hold the server's key is not set.
    """

    def __init__(self, config: HttpTeacherConfig, *, vocab_size: int, backoff: Backoff) -> None:
        self._config, self._vocab_size, self._backoff = config, vocab_size, backoff
        self._key = _api_key(config)
        base = config.url.rstrip("/").removesuffix("/v1")
        self.address = base + protocol.PATH

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, ids: Sequence[Sequence[int]]) -> Candidates:
        """Return the teacher's predictions for a batch [B, T].

        Raises:
            UnreachableError: no answer within `patience_s`.
            TeacherServerError: a refusal, or an invalid answer.
        """
        config = self._config
        body = protocol.body(config.model, ids, top_k=config.top_k)
        deadline, tries = time.monotonic() + config.patience_s, 0

        async def attempt() -> bytes:
            nonlocal tries
            tries += 1
            remaining = max(deadline - time.monotonic(), _MIN_TIMEOUT_S)
            return await self._post(body, min(config.timeout_s, remaining))

        try:
            answer: bytes = await retry.AsyncRetry(
                predicate=lambda error: isinstance(error, _TransientError),
                initial=self._backoff.first_s,
                maximum=self._backoff.most_s,
                multiplier=2.0,
                timeout=config.patience_s,
            )(attempt)()
        except exceptions.RetryError as error:
            raise UnreachableError(
                f"the teacher at {self.address} did not answer within {config.patience_s:g} s; the last of "
                f"{counted(tries, 'request')}: {error.cause}"
            ) from None
        try:
            # In a thread: decoding many candidates takes long, and the loop waits for other answers.
            return await asyncio.to_thread(
                protocol.read, answer, ids, top_k=config.top_k, vocab_size=self._vocab_size
            )
        except protocol.AnswerError as error:
            raise TeacherServerError(str(error), address=self.address) from None

    async def _post(self, body: bytes, timeout_s: float) -> bytes:
        """Send one request; raise _TransientError, or TeacherServerError if a retry is futile."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                self.address, data=body, timeout=timeout, allow_redirects=False
            ) as response:
                answer = await response.read()
        except TimeoutError:
            raise _TransientError(f"nothing after {timeout_s:.3g} s") from None
        except aiohttp.ClientError as error:
            raise _TransientError(self._one_line(error) or type(error).__name__) from None
        if response.status == HTTPStatus.OK:
            return answer
        text = self._one_line(protocol.problem(answer))[:300]
        status = f"{response.status} {response.reason or ''}".strip()
        message = f"{status}: {text}" if text else status
        if response.status in TRANSIENT:
            raise _TransientError(message)
        raise TeacherServerError(
            f"refuses the request: {message}", address=self.address, status=response.status
        )

    def _one_line(self, message: object) -> str:
        """Return the message in one line without the key, which servers like to repeat."""
        text = " ".join(str(message).split())
        return text.replace(self._key, "…") if self._key else text


def _api_key(config: HttpTeacherConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        # The message omits the name: a user may have written the key itself there.
        raise ConfigError(
            "the environment variable that it names is not set here; set it, or write null for a server "
            "without a key",
            key="stage3.teacher.api_key_env",
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            "the environment variable that it names holds what no HTTP header may; set it to the key "
            "alone, in ASCII",
            key="stage3.teacher.api_key_env",
        )
    return key
