"""What every run imports, loaded once: eighty runs would spend ten minutes on it. The server of `runs` forks
from here."""

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
