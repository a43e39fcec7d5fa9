"""Ax and BoTorch: trial records in, candidates out. The only package that imports Ax.

`experiment.ask` calls it under the ask lock, `sweep init` calls `require_searchable`. Ax gets all its data
from the records, and every generation is seeded from the sweep's seed and the new trial's index: the same
records give the same candidates, from a long-lived `Optimizer` as from a new one.
"""

from __future__ import annotations

import logging
import warnings

# At import Ax logs a note on its SQL storage, and its dependencies warn that torch.jit is deprecated; neither
# concerns the user of a worker. Every import of a module of this package runs this first.
logging.getLogger("ax.storage.sqa_store.with_db_settings_base").addFilter(lambda record: False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sweeps.search.optimizer.client_file import write_client
    from sweeps.search.optimizer.curves import PercentileEarlyStoppingStrategy, falls_behind
    from sweeps.search.optimizer.fidelity import FidelityOptimizer, asker, require_searchable
    from sweeps.search.optimizer.generation import Candidate, Optimizer
    from sweeps.search.optimizer.optimum import Optimum
    from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
    from sweeps.search.optimizer.view import SurrogateView

__all__ = [
    "SURROGATE_FAILURES",
    "Candidate",
    "FidelityOptimizer",
    "Optimizer",
    "Optimum",
    "PercentileEarlyStoppingStrategy",
    "SurrogateView",
    "asker",
    "falls_behind",
    "require_searchable",
    "write_client",
]
