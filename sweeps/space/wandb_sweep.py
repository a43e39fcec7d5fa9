"""Translation of a W&B sweep file into a search space file that means the same (`sweep init --from-wandb`).

The format is that of https://docs.wandb.ai/guides/sweeps/sweep-config-keys. Every problem is collected, so
that a user mends the file once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from sweeps.errors import SpaceError
from sweeps.space import yaml_cursor
from sweeps.space.space_file import loads
from sweeps.space.yaml_cursor import Cursor

WIDTH = 3.0
"""Standard deviations on both sides of the mean at which an unbounded normal distribution is cut off."""

_UNBOUNDED = {
    "normal": ("normal", False),
    "log_normal": ("log_normal", True),
    "q_normal": ("normal", False),
}
_BOUNDED = {
    "uniform": "uniform",
    "int_uniform": "int_uniform",
    "q_uniform": "uniform",
    "log_uniform_values": "log_uniform_values",
}
_IGNORED = ("project", "entity", "description", "imports", "job", "image_uri", "$schema")
_INTERPRETER = {"${interpreter}": "python", "${args_no_hyphens}": "${overrides}"}
_DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_NO_FOLDER = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A search space file and what its reader must know.

    Args:
        text: the file.
        notes: what does not mean quite the same, each a sentence.
    """

    text: str
    notes: tuple[str, ...]


def translated(text: str, file: str) -> Translation:
    """Return the search space file for a W&B sweep file.

    Args:
        text: the W&B file, YAML.
        file: its name in errors.

    Raises:
        SpaceError: something in it cannot be said in a search space file; the message has a line for each.
    """
    reader = _Reader(file)
    root = yaml_cursor.parse(text, file)
    document = reader.document(dict(_named(root)))
    if reader.problems:
        first, *others = sorted(reader.problems, key=lambda problem: problem.line or 0)
        lines = "\n".join([first.problem, *map(str, others)])
        raise SpaceError(lines, file=file, line=first.line, key=first.key)
    notes = tuple(dict.fromkeys(reader.notes))
    body = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=100)
    written = "".join(f"# {note}\n" for note in notes) + body
    loads(written, "the translation")
    return Translation(text=written, notes=notes)


class _Reader:
    """Collects the problems and notes of one file while it is translated."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[SpaceError] = []
        self.notes: list[str] = []

    def document(self, entries: Mapping[str, Cursor]) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self._attempt(lambda: self._name(entries), "sweep")}
        found["objectives"] = [self._attempt(lambda: self._objective(entries), {})]
        found["program"] = self._attempt(lambda: self._program(entries), {})
        found["parameters"] = {}
        for name, body in self._attempt(lambda: list(_flat(entries)), []):
            if (parameter := self._attempt(lambda: self._parameter(body), None)) is not None:  # noqa: B023
                found["parameters"][name] = parameter
        found["search"] = {"method": self._attempt(lambda: self._method(entries), "bayes")}
        if "run_cap" in entries:
            found["run_cap"] = self._attempt(lambda: entries["run_cap"].integer(least=1), 1)
        if "early_terminate" in entries:
            early = self._attempt(lambda: self._early(dict(_named(entries["early_terminate"]))), {})
            found["early_terminate"] = early
        known = (*found, "metric", "method", "command", *_IGNORED)
        self.problems += [
            entry.refusal("no key of a W&B sweep that is known here; take it out")
            for key, entry in entries.items()
            if key not in known
        ]
        return found

    def _attempt(self, part: Any, otherwise: Any) -> Any:
        try:
            return part()
        except SpaceError as problem:
            self.problems.append(problem)
            return otherwise

    def _missing(self, what: str) -> SpaceError:
        return SpaceError(what, file=self._file)

    def _name(self, entries: Mapping[str, Cursor]) -> str:
        written = entries["name"].text() if "name" in entries else self._file.rpartition("/")[2]
        return _NO_FOLDER.sub("-", written.removesuffix(".yaml").removesuffix(".yml")).strip(".-") or "sweep"

    def _objective(self, entries: Mapping[str, Cursor]) -> dict[str, str]:
        if "metric" not in entries:
            raise self._missing("`metric:` is missing; write such as metric: {name: loss, goal: minimize}")
        metric = dict(_named(entries["metric"]))
        if "name" not in metric:
            raise entries["metric"].refusal("`name:` is missing")
        goal = metric["goal"].one_of(("minimize", "maximize")) if "goal" in metric else "minimize"
        if "target" in metric:
            self.notes.append("target: of the metric is left out: a sweep ends by run_cap: or budget:.")
        return {"metric": metric["name"].text(), "goal": goal}

    def _method(self, entries: Mapping[str, Cursor]) -> str:
        return entries["method"].one_of(("bayes", "random", "grid")) if "method" in entries else "bayes"

    def _program(self, entries: Mapping[str, Cursor]) -> dict[str, list[str]]:
        if "program" not in entries and "command" not in entries:
            raise self._missing("`program:` is missing; write such as program: train.py")
        items = [item.text() for item in entries["command"].items()] if "command" in entries else None
        script = entries["program"].text() if "program" in entries else ""
        command: list[str] = []
        for word in items or _DEFAULT_COMMAND:
            if word == "${env}" or (word == "/usr/bin/env" and not command):
                continue
            if word.startswith("${args_json") or word.startswith("${envvar:"):
                raise entries["command"].refusal(f"{word} has no equal; pass ${{args}}")
            command.append(script if word == "${program}" else _INTERPRETER.get(word, word))
        self.notes.append(
            "The program must write its metrics to result.json in $SWEEP_RUN_DIR, "
            'as {"status": "completed", "metrics": {...}}; wandb.config is empty.'
        )
        return {"command": command}

    def _parameter(self, body: Cursor) -> dict[str, Any]:
        entries = dict(_named(body))
        if "value" in entries:
            return {"value": entries["value"].value()}
        if "values" in entries:
            if "probabilities" in entries:
                self.notes.append(f"{body.path}: all values are equally likely, probabilities: is left out.")
            values = [item.value() for item in entries["values"].items()]
            return {"value": values[0]} if len(values) == 1 else {"values": values}
        kind = entries["distribution"].text() if "distribution" in entries else ""
        if kind in _UNBOUNDED:
            return self._normal(body, entries, kind)
        if not {"min", "max"} <= entries.keys():
            raise body.refusal("has neither value:, values:, nor min: and max:")
        low, high = entries["min"].number(), entries["max"].number()
        if kind in ("log_uniform", "q_log_uniform"):  # the bounds are exponents
            low, high, kind = math.exp(low), math.exp(high), "log_uniform_values"
        found: dict[str, Any] = {"min": low, "max": high}
        if kind in ("q_log_uniform_values",):
            self.notes.append(f"{body.path}: values are not rounded to q:, as the range is logarithmic.")
            kind = "log_uniform_values"
        if kind and kind not in _BOUNDED:
            raise entries["distribution"].refusal(f"`{kind}` has no equal; write uniform or values:")
        if kind == "q_uniform":
            return found | self._stepped(entries, low, high)
        return found | ({"distribution": _BOUNDED[kind]} if kind else {})

    def _normal(self, body: Cursor, entries: Mapping[str, Cursor], kind: str) -> dict[str, Any]:
        mean = float(entries["mu"].number()) if "mu" in entries else 0.0
        sd = float(entries["sigma"].number()) if "sigma" in entries else 1.0
        name, log = _UNBOUNDED[kind]
        low, high = mean - WIDTH * sd, mean + WIDTH * sd
        self.notes.append(f"{body.path}: cut off {WIDTH:g} standard deviations from the mean.")
        if kind == "q_normal":
            steps = self._stepped(entries, low, high)
        else:
            steps = {"min": math.exp(low) if log else low, "max": math.exp(high) if log else high}
        return {**steps, "distribution": name, "mu": mean, "sigma": sd}

    def _stepped(self, entries: Mapping[str, Cursor], low: float, high: float) -> dict[str, Any]:
        """Return the multiples of q within the bounds, as W&B rounds to them."""
        size = entries["q"].number() if "q" in entries else 1
        if size <= 0:
            raise entries["q"].refusal("is not above 0")
        first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
        if first >= last:
            raise entries["q"].refusal("leaves fewer than two values between min and max")
        exact = (lambda at: at * size) if isinstance(size, int) else (lambda at: float(f"{at * size:.12g}"))
        return {"min": exact(first), "max": exact(last), "step": size}

    def _early(self, entries: Mapping[str, Cursor]) -> dict[str, Any]:
        if "type" not in entries or entries["type"].text() != "hyperband":
            raise self._missing("early_terminate: W&B knows type: hyperband only")
        eta = entries["eta"].number() if "eta" in entries else 3
        if "min_iter" in entries:
            first: float = entries["min_iter"].number()
        elif "max_iter" in entries and "s" in entries:
            first = entries["max_iter"].number() / eta ** entries["s"].integer(least=1)
        else:
            raise self._missing(
                "early_terminate: write min_iter:, the first step at which trials are stopped"
            )
        self.notes.append(
            'Early stopping needs lines {"step": 40, "loss": 3.2} in metrics.jsonl in $SWEEP_RUN_DIR.'
        )
        return {"type": "hyperband", "min_step": first, "eta": eta}


def _named(mapping: Cursor) -> Iterator[tuple[str, Cursor]]:
    for key, value in mapping.pairs():
        yield key.text(), value


def _flat(entries: Mapping[str, Cursor], prefix: str = "") -> Iterator[tuple[str, Cursor]]:
    """Yield the parameters, nested ones by their dotted names."""
    if "parameters" not in entries:
        return
    for name, body in _named(entries["parameters"]):
        inner = dict(_named(body))
        if "parameters" in inner:
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", body
