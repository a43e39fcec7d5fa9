"""Translation of a W&B sweep file into a search space file that means the same (`sweep init --from-wandb`).

The format is that of https://docs.wandb.ai/guides/sweeps/sweep-config-keys. Every problem is collected, so
that a user mends the file once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sweeps.errors import SpaceError
from sweeps.space import yaml_cursor
from sweeps.space.definition import MAX_VALUES, from_plain, to_plain
from sweeps.space.overrides import WORDS
from sweeps.space.space_file import loads
from sweeps.space.yaml_cursor import Cursor, Problems, nearest

WIDTH = 3.0
"""Standard deviations on both sides of the mean at which an unbounded normal distribution is cut off."""

_UNBOUNDED = {"normal": ("normal", False), "log_normal": ("log_normal", True), "q_normal": ("normal", False)}
_BOUNDED = {
    "uniform": "uniform",
    "int_uniform": "int_uniform",
    "q_uniform": "uniform",
    "log_uniform_values": "log_uniform_values",
}
_IGNORED = ("project", "entity", "description", "imports", "job", "image_uri", "$schema")
_NO_EQUAL = ("beta", "q_beta", "q_log_normal", "inv_log_uniform", "inv_log_uniform_values")
_LARGEST_EXPONENT = 230
_MACRO = re.compile(r"\$\{[a-z_]+\}|\$\{envvar:")
_MACROS = ("${interpreter}", "${program}", "${args}", *WORDS)
_SHORTER = {
    "${args}": ("${args_wandb}", "${args}"),
    "${args_no_hyphens}": ("${args_no_hyphens}", "${overrides}"),
}
"""Macros of W&B's, each with the word that means it, and ours, for where both write the same."""
_DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_NO_FOLDER = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """A search space file and what its reader must know.

    Args:
        notes: what does not mean quite the same, each a sentence.
    """

    text: str
    notes: tuple[str, ...]


def translate(text: str, file: str) -> Translation:
    """Return the search space file for a W&B sweep file.

    Raises:
        SpaceError: something in it cannot be said in a search space file; the message has a line for each.
    """
    reader = _Reader(file)
    root = yaml_cursor.parse(text, file)
    document = reader.document(dict(_named_entries(root)))
    reader.problems.check()
    notes = tuple(dict.fromkeys(reader.notes))
    written = "".join(f"# {note}\n" for note in notes) + yaml_cursor.dump(document)
    try:
        loads(written, file)
    except SpaceError as error:
        reader.problems.found += [reader.of_source(each) for each in error.problems]
        reader.problems.check()
    return Translation(text=written, notes=notes)


class _Reader:
    """Collects the problems and notes of one file while it is translated."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems = Problems()
        self.notes: list[str] = []
        self._sources: dict[str, Cursor] = {}

    def of_source(self, problem: SpaceError) -> SpaceError:
        """Return a problem of the translation with line and key of what was translated."""
        key = problem.key
        while key and key not in self._sources:
            key = re.sub(r"(?:\.[^.\[\]]*|\[[0-9]*\]|^[^.\[\]]+)$", "", key)
        if key not in self._sources:
            return SpaceError(problem.problem, file=self._file)
        return self._sources[key].refusal(problem.problem)

    def document(self, entries: Mapping[str, Cursor]) -> dict[str, Any]:
        attempt = self.problems.attempt
        self._sources = {key: entry for key, entry in entries.items() if key != "program"}
        renamed = {"objectives": "metric", "search": "method", "program": "command"}
        for ours, theirs in renamed.items():
            if (source := entries.get(theirs) or entries.get(ours)) is not None:
                self._sources[ours] = source
        file = self._file.rpartition("/")[2]
        name = attempt(entries["name"].text, "sweep") if "name" in entries else file
        name = name.removesuffix(".yaml").removesuffix(".yml")
        found: dict[str, Any] = {"name": _NO_FOLDER.sub("-", name).strip(".-") or "sweep"}
        found["objectives"] = [attempt(lambda: self._objective(entries), {})]
        found["parameters"] = {}
        flat = attempt(lambda: list(_flat(entries)), [])
        for name, body in flat:
            outer, nested, _ = body.path.partition(".parameters.")
            if nested:
                self.notes.append(f"{outer}: passed by dotted names, where W&B passes a dict.")
            parameter: dict[str, Any] | None = attempt(partial(self._parameter, body), None)
            if parameter is not None:
                found["parameters"][name] = parameter
                # Where its entries stand, by their keys in the translation.
                self._sources[path := f"parameters.{name}"] = body
                for key, entry in _named_entries(body):
                    self._sources[f"{path}.{'step' if key == 'q' else key}"] = entry
                    if key == "values" and entry.kind() == "a list":
                        items = {f"{path}.values[{at}]": item for at, item in enumerate(entry.items())}
                        self._sources |= items
        found["program"] = attempt(lambda: self._program(entries, found["parameters"].values()), {})
        methods = ("bayes", "random", "grid")
        method = attempt(lambda: entries["method"].one_of(methods), "") if "method" in entries else "bayes"
        found["search"] = {"method": method}
        if "run_cap" in entries:
            found["run_cap"] = attempt(lambda: entries["run_cap"].integer(least=1), 1)
        elif found["search"]["method"] != "grid":
            self.notes.append("There is no run_cap:, so the sweep has no end; `sweep stop` ends it.")
        if "early_terminate" in entries:
            found["early_terminate"] = attempt(lambda: self._early(entries["early_terminate"]), {})
        known = (*found, "metric", "method", "command", *_IGNORED)
        self.problems.found += [
            entry.refusal("no key of a W&B sweep that is known here; take it out")
            for key, entry in entries.items()
            if key not in known
        ]
        return found

    def _missing(self, what: str) -> SpaceError:
        return SpaceError(what, file=self._file)

    def _objective(self, entries: Mapping[str, Cursor]) -> dict[str, str]:
        if "metric" not in entries:
            raise self._missing("`metric:` is missing; write such as metric: {name: loss, goal: minimize}")
        metric = dict(_named_entries(entries["metric"]))
        if "name" not in metric:
            raise entries["metric"].refusal("`name:` is missing")
        goal = metric["goal"].one_of(("minimize", "maximize")) if "goal" in metric else "minimize"
        if "target" in metric:
            self.notes.append("target: of the metric is left out: a sweep ends by run_cap: or budget:.")
        return {"metric": metric["name"].text(), "goal": goal}

    def _program(
        self, entries: Mapping[str, Cursor], parameters: Iterable[Mapping[str, Any]]
    ) -> dict[str, list[str]]:
        if "program" not in entries and "command" not in entries:
            raise self._missing("`program:` is missing; write such as program: train.py")
        items = entries["command"].items() if "command" in entries else []
        script = entries["program"].text() if "program" in entries else ""
        listed = [value for each in parameters for value in each.get("values", [each.get("value", 0)])]
        command: list[str] = []
        for item in items or _DEFAULT_COMMAND:
            word = item if isinstance(item, str) else item.text()
            if word in ("${env}", "/usr/bin/env") and not command:
                command.append("env")
                continue
            if not isinstance(item, str) and word not in _MACROS and _MACRO.search(word):
                raise item.refusal(f"`{word}` has no equal; pass ${{args}}")
            command.append(script if word == "${program}" else _word(word, listed))
        if command[:1] == ["env"] and not re.match(r"-|\w+=", "".join(command[1:2])):
            del command[0]  # it sets no variables
        self.notes.append(
            "The program must write its metrics to result.json in $SWEEP_RUN_DIR, "
            'as {"status": "completed", "metrics": {...}}; wandb.config is empty.'
        )
        return {"command": command}

    def _parameter(self, body: Cursor) -> dict[str, Any]:
        entries = dict(_named_entries(body))
        if "value" in entries:
            return {"value": to_plain(entries["value"].value_or_list())}
        if "values" in entries:
            if "probabilities" in entries:
                self.notes.append(f"{body.path}: all values are equally likely, probabilities: is left out.")
            values = [to_plain(item.value_or_list()) for item in entries["values"].items()]
            return {"value": values[0]} if len(values) == 1 else {"values": values}
        kind = entries["distribution"].text() if "distribution" in entries else ""
        if kind in _NO_EQUAL:
            raise entries["distribution"].refusal(f"`{kind}` has no equal; write uniform or values:")
        if kind in _UNBOUNDED:
            return self._normal(body, entries, kind)
        if not {"min", "max"} <= entries.keys():
            raise body.refusal("has neither value:, values:, nor min: and max:")
        low, high = entries["min"].number(), entries["max"].number()
        if kind in ("log_uniform", "q_log_uniform"):  # the bounds are exponents
            if max(low, high) > _LARGEST_EXPONENT:
                raise entries["max"].refusal("is an exponent of e, and too large for one")
            low, high, kind = math.exp(low), math.exp(high), f"{kind}_values"
        found: dict[str, Any] = {"min": low, "max": high}
        if kind and kind not in (*_BOUNDED, "q_log_uniform_values"):
            known = (*_BOUNDED, *_UNBOUNDED, "q_log_uniform_values", "log_uniform", "q_log_uniform")
            raise entries["distribution"].refusal(
                f"`{kind}` is no distribution of W&B's; {nearest(kind, known)}"
            )
        if kind == "q_log_uniform_values":
            return self._multiples_on_log_scale(body, entries, low, high)
        if kind == "q_uniform":
            return found | self._multiples(body, entries, low, high)
        return found | ({"distribution": _BOUNDED[kind]} if kind else {})

    def _normal(self, body: Cursor, entries: Mapping[str, Cursor], kind: str) -> dict[str, Any]:
        mean = float(entries["mu"].number()) if "mu" in entries else 0.0
        sd = float(entries["sigma"].number()) if "sigma" in entries else 1.0
        name, log = _UNBOUNDED[kind]
        low, high = mean - WIDTH * sd, mean + WIDTH * sd
        if log and high > _LARGEST_EXPONENT:
            raise body.refusal(
                f"mu and sigma are those of the logarithm: {WIDTH:g} sigma above mu is e^{high:g}, too large"
            )
        self.notes.append(f"{body.path}: cut off {WIDTH:g} standard deviations from the mean.")
        if kind == "q_normal":
            steps = self._multiples(body, entries, low, high)
            name = "int_normal" if isinstance(steps["step"], int) else name
        else:
            steps = {"min": math.exp(low) if log else low, "max": math.exp(high) if log else high}
        return {**steps, "distribution": name, "mu": mean, "sigma": sd}

    def _multiples(
        self, body: Cursor, entries: Mapping[str, Cursor], low: float, high: float
    ) -> dict[str, Any]:
        """Return the multiples of q (else of 1) within the bounds, as W&B rounds to them."""
        size, at = (entries["q"].number(), entries["q"]) if "q" in entries else (1, body)
        if size <= 0:
            raise at.refusal("is not above 0")
        try:
            first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
        except OverflowError:
            raise at.refusal("has too many multiples of q: between the bounds") from None
        if first >= last:
            raise at.refusal(f"leaves fewer than two multiples of {size:g}, its q:, between the bounds")
        exact = (lambda at: at * size) if isinstance(size, int) else (lambda at: float(f"{at * size:.12g}"))
        return {"min": exact(first), "max": exact(last), "step": size}

    def _multiples_on_log_scale(
        self, body: Cursor, entries: Mapping[str, Cursor], low: float, high: float
    ) -> dict[str, Any]:
        """Return the multiples of q within the bounds, to which W&B rounds a logarithmic value."""
        steps = self._multiples(body, entries, low, high)
        first, last, size = steps["min"], steps["max"], steps["step"]
        if first <= 0:
            raise entries["min"].refusal("a logarithmic range must stay above zero")
        if size == 1 and isinstance(size, int):
            return {"min": first, "max": last, "distribution": "int_log_uniform"}
        count = round((last - first) / size) + 1
        if count <= MAX_VALUES:
            exact = first + size * np.arange(count)
            values = [int(v) if isinstance(size, int) else float(f"{v:.12g}") for v in exact]
            self.notes.append(f"{body.path}: the multiples of q: are equally likely, not by their logarithm.")
            return {"values": values, "ordered": True}
        self.notes.append(f"{body.path}: values are not rounded to q:, which has too many multiples.")
        integers = isinstance(size, int)
        return {
            "min": first,
            "max": last,
            "distribution": "int_log_uniform" if integers else "log_uniform_values",
        }

    def _early(self, section: Cursor) -> dict[str, Any]:
        entries = dict(_named_entries(section))
        if "type" not in entries or entries["type"].text() != "hyperband":
            raise entries.get("type", section).refusal("W&B knows type: hyperband only")
        eta = entries["eta"].number() if "eta" in entries else 3
        if "min_iter" in entries:
            first: float = entries["min_iter"].number()
        elif "max_iter" in entries and "s" in entries:
            if eta <= 1:
                raise entries["eta"].refusal("is not above 1")
            first = entries["max_iter"].number() * math.exp(-entries["s"].integer(least=1) * math.log(eta))
            first = float(f"{first:.12g}")
        else:
            raise section.refusal("write min_iter:, the first step at which trials are stopped")
        self.notes.append(
            'Early stopping needs lines {"step": 40, "loss": 3.2} in metrics.jsonl in $SWEEP_RUN_DIR; lower '
            "is better, whatever the goal."
        )
        return {"type": "hyperband", "min_step": first, "eta": eta}


def _word(word: str, values: Sequence[Any]) -> str:
    """Return what the command has in place of a macro of W&B's, given all listed values of parameters."""
    if word == "${interpreter}":
        return "python"
    if word not in _SHORTER:
        return word
    theirs, ours = _SHORTER[word]
    for value in values:
        try:
            if WORDS[theirs]({"x": from_plain(value)}) != WORDS[ours]({"x": from_plain(value)}):
                return theirs
        except ValueError:  # no command line can hold it, which `loads` says better
            continue
    return ours


def _named_entries(mapping: Cursor) -> Iterator[tuple[str, Cursor]]:
    for key, value in mapping.pairs():
        yield key.text(), value


def _flat(entries: Mapping[str, Cursor], prefix: str = "") -> Iterator[tuple[str, Cursor]]:
    """Yield the parameters, nested ones by their dotted names."""
    if "parameters" not in entries:
        return
    for name, body in _named_entries(entries["parameters"]):
        inner = dict(_named_entries(body))
        if "parameters" in inner:
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", body
