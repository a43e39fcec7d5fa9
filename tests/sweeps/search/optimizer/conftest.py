"""Few starts for every ask: what the maximum is matters to few tests of the optimizer, which take `all_starts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sweeps.search.optimizer.acquisition import OpenAcquisition


@pytest.fixture(autouse=True, scope="module")
def _few_starts(few_starts: Callable[..., Any]) -> None:
    pass


@pytest.fixture
def all_starts(few_starts: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Maximise acquisition functions as the search does."""
    monkeypatch.setattr(OpenAcquisition, "optimize", few_starts)
