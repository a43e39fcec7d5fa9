"""Trackers that a run's configuration asks for. Called by `__main__`."""

from __future__ import annotations

from pathlib import Path

from trainer.config import Config
from trainer.layout import METRICS_FILE
from trainer.telemetry.run import Channel
from trainer.telemetry.tensorboard import FOLDER, TensorBoard
from trainer.telemetry.wandb_run import open_wandb


def open_channels(config: Config, folder: Path) -> list[Channel]:
    """Return the channels that are configured and could be opened; others have warned on stderr."""
    channels: list[Channel] = []
    if config.telemetry.tensorboard:
        channels.append(TensorBoard(folder / FOLDER, metrics=folder / METRICS_FILE))
    if wandb := open_wandb(config, folder):
        channels.append(wandb)
    return channels
