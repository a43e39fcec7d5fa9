"""YAML as a tree of cursors, each with file, line and key for error messages.

Only plain YAML is allowed (no tags, anchors or aliases, one document). Plain scalars are typed as in YAML
1.2, so that 1e-3 is a number; what YAML 1.1 and 1.2 read differently (`on`, 010, 1:30, dates) is refused
where a typed value is expected.

`dump` writes what is read back as the same values.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from sweeps.errors import SpaceError
from sweeps.space.definition import MAX_LISTS, Value

T = TypeVar("T")
D = TypeVar("D")

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
MAX_INT = 2**53
"""Larger integers are not exact once the optimizer holds them as doubles."""

_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUTH = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Scalars that people, YAML 1.1 and YAML 1.2 may read differently, each with what to write instead.
_UNCLEAR = (
    ("yes|no|on|off", "is a boolean to some YAML readers; write true or false, or quote it"),
    (r"[-+]?0[0-9_]+(?:\.[0-9]*)?", "has a leading zero; drop it, or quote it"),
    ("[-+]?0[xob][0-9a-f_]+", "is not decimal; write the decimal number, or quote it"),
    (r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?", "has a `_`; write the number without, or quote it"),
    (r"[-+]?[0-9]+(?::[0-9]+)+(?:\.[0-9]*)?", "is a base-60 number to some YAML readers; quote it"),
    ("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*", "is a date to some YAML readers; quote it"),
    (r"[-+]?\.?(?:nan|inf|infinity)", "is not a finite number; write a finite one, or quote it"),
)
_UNCLEAR_TEXTS = tuple((re.compile(text, re.I | re.A | re.S), advice) for text, advice in _UNCLEAR)


NO_FOLDER = "becomes a folder: write up to 100 letters, digits, `.`, `_` and `-`, not starting with a dot"
"""Message for what is no `is_folder_name`."""


def is_folder_name(name: str) -> bool:
    """Return whether it can be the name of a folder, on every file system and in a bucket."""
    return _FOLDER.fullmatch(name) is not None


class Problems:
    """Problems of one file, collected so that its user mends it once."""

    def __init__(self) -> None:
        self.found: list[SpaceError] = []

    def attempt(self, part: Callable[[], T], otherwise: D) -> T | D:
        """Return what the part returns, or `otherwise` if it raises SpaceError, which is kept."""
        try:
            return part()
        except SpaceError as error:
            self.found.append(error)
            return otherwise

    def check(self) -> None:
        """Raise one SpaceError with all that was found, in the file's order; return if there is nothing."""
        if self.found:
            each = [problem for found in self.found for problem in found.problems]
            raise SpaceError.together(sorted(each, key=lambda problem: problem.line or 0))


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """YAML node with its file and dotted key. Its methods raise SpaceError for what they cannot return."""

    node: yaml.Node
    file: str
    path: str = ""

    @property
    def line(self) -> int:
        """Return the line, from 1."""
        return int(self.node.start_mark.line) + 1

    def refusal(self, problem: str) -> SpaceError:
        """Return the error to raise about this node."""
        key = _one_line(self.path, 120)
        return SpaceError(_one_line(problem, 300), file=self.file, line=self.line, key=key)

    def table(
        self,
        known: Collection[str],
        problems: Problems,
        *,
        hints: Mapping[str, str] = MappingProxyType({}),
        examples: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Cursor]:
        """Return the entries of a mapping that are known.

        Args:
            problems: takes what is wrong with keys: others than these, and those that are missing.
            hints: what to write instead of some others.
            examples: what to write for each key that must be there.
        """
        pairs = [(key.text(), key, value) for key, value in self.pairs()]
        unknown = {name: key for name, key, _ in pairs if name not in known}
        refusals = [
            key.refusal(f"unknown key; {hints.get(name) or nearest(name, known)}")
            for name, key in unknown.items()
        ]
        problems.found += refusals
        advice = " ".join(each.problem for each in refusals)
        names = [name for name, _, _ in pairs]
        for name, example in examples.items():
            # A misspelt key is one mistake, not an unknown key and a missing one.
            if name not in names and f"`{name}`" not in advice and f"write {name}:" not in advice:
                there = replace(self, path=self.path or name)
                problems.found.append(there.refusal(f"`{name}:` is missing; write such as {example}"))
        return {name: value for name, _, value in pairs if name in known}

    def at(self, key: str) -> Cursor:
        """Return an entry of a mapping; the mapping itself, to say where it would stand, without it."""
        return next((value for name, value in self.pairs() if name.node.value == key), self)

    def pairs(self) -> list[tuple[Cursor, Cursor]]:
        """Return keys and values of a mapping, in order, with unique keys."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.refusal(f"expected `key: value` pairs, found {self.kind()}")
        pairs: list[tuple[Cursor, Cursor]] = []
        lines: dict[str, int] = {}
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Cursor(node=key, file=self.file, path=self.path).refusal("a key must be a plain word")
            path = f"{self.path}.{key.value}" if self.path else key.value
            at = Cursor(node=key, file=self.file, path=path)
            if key.value in lines:
                raise at.refusal(f"written twice, first in line {lines[key.value]}; keep one")
            lines[key.value] = at.line
            pairs.append((at, Cursor(node=value, file=self.file, path=path)))
        return pairs

    def items(self, *, may_be_empty: bool = False) -> list[Cursor]:
        """Return the elements of a sequence."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.refusal(f"expected a list, found {self.kind()}; write [...]")
        if not self.node.value and not may_be_empty:
            raise self.refusal("the list is empty")
        return [
            Cursor(node=item, file=self.file, path=f"{self.path}[{position}]")
            for position, item in enumerate(self.node.value)
        ]

    def kind(self) -> str:
        """Return the kind of the node, or its text, for messages."""
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        return "nothing" if self._is_null() else f"`{_one_line(self.node.value)}`"

    def text(self) -> str:
        """Return a scalar as it is written, never empty."""
        if not isinstance(self.node, yaml.ScalarNode) or self._is_null() or not self.node.value:
            raise self.refusal(f"expected text, found {self.kind()}")
        return self._encodable(self.node.value)

    def folder_name(self) -> str:
        """Return text that can be the name of a folder, on every file system and in a bucket."""
        name = self.text()
        if not is_folder_name(name):
            raise self.refusal(NO_FOLDER)
        return name

    def value_or_list(self, depth: int = MAX_LISTS) -> Value:
        """Return what a parameter can have: a scalar, null if it is written out, or a list of these."""
        if isinstance(self.node, yaml.SequenceNode):
            if not depth:
                raise self.refusal(f"lists are nested more than {MAX_LISTS} levels deep")
            return tuple(item.value_or_list(depth - 1) for item in self.items(may_be_empty=True))
        if isinstance(self.node, yaml.MappingNode):
            raise self.refusal("a mapping is no value of a parameter; make a parameter of each of its keys")
        if self._is_null() and self.node.value:
            return None
        return self.value()

    def value(self) -> bool | int | float | str:
        """Return a scalar as a boolean, an integer, a finite float or text."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.refusal(f"expected one number, text or boolean, found {self.kind()}")
        if self._is_null():
            raise self.refusal("has no value; write one, or null where a parameter may be without")
        text = self._encodable(self.node.value)
        if self.node.style and self.node.style in "'\"|>":
            return text
        if text in _TRUTH:
            return _TRUTH[text]
        if _INT.fullmatch(text):
            if len(text) > len(str(MAX_INT)) + 1 or abs(int(text)) > MAX_INT:
                raise self.refusal(
                    "the integer is too large to be exact (beyond 2**53); quote it to pass it on as text"
                )
            return int(text)
        if _FLOAT.fullmatch(text):
            if not math.isfinite(float(text)):
                raise self.refusal(f"{self.kind()} is too large for a floating-point number")
            return float(text)
        for pattern, advice in _UNCLEAR_TEXTS:
            if pattern.fullmatch(text):
                raise self.refusal(f"{self.kind()} {advice}")
        return text

    def number(self) -> int | float:
        """Return a number, which a boolean is not."""
        value = self.value()
        if isinstance(value, bool | str):
            # Only quotes make a text of what would be a number without them.
            quoted = isinstance(value, str) and (_INT.fullmatch(value) or _FLOAT.fullmatch(value))
            hint = ", it is in quotes" if quoted else ""
            raise self.refusal(f"{self.kind()} is not a number{hint}")
        return value

    def integer(self, *, least: int, most: int = MAX_INT) -> int:
        """Return an integer from `least` to `most`."""
        value = self.number()
        if isinstance(value, float):
            hint = f"; write {int(value)}" if value.is_integer() else ""
            raise self.refusal(f"{self.kind()} is not an integer{hint}")
        if not least <= value <= most:
            raise self.refusal(
                f"{value} is not " + (f"at least {least}" if value < least else f"at most {most}")
            )
        return value

    def boolean(self) -> bool:
        """Return a boolean."""
        value = self.value()
        if not isinstance(value, bool):
            raise self.refusal(f"{self.kind()} is not a boolean; write true or false")
        return value

    def one_of(self, allowed: Collection[str]) -> str:
        """Return one of the allowed words."""
        word = self.text()
        if word not in allowed:
            raise self.refusal(f"`{_one_line(word)}` is unknown; {nearest(word, allowed)}")
        return word

    def _is_null(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and not self.node.style and self.node.value in _NULL

    def _encodable(self, text: str) -> str:
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise self.refusal(
                "holds a character that no command line or file can carry (NUL or half a surrogate pair)"
            )
        return text


def yaml_text(value: Value) -> str:
    """Return the value as it is written in YAML, for messages."""
    return json.dumps(value) if value is None or isinstance(value, bool | tuple) else str(value)


def nearest(word: str, known: Collection[str]) -> str:
    """Return `did you mean x?`, or the list of known words."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean `{found[0]}`?" if found else f"known are: {', '.join(known)}"


def parse(text: str, file: str) -> Cursor:
    """Return the root of the only document in `text`. Raises SpaceError."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise SpaceError(f"larger than {MAX_BYTES // 1024} KiB; a search space is smaller", file=file)
    try:
        loader = _PlainLoader(text)
        loader.name = file
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, file) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpaceError(
            f"the character U+{ord(text[error.position]):04X} is not allowed in YAML", file=file, line=line
        ) from None
    if root is None:
        raise SpaceError("the file is empty; docs/reference/space-file.md shows what to write", file=file)
    return Cursor(node=root, file=file)


def dump(document: Mapping[str, Any]) -> str:
    """Return the document as YAML that a cursor reads as the same values."""
    return yaml.dump(dict(document), Dumper=_TextDumper, sort_keys=False, default_flow_style=None, width=100)


class _TextDumper(yaml.SafeDumper):
    """PyYAML's dumper, which quotes what YAML 1.1 reads as no text; here also what a cursor does not."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        tag, start = "tag:yaml.org,2002:str", yaml.Mark("", 0, 0, 0, None, 0)
        try:
            is_text = Cursor(node=yaml.ScalarNode(tag, text, start), file="").value() == text
        except SpaceError:
            is_text = False
        return self.represent_scalar(tag, text, style=None if is_text else "'")


_TextDumper.add_representer(str, _TextDumper.represent_str)


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's loader, which refuses what a search space does not need before anything is built from it."""

    depth = documents = 0

    def get_event(self) -> yaml.Event:
        event: yaml.Event = super().get_event()  # type: ignore[no-untyped-call]  # PyYAML has no types
        problem = ""
        self.documents += isinstance(event, yaml.DocumentStartEvent)
        self.depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        # Nine lists of ten aliases each, one of the other, are 10^9 values once `value_or_list` walks them.
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (`*name`) are not supported; write the value out"
        elif getattr(event, "anchor", None):
            problem = "anchors (`&name`) are not supported; write the value out"
        elif tag := getattr(event, "tag", None):
            problem = f"tags (`{_one_line(tag)}`) are not supported; leave it out"
        elif self.documents > 1:
            problem = "a second document starts here; one file holds one search space"
        elif self.depth > MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep"
        if problem:
            line = event.start_mark.line + 1 if event.start_mark else None
            raise SpaceError(problem, file=self.name, line=line)
        return event


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> SpaceError:
    """Return an error with our message for common mistakes, with PyYAML's for others."""
    problem, mark = " ".join((error.problem or "malformed").split()), error.problem_mark or error.context_mark
    if "'\\t'" in problem:
        problem = "a tab; YAML is indented with spaces"
    elif "<block end>" in problem:
        problem = "the indentation does not fit the lines above"
    elif "end of stream" in problem and error.context_mark:
        problem, mark = "what is opened here is never closed", error.context_mark
    elif "expected ',' or" in problem and error.context_mark:
        opened = error.context_mark.line + 1
        problem = f"a comma or a closing bracket is missing; the bracket opens in line {opened}"
    else:
        problem = f"not YAML: {problem}" + (f", {error.context}" if error.context else "")
    return SpaceError(problem, file=file, line=mark.line + 1 if mark else None)


def _one_line(text: str, most: int = 60) -> str:
    """Return the text in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."
