"""Hyperparameter sweeps: search space, experiment, trial lifecycle, store, worker and the `sweep` command.

The data flows from `space` through `experiment` (ask), `worker` and `experiment` (report) to `export`. The
trial records in the store are the only state (`trials`, `storage`); only `search.optimizer` imports Ax, and
only `worker.program` the trainer.
"""
