"""For a script of one's own that a sweep starts: read the parameters, report on the way, write the result.

Only the standard library is imported. Every function does something useful without a sweep, too, so that the
script can be run by hand:

    from sweeps.script import finish, parameters, report

    given = parameters(lr=1e-3, layers=4)          # python train.py lr=0.01, or --lr=0.01
    for step in range(100):
        report(step=step, loss=...)                # early stopping reads it
    finish(loss=..., gpu_hours=0.3)                # the objectives, and whatever else is measured

What they read and write, for scripts in other languages: docs/tutorial/own-script.md.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["finish", "parameters", "report"]

_FLAG = object()
"""Value of `--key` alone."""


def parameters(
    defaults: Mapping[str, Any] | None = None, /, *, argv: Sequence[str] | None = None, **more: Any
) -> dict[str, Any]:
    """Return the parameters of this run: the defaults, and in their place what the command line says.

    It understands what a sweep writes for `${overrides}` (`lr=0.01`), `${args}` (`--lr=0.01`) and
    `${args_no_equals}` (`--lr 0.01`). A value has the type of its default; without one, or where that is
    None, the type that it looks like. An unknown key ends the script with one line and exit status 2; without
    any defaults every key is known.

    Args:
        defaults: by name, for names with dots: `{"optimizer.lr": 0.01}`.
        argv: words of the command line; None: those of this process, and none in a notebook.
        more: further defaults.

    Examples:
        >>> from sweeps.script import parameters
        >>> parameters(lr=1e-3, layers=4, name="a", argv=["lr=0.01", "--layers=8"])
        {'lr': 0.01, 'layers': 8, 'name': 'a'}
    """
    known = {**(defaults or {}), **more}
    found = dict(known)
    for key, text, is_quoted in _pairs(_command_line() if argv is None else argv, known):
        if known and key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            _refuse(f"{key}: no such parameter; {f'did you mean {close[0]}?' if close else _list(known)}")
        found[key] = _parse(key, text, known.get(key), is_quoted)
    return found


def report(*, step: float, loss: float | None = None, **more: float | str) -> None:
    """Write a line of `metrics.jsonl`: for `sweep status`, the dashboard, and early stopping.

    A trial that falls behind gets SIGTERM, and its result is not needed. Without a sweep the line is printed.

    Args:
        step: of the training, from 0, ascending.
        loss: lower is better, and NaN is the worst; None: it was not measured at this step.
        more: any other numbers or texts, such as `of` (the last step) or `held_out_loss`, which is compared
            in the place of `loss`.
    """
    line = {"step": step} | ({} if loss is None else {"loss": loss}) | more
    text = json.dumps({name: _plain(value) for name, value in line.items()})
    if (folder := _folder()) is None:
        print(text, flush=True)
        return
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def finish(metrics: Mapping[str, Any] | None = None, /, **more: Any) -> None:
    """Write `result.json`, with which a trial is completed; call it last. Without a sweep it is printed.

    Args:
        metrics: numbers by name, for names with dots. The objectives must be there; all others can be
            plotted and exported.
        more: further metrics.
    """
    result = {name: _plain(value) for name, value in {**(metrics or {}), **more}.items()}
    if not result:
        raise ValueError("finish(): write what was measured, such as finish(loss=0.3)")
    text = json.dumps(result)
    if (folder := _folder()) is None:
        print(text, flush=True)
        return
    # A worker that looks meanwhile sees no half of it; each process of a run has a part of its own.
    part = folder / f".result.json.{os.getpid()}.part"
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(folder / "result.json")


def _command_line() -> list[str]:
    """Return the words that follow the script's name; those of a notebook's kernel are no script's."""
    return [] if sys.argv[0].endswith("kernel_launcher.py") else sys.argv[1:]


def _folder() -> Path | None:
    """Return the run folder of the trial, or None without a sweep."""
    named = os.environ.get("SWEEP_RUN_DIR")
    if not named:
        return None
    folder = Path(named)
    # By hand it may be missing, which hours of training would pay for.
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pairs(argv: Sequence[str], known: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """Return key, text, and whether the text may stand in quotes, as in a Hydra override, of each word."""
    found: list[tuple[str, Any, bool]] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        key, equals, text = word.partition("=")
        is_option, key = key.startswith("--"), key.lstrip("-+")
        if equals and key:
            found.append((key, text, not is_option))
        elif is_option and key:
            has_value = bool(words) and not words[0].startswith("--")
            if has_value and "=" in words[0]:  # only a text has that in it; else it is the next parameter
                has_value = isinstance(known.get(key, ""), str)
            found.append((key, words.pop(0) if has_value else _FLAG, False))
        else:
            _refuse(f"{word}: write NAME=VALUE or --NAME=VALUE")
    return found


def _parse(key: str, text: Any, default: Any, is_quoted: bool) -> Any:
    """Return a value with the type of its default. Ends the script if it cannot have that."""
    if text is _FLAG:
        if default is not None and not isinstance(default, bool):
            _refuse(f"--{key}: a value is missing")
        return True
    if isinstance(default, str) and text not in _NULLS:
        return _strip_quotes(text) if is_quoted else text
    value = _parse_by_form(text)
    if not is_quoted and isinstance(value, list):
        with contextlib.suppress(ValueError):
            value = json.loads(text)  # noqa: TID251 - as `${args}` writes a list; scripts have no pydantic
    if default is None or value is None or type(value) is type(default):
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if isinstance(default, bool | int | float | list | tuple):
        _refuse(f"{key}={text}: not {_KINDS[type(default)]}, as its default {default!r} is")
    return value


_KINDS = {
    bool: "true or false", int: "a whole number", float: "a number", list: "a list", tuple: "a list"
}  # fmt: skip
_NULLS = ("null", "None")
"""How a sweep writes that there is no value; "none" is a text, as it is in YAML."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)


def _parse_by_form(text: str) -> Any:
    """Return what a text looks like: null, a boolean, a number, a list, or a text."""
    if text in _NULLS:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    if text.startswith("[") and text.endswith("]"):
        return [_parse_by_form(each.strip()) for each in _split(text[1:-1])]
    return _strip_quotes(text)


def _split(inner: str) -> list[str]:
    """Return the members of a list, whose commas may stand in quotes or in lists of their own."""
    parts, depth, quote, start = list[str](), 0, "", 0
    is_escaped = False
    for at, character in enumerate(inner):
        if quote:
            if character == quote and not is_escaped:
                quote = ""
            is_escaped = character == "\\" and not is_escaped
        elif character in "'\"":
            quote = character
        elif character in "[]":
            depth += 1 if character == "[" else -1
        elif character == "," and not depth:
            parts.append(inner[start:at])
            start = at + 1
    return [*parts, inner[start:]] if inner.strip() else []


def _strip_quotes(text: Any) -> str:
    """Return a text without the quotes that `${overrides}` puts around one with unusual characters."""
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        return str(text)
    before_quotes = rf"(\\+)(?={text[0]}|$)"
    inner = re.sub(before_quotes, lambda found: "\\" * (len(found[1]) // 2), text[1:-1])
    return re.sub(r"(\\*)\\\$\{", lambda found: "\\" * (len(found[1]) // 2) + "${", inner)


def _plain(value: Any) -> Any:
    """Return a number of NumPy or torch as Python's own, which JSON can hold."""
    return value.item() if hasattr(value, "item") else value


def _list(known: Mapping[str, Any]) -> str:
    return f"known are: {', '.join(known)}"


def _refuse(problem: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).name or 'script'}: error: {problem}", file=sys.stderr)
    sys.exit(2)
