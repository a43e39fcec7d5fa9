"""Ax behind one door: trial records in, candidates out. The only package that imports Ax.

`experiment.ask` calls it under the ask lock, `sweep init` calls `check`. Everything Ax is told comes from the
records, and every generation is seeded from the sweep's seed and the new trial's index: the same records give
the same candidates, whether an `Optimizer` has lived through the sweep or was made a moment ago.

The adapters are used directly, not through `ax.api.Client`. Its generation strategy has memory of its own
(the node it is in, the Sobol position, a warm-started surrogate) that no record holds, and it raises
`DataRequiredError` where parallel workers ask for more before the first results are in.

    translation    a space's axes and goals in Ax's words
    observations   records into an Ax experiment, and what it has not been told yet
    sobol          points of Ax's Sobol generator
    surrogate      Ax's choice of surrogate and acquisition function, fitted; `view` asks it for `insight`
    generation     the `Optimizer`, which puts these together
    curves         whether a running trial falls behind, for `early_stopping`
    client_file    a sweep as Ax's own client reads it, for `ax_export`
"""

from __future__ import annotations

import logging
import warnings

# Ax says at import that its SQL storage is there, and its dependencies that torch.jit is deprecated. Neither
# concerns who reads the terminal of a worker. Whoever imports a module of this package comes by here first.
logging.getLogger("ax.storage.sqa_store.with_db_settings_base").addFilter(lambda record: False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sweeps.search.candidates import Candidate
    from sweeps.search.optimizer.client_file import write_client
    from sweeps.search.optimizer.curves import AxError, PercentileEarlyStoppingStrategy, falls_behind
    from sweeps.search.optimizer.generation import Optimizer, check
    from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES
    from sweeps.search.optimizer.view import SurrogateView

__all__ = [
    "SURROGATE_FAILURES",
    "AxError",
    "Candidate",
    "Optimizer",
    "PercentileEarlyStoppingStrategy",
    "SurrogateView",
    "check",
    "falls_behind",
    "write_client",
]
