"""Sweeps for the tests of diagnosis and repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from memory_store import MemoryStore
from published import put
from upkeep_cases import healthy

from sweeps.experiment import Experiment
from sweeps.space.definition import Space
from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "sweep")


@pytest.fixture
def sweep_in(space: Space) -> Callable[[Store], Experiment]:
    return lambda store: Experiment.create(store, space)


@pytest.fixture
def tended(store: Store, space: Space) -> Experiment:
    """Two completed trials and a pending one, nothing wrong."""
    experiment = Experiment.create(store, space)
    for record in healthy(store.now()):
        put(store, record)
    return experiment
