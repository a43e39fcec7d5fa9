"""Health check of a teacher's server before a run depends on it. Used by `stages.distill`."""

from __future__ import annotations

import math

from torch import Tensor

from trainer.config import HttpTeacherConfig
from trainer.errors import ConfigError, TeacherServerError
from trainer.losses.candidates import NOTHING, Candidates
from trainer.teachers.http.request_thread import RequestThread

_MARGIN = 0.5  # nats above ln V at which a teacher is taken to have another tokenizer
_MIN_LOGPROB = -30.0  # a single token that the teacher considers impossible must not decide


def check_teacher(
    thread: RequestThread, config: HttpTeacherConfig, ids_BT: Tensor, *, vocab_size: int
) -> None:
    """Request predictions for a little held-out text and check that the teacher has the same tokenizer.

    Args:
        thread: sends the request.
        config: of the teacher.
        ids_BT: the text, int64.
        vocab_size: of the student.

    Raises:
        ConfigError: it refuses, or its token ids seem to mean something else.
        TeacherServerError: it does not answer, or the answer is invalid.
        PreemptedError: a signal came meanwhile.
    """
    if config.top_k > vocab_size:
        raise ConfigError(
            f"{config.top_k} is more than the vocabulary has ({vocab_size}); write that at most",
            key="stage3.teacher.top_k",
        )
    try:
        candidates = thread.wait(thread.submit(ids_BT))
    except TeacherServerError as error:
        if error.status is None:
            raise
        raise ConfigError(str(error), key="stage3.teacher") from error
    loss, uniform = _loss(candidates, ids_BT), math.log(vocab_size)
    if loss > uniform + _MARGIN:
        raise ConfigError(
            f"it predicts held-out text at {loss:.2f} nats per token, where guessing costs {uniform:.2f}: "
            "its token ids must mean other tokens; serve a model with the student's tokenizer",
            key="stage3.teacher.model",
        )


def _loss(candidates: Candidates, ids_BT: Tensor) -> float:
    """Return the cross-entropy of the text in nats; each of its tokens is among the candidates."""
    same_BPC = candidates.ids == ids_BT[:, 1:].unsqueeze(-1)
    logprobs_BP = candidates.logprobs.masked_fill(~same_BPC, NOTHING).amax(dim=-1)
    return float(-logprobs_BP.clamp_(min=_MIN_LOGPROB).mean())
