"""Outcome of a trial's program, from its result file or its exit status."""

from __future__ import annotations

import logging
import re
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from sweeps.programs import process, startable
from sweeps.space import constraints
from sweeps.space.definition import Space
from sweeps.stages import stage_runs
from sweeps.stages.stage_runs import Reported
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.trials import storable
from sweeps.trials.by_metric import by_metric
from sweeps.trials.record import Failure

log = logging.getLogger(__name__)

RESULT_FILE = "result.json"
MAX_METRICS = 10_000
"""Limit for one trial; the objectives come first."""

EXIT_DIVERGED, _EXIT_PREEMPTED = 70, 75

OUT_OF_MEMORY = re.compile(
    r"\bMemoryError\b|OutOfMemoryError|[Oo]ut of memory|RESOURCE_EXHAUSTED|_STATUS_ALLOC_FAILED"
)
"""Out-of-memory messages of Python, torch, CUDA, its libraries and XLA."""

# What libraries report of a broken connection, not every word "timeout": an ordinary exception comes again.
_LOST_NAMES = (
    r"Connection(?:Error|ResetError|RefusedError|AbortedError|Timeout)|(?:Connect|Read|Write)Timeout(?:Error)?"
    r"|TimeoutError|NewConnectionError|MaxRetryError|NameResolutionError|ProtocolError|IncompleteRead"
    r"|RemoteDisconnected|RemoteProtocolError|ConnectError|ReadError"
    r"|ServerDisconnectedError|ServerTimeoutError|ClientConnect\w*Error|ClientOSError|ClientPayloadError"
    r"|EndpointConnectionError|LocalEntryNotFoundError|gaierror|DistNetworkError"
)
_LOST_EXCEPTION = re.compile(rf"^(?:\[rank\d+\]: )?(?:\w+\.)*(?:{_LOST_NAMES})(?::|$)", re.MULTILINE)
"""Exception in the last line of a traceback."""

_LOST_WORDS = re.compile(
    r"\b(?:connection (?:was )?(?:reset|refused|aborted|timed out|closed by (?:the )?(?:peer|remote))"
    r"|remote end closed connection|network is (?:unreachable|down)|no route to host"
    r"|connection to another process of this run was lost"  # the trainer's own words
    r"|temporary failure in name resolution|name or service not known"
    r"|ncclRemoteError|ncclSystemError(?![\s\S]*/dev/shm)"  # of a call for a connection, or for shared memory
    r"|watchdog caught collective operation timeout)",
    re.IGNORECASE,
)
_LOST_BY_TRAINER = re.compile(
    r"^trainer: (?:process \d+: )?error: (?:lost the network|a disk or a mount hangs): ", re.MULTILINE
)
_DISK_FAILED = re.compile(
    r"\b(?:no space left on device|disk quota exceeded|read-only file system|input/output error"
    r"|stale (?:nfs )?file handle|transport endpoint is not connected)",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"\bfile too large\b", re.IGNORECASE)
_LOST_PROCESS = re.compile(
    r"^trainer: (?:process \d+: )?error: the connection to another process of this run was lost.*(?:\n|\Z)",
    re.MULTILINE,
)
"""What each other process of a shared run of the trainer says once one of them has ended."""
_CAUSE = re.compile(
    # Torch prefixes what its processes raise. Without that it may be of a thread, and harmless.
    r"^(?:trainer: (?:process \d+: )?error: |\[rank\d+\]: Traceback \(most recent )",
    re.MULTILINE,
)
_LAST_LINES = 5  # the message of such an exception may have several lines


@dataclass(frozen=True, kw_only=True)
class Completed:
    """Success: the program reported metrics; all objectives and constrained metrics are finite."""

    metrics: Mapping[str, float | None]
    stages: tuple[Reported, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Failure of the program. The first line of `error` says how, the rest is the end of its log.

    Args:
        retryable: whether another attempt may succeed: a signal ended it, or network or disk failed.
    """

    error: str
    failure: Failure
    retryable: bool = False


@dataclass(frozen=True, kw_only=True)
class Preempted:
    """Preemption: the program was stopped from outside and nothing is wrong with the trial."""

    detail: str


@dataclass(frozen=True, kw_only=True)
class NotStarted:
    """Start failure: the program never began; the worker's fault, unless it has run the program before."""

    detail: str


Outcome = Completed | Failed | Preempted | NotStarted


def read_result(space: Space, file: Path) -> Outcome:
    """Return the outcome in the program's result file; a file that cannot be read fails the trial."""
    try:
        document = json_reader.read(file)
    except FileNotFoundError:
        return _contract_failure(
            f"the program ended well but wrote no {RESULT_FILE} into $SWEEP_RUN_DIR; write the objectives "
            'there as JSON, such as {"loss": 0.3}, or by `finish` of sweeps.script'
        )
    except OSError as error:
        return _contract_failure(f"{file.name}: cannot be read: {error.strerror or error}")
    except ValueError as error:
        return _contract_failure(f"{file.name}: {error}")
    return parse_result(space, document, file.name)  # its folder is the trial's, or a bucket's machine's


def parse_result(space: Space, document: Any, where: str) -> Completed | Failed:
    """Return the outcome in a `result.json`: `{"status": "completed", "metrics": {…}}`, or the metrics alone.

    The metrics are in any form of `by_metric`.

    Args:
        document: the parsed JSON; see `stated_failure` for the other statuses.
    """
    if not isinstance(document, dict):
        scalar = _is_number(document)
        return (
            check_metrics(space, document, where)
            if scalar
            else _contract_failure(f"{where}: not a JSON object")
        )
    if (stated := stated_failure(document, where)) is not None:
        return stated
    status = document.get("status", "completed")
    if status != "completed" and ("metrics" in document or not _is_number(status)):  # else a metric called so
        return _contract_failure(f"{where}: status is {status!r:.200}")
    checked = check_metrics(space, document.get("metrics", document), where)
    if isinstance(checked, Completed) and "metrics" in document:
        return replace(checked, stages=stage_runs.parse(document.get("stages"), where))
    return checked


def stated_failure(document: Any, where: str) -> Failed | None:
    """Return the failure that a program states in its result, or None.

    `{"status": "refused", "error": "…"}` refuses the configuration. `{"status": "failed", "error": "…",
    "failure": "…"}` names the kind of failure; the default is a crash.
    """
    if not isinstance(document, dict) or document.get("status") not in ("refused", "failed"):
        return None
    error, kinds = document.get("error"), get_args(Failure)
    failure: Failure = next((kind for kind in kinds if kind == document.get("failure")), "crashed")
    if document["status"] == "refused" or failure == "bad_config":
        return Failed(error=f"config refused: {error or 'without a reason'}", failure="bad_config")
    return Failed(error=str(error or f"{where}: status is 'failed'"), failure=failure)


def read_refusal(file: Path) -> Failed | None:
    """Return the refusal or failure that a program wrote before a non-zero exit, or None."""
    try:
        return stated_failure(json_reader.read(file), file.name)
    except (OSError, ValueError):
        return None


def states_completion(file: Path) -> bool:
    """Return whether the program's result has the status "completed" in so many words."""
    try:
        document = json_reader.read(file)
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("status") == "completed"


def check_metrics(space: Space, metrics: Any, where: str) -> Completed | Failed:
    """Return the metrics if all that the sweep needs are present and finite, else a failure.

    Names that a record cannot hold are left out, with a warning.

    Args:
        metrics: as the program reported them, in any form of `by_metric`.
    """
    needed = needed_metrics(space)
    if not isinstance(metrics, Mapping | list | tuple) and not _is_number(metrics):
        shown = (
            repr(metrics)[:80] if isinstance(metrics, str | bool | None) else f"a {type(metrics).__name__}"
        )
        return _contract_failure(f"{where}: {shown} is neither a number nor a dict of metrics")
    try:
        metrics = by_metric(metrics, space.metrics())
    except ValueError as error:
        return _contract_failure(f"{where}: {error}")
    # Those that a record can hold, the needed ones first.
    names = [*(name for name in needed if name in metrics), *(name for name in metrics if name not in needed)]
    numbers: dict[str, float | None] = {}
    unfit: list[str] = []
    for key in names:
        value, name = metrics[key], str(key)
        if not _is_number(value):
            continue  # notes are allowed, but not stored
        if storable.is_name(name) and len(numbers) < MAX_METRICS:
            numbers[name] = storable.number(value)
        else:
            unfit.append(name)
    if unfit:
        log.warning(
            "%s: %s left out, such as %s: a name has at most %d characters, none of control and no half of a "
            "surrogate pair; a trial has at most %d metrics",
            *(where, counted(len(unfit), "metric"), ascii(unfit[0][:80]), storable.MAX_NAME, MAX_METRICS),
        )
    for name in needed:
        if name not in metrics:
            there = ", ".join(sorted(numbers)[:20]) or "nothing"
            return _contract_failure(f"{where}: no metric {name!r}; there is {there}")
        if metrics[name] is not None and not _is_number(metrics[name]):
            # Every trial of this program would report it so, and the brake must see that at once.
            shown = storable.line(repr(metrics[name]), 200)  # an array's has several lines
            return _contract_failure(f"{where}: {name} is {shown}, not a number")
        if numbers.get(name) is None:
            return Failed(
                error=f"{where}: {name} is {metrics[name]!r:.200}, not a finite number", failure="diverged"
            )
    return Completed(metrics=numbers)


def _is_number(value: Any) -> bool:
    """Return whether it is one number of Python, NumPy or torch, finite or not."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        return False
    try:
        float(value)
    except OverflowError:  # of a long integer
        return True
    except Exception:  # noqa: BLE001 - an array of several raises what its library likes, such as RuntimeError
        return False
    return True


def was_preempted(status: int) -> bool:
    """Return whether a termination signal ended the program: probably the machine is being preempted."""
    terminating = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return status == _EXIT_PREEMPTED or any(status in (-signum, 128 + signum) for signum in terminating)


def was_limited(status: int) -> bool:
    """Return whether the program exceeded this machine's limit on the size of a file (`ulimit -f`).

    Without such a limit the status has another meaning, and must not end one worker after another.
    """
    return _sizes_are_limited() and status in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)


def _sizes_are_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def needed_metrics(space: Space) -> tuple[str, ...]:
    """Return the metrics that every trial must report: those of objectives and outcome constraints.

    With `search.noise: reported` the standard errors of the objectives are among them.
    """
    constrained = (
        name for text in space.outcome_constraints for name in constraints.parse(text).coefficients
    )
    reported = space.search.noise == "reported"
    errors = (f"{metric}_sem" for metric in space.metrics() if reported)
    return tuple(dict.fromkeys((*space.metrics(), *constrained, *errors)))


def _contract_failure(error: str) -> Failed:
    """Return the failure of a program that exited with 0 and broke its contract: a retry would not help."""
    return Failed(error=error, failure="bad_config")


def classify_exit(status: int, output: str, argv: Sequence[str]) -> Failed | NotStarted:
    """Return why a program failed, from its exit status and the end of its log.

    Args:
        status: as `subprocess` gives it, negative for a signal.
        output: the last lines that the program has written.
    """
    output = without_lost_processes(output)
    last = output.splitlines()[-1] if output else ""
    if status == EXIT_DIVERGED:
        return Failed(error=f"diverged: {last}\n{output}", failure="diverged")
    if never := startable.never_began(argv, status, last):
        return NotStarted(detail=never)
    ending = f"; its last words: {last}" if last else " without a word"
    error = f"the program {process.describe_exit(status)}{ending}\n{output}".strip()
    number = -status if status < 0 else status - 128  # a shell's status for a signal that ended its child
    signum = number if number in signal.valid_signals() else None
    if signum == signal.SIGKILL:  # by the host's OOM killer; a device reports in words, and would again
        return Failed(error=error, failure="out_of_memory", retryable=True)
    if OUT_OF_MEMORY.search(output):
        return Failed(error=error, failure="out_of_memory")
    retryable = signum is not None or network_was_lost(output) or disk_failed(output)
    return Failed(error=error, failure="crashed", retryable=retryable)


def without_lost_processes(output: str) -> str:
    """Return the end of a log without what processes say that have lost another, if that one has said why."""
    rest = _LOST_PROCESS.sub("", output)
    return rest.strip() if _CAUSE.search(rest) else output


def network_was_lost(output: str) -> bool:
    """Return whether the end of a program's output, or a traceback, reports a lost connection."""
    end = "\n".join(without_lost_processes(output).splitlines()[-_LAST_LINES:])
    return any(each.search(end) for each in (_LOST_EXCEPTION, _LOST_WORDS, _LOST_BY_TRAINER))


def disk_failed(output: str) -> bool:
    """Return whether the end of a program's output, or a traceback, reports a disk that is full or fails.

    Afterwards there may be space again: what the program could not write it has removed.
    """
    return bool(_DISK_FAILED.search("\n".join(output.splitlines()[-_LAST_LINES:])))


def exceeded_file_size(output: str) -> bool:
    """Return whether the end of a program's output, or a traceback, reports a file beyond `ulimit -f`.

    CPython ignores SIGXFSZ, so to a program in Python this is an exception like others.
    """
    end = "\n".join(output.splitlines()[-_LAST_LINES:])
    return _sizes_are_limited() and bool(_TOO_LARGE.search(end))
