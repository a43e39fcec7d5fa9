"""Command `sweep extend`: change the limits of a sweep that exists."""

from __future__ import annotations

import shlex
from datetime import datetime

import click

from sweeps.cli.options import Sweep, sweep_option
from sweeps.cli.output import echo, notify
from sweeps.errors import InputError
from sweeps.operations import limits
from sweeps.operations.control import user_name
from sweeps.operations.limits import NONE
from sweeps.space.definition import BUDGET_HINTS, BUDGET_KEYS, Space
from sweeps.space.yaml_cursor import nearest
from sweeps.text.shorten import timestamp
from sweeps.trials.amendments import limits as present_limits


@click.command()
@sweep_option
@click.option("--run-cap", metavar="N", help="Trials that the search may make in all; +N: N more than now.")
@click.option(
    "--budget",
    metavar="KEY=X",
    multiple=True,
    help=f"A limit in all, or +X: X more than now: {', '.join(BUDGET_KEYS)}. Repeat it for more.",
)
@click.option("--wall-hours", metavar="H", help="Hours since the first trial: --budget wall_hours=H.")
@click.option(
    "--until",
    metavar="TIME",
    help="Begin no trial from then on: '2026-11-25 08:00', in local time, or with +01:00 or Z.",
)
@click.option(
    "--expected-gain",
    metavar="X",
    help="End the search once further trials are expected to gain at most X: search.stop of the space file.",
)
def extend(
    sweep: Sweep,
    run_cap: str | None,
    budget: tuple[str, ...],
    wall_hours: str | None,
    until: str | None,
    expected_gain: str | None,
) -> None:
    """Change the limits of a sweep, up or down, while its workers run.

    `none` lifts a limit. A worker obeys a new limit from its next claim on; running trials go on. Workers
    that have left at the old limit must be started again.
    """
    experiment = sweep.open()
    pairs = [pair.partition("=")[::2] for pair in budget]
    pairs += [("wall_hours", wall_hours)] if wall_hours is not None else []

    def changes(present: Space) -> dict[str, float | None]:
        """Return the new limits; `+20` adds to what holds when they are stored, whoever else changes it."""
        found: dict[str, float | None] = {}
        if run_cap is not None:
            found["run_cap"] = _count(run_cap, present.run_cap)
        for key, text in pairs:
            if key in ("run_cap", "trials"):
                raise InputError(f"--budget {key}: write --run-cap N")
            if key not in BUDGET_KEYS:
                hint = BUDGET_HINTS.get(key) or nearest(key, BUDGET_KEYS)
                raise InputError(f"--budget {key}: unknown key; {hint}")
            if key in found:
                raise InputError(f"--budget {key} stands there twice; keep one")
            found[key] = _amount(key, text, present_limits(present)[key])
        if until is not None:
            found["until"] = _time(until, experiment.store.now())
        if expected_gain is not None:
            problem = f"--expected-gain {expected_gain}: write a number above 0, in the unit of the objective"
            found["expected_gain"] = _above_0(expected_gain, f"{problem}, or {NONE}")
        if not found:
            raise InputError(
                "say what to change: --run-cap N, --budget KEY=X, --wall-hours H, --until TIME or "
                "--expected-gain X"
            )
        return found

    extended = limits.extend(experiment, changes, user_name())
    for line in extended.differences:
        echo(line)
    for limit in extended.reached:
        notify(f"warning: {limit}; no further trial is begun")
    if extended.is_idle:
        worker = f"sweep worker --storage {shlex.quote(experiment.store.url)}"
        script = "start your Python script again"
        echo(f"next: {script if experiment.space.program.is_user_script else worker}", err=True)


def _count(text: str, present_cap: int | None) -> int | None:
    if text == NONE:
        return None
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 9 or int(digits) < 1:
        raise InputError(
            f"--run-cap {text}: write a number of trials, such as 60, +20 for 20 more, or {NONE}"
        )
    if digits == text:
        return int(text)
    if present_cap is None:
        raise InputError(f"--run-cap {text}: there is no run cap to add to; write the number in all")
    return present_cap + int(digits)


def _amount(key: str, text: str, present_limit: float | None) -> float | None:
    amount = _above_0(text, f"--budget {key}={text}: write a number above 0, +X for X more, or {NONE}")
    if amount is None or not text.startswith("+"):
        return amount
    if present_limit is None:
        raise InputError(f"--budget {key}={text}: there is no such limit to add to; write the amount in all")
    return present_limit + amount


def _above_0(text: str, otherwise: str) -> float | None:
    """Return the number, None for `none`. Raises InputError with the message `otherwise`."""
    if text == NONE:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InputError(otherwise)
    return number


def _time(text: str, now: float) -> float | None:
    """Return seconds since the epoch; a time without a zone is this machine's."""
    if text == NONE:
        return None
    try:
        time = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"--until {text}: write a time such as '2026-11-25 08:00' or 2026-11-25T08:00Z, or {NONE}"
        ) from None
    if time <= now:
        raise InputError(
            f"--until {text}: that is past (it is {timestamp(now)}); `sweep stop` ends a sweep now"
        )
    return time
