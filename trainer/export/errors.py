"""Error of an export."""

from __future__ import annotations

from trainer.errors import TrainerError


class ExportError(TrainerError):
    """A checkpoint that could not be written, or does not compute what the student does."""
