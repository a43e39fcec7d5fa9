"""Imports of every run, loaded once where `runs` forks from: eighty runs would spend ten minutes on them."""

import importlib

from trainer.devices.environment import before_torch

before_torch()
for name in (
    "trainer.checkpoint.checkpoints",
    "trainer.pipeline",
    "trainer.models.student_folder",
    "trainer.telemetry",
    "transformers.models.llama.modeling_llama",
):
    importlib.import_module(name)
