"""Seeds, threads and silence: each context restores what it changed."""

from __future__ import annotations

import logging
import random
import warnings

import numpy as np
import pytest
import torch

from sweeps.search.determinism import one_thread, seeded, silence, stable_seed


def test_stable_seeds_are_these_numbers_everywhere():
    assert stable_seed(0, 12, "fit") == 881500547  # the first four bytes of SHA-256 of 0/12/fit
    assert stable_seed(0, 12, "gen") != stable_seed(0, 12, "fit")
    assert stable_seed(1, 2) != stable_seed(12)


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_seeded_block_repeats_and_restores_generators():
    with seeded(5):
        first = draw()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = draw()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with seeded(5):
        assert draw() == first
    assert draw() == expected


def test_one_thread_is_one_thread_and_then_as_many_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_silence_drops_warnings_and_one_family_of_loggers_only(caplog: pytest.LogCaptureFixture):
    family, other = logging.getLogger("noisy.child"), logging.getLogger("other")
    with silence("noisy"):
        warnings.warn("dropped", stacklevel=1)
        family.error("dropped")
        other.error("kept")
    family.error("kept as well")
    assert caplog.messages == ["kept", "kept as well"]
    with pytest.raises(UserWarning, match="an error again"):
        warnings.warn("an error again", UserWarning, stacklevel=1)
