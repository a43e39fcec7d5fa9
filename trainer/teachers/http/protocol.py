"""Encoding of requests for prompt logprobs, and validation of the answers. Pure; called by `client`.

The protocol is vLLM's (`POST /v1/completions`): the prompt is a list of lists of token ids, `prompt_logprobs`
is the number of likeliest tokens to return at each position, and each of the answer's `choices` has

    "prompt_logprobs": [null, {"464": {"logprob": -1.2, "rank": 1, "decoded_token": "The"}, …}, …]

with one entry per token of the prompt, null for the first: the log probabilities, given the preceding tokens,
of the K likeliest tokens and of the token itself, K or K + 1 in all. Minus infinity is written -9999.

Shapes: B sequences, T tokens, P = T - 1 predicted ones, V vocabulary, C candidates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic_core import from_json

from sweeps.text.counted import counted
from trainer.losses.candidates import NOTHING, Candidates

PATH = "/v1/completions"
_MAX_TOTAL = 1.01  # of the probabilities at one position; less above 1 is rounding


class AnswerError(Exception):
    """An invalid answer of the server. The message is one line without the address."""


def body(model: str, ids: Sequence[Sequence[int]], *, top_k: int) -> bytes:
    """Encode the request, overriding a model's default sampling settings that would change probabilities.

    Args:
        model: its name on the server.
        ids: token ids [B, T].
        top_k: K.
    """
    document = {
        "model": model,
        "prompt": [list(row) for row in ids],
        "prompt_logprobs": top_k,
        "max_tokens": 1,  # vLLM refuses 0
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
    }
    return json.dumps(document).encode()


def read(answer: bytes, ids: Sequence[Sequence[int]], *, top_k: int, vocab_size: int) -> Candidates:
    """Decode the candidates of a batch, at most min(K + 1, V) per position.

    Args:
        ids: the request's token ids [B, T].
        top_k: the request's K.
        vocab_size: V.

    Raises:
        AnswerError: it does not match the request, or a teacher with this vocabulary.
    """
    width = min(top_k + 1, vocab_size)
    shape = (len(ids), len(ids[0]) - 1)
    names = np.zeros((*shape, width), dtype=np.int64)
    logprobs = np.full((*shape, width), NOTHING, dtype=np.float64)
    for index, (row, entries) in enumerate(zip(ids, _entries(answer, ids), strict=True)):
        for position, (token, entry) in enumerate(zip(row[1:], entries[1:], strict=True)):
            found = _position(entry, token, top_k=top_k, vocab_size=vocab_size)
            names[index, position] = next(iter(found))
            names[index, position, : len(found)] = list(found)
            logprobs[index, position, : len(found)] = list(found.values())
    return Candidates(
        ids=torch.from_numpy(names),
        logprobs=torch.from_numpy(logprobs.astype(np.float32)),
        rest=torch.from_numpy(_rest(logprobs, vocab_size).astype(np.float32)),
    )


def problem(answer: bytes) -> str:
    """Return the error message in an answer, in the forms that servers of this protocol use, or all of it."""
    text = answer.decode(errors="replace")
    try:
        document = from_json(text)
    except ValueError:
        return text
    error = document.get("error", document) if isinstance(document, dict) else None
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return message if isinstance(message, str) else text


def _rest(logprobs: NDArray[np.float64], vocab_size: int) -> NDArray[np.float64]:
    """Return the log of the probability that is left for all other tokens, [B, P]."""
    total = np.exp(logprobs).sum(axis=-1)
    if total.size and total.max() > _MAX_TOTAL:
        raise AnswerError(f"its probabilities of one token add up to {total.max():.3g}; are they logarithms?")
    complete = (logprobs > NOTHING).sum(axis=-1) == vocab_size
    left = np.where(complete, 0.0, np.clip(1.0 - total, 0.0, None))
    return np.log(left, out=np.full_like(left, NOTHING), where=left > 0)


def _entries(answer: bytes, ids: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Return `prompt_logprobs` of each prompt, T entries each."""
    try:
        document = from_json(answer)
    except ValueError:
        raise AnswerError(f"its answer is not JSON: {_short(answer)}") from None
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise AnswerError(f"its answer has no choices: {_short(answer)}")
    if sorted(str(choice.get("index")) for choice in choices) != sorted(map(str, range(len(ids)))):
        raise AnswerError(f"it answered {counted(len(choices), 'choice')} to {counted(len(ids), 'prompt')}")
    found = [choice.get("prompt_logprobs") for choice in sorted(choices, key=lambda choice: choice["index"])]
    for row, entries in zip(ids, found, strict=True):
        if not isinstance(entries, list):
            raise AnswerError(
                "its answer has no prompt_logprobs; it must be a server that knows them, such as vLLM"
            )
        if len(entries) != len(row):
            raise AnswerError(f"it answers {counted(len(entries), 'token')} where {len(row)} were sent")
    return found


def _position(entry: Any, token: int, *, top_k: int, vocab_size: int) -> Mapping[int, float]:
    """Return the candidates at one position with their log probabilities, in the server's order."""
    try:
        found = {int(name): float(value["logprob"]) for name, value in entry.items()}
    except (AttributeError, TypeError, KeyError, ValueError):
        raise AnswerError(f"its prompt_logprobs hold {_short(json.dumps(entry).encode())}") from None
    strange = next((name for name in found if not 0 <= name < vocab_size), None)
    if strange is not None:
        raise AnswerError(
            f"it names token {strange}, but the student's vocabulary has {vocab_size}: another tokenizer?"
        )
    if token not in found:
        raise AnswerError(f"it has no logprob of token {token}, which was sent: did it change the prompt?")
    if not min(top_k, vocab_size) <= len(found) <= top_k + 1:
        raise AnswerError(
            f"it names {counted(len(found), 'token')} instead of {top_k}: a smaller vocabulary than the "
            f"student's {vocab_size}, or a limit of its own"
        )
    wrong = next((value for value in found.values() if not -math.inf < value < 0.01), None)
    if wrong is not None:
        raise AnswerError(f"it answers {wrong} for a log probability")
    return found


def _short(answer: bytes) -> str:
    text = " ".join(answer.decode(errors="replace").split())
    return repr(text[:80] + "…" if len(text) > 80 else text)
