"""A small server that answers completions as vLLM does, with a function's predictions and injected faults.

Written after vLLM's `entrypoints/openai/completion` (0.10 to 0.20): forms of answers and errors, the limits that
it checks, the prompt's own token beside the top K.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import torch
from aiohttp import web
from torch import Tensor

T = TypeVar("T")
VOCABULARY = 11  # of `bigrams`
Trouble = Callable[[web.Request, dict[str, Any]], Coroutine[Any, Any, web.StreamResponse | None]]
"""A fault, called with the request and the answer; None sends the answer, which it may have changed."""


class FakeVllm:
    """A context manager.

    Args:
        predict: ids [B, T] → log probabilities [B, T, V] of what follows each token.
        key: what it wants to be shown, or None.
    """

    def __init__(
        self,
        predict: Callable[[Tensor], Tensor],
        *,
        vocab_size: int,
        model: str = "teacher",
        max_logprobs: int = 1000,
        key: str | None = None,
    ) -> None:
        self._predict, self._vocab_size = predict, vocab_size
        self._model, self._max_logprobs, self._key = model, max_logprobs, key
        self.troubles: deque[Trouble] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-vllm", daemon=True)
        self.url = ""

    def __enter__(self) -> FakeVllm:
        self._thread.start()
        self.url = self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _start(self) -> str:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        sockets = site._server.sockets  # type: ignore[union-attr] # aiohttp tells the chosen port nowhere else
        return f"http://127.0.0.1:{sockets[0].getsockname()[1]}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        shown = request.headers.get("Authorization", "")
        if self._key is not None and shown != f"Bearer {self._key}":
            return error(401, f"Unauthorized: {shown.removeprefix('Bearer ')} is no valid key")
        if refusal := self._refusal(body):
            return refusal
        answer = self._complete(body)
        trouble = self.troubles.popleft() if self.troubles else None
        troubled = await trouble(request, answer) if trouble else None
        return web.json_response(answer) if troubled is None else troubled

    def _refusal(self, body: dict[str, Any]) -> web.Response | None:
        if body["model"] != self._model:
            return error(404, f"The model `{body['model']}` does not exist.")
        if body["prompt_logprobs"] > self._max_logprobs:
            asked = body["prompt_logprobs"]
            return error(
                400,
                f"Requested prompt logprobs of {asked}, which is greater than max allowed: {self._max_logprobs}",
            )
        if body["max_tokens"] < 1:
            return error(400, f"max_tokens must be at least 1, got {body['max_tokens']}.")
        strange = [token for row in body["prompt"] for token in row if token >= self._vocab_size]
        return error(400, f"Token id {strange[0]} is out of vocabulary") if strange else None

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        logprobs_BTV = self._predict(torch.tensor(ids))
        choices = [
            {
                "index": index,
                "text": "!",
                "logprobs": None,
                "finish_reason": "length",
                "prompt_logprobs": [
                    None,
                    *(self._entry(logprobs_BTV[index, t - 1], row[t], body) for t in range(1, len(row))),
                ],
            }
            for index, row in enumerate(ids)
        ]
        return {"id": "cmpl-0", "object": "text_completion", "model": body["model"], "choices": choices}

    def _entry(self, logprobs_V: Tensor, token: int, body: dict[str, Any]) -> dict[str, Any]:
        """The prompt's own token, and the likeliest."""
        ranked = logprobs_V.argsort(descending=True).tolist()
        named = dict.fromkeys([token, *ranked[: body["prompt_logprobs"]]])
        return {
            str(name): {
                "logprob": max(float(logprobs_V[name]), -9999.0),  # JSON has no infinity
                "rank": ranked.index(name) + 1,
                "decoded_token": f"<{name}>",
            }
            for name in named
        }


def error(status: int, message: str) -> web.Response:
    document = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    return web.json_response(document, status=status)


def fails(status: int, message: str = "injected") -> Trouble:
    async def trouble(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        return error(status, message)

    return trouble


def answers(text: str, *, status: int = 200) -> Trouble:
    async def trouble(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=text, status=status)

    return trouble


def changes(change: Callable[[dict[str, Any]], object]) -> Trouble:
    async def trouble(request: web.Request, answer: dict[str, Any]) -> None:
        change(answer)

    return trouble


def waits(seconds: float) -> Trouble:
    async def trouble(request: web.Request, answer: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)

    return trouble


async def hangs_up(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse | None:
    if request.transport is not None:
        request.transport.abort()
    return None


async def redirects(request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://elsewhere.invalid/v1/completions"})


def bigrams(ids_BT: Tensor) -> Tensor:
    """Log probabilities [B, T, V] of a model to which only the token before matters."""
    table_VV = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
    return table_VV.log_softmax(dim=-1)[ids_BT]
