"""The teacher's held-out loss, which the trials of a sweep have in common: measured once and cached.

Called by `pipeline`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from pydantic_core import from_json
from torch import Tensor

from sweeps.text.regular_file import read_regular
from trainer.cache import CacheError, artifact
from trainer.config import Config
from trainer.devices.device import Device
from trainer.training.evaluation import HeldOutLoss

FORMAT = 3  # increase it when the same spec would give another loss
_LOSSES = "losses.json"

_log = logging.getLogger(__name__)


def teacher_loss(
    measure: Callable[[], HeldOutLoss],
    config: Config,
    batches: Sequence[Tensor],
    *,
    device: Device,
    dtype: str,
    sha256: Callable[[], str],
) -> HeldOutLoss:
    """Return what `measure` returns, to the bit, from the cache if it was measured there before.

    Runs of several processes measure it themselves, and so do those that cannot write the cache. So does a
    pretrained teacher on an accelerator, which is faster than the digest of its weights.

    Args:
        measure: computes the loss of the teacher on `batches`.
        batches: of token ids [B, T].
        dtype: of the teacher's matrix products.
        sha256: returns the digest of the teacher.

    Raises:
        DivergedError: the loss is not finite.
    """
    if not device.ranks.alone or (config.model.kind == "hf" and device.kind != "cpu"):
        return measure()

    def build(folder: Path) -> None:
        (folder / _LOSSES).write_text(json.dumps(asdict(measure())), encoding="utf-8")

    ids = hashlib.sha256()
    for ids_BT in batches:
        ids.update(json.dumps(list(ids_BT.shape)).encode())
        ids.update(ids_BT.cpu().numpy().tobytes())
    spec = {  # all that the last bit of the loss may depend on
        "format": FORMAT,
        "ids_sha256": ids.hexdigest(),
        "document_masks": config.data.document_masks,
        "device": [device.name, torch.backends.cpu.get_cpu_capability(), asdict(config.device)],
        "threads": torch.get_num_threads(),
        "versions": [torch.__version__, transformers.__version__],
        "dtype": dtype,
        "teacher": sha256(),
    }
    try:
        path = artifact("teacher_losses", spec, build) / _LOSSES
        kept = from_json(read_regular(path))
    except (CacheError, OSError) as error:
        _log.info("the teacher's held-out loss is not kept: %s", error)
        return measure()
    return HeldOutLoss(mean=kept["mean"], by_sequence=tuple(kept["by_sequence"]))
