"""Answer to a study of Optuna's in place of a search space file: what to write for each of its words.

Optuna has no file format of its own; people write a study's arguments and the fields of its distributions
(`low`, `high`, `choices`, as in https://optuna.readthedocs.io/en/stable/reference/distributions.html).
"""

from __future__ import annotations

from collections.abc import Callable

from sweeps.errors import SpaceError
from sweeps.space.yaml_cursor import Cursor

_METHODS = {"random": "random", "qmc": "random", "grid": "grid", "bruteforce": "grid"}
_RULES = {"median": "median", "percentile": "percentile"}
_PARAMETERS = ("parameters", "params", "search_space", "distributions")

_IS_LOG = "write distribution: log_uniform_values"
_TYPED = "leave it out; 1 is an integer, 1.0 a float"

_Advice = Callable[[Cursor], str]


def _goals(directions: Cursor) -> str:
    words = directions.items() if directions.kind() == "a list" else [directions]
    goals = ", ".join(f"{{metric: LOSS, goal: {_text(word)}}}" for word in words)
    return f"write objectives: [{goals}]"


def _stopping(pruner: Cursor) -> str:
    kind = _kind(pruner, "Pruner")
    if kind == "nop":
        return "leave it out"
    return f"write early_terminate: {{type: {_RULES.get(kind, 'hyperband')}}}"


def _text(value: Cursor) -> str:
    return value.kind().strip("`")


def _kind(given: Cursor, suffix: str) -> str:
    """Return what is before the suffix of a class's name: `optuna.samplers.RandomSampler` is `random`."""
    return _text(given).rpartition(".")[2].removesuffix(suffix).lower()


_STUDY: dict[str, _Advice] = {
    "study_name": lambda value: f"write name: {_text(value)}",
    "direction": _goals,
    "directions": _goals,
    "n_trials": lambda value: f"write run_cap: {_text(value)}",
    "sampler": lambda value: f"write search: {{method: {_METHODS.get(_kind(value, 'Sampler'), 'bayes')}}}",
    "pruner": _stopping,
    "n_jobs": lambda value: "leave it out; start so many workers: sweep launch local --workers N",
    "timeout": lambda value: "leave it out; limit the sweep by `sweep extend --wall-hours H` once it is made",
    "storage": lambda value: "leave it out; say it with the commands: --storage FOLDER",
    "load_if_exists": lambda value: "leave it out; sweep init --skip-if-exists does that",
    **{name: lambda value: "write parameters:" for name in _PARAMETERS[1:]},
}
_DISTRIBUTION: dict[str, _Advice] = {
    "low": lambda value: f"write min: {_text(value)}",
    "high": lambda value: f"write max: {_text(value)}",
    "choices": lambda value: "write values:",
    "log": lambda value: _IS_LOG if _text(value) == "true" else "leave it out",
    "type": lambda value: _TYPED,
    "name": lambda value: _TYPED,
}


def refuse(root: Cursor, file: str) -> None:
    """Raise `SpaceError` for a study of Optuna's, with a line for each of its words; else return."""
    entries = {key.text(): value for key, value in root.pairs()}
    if "objectives" in entries:
        return
    if "hydra" in entries and "sweeper" in {key.text() for key, _ in _pairs(entries["hydra"])}:
        raise SpaceError(
            "the configuration of a Hydra application; run that as it is, `python APP.py -m "
            "hydra/sweeper=stagesweep`, or copy what is under hydra.sweeper.params to parameters: here",
            file=file,
            line=entries["hydra"].line,
        )
    if not entries.keys() & (_STUDY.keys() - {"params", "storage", "timeout"}):
        return
    found: list[SpaceError] = []
    for key, value in root.pairs():
        if (advice := _STUDY.get(key.text())) is not None:
            found.append(value.refusal(f"a word of Optuna's; {advice(value)}"))
        if key.text() in _PARAMETERS:
            found += [
                inner.refusal(f"a word of Optuna's; {_DISTRIBUTION[word.text()](inner)}")
                for _, body in _pairs(value)
                for word, inner in _pairs(body)
                if word.text() in _DISTRIBUTION
            ]
    missing = [word for word in ("program", *_PARAMETERS[:1]) if word not in entries]
    if "parameters" in missing and entries.keys() & set(_PARAMETERS):
        missing.remove("parameters")
    found += [
        root.refusal(f"`{word}:` is missing; docs/reference/space-file.md shows it") for word in missing
    ]
    raise SpaceError.together(found)


def _pairs(value: Cursor) -> list[tuple[Cursor, Cursor]]:
    return value.pairs() if value.kind() == "a mapping" else []
