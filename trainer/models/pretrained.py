"""Loading of checkpoints by transformers, which reports tensors that do not fit.

Used by `causal_lm`, `gguf` and `export`.

transformers gives a tensor that a checkpoint lacks random numbers, drops one that the model has no place for,
and logs both. No other module of the trainer calls a model's `from_pretrained`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHOWN = 3
_LONGEST = 120  # characters of a name that are shown: names come from untrusted files
_NUMBER = re.compile(r"\d+")
_CONVERSION = re.compile(r"^(\S.*?)\s*\|\s*\S*CONVERSION", re.MULTILINE)
# Causal masks that checkpoints of GPT-Neo and GPT-J hold as buffers. Today's classes compute them, and say
# nothing of it in `_keys_to_ignore_on_load_unexpected`, as that of GPT-2 does.
_MASK = re.compile(r"\.attn\.(attention\.)?(masked_)?bias$")


@dataclass(frozen=True, kw_only=True)
class Misfits:
    """The tensors in which a checkpoint and its model differ; all are empty where it is complete.

    Args:
        missing: names of those that the checkpoint lacks.
        unexpected: names of those that the model has no place for.
        mismatched: names of those of another shape, with both shapes.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    @classmethod
    def between(cls, expected: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]]) -> Misfits:
        """Return the misfits of the shapes of a model's tensors and a file's, by name."""
        return cls(
            missing=in_order(expected.keys() - found.keys()),
            unexpected=in_order(found.keys() - expected.keys()),
            mismatched=in_order(
                f"{name} {list(found[name])}, not {list(shape)}"
                for name, shape in expected.items()
                if name in found and list(found[name]) != list(shape)
            ),
        )

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        """Return them in words that follow "the checkpoint"."""
        parts = (
            ("lacks ", self.missing),
            ("has, with no place in the model, ", self.unexpected),
            ("has in another shape ", self.mismatched),
        )
        return ", ".join(f"{words}{some_of(names)}" for words, names in parts if names)


def load(model_class: Any, source: str | Path, **arguments: Any) -> tuple[Any, Misfits]:
    """Return the model of `model_class.from_pretrained(source, …)`, and what did not fit.

    Tied tensors fit if one of them is there, and so do those that the architecture computes or ignores.

    Raises:
        ValueError: there are adapters of peft, whose loading would hide what the model itself lacks.
        RuntimeError: tensors could not be converted to those of the model.
        Exception: whatever else transformers raises.
    """
    from transformers.utils import find_adapter_config_file

    # Without peft, transformers would load the model and leave out the adapters.
    if find_adapter_config_file(str(source), local_files_only=bool(arguments.get("local_files_only"))):
        raise ValueError(
            "it holds adapters of peft (adapter_config.json), which would not be part of the student's "
            "layers; merge them (merge_and_unload, save_pretrained) and name the folder of the result"
        )
    with _without_report() as reports:
        try:
            # Otherwise tensors of another shape are named in the report alone.
            model, info = model_class.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True, **arguments
            )
        except RuntimeError as error:
            if odd := _CONVERSION.findall("\n".join(reports)):
                raise RuntimeError(f"{some_of(odd)} cannot be converted") from error
            raise
    buffers = {name for name, _ in model.named_buffers()}  # checkpoints hold the persistent ones
    return model, Misfits(
        missing=in_order(info["missing_keys"]),
        unexpected=in_order(
            name for name in info["unexpected_keys"] if name not in buffers and not _MASK.search(name)
        ),
        mismatched=in_order(
            f"{name} {list(theirs)}, not {list(ours)}" for name, theirs, ours in info["mismatched_keys"]
        ),
    )


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return names sorted, numbers by their size."""
    return tuple(sorted(names, key=lambda name: _NUMBER.sub(lambda digits: digits[0].zfill(12), name)))


def some_of(names: Iterable[str]) -> str:
    """Return the first names, shortened, and the number of the others."""
    names = list(names)
    rest = len(names) - _SHOWN
    return ", ".join(map(truncate, names[:_SHOWN])) + (f" and {rest} more" if rest > 0 else "")


def truncate(text: str, length: int = _LONGEST) -> str:
    """Return so many characters of a text from a file, on one line."""
    printable = text[:length] if text[:length].isprintable() else repr(text[:length])[1:-1]
    return printable + ("…" if len(text) > length else "")


@contextmanager
def _without_report() -> Iterator[list[str]]:
    """Collect transformers' load reports in the list that is yielded, instead of the log."""
    reports: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_report = "LOAD REPORT" in text or "absent from the checkpoint" in text
        if is_report:
            reports.append(re.sub(r"\x1b\[[0-9;]*m", "", text))
        return not is_report

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(keep)
    try:
        yield reports
    finally:
        logger.removeFilter(keep)
