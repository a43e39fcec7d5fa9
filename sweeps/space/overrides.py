"""A trial's parameters on a command line: Hydra overrides, or options, also as W&B's agent writes them.

Overrides are quoted so that Hydra reads back the same value and type.

Hydra itself is not imported: its grammar is small, and `sweep best` has to start quickly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping

from sweeps.space.definition import Value, cell_of, to_plain

# Hydra's lexer reads these as other types: https://hydra.cc/docs/advanced/override_grammar/basic/
_RESERVED = frozenset(("true", "false", "null", "nan", "inf"))
_PYTHON_NULL = "None"
"""What Hydra reads as a text, and `sweeps.script` as null: `${args_wandb}` writes null so."""
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)


def to_overrides(parameters: Mapping[str, Value]) -> list[str]:
    """Return one `key=value` per parameter, in their order. Raises ValueError on NaN, infinity and NUL."""
    return [f"{key}={quote(value)}" for key, value in parameters.items()]


def to_options(parameters: Mapping[str, Value]) -> list[str]:
    """Return one `--key=value` per parameter, in their order: what argparse, click and the like read.

    Raises:
        ValueError: a value is NaN, infinite or has a NUL.
    """
    texts = {
        key: str(cell_of(v)) if isinstance(v, tuple | str) else quote(v) for key, v in parameters.items()
    }
    return _without_nul([f"--{key}={text}" for key, text in texts.items()])


def to_python_options(parameters: Mapping[str, Value]) -> list[str]:
    """Return one `--key=value` per parameter, each as Python prints it: True, None, [1, 2]."""
    return _without_nul([f"--{key}={to_plain(value)}" for key, value in parameters.items()])


def _assignments(prefix: str) -> Callable[[Mapping[str, Value]], list[str]]:
    return lambda parameters: _without_nul([f"{prefix}{k}={to_plain(v)}" for k, v in parameters.items()])


def _without_booleans(parameters: Mapping[str, Value]) -> list[str]:
    """Return `--key=value`, but `--key` for True and nothing for False."""
    flags = [
        f"--{key}" if value is True else f"--{key}={to_plain(value)}" for key, value in parameters.items()
    ]
    return _without_nul(
        [flag for flag, value in zip(flags, parameters.values(), strict=True) if value is not False]
    )


def _without_nul(argv: list[str]) -> list[str]:
    if zero := [word for word in argv if "\0" in word]:
        raise ValueError(f"{zero[0]!r} cannot be an option: a command line holds no NUL")
    return argv


WORDS: Mapping[str, Callable[[Mapping[str, Value]], list[str]]] = {
    "${overrides}": to_overrides,
    "${args}": to_options,
    # As W&B's agent writes its macros of these names, and "${args}":
    # https://docs.wandb.ai/guides/sweeps/sweep-config-keys#command-macros
    "${args_wandb}": to_python_options,
    "${args_no_equals}": lambda parameters: _without_nul(
        [word for key, value in parameters.items() for word in (f"--{key}", str(to_plain(value)))]
    ),
    "${args_no_hyphens}": _assignments(""),
    "${args_no_boolean_flags}": _without_booleans,
    "${args_append_hydra}": _assignments("+"),
    "${args_override_hydra}": _assignments("++"),
    "${args_json}": lambda parameters: [json.dumps(dict(parameters))],  # those of a record are no dict
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
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(quote, value))}]"
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
    if _BARE.fullmatch(value) and value.lower() not in _RESERVED and value != _PYTHON_NULL:
        return value
    # OmegaConf must not take `${` for an interpolation.
    literal = re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", value)
    # Only backslashes before quotes, also before the closing one, are doubled.
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + r"\'", literal)
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
