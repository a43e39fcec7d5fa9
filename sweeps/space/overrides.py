"""A trial's parameters on a command line: Hydra overrides, or options.

Overrides are quoted so that Hydra reads back the same value and type.

Hydra itself is not imported: its grammar is small, and `sweep best` has to start quickly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from sweeps.space.definition import Value

# Hydra's lexer reads these as other types: https://hydra.cc/docs/advanced/override_grammar/basic/
_RESERVED = frozenset(("true", "false", "null", "nan", "inf"))
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)


def to_overrides(parameters: Mapping[str, Value]) -> list[str]:
    """Return one `key=value` per parameter, in their order. Raises ValueError on NaN, infinity and NUL."""
    return [f"{key}={quote(value)}" for key, value in parameters.items()]


def to_options(parameters: Mapping[str, Value]) -> list[str]:
    """Return one `--key=value` per parameter, in their order: what argparse, click and the like read.

    Raises:
        ValueError: a value is NaN, infinite or has a NUL.
    """
    texts = {key: value if isinstance(value, str) else quote(value) for key, value in parameters.items()}
    if zero := [key for key, text in texts.items() if "\0" in text]:
        raise ValueError(f"{parameters[zero[0]]!r} cannot be an option: a command line holds no NUL")
    return [f"--{key}={text}" for key, text in texts.items()]


WORDS: Mapping[str, Callable[[Mapping[str, Value]], list[str]]] = {
    "${overrides}": to_overrides,
    "${args}": to_options,
}
"""What stands for the parameters in a program's command."""


def with_parameters(
    command: Iterable[str], parameters: Mapping[str, Value], filled: Callable[[str], str]
) -> list[str]:
    """Return a program's command with the parameters in the place of `WORDS`, and all others `filled`."""
    argv: list[str] = []
    for word in command:
        argv += WORDS[word](parameters) if word in WORDS else [filled(word)]
    return argv


def quote(value: Value) -> str:
    """Return the value in Hydra's override grammar: composed and resolved, it is `value` again."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))  # int(): a subclass may print itself differently
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be an override: it is not a finite number")
        return repr(float(value))
    if "\0" in value:
        raise ValueError(f"{value!r} cannot be an override: a command line holds no NUL")
    if _BARE.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return _quoted(_literal(value))


def _literal(text: str) -> str:
    """Return text that OmegaConf resolves to `text`: `${` would start an interpolation."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)


def _quoted(text: str) -> str:
    """Return the text in single quotes; only backslashes before quotes, also the closing one, are doubled."""
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", text)
    backslashes = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{backslashes * chr(92)}'"


def split(override: str) -> tuple[str, str]:
    """Return the key, without Hydra's leading `+` or `~`, and the text after the first `=`.

    Raises:
        ValueError: the text is not of the form `key=value`.
    """
    key, equals, text = override.partition("=")
    key = key.lstrip("+~").strip()
    if not equals or not key or any(character.isspace() for character in key):
        raise ValueError(f"{override!r} is not an override; write key=value")
    return key, text
