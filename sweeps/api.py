"""A sweep from Python: create or open it, ask for trials or run a function, and read the results.

What `import sweeps` offers; each name is imported when it is first used. Ax, which takes seconds, comes where
`create` checks a space that is to be searched and with the first candidate, pandas with the first table.
`api_trial` is a trial that was asked for, `api_run` the loop of `Sweep.run`, `text.python_words` the wording
of errors.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from sweeps.api_trial import AskedTrial
from sweeps.errors import InputError, NothingToAsk, SpaceError, SweepClosed, SweepError
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.programs.live_trial import Trial
from sweeps.programs.result import Completed, Failed, Outcome, check_metrics, parse_result, stated_failure
from sweeps.space import literals
from sweeps.space.definition import BUDGET_KEYS, Space, is_number, to_plain
from sweeps.space.yaml_cursor import nearest
from sweeps.storage.base import Store
from sweeps.storage.urls import name_of
from sweeps.text.columns import PARAMETER
from sweeps.text.counted import counted
from sweeps.text.python_words import words
from sweeps.trials import brake, record
from sweeps.trials.amendments import GAIN
from sweeps.trials.redaction import redact_trials
from sweeps.worker.loop import identity

if TYPE_CHECKING:
    import pandas as pd

    from sweeps.operations.answer import Answer
    from sweeps.operations.planning import Plan
    from sweeps.trials import control


P = ParamSpec("P")
T = TypeVar("T")


def in_python(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with the errors of this package in Python's words."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except SpaceError:  # it speaks of keys, which a dict has, too
            raise
        except SweepError as error:
            braked = isinstance(error, SweepClosed) and error.state == "braked"
            into = _braked_words if braked else words
            error.args = tuple(into(each) if isinstance(each, str) else each for each in error.args)
            if isinstance(error, SweepClosed):
                error.message = into(error.message)
            raise

    return call


def _braked_words(message: str) -> str:
    """Return the message with its remedy in Python's words: before that it quotes the user's program."""
    quoted = message.removesuffix(brake.REMEDY)
    return quoted + words(message[len(quoted) :])


@dataclass(frozen=True, kw_only=True)
class Result:
    """Completed trial.

    Args:
        trial: its index.
        parameters: the active parameters and their values.
        metrics: all that it reported, by name.
    """

    trial: int
    parameters: Mapping[str, Any]
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """Answer of `Sweep.confirm`: the trial that is best over fresh seeds.

    Args:
        trial: its index.
        parameters: its active parameters and their values.
        metric: the metric that the numbers are of.
        mean: posterior mean over the seeds.
        low: lower end of its 95 % interval; None after one result alone.
        high: upper end, likewise.
        chance: probability that it is the best of the trials that were repeated.
        luck: how much better its first number was than its mean; negative: worse.
        seeds: number of its repeats with a result.
        on_test: whether `metric` was measured on the test text.
    """

    trial: int
    parameters: Mapping[str, Any]
    metric: str
    mean: float
    low: float | None
    high: float | None
    chance: float
    luck: float
    seeds: int
    on_test: bool


@in_python
def create(
    space: str | os.PathLike[str] | Mapping[str, Any],
    *,
    storage: str | os.PathLike[str] | None = None,
    skip_if_exists: bool = False,
) -> Sweep:
    """Create a sweep and return it.

    Args:
        space: a search space file, or a dict with its keys. A dict may leave `program` out: then the trials
            are run from Python, by `Sweep.run` or `Sweep.ask`.
        storage: the folder, `gs://…`, `s3://…` or `az://…` to make it in; None: SWEEP_STORAGE, or
            ./sweep-store.
        skip_if_exists: return the sweep that is there, if it has the same space. A larger `run_cap` or budget
            extends it, as `sweep extend` does.

    Raises:
        InputError: the space is wrong (SpaceError, with the key), or a sweep of this name exists; with
            `skip_if_exists` one of another space, whose differences are named, or with larger limits.
        StoreUnavailable: nothing can be written there.

    Examples:
        >>> import sweeps
        >>> sweep = sweeps.create(
        ...     {
        ...         "name": "demo",
        ...         "objectives": [{"metric": "loss"}],
        ...         "parameters": {"lr": {"min": 1e-4, "max": 1e-1, "distribution": "log_uniform_values"}},
        ...         "run_cap": 20,
        ...     },
        ...     storage="sweep-store",
        ... )
        >>> sweep.url
        'sweep-store/demo'
    """
    from sweeps.operations.creation import create_sweep
    from sweeps.space import space_file
    from sweeps.worker.progress import say

    if isinstance(space, Mapping):
        found = literals.space_of(space, "sweeps.create")
    elif isinstance(space, str | os.PathLike):
        found = space_file.load(space)
    else:
        raise InputError(
            f"sweeps.create: the space is a {type(space).__name__}; give a dict, or the path of a search "
            "space file"
        )
    where = _text("sweeps.create: storage", storage)
    if not isinstance(skip_if_exists, bool):
        raise InputError(f"sweeps.create: skip_if_exists={skip_if_exists!r:.80}: write True or False")
    return Sweep(create_sweep(found, where, skip_if_exists=skip_if_exists, on_notice=say))


@in_python
def open_existing(storage: str | os.PathLike[str] | None = None, name: str | None = None) -> Sweep:
    """Return a sweep that exists; `sweeps.open` is this function.

    Args:
        storage: the sweep's own URL, or the folder of sweeps that it is in; None: SWEEP_STORAGE, or
            ./sweep-store.
        name: of the sweep in that folder; None: SWEEP_NAME, or the last one made there.

    Raises:
        SweepNotFound: there is none.
        InputError: it is not clear which one is meant.

    Examples:
        >>> import sweeps
        >>> sweep = sweeps.create(SPACE | {"name": "old"}, storage="sweep-store")
        >>> sweeps.open("sweep-store/old").name
        'old'
    """
    from sweeps.operations.opening import open_sweep

    return Sweep(open_sweep(_text("sweeps.open: storage", storage), _text("sweeps.open: name", name)))


@in_python
def plan(
    sources: Sequence[Sweep | str | os.PathLike[str]],
    size: float,
    *,
    measure: str = "model_parameters",
    sizes: Sequence[float] = (),
    other: tuple[str, float] | None = None,
    speed: float | None = None,
    usd_per_hour: float | None = None,
) -> Plan:
    """Return what to run at a size that was not swept, by finished sweeps at two others or more.

    As `sweep plan` does. `space` of the answer is that of a short final sweep, for `create`.

    Args:
        sources: the sweeps, or their URLs.
        size: to plan for.
        measure: of the size: a metric that all trials of a sweep report alike, or a fixed parameter.
        sizes: of each source; empty: as their records have it.
        other: a second measure in which the sources differ, and what to plan for, such as
            `("stage2.max_steps", 20000)`; None: all differences are the size's doing.
        speed: operations a second at the target; None: as at the largest source.
        usd_per_hour: price of each host of the target; None: by the dollars that the trials report.

    Raises:
        InputError: no plan can be made of these: there is one only, or they have one size, other objectives,
            or no parameter in common; or one is damaged or at work.
        SurrogateFailed: the results of one cannot be fitted.

    Examples:
        >>> import sweeps
        >>> for width in (64, 128):
        ...     parameters = SPACE["parameters"] | {"width": {"value": width}}
        ...     sweep = sweeps.create(SPACE | {"name": f"w{width}", "parameters": parameters})
        ...     counts = sweep.run(lambda p: (p["x"] - 0.3) ** 2 + 16 / p["width"], n_trials=5)
        >>> found = sweeps.plan(["sweep-store/w64", "sweep-store/w128"], 256, measure="width")
        >>> found.beyond
        2.0
        >>> found.settings["x"].interval[0] <= 0.3 <= found.settings["x"].interval[1]
        True
    """
    from sweeps.operations.planning import make_plan

    lists: dict[str, object] = {"sources": sources, "sizes": sizes}
    for argument, value in lists.items():
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InputError(f"sweeps.plan: {argument} is {value!r:.80}; give a list")
    numbers = [
        ("size", size),
        ("speed", speed),
        ("usd_per_hour", usd_per_hour),
        *(("sizes", n) for n in sizes),
    ]
    pair: object = other
    if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise InputError(f"sweeps.plan: other is {pair!r:.80}; give (NAME, number)")
    numbers.append(("other", other and other[1]))
    for argument, number in numbers:
        if number is not None and not is_number(number):
            raise InputError(f"sweeps.plan: {argument}={number!r:.80}: give a number")
    opened = [each if isinstance(each, Sweep) else open_existing(each) for each in sources]
    return make_plan(
        [each.experiment for each in opened],
        size,
        measure=measure,
        sizes=sizes,
        other=other,
        speed=speed,
        usd_per_hour=usd_per_hour,
    )


def _text(argument: str, value: object) -> str | None:
    """Return a folder, a URL or a name as text; None stays. Raises `InputError`."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if text is not None and not isinstance(text, str):
        raise InputError(f"{argument} is {value!r:.80}; give a text, or leave it out")
    return text


class Sweep:
    """Sweep in a folder or a bucket, which any number of processes and machines share.

    Threads may share it, and so may a forked child and its parent.

    Args:
        experiment: the sweep, as `create` or `open` found it.
    """

    def __init__(self, experiment: Experiment) -> None:
        if not isinstance(experiment, Experiment):
            raise InputError(
                f"Sweep({experiment!r:.80}): get one by sweeps.open(URL) or sweeps.create(SPACE)"
            )
        self._store: Store = experiment.store
        self._space: Space = experiment.space
        # A pickle may be read after a change of the working folder.
        self._address = self.url if "://" in self.url else os.path.abspath(self.url)  # noqa: PTH100 - keeps links
        self._written, self._amendments = experiment.written, experiment.amendments.copy()
        self._local = threading.local()
        self._local.mine = (os.getpid(), experiment)

    def __repr__(self) -> str:
        return f"sweeps.open({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_existing, (self._address,)

    @property
    def url(self) -> str:
        """Return the sweep's URL, for `sweeps.open` and for `--storage`."""
        return self._store.url

    @property
    def name(self) -> str:
        """Return the sweep's name, which is the last part of its URL."""
        return name_of(self.url)

    @property
    def experiment(self) -> Experiment:
        """Return the sweep as the rest of this package has it, for this thread of this process."""
        process, experiment = getattr(self._local, "mine", (0, None))
        if experiment is None or process != os.getpid():
            experiment = Experiment(self._store, self._written, amendments=self._amendments.copy())
            self._local.mine = (os.getpid(), experiment)
        return experiment

    @in_python
    def ask(self) -> AskedTrial:
        """Return a trial that this process now runs: one that was waiting, or the next candidate.

        Its lease is renewed in the background until `tell`. Use it in a `with` block: an exception there
        fails the trial. If this process dies, another worker takes the trial over once the lease has expired.

        Raises:
            NothingToAsk: no trial is left to hand out.
            SweepClosed: the sweep is paused or stopped, or its budget is spent.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "asks"})
            >>> with sweep.ask() as trial:
            ...     loss = (trial.parameters["x"] - 0.3) ** 2
            ...     status = sweep.tell(trial, loss)
            >>> trial.index, status
            (0, 'completed')
        """
        experiment = self.experiment
        claimed = experiment.ask(f"python-{identity()}")
        if claimed is None:
            if why := experiment.why_done():
                raise NothingToAsk(why)
            records = experiment.recent_trials()
            running = sum(each.status == "running" for each in records)
            elsewhere = f"; {counted(running, 'trial')} of them not ended yet" if running else ""
            raise NothingToAsk(
                f"{self.url}: all {counted(len(records), 'trial')} are handed out, none is left{elsewhere}"
            )
        return AskedTrial(experiment, claimed)

    @in_python
    def tell(self, trial: AskedTrial, result: Any) -> str:
        """Report the result of a trial that `ask` returned, and return its status.

        A result that is not finite, or None, fails the trial as diverged. One without a metric that the sweep
        needs is an error, and the trial stays open. A trial whose `should_stop` has been true is stopped
        early, whatever its result: that of a part of a run is none.

        Args:
            trial: of this process.
            result: the objective's value, a tuple with one for each objective, or a dict of metrics; or
                `{"status": "failed", "error": "…"}`, as in `result.json`.

        Raises:
            InputError: the result is wrong, or the trial has ended.
            TrialLost: another worker has the trial now, because its lease expired, or a user has given it up.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "tells"})
            >>> sweep.tell(sweep.ask(), {"loss": 0.5, "accuracy": 0.8})
            'completed'
            >>> sweep.tell(sweep.ask(), float("nan"))
            'failed'
        """
        if not isinstance(trial, AskedTrial):
            raise InputError(
                f"tell: {trial!r:.80} is a {type(trial).__name__}; give the trial that sweep.ask() returned"
            )
        if trial.url != self.url:
            raise InputError(f"tell: trial {trial.index} is of {trial.url}, and this is {self.url}")
        where = f"trial {trial.index}"
        judge = parse_result if isinstance(result, Mapping) else check_metrics
        plain = dict(result) if isinstance(result, Mapping) else result
        outcome: Outcome | None = stated_failure(plain, where)
        if plain is None or (isinstance(plain, dict) and plain.get("metrics", plain) is None):
            # As in Optuna, and as for {"loss": None}: the trial has run, and has no number to show for it.
            outcome = Failed(error=f"{where}: its result is None, not a number", failure="diverged")
        if outcome is None and not trial.stopped:
            outcome = judge(self._space, plain, where)
            if isinstance(outcome, Failed) and outcome.failure == "bad_config":
                raise InputError(f"{outcome.error}; the trial is still open")
        return trial.end(outcome or Completed(metrics={}))

    @in_python
    def run(
        self, function: Callable[[Any], Any] | None = None, *, n_trials: int | None = None, workers: int = 1
    ) -> dict[str, int]:
        """Run trials until none is left, as `sweep worker` does, and return how many ended how.

        A trial whose function raises fails, with the traceback in its record, and the next one begins; after
        some equal failures in a row the sweep pauses itself. Ctrl-C puts the trial in hand back.

        Args:
            function: computes a trial. If its first parameter is called `trial` it gets the `Trial`,
                otherwise the dict of parameters. It returns what `tell` takes, except that None, as
                of a function without `return`, is a wrong result. None: the sweep's own program.
            n_trials: of this call, all its workers together; None: no limit but the sweep's own.
            workers: threads that run trials at once. For several processes start this script several times.

        Raises:
            InputError: `n_trials` or `workers` is less than 1, or several threads are to call the function
                that the sweep's space names: it finds its run folder in the environment, which they share.
            CannotStart: without a function, the sweep's program cannot be started here.
            SweepClosed: the sweep has paused itself; the message says why.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "runs", "run_cap": 3})
            >>> sweep.run(lambda parameters: (parameters["x"] - 0.3) ** 2, n_trials=2)
            {'completed': 2}
            >>> sweep.run(lambda parameters: (parameters["x"] - 0.3) ** 2)
            {'completed': 1}
        """
        from sweeps.api_run import run_trials

        return run_trials(lambda: self.experiment, function, n_trials=n_trials, workers=workers)

    @in_python
    def enqueue(self, parameters: Mapping[str, Any], *, skip_if_exists: bool = False) -> int:
        """Add a trial of one's own, which is run before the search's candidates, and return its index.

        It counts towards the run cap and the budget, and the search learns from it as from any other.

        Args:
            parameters: values by name; those that are left out have the baseline's, or the middle of their
                range.
            skip_if_exists: return the trial that has the same parameters, if there is one.

        Raises:
            SpaceError: there is no such parameter, it cannot have this value, or `parameters` is no dict.
            InputError: the run cap leaves no room.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "enqueues"})
            >>> sweep.enqueue({"x": 0.25})
            0
            >>> sweep.ask().parameters
            {'x': 0.25}
        """
        if not isinstance(skip_if_exists, bool):
            raise InputError(f"enqueue: skip_if_exists={skip_if_exists!r:.80}: write True or False")
        given = literals.configuration(self._space, parameters, "enqueue")
        worker = f"python-{identity()}"
        return self.experiment.enqueue([given], worker, skip_if_exists=skip_if_exists)[0].trial

    @in_python
    def extend(self, **limits: float | datetime | None) -> dict[str, float | None]:
        """Change limits of the sweep, up or down, while its workers run, and return all that hold now.

        A worker obeys a new limit from its next claim on; running trials go on. So does `sweep extend`.

        Args:
            limits: new values in all, by name: `run_cap`, `effective_steps`, `device_hours`, `usd`,
                `wall_hours`, `expected_gain` (of `search.stop`), and `until`, a datetime. None lifts a limit.

        Raises:
            InputError: there is no such limit, or it cannot have this value; nothing was changed.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "extends", "run_cap": 3})
            >>> sweep.extend(run_cap=5)["run_cap"]
            5
        """
        from sweeps.operations import limits as operations
        from sweeps.operations.control import user_name
        from sweeps.worker.progress import say

        changes = {name: _limit(name, value) for name, value in limits.items()}
        if not changes:
            raise InputError("extend: say what to change, such as extend(run_cap=60)")
        if (until := changes.get("until")) is not None and until <= self._store.now():
            raise InputError(f"extend(until={limits['until']}): that is past; stop() ends a sweep now")
        for limit in operations.extend(self.experiment, changes, user_name()).reached:
            say(f"warning: {limit}; no further trial is begun")
        return operations.present(self.experiment)

    @in_python
    def pause(self) -> None:
        """Hand out no trials for now: workers finish what they have, and wait for `resume`.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "pauses"})
            >>> sweep.pause()
            >>> sweep.status()["state"]
            'paused'
        """
        self._set_state("paused")

    @in_python
    def resume(self) -> None:
        """Hand out trials again, after `pause` or `stop`, or once the sweep has paused itself.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "resumes"})
            >>> sweep.stop()
            >>> sweep.resume()
            >>> sweep.run(lambda parameters: parameters["x"], n_trials=1)
            {'completed': 1}
        """
        self._set_state("running")

    @in_python
    def stop(self) -> None:
        """Hand out no more trials: workers, `run` among them, finish the trial that they have and leave.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "ends"})
            >>> def loss(trial):
            ...     sweep.stop()
            ...     return trial.parameters["x"]
            >>> sweep.run(loss)
            {'completed': 1}
        """
        self._set_state("stopped")

    @in_python
    def confirm(
        self,
        function: Callable[[Any], Any] | None = None,
        *,
        top: int | None = None,
        seeds: int | None = None,
        budget: int | None = None,
        objective: str | None = None,
        at_most: Mapping[str, float] | None = None,
        seed_name: str | None = None,
        again: bool = False,
        workers: int = 1,
    ) -> Confirmation:
        """Run the best trials again with fresh seeds, and return the one that is best over these.

        As `sweep confirm` does: after each round those that cannot win any more leave. Called again, it goes
        on, or returns the answer.

        Args:
            function: computes a trial, as in `run`; None: the sweep's own program.
            top: how many trials to run again, from 2; 5 if left out.
            seeds: fresh seeds for each, from 2; 5 if left out.
            budget: the most runs in all.
            objective: metric to confirm; None: the first objective.
            at_most: only trials with at most this, such as `{"effective_steps": 3000}`.
            seed_name: the parameter that is the seed; None: `seed`, which the space must have then, unless
                the program is the trainer.
            again: plan anew, after more of a search or with other arguments.
            workers: threads that run trials at once, as in `run`.

        Raises:
            InputError: the arguments do not fit a confirmation that has begun, or none can be planned.
            CannotStart: without a function, the sweep's program cannot be started here.
            SweepClosed: the sweep is paused or stopped, or has paused itself.
            SweepError: no repeat has a result, or others have not ended theirs.

        Examples:
            >>> import sweeps
            >>> parameters = SPACE["parameters"] | {"seed": {"value": 0}}
            >>> space = SPACE | {"name": "confirms", "parameters": parameters}
            >>> sweep = sweeps.create(space)
            >>> def loss(parameters):
            ...     return parameters["x"] + parameters["seed"] % 7 / 1000
            >>> counts = sweep.run(loss, n_trials=4)
            >>> sweep.confirm(loss, top=2, seeds=2).trial == sweep.best.trial
            True
        """
        from sweeps.api_run import checked_workers, run_trials, whole_number
        from sweeps.operations import confirmation, confirming
        from sweeps.operations.control import user_name
        from sweeps.search.confirm.answer import answer
        from sweeps.search.confirm.rounds import standing
        from sweeps.worker.progress import say

        options: dict[str, Any] = {"objective": objective, "bounds": _bounds(at_most), "seed_name": seed_name}
        for argument, value, least in (("top", top, 2), ("seeds", seeds, 2), ("budget", budget, 1)):
            number = None if value is None else whole_number(f"confirm({argument}", value, least)
            options[argument] = number
        experiment = self.experiment
        checked_workers(experiment, function, workers)  # before it plans any run
        plan = confirming.plan_confirmation(
            experiment,
            options,
            again=again,
            own_program=function is None,
            by=user_name(),
            on_notice=lambda line: say(words(line)),
        )
        now = standing(experiment.space, plan, experiment.trials())
        if not now.finished:
            confirming.require_running(experiment)
            run_trials(lambda: self.experiment, function, n_trials=None, workers=workers, confirming=True)
            now = standing(experiment.space, plan, experiment.trials())
        found = answer(experiment.space, plan, now) if now.finished else None
        if found is None:
            raise SweepError(
                f"{self.url}: confirm: {confirmation.progress_line(experiment.space, plan, now)}"
            )
        for line in confirmation.warnings(plan, now, found):
            say(line)
        winner = redact_trials([confirmation.winner_of(experiment, found)])[0]
        return Confirmation(parameters=_result(winner).parameters, **confirmation.winner_document(found))

    @in_python
    def status(self) -> dict[str, Any]:
        """Return what `sweep status --format json` prints: counts of trials, the best one, and the state.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "status", "run_cap": 3})
            >>> counts = sweep.run(lambda parameters: parameters["x"], n_trials=1)
            >>> now = sweep.status()
            >>> now["state"], now["run_cap"], now["trials"]["completed"], now["best"]["metrics"]
            ('running', 3, 1, {'loss': 0.5})
        """
        from sweeps.operations.status import status_document

        experiment = self.experiment
        experiment.amendments.refresh()
        return status_document(experiment, self._records())

    @in_python
    def trials(self) -> pd.DataFrame:
        """Return all trials as a table, with the columns of `sweep export TABLE.csv`.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "table"})
            >>> status = sweep.tell(sweep.ask(), 0.5)
            >>> sweep.trials()[["trial", "status", "param.x", "loss"]]
               trial     status  param.x  loss
            0      0  completed      0.5   0.5
        """
        import pandas as pd

        records = self._records()
        rows = [
            row | {PARAMETER + n: to_plain(v) for n, v in each.parameters.items()}
            for row, each in zip(table.flat_rows(self._space, records), records, strict=True)
        ]
        return pd.DataFrame(rows, columns=table.columns(rows))

    @property
    @in_python
    def best(self) -> Result:
        """Return the best completed trial by the first objective; after `sweep confirm` the winner of that.

        Raises:
            InputError: no trial is completed yet.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "best"})
            >>> counts = sweep.run(lambda parameters: parameters["x"] ** 2, n_trials=1)
            >>> sweep.best
            Result(trial=0, parameters={'x': 0.5}, metrics={'loss': 0.25})
        """
        from sweeps.operations import confirmation

        records = self._records()
        if (found := confirmation.confirmed_answer(self.experiment, records)) is not None:
            return _result(redact_trials([confirmation.winner_of(self.experiment, found[1])])[0])
        winner = table.best(self._space, records)
        if winner is None:
            raise self._without_result(records)
        return _result(winner)

    @in_python
    def answer(self) -> Answer | None:
        """Return what the surrogate says of the best trial, and what further ones are expected to gain.

        None with fewer than 30 results, or more than 400 trials; for several objectives, outcome
        constraints, a grid, or a searched seed. It takes seconds, and imports torch and Ax.

        Raises:
            SurrogateFailed: the surrogate cannot be fitted to the results.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "answers"})
            >>> counts = sweep.run(lambda parameters: parameters["x"] ** 2, n_trials=2)
            >>> sweep.answer() is None  # of two results it says nothing
            True
        """
        from sweeps.operations.answer import answer_of

        return answer_of(self.experiment)

    @property
    def why_done(self) -> str:
        """Return why the search has ended by its `search.stop`, in one line; "" while it has not.

        Examples:
            >>> import sweeps
            >>> sweeps.create(SPACE | {"name": "goes-on"}).why_done
            ''
        """
        self.experiment.amendments.refresh()
        return words(self.experiment.why_done())

    @property
    def best_value(self) -> float:
        """Return the value of the first objective of `best`.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "value"})
            >>> counts = sweep.run(lambda parameters: parameters["x"] ** 2, n_trials=1)
            >>> sweep.best_value
            0.25
        """
        value = self.best.metrics[self._space.metrics()[0]]
        if value is None:  # `best` has only results that can be compared
            raise InputError(f"{self.url}: the best trial has no {self._space.metrics()[0]}")
        return value

    @property
    def best_parameters(self) -> Mapping[str, Any]:
        """Return the parameters of `best`.

        Examples:
            >>> import sweeps
            >>> sweep = sweeps.create(SPACE | {"name": "parameters"})
            >>> counts = sweep.run(lambda parameters: parameters["x"] ** 2, n_trials=1)
            >>> sweep.best_parameters
            {'x': 0.5}
        """
        return self.best.parameters

    @in_python
    def pareto(self) -> list[Result]:
        """Return the completed trials that none beats in all objectives, the best by the first one first.

        They are within the outcome constraints. With one objective they are its best trials; `sweep pareto`
        weighs that against compute. A confirmed one stands among them by the means of its fresh runs; its
        `metrics` are what it has reported itself.

        Raises:
            InputError: no trial is completed yet.

        Examples:
            >>> import sweeps
            >>> two = [{"metric": "loss"}, {"metric": "ms"}]
            >>> sweep = sweeps.create(SPACE | {"name": "front", "objectives": two})
            >>> counts = sweep.run(lambda parameters: (parameters["x"], 1 - parameters["x"]), n_trials=3)
            >>> len(sweep.pareto())
            3
        """
        records = self._records()
        found = table.front(self._space, records)
        if not found:
            raise self._without_result(records)
        return [_result(each) for each in found]

    def _set_state(self, state: control.State) -> None:
        from sweeps.operations.control import set_state, user_name

        set_state(self._store, state, user_name())

    def _records(self) -> list[record.Trial]:
        """Return the trials that can be read, without secrets; a warning names each that cannot."""
        records, damaged = self.experiment.readable_trials()
        for error in damaged:
            warnings.warn(f"{error}; it is left out here", stacklevel=3)
        return redact_trials(records)

    def _without_result(self, records: Sequence[record.Trial]) -> InputError:
        within = " within the outcome constraints" if self._space.outcome_constraints else ""
        there = ", ".join(f"{count} {status}" for status, count in table.counts(records).items() if count)
        return InputError(f"{self.url}: no trial is completed yet{within}; there are {there or 'no trials'}")


def _limit(name: str, value: object) -> float | None:
    """Return a new limit for `operations.limits`. Raises `InputError`."""
    known = (*BUDGET_KEYS, "run_cap", "until", GAIN)
    if name not in known:
        hint = "write run_cap=…" if name.endswith("trials") else nearest(name, known)
        raise InputError(f"extend({name}=…): there is no such limit; {hint}")
    if value is None:
        return None
    if name == "until":
        if not isinstance(value, datetime):
            raise InputError(f"extend(until={value!r:.80}): give a datetime, or None")
        try:
            return value.timestamp()
        except (ValueError, OverflowError, OSError):  # such as the year 1
            raise InputError(f"extend(until={value!r:.80}): give a datetime of this century") from None
    try:
        number = None if isinstance(value, bool | str | bytes) else float(value)  # type: ignore[arg-type]  # of any type
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not 0 < number < math.inf or (name == "run_cap" and number % 1):
        kind = "a whole number from 1" if name == "run_cap" else "a number above 0"
        raise InputError(f"extend({name}={value!r:.80}): write {kind}, in all, or None to lift the limit")
    return int(number) if name == "run_cap" else number


def _bounds(at_most: Mapping[str, float] | None) -> tuple[str, ...]:
    if at_most is not None and not isinstance(at_most, Mapping):
        raise InputError(f'confirm(at_most={at_most!r:.60}): write a dict, such as {{"gpu_hours": 3}}')
    return tuple(f"{name}={limit}" for name, limit in (at_most or {}).items())


def _result(found: record.Trial) -> Result:
    parameters = {name: to_plain(value) for name, value in found.parameters.items()}
    return Result(trial=found.trial, parameters=parameters, metrics=dict(found.metrics))


__all__ = ["AskedTrial", "Confirmation", "Result", "Sweep", "Trial", "create", "open_existing"]
