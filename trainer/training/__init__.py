"""The training loop that all stages share: one step, its results, evaluation, parallel strategies."""
