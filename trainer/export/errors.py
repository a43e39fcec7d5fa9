"""The one error of an export."""

from __future__ import annotations

from trainer.errors import TrainerError


class ExportError(TrainerError):
    """A checkpoint was not written, or is not what it should be."""
