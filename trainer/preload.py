"""Imports of a run, done before there is one: a sweep's worker forks its trials from a process that has them.

`sweeps.programs.fork_server` calls these functions by the module's name. The process that imports opens no
device and starts no thread, since neither survives a fork; the forked one runs `python -m trainer`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from trainer.config import Config
from trainer.config.compose import compose_config
from trainer.devices.environment import before_torch
from trainer.distributed import tpu_host
from trainer.errors import TrainerError


def preload(overrides: Sequence[str]) -> str:
    """Import what runs of these overrides import, and return why they cannot be forked; "" if they can.

    Args:
        overrides: of Hydra, which the runs have in common; others may complete them.
    """
    config = _config(overrides)
    try:
        if tpu_host.uses_xla(config.device.type):
            return "XLA's devices do not survive a fork"
        before_torch()
        _import_all()
        from trainer.models.causal_lm import import_architectures

        import_architectures(config.model)
        _compile_renamings()
    except TrainerError as error:  # as each run is about to report itself
        return str(error)
    return "one of its imports opens a CUDA device" if _has_opened_cuda() else ""


def data_files() -> list[Path]:
    """Return the files besides modules whose contents this process keeps: those of the configuration."""
    return sorted(Path(str(files("trainer.conf"))).rglob("*.yaml"))


def must_start_cold(overrides: Sequence[str]) -> bool:
    """Return whether the forked process must begin with its imports after all; prepare it if not."""
    import numpy as np

    np.random.seed()  # else all forked processes go on from one state; Python's own does that by itself
    try:
        uses_xla = tpu_host.uses_xla(compose_config(overrides).device.type)
    except TrainerError:  # as the run is about to report itself
        return False
    return uses_xla or _has_opened_cuda()


def _config(overrides: Sequence[str]) -> Config:
    """Return the configuration of these overrides; the default one if they are not valid without others."""
    try:
        return compose_config(overrides)
    except TrainerError:
        return compose_config(())


def _import_all() -> None:
    """Import what `__main__` and the phases of a run import by themselves, each when it comes to it."""
    import trainer.api
    import trainer.checkpoint.run_folder
    import trainer.data.inputs
    import trainer.data.memory
    import trainer.data.tokenizer
    import trainer.devices.background_calls
    import trainer.distributed.ranks
    import trainer.outcome
    import trainer.pipeline
    import trainer.preflight.batch_size_search
    import trainer.preflight.oom
    import trainer.preflight.preflight
    import trainer.stages.teacher
    import trainer.telemetry.run
    import trainer.training.preemption  # noqa: F401 - for their effect


def _compile_renamings() -> None:
    """Have transformers compile its patterns of renamed weights: 0.1 s of a process's first load."""
    with suppress(ImportError):
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping("llama")


def _has_opened_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and (torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork())
