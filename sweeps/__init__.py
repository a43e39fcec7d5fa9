"""Hyperparameter sweeps: search space, experiment, trial lifecycle, store, worker and the `sweep` command.

From Python (docs/how-to/python.md):

    sweep = sweeps.create({...})        or sweeps.open("gs://bucket/sweeps/NAME")
    sweep.run(function, n_trials=20)    or sweep.ask() and sweep.tell(trial, result)
    sweep.best, sweep.answer(), sweep.pareto(), sweep.trials(), sweep.status()
    sweep.extend(run_cap=40), sweep.confirm()
    sweeps.plan([small, large], 4e9)

In a script that a sweep starts: from sweeps.script import parameters, report, finish

What a person can do to a sweep is in `operations`; Python, Hydra, the command line and the dashboard call it.
The data flows from `space` through `experiment` (ask), `worker` and `experiment` (report) to `export`. The
trial records in the store are the only state (`trials`, `storage`); only `search.optimizer` imports Ax, and
only `programs.trainer` the trainer.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeps.api import Confirmation, Result, Sweep, create, plan
    from sweeps.api import open_existing as open
    from sweeps.api_trial import AskedTrial
    from sweeps.errors import (
        InputError,
        NothingToAsk,
        SpaceError,
        SurrogateFailed,
        SweepClosed,
        SweepError,
        SweepNotFound,
        TrialLost,
    )
    from sweeps.operations.answer import Answer
    from sweeps.operations.planning import Plan
    from sweeps.programs.live_trial import Trial

_ORIGINS = {
    "create": "sweeps.api:create",
    "open": "sweeps.api:open_existing",
    "plan": "sweeps.api:plan",
    "Sweep": "sweeps.api:Sweep",
    "Result": "sweeps.api:Result",
    "Answer": "sweeps.operations.answer:Answer",
    "Plan": "sweeps.operations.planning:Plan",
    "Confirmation": "sweeps.api:Confirmation",
    "AskedTrial": "sweeps.api_trial:AskedTrial",
    "Trial": "sweeps.programs.live_trial:Trial",
    "SweepError": "sweeps.errors:SweepError",
    "InputError": "sweeps.errors:InputError",
    "SpaceError": "sweeps.errors:SpaceError",
    "SweepNotFound": "sweeps.errors:SweepNotFound",
    "SweepClosed": "sweeps.errors:SweepClosed",
    "NothingToAsk": "sweeps.errors:NothingToAsk",
    "SurrogateFailed": "sweeps.errors:SurrogateFailed",
    "TrialLost": "sweeps.errors:TrialLost",
}
"""Module and name of everything that `import sweeps` offers; imported when it is first used."""

__all__ = [
    "Answer",
    "AskedTrial",
    "Confirmation",
    "InputError",
    "NothingToAsk",
    "Plan",
    "Result",
    "SpaceError",
    "SurrogateFailed",
    "Sweep",
    "SweepClosed",
    "SweepError",
    "SweepNotFound",
    "Trial",
    "TrialLost",
    "create",
    "open",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module 'sweeps' has no attribute {name!r}")
    import importlib

    module, _, attribute = _ORIGINS[name].partition(":")
    globals()[name] = getattr(importlib.import_module(module), attribute)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
