"""What text to train on and how to cut it: the `data` group. Read by `trainer.data`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Positive, Text

SMALLEST_VOCABULARY = 257  # the 256 bytes and the end-of-text token

Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _TextConfig:
    """What every source of text has.

    Args:
        tokenizer: a folder, a name on the Hugging Face hub, or the URL of a folder (`gs://…`). None: the
            model's own, and where it has none, one that is trained on the training text.
        vocab_size: entries of the byte-level BPE that is then trained, the special token included. Unused
            where there is a tokenizer.
        sequence_length: tokens per training and evaluation window.
        held_out_fraction: share of the documents that are kept for evaluation.
    """

    tokenizer: Text | None
    vocab_size: Annotated[int, Field(ge=SMALLEST_VOCABULARY)]
    sequence_length: Annotated[int, Field(ge=2)]
    held_out_fraction: Share


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StdlibConfig(_TextConfig):
    """The source text of Python's own standard library.

    Args:
        max_bytes: upper bound on the text, in bytes of whole files; None takes all of it.
    """

    name: Literal["stdlib"]
    max_bytes: Positive | None


DataConfig = StdlibConfig
"""One source of text. Defaults stand in `trainer/conf/data`, and nowhere else."""
