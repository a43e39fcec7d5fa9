"""The public interface for other programs: check, command, prepare, stage_costs, stage_keys, and others.

Importing this module loads neither torch nor transformers; only `prepare` does, when it is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from trainer.config import Config
from trainer.config.stage_key import StageTrunk
from trainer.devices import tpu_versions
from trainer.devices.environment import before_torch
from trainer.devices.tpu_versions import Misfit
from trainer.distributed import launched
from trainer.distributed.launched import Launched
from trainer.errors import EXIT_CONFIG, EXIT_DIVERGED, EXIT_DONE, EXIT_FAILED, EXIT_PREEMPTED, ConfigError
from trainer.layout import (
    HEARTBEAT_FILE,
    MEMORY_FILE,
    METRICS,
    METRICS_FILE,
    MODEL_FOLDER,
    RESULT_FILE,
    Prepared,
    Progress,
)
from trainer.result import code_version, version

__all__ = [
    "EXIT_CONFIG",
    "EXIT_DIVERGED",
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_PREEMPTED",
    "HEARTBEAT_FILE",
    "MEMORY_FILE",
    "METRICS",
    "METRICS_FILE",
    "MODEL_FOLDER",
    "RESULT_FILE",
    "Composition",
    "Config",
    "ConfigError",
    "Misfit",
    "Prepared",
    "Progress",
    "StageTrunk",
    "check",
    "command",
    "prepare",
    "stage_costs",
    "stage_keys",
    "stage_trunks",
    "tpu_misfits",
]

_COMPUTING = ("torch", "transformers")  # the libraries that compute a student's weights


def check(overrides: Sequence[str], *, processes: int | None = None) -> Config:
    """Compose and validate a configuration, without computing anything.

    Args:
        overrides: of Hydra, as on the command line; `force=true` accepts what is only unwise.
        processes: how many the run will be started with; None: not known yet.

    Raises:
        ConfigError: a line for each wrong setting, with its key and the nearest valid one; `errors` has them
            one by one.
    """
    composition = Composition(overrides)
    composition.check(processes=processes)
    return composition.config


def command(
    overrides: Sequence[str], run_dir: str | os.PathLike[str], *, processes: int = 1, host: str = ""
) -> list[str]:
    """Return the argument vector of a run, which imports nothing from the working folder by accident (`-P`).

    Args:
        run_dir: the folder that the run writes into; quoted as Hydra reads it.
        processes: of this machine that share the run.
        host: this machine among those that share the run, as RANK/HOSTS@ADDRESS:PORT; "" where it is alone.
    """
    program = ["trainer"]
    if processes > 1 or host:
        program = ["trainer.distributed.launch", str(processes), *(["--host", host] if host else [])]
    return [sys.executable, "-P", "-m", *program, *_texts(overrides), f"run_dir={quote(os.fspath(run_dir))}"]


def _texts(overrides: object) -> list[str]:
    """Return the overrides as a list. Raises ConfigError, for a single text too: it is a list of letters."""
    texts: list[Any] = (
        [*overrides]
        if isinstance(overrides, Iterable) and not isinstance(overrides, str | Mapping)
        else [None]
    )
    if not all(isinstance(each, str) for each in texts):
        raise ConfigError(f"the overrides are {overrides!r:.80}; give a list of texts, such as ['seed=1']")
    return texts


def quote(text: str) -> str:
    """Return `text` as a Hydra value that is parsed back to exactly `text`, whatever characters it has."""
    from hydra.core.override_parser.types import Quote, QuotedString

    # OmegaConf looks for interpolations after Hydra has unquoted: ${ must reach it escaped.
    # The backslashes before one are doubled with it.
    *pieces, last = text.split("${")
    escaped = "\\${".join([*(p + "\\" * (len(p) - len(p.rstrip("\\"))) for p in pieces), last])
    return QuotedString(text=escaped, quote=Quote.single).with_quotes()


def prepare(overrides: Sequence[str], progress: Progress | None = None) -> Prepared:
    """Build corpus, tokenizer and teacher into the cache, where they are not there yet.

    May be called by several processes at once. Raises TrainerError.
    """
    config = check(overrides)
    before_torch()
    from trainer.stages.teacher import prepare_all

    return prepare_all(config, progress or (lambda message, fraction: None))


class Composition:
    """Configuration that is composed once, and what follows from it without computing anything.

    Raises:
        ConfigError: as `check`.
    """

    def __init__(self, overrides: Sequence[str]) -> None:
        from trainer.config.compose import compose_config

        self._overrides = _texts(overrides)
        self.config = compose_config(self._overrides)

    def check(self, *, processes: int | None = None) -> None:
        """Refuse what `check` refuses. Raises ConfigError."""
        from trainer.config import long_runs

        long_runs.refuse(long_runs.refusals(self.config), force=self.config.force)
        if processes is not None:
            alone = processes == 1
            launched.check(self.config, None if alone else Launched(rank=0, world=processes, local_rank=0))

    def stage_costs(self) -> dict[str, tuple[int, int]]:
        """Return of each stage, in order, the effective steps that one step counts for, and its steps."""
        from trainer.config.run import step_weights

        return {
            name: (weight, getattr(self.config, name).max_steps)
            for name, weight in step_weights(self.config).items()
        }

    def stage_keys(self) -> dict[str, str]:
        """Return the key of the end of each stage whose weights runs can share, by the stage's name.

        Runs of one key have the same weights there, to rounding on different meshes. It is the same on all
        machines that have the same versions of this code and of the libraries; docs/explanation/sharing.md
        says what it depends on.

        Returns:
            64 hexadecimal digits for `stage1_9`; nothing where `stage1_9.max_steps` is 0.
        """
        from trainer.config import stage_key
        from trainer.config.compose import keys

        return stage_key.stage_keys(self.config, keys(self._overrides), _versions())

    def stage_trunks(self) -> dict[str, StageTrunk]:
        """Return the part of each stage that runs of other lengths share with this one, by the stage's name.

        Returns:
            key and length of the trunk; none for a stage without steps, or one that differs from its first
            step on between lengths.
        """
        from trainer.config import stage_key
        from trainer.config.compose import keys

        return stage_key.stage_trunks(self.config, keys(self._overrides), _versions())


def stage_costs(overrides: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return `Composition.stage_costs` of these overrides. Raises ConfigError."""
    return Composition(overrides).stage_costs()


def stage_keys(overrides: Sequence[str]) -> dict[str, str]:
    """Return `Composition.stage_keys` of these overrides. Raises ConfigError."""
    return Composition(overrides).stage_keys()


def stage_trunks(overrides: Sequence[str]) -> dict[str, StageTrunk]:
    """Return `Composition.stage_trunks` of these overrides. Raises ConfigError."""
    return Composition(overrides).stage_trunks()


def tpu_misfits(*, tpu: bool) -> list[Misfit]:
    """Return the installed versions that do not go together for `device=xla`.

    Args:
        tpu: on a TPU; otherwise on XLA's own CPU device.
    """
    return tpu_versions.misfits(tpu_versions.installed(), tpu=tpu)


def _versions() -> dict[str, str]:
    """Return the versions of the code and of the libraries that compute weights."""
    return {"trainer": code_version(), **{name: _version(name) for name in _COMPUTING}}


def _version(package: str) -> str:
    try:
        return version(package)
    except metadata.PackageNotFoundError:  # no run starts here then, but who only asks for keys gets them
        return ""
