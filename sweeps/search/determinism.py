"""Contexts for reproducible, silent numerical code: seeds, threads, logging.

torch is imported where it is used: a second of CPU and 200 MB, which random search does without.
"""

from __future__ import annotations

import hashlib
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # ships no types


def stable_seed(*parts: int | str) -> int:
    """Return a number from 0 to 2^32 - 1 that depends on the parts alone, on every machine and Python."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators.

    CUDA's are left alone: forking them would create a CUDA context of some hundred MiB on the trial's device.
    """
    import torch

    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: on many busy ones, matrices of a few hundred rows take 10 to 50 times longer."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _pools().limit(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _pools() -> ThreadpoolController:
    """Return the thread pools of BLAS and OpenMP; finding them walks through all loaded libraries."""
    return ThreadpoolController()


@contextmanager
def silence(logger_name: str) -> Iterator[None]:
    """Drop all warnings, and all messages of the loggers under `logger_name`."""
    logger = logging.getLogger(logger_name)
    propagate, handlers = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [logging.NullHandler()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.propagate, logger.handlers = propagate, handlers
