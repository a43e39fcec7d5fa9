"""Greedy continuations of fixed prompts: `samples.json` in the run's folder."""

from __future__ import annotations

import json

from sweeps.text.atomic_file import atomic_write
from trainer.evaluations.student import FinishedStudent
from trainer.layout import SAMPLES_FILE

SCHEMA = 1


def write_samples(student: FinishedStudent) -> None:
    """Continue the prompts of the configuration and write them into the run's folder. Raises OSError."""
    asked = student.config.samples
    texts = student.continuations(asked.prompts, asked.tokens)
    samples = [{"prompt": prompt, "text": text} for prompt, text in zip(asked.prompts, texts, strict=True)]
    document = {"schema": SCHEMA, "tokens": asked.tokens, "samples": samples}
    with atomic_write(student.folder / SAMPLES_FILE) as draft:
        draft.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
