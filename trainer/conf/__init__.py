"""The Hydra configuration: `config.yaml` and one folder per group. Read by `trainer.config.compose` only."""
