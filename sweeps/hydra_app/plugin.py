"""Hydra sweeper plugin, installed as `hydra_plugins/stagesweep.py` (see pyproject.toml).

Hydra loads plugins only from the namespace package `hydra_plugins`, and imports all of them in every
application: slow imports wait until a sweep begins.
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
    """Worker of a sweep in a folder or a bucket, in place of Hydra's own loop over jobs."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep the configuration; Hydra calls this before `sweep`. Trials run in processes of their own."""
        self.config, self.hydra_context = config, hydra_context

    def sweep(self, arguments: list[str]) -> Any:
        """Create or resume the sweep, run its trials, and return the best trial's metrics."""
        from sweeps.hydra_app.sweeping import sweep

        if self.config is None or self.hydra_context is None:
            raise RuntimeError("setup comes before sweep")
        return sweep(self.settings, self.config, self.hydra_context.config_loader, arguments)
