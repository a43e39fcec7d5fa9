"""Configuration of the training text: the `data` group. Read by `trainer.data`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, Checked, FieldError, Positive, Text

SMALLEST_VOCABULARY = 257  # the 256 bytes and the end-of-text token


def _as_list(files: Any) -> Any:
    """Turn one name into a tuple of one, and a JSON list into a tuple."""
    if isinstance(files, str):
        return (files,)
    return tuple(files) if isinstance(files, list) else files


Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Files = Annotated[tuple[Text, ...], Field(min_length=1), BeforeValidator(_as_list)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _TextConfig(Checked):
    """Fields that every source of text has.

    Args:
        tokenizer: a folder, a name on the Hugging Face hub, or the URL of a folder (`gs://…`). None: the
            model's own, and where it has none, one that is trained on the training text.
        vocab_size: entries of the byte-level BPE that is then trained, the special token included. Unused
            where there is a tokenizer.
        sequence_length: tokens per training and evaluation window.
        held_out_fraction: share of the documents that are never trained on, and that a sweep selects by.
        test_fraction: share of the documents that are neither trained on nor selected by (`eval.test`).
        document_masks: a token attends to its own document alone, and positions start again with each.
    """

    tokenizer: Text | None
    vocab_size: Annotated[int, Field(ge=SMALLEST_VOCABULARY)]
    sequence_length: Annotated[int, Field(ge=2)]
    held_out_fraction: Share
    test_fraction: Share
    document_masks: bool

    def contradictions(self) -> Iterator[FieldError]:
        if self.held_out_fraction + self.test_fraction >= 1:
            yield FieldError(
                f"{self.test_fraction} and held_out_fraction={self.held_out_fraction} leave nothing to train "
                "on; write less, so that their sum is below 1",
                key="test_fraction",
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StdlibConfig(_TextConfig):
    """The source text of Python's own standard library.

    Args:
        name: set by the group `data`.
        max_bytes: upper bound on the text, in bytes of whole files; None takes all of it.
    """

    name: Literal["stdlib"]
    max_bytes: Positive | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _StreamConfig(_TextConfig):
    """Text that is streamed while training, never loaded at once.

    Args:
        held_out_tokens: held-out text is gathered up to so many tokens, or to the end of the text.
        test_tokens: the same of the test text.
        lanes: positions of the text that are read concurrently; the number of processes must divide it.
        shuffle_windows: windows in the shuffle buffer, over all lanes; they are read again to resume.
    """

    held_out_tokens: Positive
    test_tokens: Positive
    lanes: Positive
    shuffle_windows: Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TextConfig(_StreamConfig):
    """Text files.

    Args:
        name: set by the group `data`.
        files: paths, globs or folders, URLs too; one or a list.
        text_key: the files are JSON lines, with the text under that key. None: each file is a document.
    """

    name: Literal["text"]
    files: Files
    text_key: Text | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ParquetConfig(_StreamConfig):
    """Parquet files.

    Args:
        name: set by the group `data`.
        files: paths, globs or folders, URLs too; one or a list.
        text_key: the column that holds the text.
    """

    name: Literal["parquet"]
    files: Files
    text_key: Text


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HubConfig(_StreamConfig):
    """A dataset of the Hugging Face hub.

    Args:
        name: set by the group `data`.
        dataset: its name there, or a folder.
        subset: which of its configurations; None: its default.
        split: which of its splits; training and held-out text are parts of it.
        revision: branch, tag or commit; None: the newest.
        text_key: the column, or key, that holds the text.
    """

    name: Literal["hub"]
    dataset: Text
    subset: Text | None
    split: Text
    revision: Text | None
    text_key: Text


StreamConfig = TextConfig | ParquetConfig | HubConfig
DataConfig = Annotated[StdlibConfig | StreamConfig, Field(discriminator="name")]
"""One source of text. Defaults stand in `trainer/conf/data`, and nowhere else."""
