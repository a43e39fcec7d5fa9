"""A first look at a teacher elsewhere, before hours go into what needs it. Used by `stages.distill`."""

from __future__ import annotations

import math

from torch import Tensor

from trainer.config import HttpTeacherConfig
from trainer.errors import ConfigError, TeacherServerError
from trainer.losses.candidates import NOTHING, Candidates
from trainer.teachers.http.request_thread import Asker

_CHANCE = 0.5  # nats above ln V from which a teacher is held for one of another tokenizer
_LEAST = -30.0  # one token that a teacher holds for impossible must not decide


def look(asker: Asker, config: HttpTeacherConfig, ids_BT: Tensor, *, vocab_size: int) -> None:
    """Asks about a little text, and whether the answer can be that of a teacher who reads it as we do.

    Raises:
        ConfigError: it refuses, or its token ids seem to mean something else.
        TeacherServerError: it does not answer, or not what was asked.
        PreemptedError: a signal came meanwhile.
    """
    if config.top_k > vocab_size:
        raise ConfigError(
            f"{config.top_k} is more than the vocabulary has ({vocab_size}); write that at most",
            key="stage3.teacher.top_k",
        )
    try:
        said = asker.wait(asker.submit(ids_BT))
    except TeacherServerError as error:
        if error.status is None:
            raise
        raise ConfigError(str(error), key="stage3.teacher") from error
    loss, chance = _loss(said, ids_BT), math.log(vocab_size)
    if loss > chance + _CHANCE:
        raise ConfigError(
            f"it predicts held-out text at {loss:.2f} nats per token, where guessing costs {chance:.2f}: "
            "its token ids must mean other tokens; serve a model with the student's tokenizer",
            key="stage3.teacher.model",
        )


def _loss(said: Candidates, ids_BT: Tensor) -> float:
    """Cross-entropy of the text; each of its tokens is among the candidates."""
    same_BPC = said.ids == ids_BT[:, 1:].unsqueeze(-1)
    logprobs_BP = said.logprobs.masked_fill(~same_BPC, NOTHING).amax(dim=-1)
    return float(-logprobs_BP.clamp_(min=_LEAST).mean())
