"""A small run whose Stage 3 learns from a cache, and the builder of that cache in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cached_runs import ON, Make, Prepared, cached
from omegaconf import OmegaConf
from torch import nn

from trainer.api import check
from trainer.config import Config
from trainer.config.compose import compose_tree, validate
from trainer.config.distill import cache_request
from trainer.data.inputs import prepare_inputs
from trainer.devices.device import open_device
from trainer.stages.teacher import prepare_teacher
from trainer.teachers.cached.build import BuildResult, build
from trainer.training.preemption import StopSignal


@pytest.fixture(scope="session")
def prepared(small: tuple[str, ...], cache_folder: Path) -> Prepared:
    """Text and teacher of all runs here, which depend on neither K nor the number of steps."""
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setenv("STAGESWEEP_CACHE", str(cache_folder))
        config = check([*small, *ON])
        inputs, device = prepare_inputs(config), open_device(config.device)
        teacher = prepare_teacher(config, inputs, device=device, stop=StopSignal(), progress=lambda *_: None)
        return Prepared(corpus=inputs.corpus, teacher=teacher)


@pytest.fixture(scope="session")
def composed(small: tuple[str, ...]) -> Any:
    """The configuration of a small run with a cache as plain values: Hydra takes longer than the tests."""
    return OmegaConf.to_container(compose_tree([*small, *cached("nowhere")]), resolve=True)


@pytest.fixture
def configured(composed: Any) -> Callable[..., Config]:
    """The validated configuration of a small run with a cache and further overrides."""

    def configured(*overrides: str) -> Config:
        tree = OmegaConf.create(copy.deepcopy(composed))
        for override in overrides:
            key, _, value = override.partition("=")
            if "/" not in key:  # the group is chosen already
                OmegaConf.update(tree, key, yaml.safe_load(value))
        return validate(OmegaConf.to_container(tree))

    return configured


@pytest.fixture
def make(prepared: Prepared, configured: Callable[..., Config]) -> Make:
    """Build the cache for a run with those overrides; with a model, the anchor's."""

    def make(*overrides: str, model: nn.Module | None = None, **more: Any) -> BuildResult:
        config = configured(*overrides)
        more.setdefault("notify", lambda fraction: None)
        return build(
            config,
            prepared.corpus,
            model or prepared.teacher,
            cache_request(config.stage3, anchor=model is not None),
            device=open_device(config.device),
            stop=StopSignal(),
            **more,
        )

    return make
