"""`data=hub`: which files a dataset of the Hugging Face hub is made of. Called by `shards`.

The package `datasets` knows how a dataset's card, its configurations and its splits name files; the files are
then streamed like any others, from `hf://` at the commit that the revision stands for now. So a dataset has
the same shuffling, the same held-out text and the same resuming as Parquet in a bucket.
"""

from __future__ import annotations

from typing import Any

from trainer.config.data import HubConfig
from trainer.data.errors import DataError
from trainer.errors import ConfigError

_INSTALL = "python -m pip install 'stagesweep[hub]'"


def files_of(config: HubConfig) -> tuple[str, ...]:
    """The files of one split, as paths or URLs.

    Raises:
        ConfigError: the package is not installed, or there is no such dataset, subset or split.
        DataError: the hub does not answer.
    """
    builder = _builder(config, _datasets())
    files: dict[str, Any] = dict(builder.config.data_files or {})
    if config.split not in files:
        raise ConfigError(
            f"{config.dataset!r} has no split {config.split!r}; it has: {', '.join(map(str, files))}",
            key="data.split",
        )
    return tuple(map(str, files[config.split]))


def _datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"reading from the hub takes the package `datasets`, which is not here: {_INSTALL}",
            key="data.name",
        ) from None
    datasets.disable_progress_bars()
    return datasets


def _builder(config: HubConfig, datasets: Any) -> Any:
    what = f"dataset {config.dataset!r}"
    try:
        return datasets.load_dataset_builder(config.dataset, config.subset, revision=config.revision)
    except FileNotFoundError as error:  # also of datasets that are not public
        raise ConfigError(f"there is no {what}: {_told(error)}", key="data.dataset") from error
    except ValueError as error:  # a subset that is not there; its message lists those that are
        raise ConfigError(f"{what}: {_told(error)}", key="data.subset") from error
    except Exception as error:  # the hub's client has dozens of errors
        raise DataError(f"{what} cannot be looked up: {_told(error)}") from error


def _told(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
