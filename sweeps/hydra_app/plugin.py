"""What Hydra finds: this file is installed as `hydra_plugins/stagesweep.py` (see pyproject.toml).

Hydra takes plugins from the namespace package `hydra_plugins` alone, and imports all of them in every
application: whatever costs time is imported when a sweep begins.
"""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from sweeps.hydra_app.settings import StageSweeperConf

ConfigStore.instance().store(
    group="hydra/sweeper", name="stagesweep", node=StageSweeperConf, provider="stagesweep"
)


class StageSweeper(Sweeper):
    """A worker of a sweep that lives in a folder or a bucket, in place of Hydra's own loop over jobs."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Hydra's call before `sweep`; the task function itself runs in the trials' own processes."""
        self.config, self.hydra_context = config, hydra_context

    def sweep(self, arguments: list[str]) -> Any:
        """Make the sweep or go on with it, until nothing is left to do; the best trial's metrics."""
        from sweeps.hydra_app.sweeping import sweep

        if self.config is None or self.hydra_context is None:
            raise RuntimeError("setup comes before sweep")
        return sweep(self.settings, self.config, self.hydra_context.config_loader, arguments)
