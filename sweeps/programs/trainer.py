"""The trainer as a program. Only this module of `sweeps` imports `trainer`."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sweeps.errors import CannotStart, EnvironmentFault, InputError
from sweeps.programs.command import CommandProgram
from sweeps.programs.result import Failed, NotStarted, needed_metrics, without_lost_processes
from sweeps.space.definition import Fixed, Space, Value, from_plain, is_value
from sweeps.space.domain import probes
from sweeps.space.overrides import to_overrides
from sweeps.space.stages import Stages
from sweeps.space.trainer_stages import MOST_POINTS, FoundTrunk, trainer_stages, with_trunks
from sweeps.stages.checkpoint import SharedKeys, TrunkKey
from sweeps.trials.budget import REPORTED
from sweeps.trials.record import Trial

if TYPE_CHECKING:
    from sweeps.programs.warm_start import WarmStarts
    from trainer.api import Composition, Config, Misfit
    from trainer.errors import ConfigError

log = logging.getLogger(__name__)

WRITE_SNAPSHOTS = "snapshots.write"
"""Key of the trainer's configuration: it writes the ends of its stages into `snapshots/`."""

TRUNK_EVERY = "trunk_every"
"""Key in the section of a stage: it leaves a point of its trunk after every so many steps, or after these."""

FORMAT = "checkpoint.format"
"""Key of the trainer's configuration. `sharded`: each process writes its part, into a folder that all see."""

_FOLDER = Path(__file__).parents[2] / "trainer"
_EXIT_CONFIG = 2
_NO_VALUE = object()
_REFUSED = re.compile(r"^trainer: (?:process \d+: )?error: (.*)$", re.MULTILINE)
"""Line with which `python -m trainer` refuses a configuration; the exit status alone is ambiguous."""
_NOT_HERE = "not on this machine: "
"""Start of its message when the machine, not the configuration, is at fault."""


class TrainerProgram(CommandProgram):
    """The trainer, with the fixed overrides of the search space and a trial's parameters as overrides."""

    test_overrides: ClassVar[Mapping[str, Value]] = {"eval.test": True}
    has_seed = True
    _warm: WarmStarts | None = None

    def warm_up(self) -> None:
        """Start the trainer's imports in another process: they take as long as the claim of a trial."""
        from sweeps.programs import warm_start  # for workers only

        # A launcher starts several processes: they cannot be forked from one.
        is_one = self.space.program.processes * self.space.program.nodes == 1
        if self._warm is None and is_one and warm_start.enabled():
            common = self.space.program.overrides
            self._warm = warm_start.WarmStarts("trainer", preload="trainer.preload", common=common)
        if self._warm is not None:
            self._warm.begin()

    def close(self) -> None:
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def warm_starter(self) -> WarmStarts | None:
        return self._warm

    # ---- checks

    def require_startable(self) -> None:
        """Raise CannotStart where `import trainer` finds a file of the user: in a script next to one."""
        try:
            found = importlib.util.find_spec("trainer")
            origin = found.origin if found is not None else None
        except ValueError:  # a module without a specification
            origin = getattr(sys.modules["trainer"], "__file__", None)
        if origin is None or Path(origin).parent != _FOLDER:
            raise CannotStart(
                f"program.trainer: `import trainer` finds {origin or 'nothing'} here, which is not the "
                "trainer of stagesweep; give that another name, or start this from another folder"
            )

    def check(self, points: Sequence[Mapping[str, Value]]) -> None:
        self.require_startable()
        self._refuse([self._compose(self.overrides(point)) for point in points])

    def complete(self) -> Space:
        """Check the configurations at the ends of the space, and return it with stages and trunks of theirs.

        Each configuration is composed once.
        """
        self.require_startable()
        compose = functools.cache(lambda *overrides: self._compose(overrides))

        def trunks(parameters: Mapping[str, Value]) -> dict[str, FoundTrunk] | None:
            composed = compose(*self.overrides(parameters))
            if isinstance(composed, Exception):
                return None
            return {
                name: FoundTrunk(
                    key=trunk.key,
                    until=trunk.until,
                    decay=getattr(composed.config, name).schedule.decay_fraction,
                )
                for name, trunk in composed.stage_trunks().items()
            }

        self._refuse([compose(*self.overrides(point)) for point in probes(self.space)])
        # Without the constraints: with them, not even one end of the space might remain.
        points = probes(replace(self.space, parameter_constraints=()))
        composed = [compose(*self.overrides(point)) for point in points]
        costs = [each.stage_costs() for each in composed if not isinstance(each, Exception)]
        stages = with_trunks(self.space, trainer_stages(self.space, costs), points, trunks)
        if len(stages) == 1 and stages[0].trunk is None and not self.space.stops_by_cost():
            stages = ()  # nothing to share, and nobody asks for its cost
        return replace(self.space, stages=stages)

    def defaults(self) -> dict[str, Value]:
        """Return the trainer's value of each searched parameter, with all that the sweep fixes."""
        self.require_startable()
        fixed = {p.name: p.value for p in self.space.parameters if isinstance(p, Fixed)}
        composed = self._compose(self.overrides(fixed))
        found: dict[str, Value] = {}
        for parameter in self.space.parameters:
            if isinstance(parameter, Fixed) or isinstance(composed, Exception):
                continue
            value: Any = composed.config
            for part in parameter.name.split("."):  # a group, such as `model`, leads to no value
                value = getattr(value, part, value.get(part) if isinstance(value, Mapping) else _NO_VALUE)
            value = from_plain(value)
            if is_value(value):
                found[parameter.name] = value
        return found

    def _compose(self, overrides: Sequence[str]) -> Composition | ConfigError:
        from trainer.api import Composition
        from trainer.errors import ConfigError

        try:
            return Composition(overrides)
        except ConfigError as error:
            return error

    def _refuse(self, composed: Sequence[Composition | ConfigError]) -> None:
        """Raise InputError if the trainer refuses one, or if the sweep needs a metric that no run reports.

        The trainer reports metrics of its own, and a hook more, which all configurations must have.
        """
        from trainer.api import METRICS
        from trainer.config.evaluation import hook_name
        from trainer.errors import ConfigError
        from trainer.result import TEST_METRICS

        space = self.space
        configs: list[Config] = []
        refused: dict[str, str] = {}  # by key: points differ in the values that it is refused with
        for each in composed:
            try:
                if isinstance(each, ConfigError):
                    raise each
                each.check(processes=space.program.processes * space.program.nodes)
            except ConfigError as error:
                for fault in error.errors:
                    refused.setdefault(fault.key or str(fault), str(fault))
            else:
                configs.append(each.config)
        known = [] if refused else configs
        prefixes = [{f"{hook_name(hook)}_" for hook in config.hooks.names} for config in known]
        of_hooks = tuple(set.intersection(*prefixes)) if prefixes else ()
        for metric in needed_metrics(space):
            if metric not in METRICS and not metric.startswith(of_hooks):
                listed = f"known are: {', '.join(METRICS)}"
                from sweeps.space.yaml_cursor import nearest  # imports yaml, which most commands need not

                hint = nearest(metric, METRICS)
                section = "objectives" if metric in space.metrics() else "outcome_constraints"
                if metric not in space.metrics() and metric.removesuffix("_sem") in space.metrics():
                    section = "search.noise"
                raise InputError(
                    f"{section}: the trainer reports no {metric!r}; "
                    + (hint if hint == listed else f"{hint} ({listed})")
                )
        tested = [metric for metric in needed_metrics(space) if metric in TEST_METRICS]
        if tested and not all(config.eval.test for config in configs):
            raise InputError(
                f"program.overrides: {tested[0]!r} is reported only with eval.test=true, which is for runs "
                "that confirm; select by final_loss"
            )
        if refused:
            raise InputError("the trainer refuses this space: " + "\n".join(refused.values()))

    def prepare(self, threads: int, report: Callable[[str, float | None], None]) -> None:
        """Build corpus, tokenizer and teacher, unless they exist."""
        from trainer import api
        from trainer.errors import TrainerError

        try:
            api.prepare([*self.space.program.overrides, f"device.threads={threads}"], report)
        except TrainerError as error:
            raise EnvironmentFault(f"cannot prepare the trainer: {error}") from None

    def reports(self, metric: str) -> bool:
        return metric in REPORTED or super().reports(metric)

    # ---- a trial

    def overrides(self, parameters: Mapping[str, Value]) -> list[str]:
        """Return a trial's overrides for the command line of `python -m trainer`."""
        return [*self.space.program.overrides, *to_overrides(parameters)]

    def argv(
        self, record: Trial, folder: Path, *, snapshots: bool, points: bool, host: str = ""
    ) -> list[str]:
        from trainer import api

        name = f"{self.space.name}-{record.trial:06d}"
        run_id = hashlib.sha256(f"{name} {record.created!r}".encode()).hexdigest()[:16]  # of all its attempts
        added: dict[str, Value] = {"wandb.group": self.space.name, "wandb.name": name, "wandb.id": run_id}
        if snapshots:
            added[WRITE_SNAPSHOTS] = True
        overrides = [*self.overrides(record.parameters), *to_overrides(added)]
        if points:
            overrides += self._point_overrides(record.parameters)
        if host and self.own_disks and self.checkpoint_format(record.parameters) == "auto":
            overrides.append(f"{FORMAT}=whole")  # by the first process, whose host's files are kept
        return api.command(overrides, folder, processes=self.space.program.processes, host=host)

    def checkpoint_format(self, parameters: Mapping[str, Value]) -> str:
        """Return a trial's `checkpoint.format`; "auto" of a trial that the trainer is about to refuse."""
        composed = self._compose(self.overrides(parameters))
        return "auto" if isinstance(composed, Exception) else composed.config.checkpoint.format

    def version(self) -> str:
        """Return the version of the trainer; hosts that share a trial need the same."""
        from trainer.result import code_version

        return code_version()

    def _point_overrides(self, parameters: Mapping[str, Value]) -> list[str]:
        """Return where the trainer leaves points, for the stages for which the user has not said it."""
        given = {text.partition("=")[0].lstrip("+~").strip() for text in self.space.program.overrides}
        stages, found = Stages(self.space), []
        for position, stage in enumerate(self.space.stages):
            key = f"{stage.name}.{TRUNK_EVERY}"
            if stage.trunk is None or not stage.trunk.every or key in given | parameters.keys():
                continue
            # Steps between points; or a list of points, where that serves the listed lengths better.
            every: int | str = stage.trunk.every
            ends = sorted((stages.trunk_ends(position) or frozenset()) - {0})
            if len(ends) <= MOST_POINTS and any(end % stage.trunk.every for end in ends):
                every = f"[{','.join(map(str, ends))}]"
            found.append(f"{key}={every}")
        return found

    def read_exit(self, status: int, output: str, argv: Sequence[str]) -> Failed | NotStarted:
        if status == _EXIT_CONFIG and (refusals := [*_REFUSED.finditer(without_lost_processes(output))]):
            line, message = refusals[-1].group(0, 1)
            if message.startswith(_NOT_HERE):
                return NotStarted(detail=message.removeprefix(_NOT_HERE))
            return Failed(error=f"config refused: {line}\n{output}", failure="bad_config")
        read = super().read_exit(status, output, argv)
        # It always says why it ends: without a word, its log was on a disk that was full for a moment.
        if isinstance(read, Failed) and (status == _EXIT_CONFIG or not output):
            return replace(read, retryable=True)
        return read

    def command_line(self, record: Trial, *, run_dir: str = "runs/best") -> str:
        count = self.space.program.processes
        start = ["python"] if count == 1 else ["torchrun", "--nproc-per-node", str(count)]
        overrides = [*self.overrides(record.parameters), *to_overrides({"run_dir": run_dir})]
        return shlex.join([*start, "-m", "trainer", *overrides])

    # ---- what trials share

    def shared_keys(self, parameters: Mapping[str, Value]) -> SharedKeys:
        stages = Stages(self.space)
        with_trunk = {name for at, name in enumerate(stages.names) if stages.trunk(at) is not None}
        if not stages.shared and not with_trunk:
            return SharedKeys()
        from trainer.api import Composition
        from trainer.errors import TrainerError

        try:
            composed = Composition(self.overrides(parameters))
            keys = composed.stage_keys() if stages.shared else {}
            trunks = composed.stage_trunks() if with_trunk else {}
        except TrainerError as error:  # the program itself will report it
            log.info("the stages have no keys: %s", error)
            return SharedKeys()
        return SharedKeys(
            ends={name: keys[name] for name in stages.names if name in keys},
            trunks={
                name: TrunkKey(key=trunks[name].key, until=trunks[name].until)
                for name in stages.names
                if name in with_trunk and name in trunks and trunks[name].until > 0
            },
        )


def tpu_misfits(*, tpu: bool) -> Sequence[Misfit]:
    """Return the installed versions that keep the trainer from computing on a TPU, or on XLA's own CPU."""
    from trainer import api

    return api.tpu_misfits(tpu=tpu)
