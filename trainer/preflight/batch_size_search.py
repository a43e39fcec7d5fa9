"""Search for the largest micro-batch of each stage that fits, for `device.auto_micro_batch`.

The estimate gives a first size; a GPU then tries a real step, and smaller ones if that runs out of memory. A
CPU does not: its kernel would kill the process. Nor do processes that are to share a run by FSDP, which have
not joined yet. Results are remembered per device, model, sequence length and stage in the cache that workers
of a machine share. Called by `__main__`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json

from sweeps.text.atomic_file import atomic_write
from sweeps.text.regular_file import read_regular
from trainer.cache import cache_root
from trainer.config import Config
from trainer.devices.device import Device
from trainer.distributed.launched import ALONE, Launched
from trainer.distributed.ranks import Ranks
from trainer.errors import ConfigError, TrainerError
from trainer.preflight import fitting, trace
from trainer.preflight.memory import (
    average_bytes,
    memory_upper_bound,
    optimizer_memory,
    stages,
    student_dimensions,
    trained_dimensions,
)
from trainer.preflight.oom import is_out_of_memory
from trainer.preflight.preflight import joined_ranks, per_process
from trainer.preflight.trace import Blueprint, Stage, blueprint

KIND = "micro_batches"
_USABLE = 0.9  # of the memory: the estimate counts tensors, and not what libraries take


def with_micro_batches(
    config: Config, device: Device, *, processes: int = 1, launch: Launched = ALONE
) -> Config:
    """Return the configuration with a micro-batch for every stage without one, if it asks for that.

    Each divides a process's part of `batch_size`, so the effective batch stays. Where none fits it is 1,
    which the preflight check then refuses.

    Args:
        processes: that share each batch.
        launch: this process among all that share the run. Where FSDP is to share it among processes whose
            number is not known, or among a TPU's chips, there is no estimate and no search.

    Raises:
        ConfigError: the model's architecture cannot be read, or a step of it not be tried.
    """
    sharded = config.device.parallel == "fsdp"
    if not config.device.auto_micro_batch or (sharded and (device.kind == "xla" or launch is ALONE)):
        return config
    device = dataclasses.replace(device, ranks=joined_ranks(config, device, launch))
    own = per_process(config, processes)
    found: dict[str, Any] = {}
    try:
        plan = blueprint(own, device)
        for name, stage in stages(own):
            if stage.micro_batch_size is None:
                size = _micro_batch(own, name, stage, plan, device, launch)
                found[name] = dataclasses.replace(getattr(config, name), micro_batch_size=size)
    except TrainerError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"no micro-batch could be found ({reason}); write false, and a stage's micro_batch_size yourself",
            key="device.auto_micro_batch",
        ) from error
    return dataclasses.replace(config, **found)


def agree(config: Config, ranks: Ranks) -> Config:
    """Return the configuration with the smallest of the micro-batches that the joined processes have found.

    With FSDP all must run the model equally often, and the memory of one may be fuller.
    """
    if not config.device.auto_micro_batch or ranks.alone:
        return config
    sizes = {name: stage.micro_batch_size for name, stage in stages(config) if stage.micro_batch_size}
    smallest: dict[str, Any] = {
        name: dataclasses.replace(getattr(config, name), micro_batch_size=-int(ranks.all_reduce_max(-size)))
        for name, size in sizes.items()
    }
    return dataclasses.replace(config, **smallest)


def cache_file(config: Config, stage: Stage, plan: Blueprint, device: Device) -> Path:
    """Return the file of a stage's micro-batch, named by a hash of all that decides it but free memory."""
    text = json.dumps(_spec(config, stage, plan, device), sort_keys=True)
    return cache_root() / KIND / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _micro_batch(
    config: Config, name: str, stage: Stage, plan: Blueprint, device: Device, launch: Launched
) -> int:
    """Return the remembered micro-batch, or search for one and remember it."""
    path = cache_file(config, stage, plan, device)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # a damaged file is searched anew
        size = from_json(read_regular(path))["micro_batch_size"]
        if isinstance(size, int) and 0 < size <= stage.batch_size and stage.batch_size % size == 0:
            return size
    free = fitting.memory_limit(config, device, launch)
    if free is None or 2 * memory_upper_bound(config, plan.dimensions) <= free:
        size = stage.batch_size
    else:
        free = int(_USABLE * free)
        tries = device.kind == "cuda" and device.ranks.parallel != "fsdp"
        # What the compiler may save of activations counts only where a step is tried.
        planned = device if tries else dataclasses.replace(device, compile=False)
        size = fitting.largest_micro_batch(config, name, plan, planned, free=free) or device.chips
        while tries and size > 1 and not survives(config, stage, plan, device, size):
            size = max(each for each in range(1, size) if stage.batch_size % each == 0)
    document = {"micro_batch_size": size, "spec": _spec(config, stage, plan, device)}
    with contextlib.suppress(OSError):  # if the cache is not writable, the next run searches again
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return size


def survives(config: Config, stage: Stage, plan: Blueprint, device: Device, micro_batch: int) -> bool:
    """Return whether a step of models with random weights, and what lasts between steps, fit there."""
    student = student_dimensions(config, plan.dimensions)
    lasting = optimizer_memory(trained_dimensions(stage, student), stage.optimizer).state
    if _is_averaged(config, stage):
        lasting += average_bytes(config, student)
    try:
        with torch.random.fork_rng(devices=[]), device.torch_device:
            _step_beside(lasting, config, stage, plan, device, micro_batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        if device.kind == "cuda":
            torch.cuda.empty_cache()
    return True


def _step_beside(
    lasting: int, config: Config, stage: Stage, plan: Blueprint, device: Device, micro_batch: int
) -> None:
    """Compute a step beside so many bytes.

    They are in this frame, not the caller's, which would hold them while it empties the allocator's cache.
    """
    reserved = torch.empty(lasting, dtype=torch.uint8)
    trace.step_once(config, stage, plan, device, micro_batch=micro_batch)
    del reserved


def _is_averaged(config: Config, stage: Stage) -> bool:
    return config.averaged_stage is not None and getattr(config, config.averaged_stage) == stage


def _spec(config: Config, stage: Stage, plan: Blueprint, device: Device) -> dict[str, Any]:
    ignored = ("max_steps", "micro_batch_size", "schedule")
    return {
        "device": device.name,
        "chips": device.chips,
        "processes": [device.ranks.parallel, device.ranks.world, device.ranks.tensor],
        "dtype": str(device.dtype),
        "compile": device.compile,
        "recompute": device.recompute,
        "hold_weights": device.hold_weights,
        "teacher": device.teacher,
        "memory_target_gib": config.device.memory_target_gib,
        "model": asdict(plan.dimensions),
        "master_dtype": config.model.master_dtype,
        "sequence_length": config.data.sequence_length,
        "document_masks": config.data.document_masks,
        "quant": asdict(config.quant),
        "stage1": asdict(config.stage1),
        "stage": {
            "name": type(stage).__name__,
            **{key: value for key, value in asdict(stage).items() if key not in ignored},
            "optimizer": stage.optimizer.type,
            "stochastic_rounding": stage.optimizer.stochastic_rounding,
            "average": _is_averaged(config, stage),
        },
        "torch": torch.__version__,
    }
