"""Sections of a search space file that save compute: `budget:`, `brake:` and `early_terminate:`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sweeps.space.definition import Brake, Budget, EarlyTerminate, Space
from sweeps.space.yaml_cursor import Cursor, Problems, nearest

BUDGET_KEYS = ("effective_steps", "device_hours", "usd", "wall_hours")
BRAKE_KEYS = ("first", "later")
EARLY_TERMINATE_KEYS = ("type", "percentile", "min_trials", "min_step", "margin", "eta")
FEWEST_CURVES = 5
"""Completed trials that `type: curve` needs to predict from."""

_ANY_HOURS = "unknown key; write device_hours: (of all workers together) or wall_hours:"
BUDGET_HINTS = {
    "steps": "unknown key; write effective_steps: (2 x Stage 1.9 steps + Stage 2 steps, of all trials)",
    "trials": "unknown key; write run_cap: at the top level",
    "run_cap": "stands at the top level, not under budget:",
    "hours": _ANY_HOURS,
    "gpu_hours": _ANY_HOURS,
    "dollars": "unknown key; write usd:",
    "cost": "unknown key; write usd:",
}
_EARLY_HINTS = {
    "min_iter": "unknown key; write min_step:, the first step that counts",
    "min_progression": "unknown key; write min_step:",
    "min_curves": "unknown key; write min_trials:",
    "n_startup_trials": "unknown key; write min_trials:",
    "n_warmup_steps": "unknown key; write min_step:",
    "grace_period": "unknown key; write min_step:",
    "reduction_factor": "unknown key; write eta:",
    "percentile_threshold": "unknown key; write percentile:",
    "max_iter": "unknown key; the rungs go on from min_step:, each eta: times as far, to the end of a trial",
    "s": "unknown key; the rungs go on from min_step:, each eta: times as far, to the end of a trial",
}
_TYPES = {
    "asha": "unknown; write hyperband, which is asynchronous successive halving",
    "successive_halving": "unknown; write hyperband, which is asynchronous successive halving",
    "wilcoxon": "not supported; write curve, which stops what cannot come near the best any more",
}
_NAMES = ("percentile", "median", "hyperband", "curve")
_KEY_OF = {"percentile": "percentile", "margin": "curve", "eta": "hyperband"}


def budget(section: Cursor, problems: Problems) -> Budget:
    """Return the limits on the sweep's costs. Raises SpaceError; what else is wrong goes to `problems`."""
    before = len(problems.found)
    entries = section.table(BUDGET_KEYS, BUDGET_HINTS, problems)
    if not entries and len(problems.found) == before:
        raise section.refusal(f"limits nothing; write one of {', '.join(BUDGET_KEYS)}, or take it out")
    return Budget(
        **{key: problems.attempt(lambda: _limit(entry), 1.0) for key, entry in entries.items()}  # noqa: B023
    )


def _limit(cursor: Cursor) -> float:
    limit = float(cursor.number())
    if limit <= 0:
        raise cursor.refusal(f"{cursor.kind()} is not more than 0; no trial could run")
    return limit


def brake(section: Cursor, problems: Problems) -> Brake:
    """Return the numbers of equal failures after which the sweep pauses itself.

    Raises:
        SpaceError: it is no mapping; what is wrong in it goes to `problems`.
    """
    if section.kind() == "nothing":
        return Brake(first=0, later=0)
    if section.kind() not in ("a mapping", "nothing"):
        raise section.refusal("write {first: 3, later: 5}; 0 switches it off")
    entries = section.table(BRAKE_KEYS, None, problems)
    counts = {key: problems.attempt(lambda: _count(entry), 0) for key, entry in entries.items()}  # noqa: B023
    return replace(Brake(), **counts)


def _count(cursor: Cursor) -> int:
    return 0 if cursor.kind() == "nothing" else cursor.integer(least=0)


def early_terminate(section: Cursor, space: Space, problems: Problems) -> EarlyTerminate:
    """Return the early stopping of trials of `space`.

    Raises:
        SpaceError: it is wrong, or impossible there; what else is wrong in it goes to `problems`.
    """
    entries = section.table(EARLY_TERMINATE_KEYS, _EARLY_HINTS, problems)
    wrong = Problems()
    for key in entries.keys() - {"type"}:
        wrong.attempt(entries[key].number, 0)
    problems.found += wrong.found
    entries = {
        key: entry for key, entry in entries.items() if all(entry.path != each.key for each in wrong.found)
    }
    if "type" not in entries:
        raise section.refusal("`type:` is missing; write {type: percentile, percentile: 50} or {type: curve}")
    early = EarlyTerminate(type=_type(entries["type"]))
    for key, kind in _KEY_OF.items():
        if key in entries and kind != entries["type"].text():
            raise entries[key].refusal(f"goes with type: {kind} only; take it out")
    if "percentile" in entries:
        early = replace(early, percentile=_percentile(entries["percentile"]))
    if "min_trials" in entries:
        least = FEWEST_CURVES if early.type == "curve" else 1
        early = replace(early, min_trials=entries["min_trials"].integer(least=least))
    if "margin" in entries:
        early = replace(early, margin=_margin(entries["margin"]))
    if "eta" in entries:
        early = replace(early, eta=float(entries["eta"].number()))
        if not 1 < early.eta <= 100:
            raise entries["eta"].refusal(
                f"{early.eta:g} is not above 1; one of eta: trials goes on at each rung"
            )
    if "min_step" in entries:
        early = replace(early, min_step=float(entries["min_step"].number()))
        if early.min_step < 0:
            raise entries["min_step"].refusal("a step is at least 0")
    _check_fits(section, entries.get("min_trials", section), early, space)
    return early


def _type(cursor: Cursor) -> Literal["percentile", "hyperband", "curve"]:
    match cursor.text():
        case "percentile" | "median":  # the default percentile
            return "percentile"
        case "hyperband":
            return "hyperband"
        case "curve":
            return "curve"
        case other:
            unknown = f"`{other}` is unknown; {nearest(other, _NAMES)}"
            raise cursor.refusal(_TYPES.get(other.lower(), unknown))


def _margin(cursor: Cursor) -> float:
    margin = float(cursor.number())
    if not 0 <= margin < 1:
        raise cursor.refusal(f"{cursor.kind()} is no share of the best value; 0.005 means half a percent")
    return margin


def _percentile(cursor: Cursor) -> float:
    percentile = float(cursor.number())
    if not 0 < percentile < 100:
        hint = "; 50 means the worse half" if percentile <= 1 else ""
        raise cursor.refusal(f"{cursor.kind()} is not between 0 and 100 percent{hint}")
    return percentile


def _check_fits(section: Cursor, min_trials: Cursor, early: EarlyTerminate, space: Space) -> None:
    """Refuse early stopping that cannot work or would never happen."""
    if len(space.objectives) > 2 and early.type != "curve":
        raise section.refusal(
            f"{early.type} goes with two objectives at most, a loss and a cost: among more, a trial with a "
            "high loss may be on the front; write type: curve"
        )
    if space.run_cap is not None and early.min_trials >= space.run_cap:
        raise min_trials.refusal(
            f"min_trials ({early.min_trials}) must be less than run_cap ({space.run_cap}), "
            "or no trial is ever stopped"
        )


def check_rivals(section: Cursor, space: Space) -> None:
    """Refuse rules that compare losses where no objective can say which trials cost no more.

    Args:
        section: `early_terminate:`.
        space: with its stages, as far as the file names them.
    """
    if space.early_terminate is None or space.early_terminate.type == "curve" or len(space.objectives) == 1:
        return
    if space.program.kind == "trainer":
        if "effective_steps" not in space.metrics():
            raise section.refusal(
                "of two objectives, one must be effective_steps, the cost of the stages; write type: curve"
            )
    elif not space.stages or not all(stage.cost for stage in space.stages):
        raise section.refusal(
            "of two objectives, one must be the cost of the stages, and stages: with their cost: say none; "
            "write type: curve"
        )
