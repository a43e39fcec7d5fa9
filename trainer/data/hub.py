"""The files of a dataset on the Hugging Face hub (`data=hub`). Called by `shards`.

The package `datasets` resolves a dataset's card, configurations and splits to files, which are then streamed
like any others, from `hf://` at the commit that the revision now refers to. So shuffling, held-out text and
resuming are those of Parquet in a bucket.
"""

from __future__ import annotations

from typing import Any

from sweeps.text.installation import install_command
from sweeps.text.shorten import one_line
from trainer.config.data import HubConfig
from trainer.errors import ConfigError, DataError, MachineError
from trainer.models import network


def dataset_files(config: HubConfig) -> tuple[str, ...]:
    """Return the files of one split, as paths or URLs.

    Raises:
        MachineError: the package is not installed, or HF_HUB_OFFLINE is set and the dataset is not here.
        ConfigError: there is no such dataset, subset or split.
        UnreachableError: the hub does not answer.
        DataError: it refuses to.
    """
    try:
        import datasets
    except ImportError:
        raise MachineError(
            f"reading from the hub takes the package `datasets`, which is not here: {install_command('hub')}",
            key="data.name",
        ) from None
    datasets.disable_progress_bars()
    name = f"dataset {config.dataset!r}"
    try:
        builder = datasets.load_dataset_builder(config.dataset, config.subset, revision=config.revision)
    except Exception as error:  # the hub's client raises dozens of types
        reason = one_line(error)
        # First: it may be a FileNotFoundError, too.
        if (unreached := network.hub_error(error, f"{name} cannot be looked up")) is not None:
            raise unreached from error
        if isinstance(error, FileNotFoundError):  # also for datasets that are not public
            raise ConfigError(f"there is no {name}: {reason}", key="data.dataset") from error
        if isinstance(error, ValueError):  # no such subset; the message lists those that exist
            raise ConfigError(f"{name}: {reason}", key="data.subset") from error
        raise DataError(f"{name} cannot be looked up: {reason}") from error
    files: dict[str, Any] = dict(builder.config.data_files or {})
    if config.split not in files:
        raise ConfigError(
            f"{config.dataset!r} has no split {config.split!r}; it has: {', '.join(map(str, files))}",
            key="data.split",
        )
    return tuple(map(str, files[config.split]))
