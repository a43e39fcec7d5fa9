"""Sweeps: space, experiment, trial lifecycle, store, worker and the `sweep` command.

Read in the order of the data: `space_file` → `space` → `experiment` (ask) → `overrides` → `objective`
→ `experiment` (tell) → `export`. The trial records in the store are the only truth (`trial`, `lifecycle`,
`storage`); `optimizer` is the one file that imports Ax and `objective` the one that knows the trainer.
"""
