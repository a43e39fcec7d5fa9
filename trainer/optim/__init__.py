"""Optimizers, built from `OptimizerConfig` by `optim.build`. Used by `training`."""
