"""Micro-batches that processes have found apart: with FSDP they must compute equally many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.api import check
from trainer.distributed.ranks import ALONE, Ranks
from trainer.preflight.batch_size_search import agree

pytestmark = pytest.mark.timeout(600)  # processes that load torch, on a busy machine

AUTO = ("device.auto_micro_batch=true", "stage1_9.batch_size=8", "stage2.batch_size=8")


def agreed() -> tuple[int | None, int | None]:
    """What this process goes on with, of 4 and 2 in the first one, and 2 and 4 in the second."""
    rank = torch.distributed.get_rank()
    config = check(
        [*AUTO, f"stage1_9.micro_batch_size={4 - 2 * rank}", f"stage2.micro_batch_size={2 + 2 * rank}"]
    )
    found = agree(config, Ranks(rank=rank, world=2, parallel="fsdp"))
    return found.stage1_9.micro_batch_size, found.stage2.micro_batch_size


def test_all_take_the_smallest(in_two: Callable[[Callable[[], Any]], list[Any]]) -> None:
    assert in_two(agreed) == [(2, 2), (2, 2)]


def test_one_process_keeps_what_it_has_found() -> None:
    config = check([*AUTO, "stage1_9.micro_batch_size=4"])
    assert agree(config, ALONE) is config
