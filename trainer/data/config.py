"""What text to train on and how to cut it: the `data` group of the configuration.

The configuration is composed before anything heavy is imported, so this file knows neither torch nor numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import ConfigError

SOURCES = ("stdlib",)
SMALLEST_VOCABULARY = 257  # the 256 bytes and the end-of-text token


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text. Defaults stand in `trainer/conf/data`, and nowhere else.

    Args:
        name: where it comes from; `stdlib` is the source text of Python's own standard library.
        vocab_size: entries of the byte-level BPE that is trained on it, the special token included. Unused
            where the model brings its own tokenizer.
        sequence_length: tokens per training and evaluation window.
        held_out_fraction: share of the files that are kept for evaluation.
        max_bytes: upper bound on the text, in bytes of whole files; None takes all of it.

    Raises:
        ConfigError: for values that cannot work.
    """

    name: str
    vocab_size: int
    sequence_length: int
    held_out_fraction: float
    max_bytes: int | None

    def __post_init__(self) -> None:
        if self.name not in SOURCES:
            raise ConfigError(
                f"{self.name!r} is unknown; write one of: {', '.join(SOURCES)}", key="data.name"
            )
        _require_int("vocab_size", self.vocab_size, at_least=SMALLEST_VOCABULARY)
        _require_int("sequence_length", self.sequence_length, at_least=2)
        if self.max_bytes is not None:
            _require_int("max_bytes", self.max_bytes, at_least=1)
        _require_share("held_out_fraction", self.held_out_fraction)


def _require_int(key: str, value: object, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ConfigError(
            f"{value!r} does not work; write a whole number of at least {at_least}", key=f"data.{key}"
        )


def _require_share(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ConfigError(
            f"{value!r} does not work; write a share between 0 and 1, such as 0.05", key=f"data.{key}"
        )
