"""What the XLA device does around the steps: where models and compiled graphs go."""

from __future__ import annotations

import copy
import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from stage_runs import SMALL

from trainer.api import check
from trainer.devices.device import open_device
from trainer.models.causal_lm import build_tiny, xla_to_cpu

pytestmark = pytest.mark.xla


def test_tied_weights_stay_tied() -> None:
    config = check([*SMALL, "device=xla"])
    model = build_tiny(config.model, vocab_size=64, sequence_length=16, attention="eager")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    expected = model.get_input_embeddings().weight.detach().clone()
    moved = open_device(config.device).move(model)
    for each in (moved, copy.deepcopy(moved), xla_to_cpu(copy.deepcopy(moved))):
        assert each.get_output_embeddings().weight is each.get_input_embeddings().weight
    assert torch.equal(xla_to_cpu(moved).get_input_embeddings().weight, expected)


def test_compiled_graphs_are_kept_by_machine_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.devices import xla  # only here: the module needs torch_xla, this file is read without it

    kept: list[str] = []
    monkeypatch.setattr("torch_xla._XLAC._xla_computation_cache_is_initialized", lambda: False)
    monkeypatch.setattr("torch_xla.runtime.initialize_cache", kept.append)
    monkeypatch.setattr(xla, "version", lambda name: {"torch_xla": "2.9.0", "libtpu": "0.0.23.1"}[name])
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v6e-4")
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path))
    monkeypatch.delenv("XLA_PERSISTENT_CACHE_PATH", raising=False)
    xla.open_compilation_cache()
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "elsewhere"))
    xla.open_compilation_cache()
    assert kept == [str(tmp_path / "xla" / "TPU-v6e-4-2.9.0-0.0.23.1"), str(tmp_path / "elsewhere")]
    assert all(os.path.isdir(folder) for folder in kept)  # noqa: PTH112 - they are text
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "memory://bucket/xla")
    shared = xla.open_compilation_cache()
    assert kept[-1] == kept[0]
    assert shared
    assert shared.url == "memory://bucket/xla/TPU-v6e-4-2.9.0-0.0.23.1"


def test_its_end_hands_over_what_was_compiled() -> None:
    given: list[float] = []
    device = open_device(check([*SMALL, "device=xla"]).device)
    device.close(3.0)  # nobody shares anything
    dataclasses.replace(device, graphs=SimpleNamespace(close=given.append)).close(3.0)
    assert given == [3.0]
