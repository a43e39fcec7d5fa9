"""Configuration under `hydra.sweeper` with `hydra/sweeper=stagesweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TARGET = "hydra_plugins.stagesweep.StageSweeper"


@dataclass
class LeaseConf:
    """Section `lease:` of a search space file; None: its default."""

    heartbeat_s: float | None = None
    expire_s: float | None = None
    max_attempts: int | None = None


@dataclass
class BudgetConf:
    """Section `budget:` of a search space file; None: no limit."""

    effective_steps: float | None = None
    device_hours: float | None = None
    usd: float | None = None
    wall_hours: float | None = None


@dataclass
class BrakeConf:
    """Section `brake:` of a search space file; None: its default, 0: never."""

    first: int | None = None
    later: int | None = None


@dataclass
class SnapshotsConf:
    """Section `snapshots:` of a search space file; None: its default."""

    keep: int | None = None
    keep_gib: float | None = None


@dataclass
class StageSweeperConf:
    """Settings of the sweeper; omitted ones have the defaults of a search space file.

    Args:
        storage: folder or URL of the sweeps; None: SWEEP_STORAGE, or ./sweep-store.
        name: of the sweep under `storage`. The same name, settings and overrides resume the same sweep.
        metric: name of the task function's return value, or a list of names for a tuple or a dict's keys.
        direction: minimize or maximize, or a list of them, one per metric.
        n_trials: limit for the sweep, all workers together; None: no limit.
        method, sobol, seed, noise, reuse, prior, stop: see `search:` of a search space file; None: its
            default.
        params: searched parameters by key: overrides (`interval(1, 5)`, `choice(a, b)`,
            `tag(log, interval(…))`), Ax's dictionaries (`{type: range, bounds: […]}`), or those of a search
            space file (`{min, max}`).
        parameter_constraints, outcome_constraints, baseline, lease, budget, brake, stages, snapshots: as in a
            search space file.
    """

    _target_: str = TARGET
    storage: str | None = None
    name: str = "${hydra.job.name}"
    metric: Any = "objective"
    direction: Any = "minimize"
    n_trials: int | None = 20
    method: str | None = None
    sobol: int | None = None
    seed: int | None = None
    noise: Any = None
    reuse: str | None = None
    prior: str | None = None
    stop: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    parameter_constraints: list[str] = field(default_factory=list)
    outcome_constraints: list[str] = field(default_factory=list)
    baseline: Any = field(default_factory=dict)
    lease: LeaseConf = field(default_factory=LeaseConf)
    budget: BudgetConf = field(default_factory=BudgetConf)
    brake: BrakeConf = field(default_factory=BrakeConf)
    stages: list[dict[str, Any]] = field(default_factory=list)
    snapshots: SnapshotsConf = field(default_factory=SnapshotsConf)
