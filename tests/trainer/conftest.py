"""Fixtures for tests of the trainer: a configuration whose whole run takes less than a second, and a shared cache."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import Config
    from trainer.outcome import Outcome

SMALL = (
    "model.hidden_size=32", "model.intermediate_size=48", "model.layers=2", "model.heads=2",
    "model.teacher.max_steps=4", "model.teacher.batch_size=4", "model.teacher.schedule.warmup_steps=1",
    "data.max_bytes=300000", "data.held_out_fraction=0.2", "data.vocab_size=300",
    "data.sequence_length=16", "stage1.calibration_batches=1", "stage1_9.max_steps=6",
    "stage1_9.batch_size=4", "stage1_9.schedule.warmup_steps=1", "stage2.max_steps=6",
    "stage2.batch_size=4", "stage2.schedule.warmup_steps=1", "stage2.lambda_warmup.warmup_steps=3",
    "eval.batches=2", "eval.batch_size=4", "eval.at=[]", "samples.enabled=false", "device=cpu",
    "device.threads=1", "log_every=1",
)  # fmt: skip


@pytest.fixture(scope="session")
def remembered(session_folder: Path) -> Callable[[str, Callable[[], str]], str]:
    """Return `remembered(name, compute)`: what `compute` returned in the first worker that asked for this name.

    For results of deterministic runs that many tests compare with.
    """
    folder = session_folder / "remembered"
    folder.mkdir(exist_ok=True)

    def remembered(name: str, compute: Callable[[], str]) -> str:
        file = folder / hashlib.sha256(name.encode()).hexdigest()
        if not file.exists():
            temporary = folder / uuid.uuid4().hex
            temporary.write_text(compute(), encoding="utf-8")
            temporary.rename(file)
        return file.read_text(encoding="utf-8")

    return remembered


@pytest.fixture(autouse=True)
def _own_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(cache_folder))


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Return the overrides of a run of a fraction of a second."""
    return SMALL


@pytest.fixture
def run_config(tmp_path: Path) -> Callable[[Config], Outcome]:
    """Return a function that prepares a configuration's inputs and runs the pipeline, in this process."""
    from trainer import pipeline
    from trainer.api import METRICS_FILE
    from trainer.data.inputs import prepare_inputs
    from trainer.devices.device import open_device
    from trainer.stages import teacher
    from trainer.telemetry.run import Telemetry
    from trainer.training.context import StageContext

    def run_config(config: Config) -> Outcome:
        context = StageContext(device=open_device(config.device))
        with Telemetry(tmp_path / METRICS_FILE, every=config.log_every, out=None) as telemetry:
            inputs = prepare_inputs(config)
            prepared = teacher.prepare_teacher(
                config, inputs, device=context.device, stop=context.stop, progress=lambda *_: None
            )
            return pipeline.run(config, inputs, prepared, context, telemetry)

    return run_config


@pytest.fixture
def run_small(small: tuple[str, ...], run_config: Callable[[Config], Outcome]) -> Callable[..., Outcome]:
    """Return a function that runs the pipeline in this process with further overrides."""
    from trainer.api import check

    return lambda *overrides: run_config(check([*small, *overrides]))


@pytest.fixture
def llama() -> Callable[..., nn.Module]:
    """Return a function that makes a Llama; by default 4 query heads of size 8 share 2 key heads."""
    import torch

    def build(**changes: Any) -> nn.Module:
        from transformers.models.llama.configuration_llama import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaForCausalLM

        options = {
            "vocab_size": 50,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 16,
            "tie_word_embeddings": False,
            "attn_implementation": "eager",
            "initializer_range": 0.5,
        }
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**options | changes))

    return build
