"""Fixture of the optimizers' tests: their configurations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from trainer.api import check
from trainer.config import OptimizerConfig

Configure = Callable[..., OptimizerConfig]


@pytest.fixture
def configure() -> Configure:
    """An optimizer's default configuration with fields replaced; `apollo={"rank": 2}` is nested."""

    def configured(kind: str, **changes: Any) -> OptimizerConfig:
        config = check([f"optimizer@stage2.optimizer={kind}"]).stage2.optimizer
        deep = {
            name: dataclasses.replace(getattr(config, name), **change)
            for name, change in changes.items()
            if isinstance(change, dict)
        }
        return dataclasses.replace(config, **{**changes, **deep})

    return configured
