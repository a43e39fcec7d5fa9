"""Asks the teacher's server until it answers, or says why it does not. Used by `feed`, inside its event loop.

What may pass (no connection, a slow answer, 429, 5xx) is asked again, after waits that grow; what will not
(another 4xx, an answer that is none) is an error at once.
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

from trainer.config import HttpTeacherConfig
from trainer.errors import ConfigError, TeacherServerError
from trainer.losses.candidates import Candidates
from trainer.teachers.http import protocol
from trainer.text import counted

_LEAST_S = 1.0  # what the last request is given, so that it may tell more than that it was cut short
PASSING = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Waits between two requests: about `first_s` at first, up to `most_s`."""

    first_s: float = 0.5
    most_s: float = 20.0


class _PassingError(Exception):
    """It did not answer; it may, if it is asked again."""


class Client:
    """An asynchronous context manager, for one event loop.

    Args:
        vocab_size: of the student.

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
        """What the teacher predicts for a batch [B, T].

        Raises:
            TeacherServerError: no answer within the patience, or one that is none.
        """
        config = self._config
        body = protocol.body(config.model, ids, top_k=config.top_k)
        deadline, tries = time.monotonic() + config.patience_s, 0

        async def attempt() -> bytes:
            nonlocal tries
            tries += 1
            left = max(deadline - time.monotonic(), _LEAST_S)
            return await self._post(body, min(config.timeout_s, left))

        try:
            answer: bytes = await retry.AsyncRetry(
                predicate=lambda error: isinstance(error, _PassingError),
                initial=self._backoff.first_s,
                maximum=self._backoff.most_s,
                multiplier=2.0,
                timeout=config.patience_s,
            )(attempt)()
        except exceptions.RetryError as error:
            raise TeacherServerError(
                f"did not answer within {config.patience_s:g} s; the last of "
                f"{counted(tries, 'request')}: {error.cause}",
                address=self.address,
            ) from None
        try:
            # Beside the loop: it takes long for many candidates, and other answers are waited for.
            return await asyncio.to_thread(
                protocol.read, answer, ids, top_k=config.top_k, vocab_size=self._vocab_size
            )
        except protocol.AnswerError as error:
            raise TeacherServerError(str(error), address=self.address) from None

    async def _post(self, body: bytes, timeout_s: float) -> bytes:
        """One request. Raises _PassingError, or TeacherServerError where asking again is in vain."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                self.address, data=body, timeout=timeout, allow_redirects=False
            ) as response:
                answer = await response.read()
        except TimeoutError:
            raise _PassingError(f"nothing after {timeout_s:.3g} s") from None
        except aiohttp.ClientError as error:
            raise _PassingError(self._words(error) or type(error).__name__) from None
        if response.status == HTTPStatus.OK:
            return answer
        told = f"{response.status} {response.reason or ''}".strip() + self._said(answer)
        if response.status in PASSING:
            raise _PassingError(told)
        raise TeacherServerError(f"refuses the request: {told}", address=self.address, status=response.status)

    def _said(self, answer: bytes) -> str:
        """The beginning of an error's text."""
        text = self._words(protocol.problem(answer))
        return f": {text[:300]}" if text else ""

    def _words(self, told: object) -> str:
        """One line, and never the key: servers like to repeat it."""
        text = " ".join(str(told).split())
        return text.replace(self._key, "…") if self._key else text


def _api_key(config: HttpTeacherConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        # The name is not repeated: a person may have put the key itself there.
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
