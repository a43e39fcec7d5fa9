"""Errors of training text. Raised by `trainer.data`, caught by `trainer.__main__` and `trainer.api`.

DataError
├── TokenizerError
└── MissingError
"""

from __future__ import annotations

from trainer.errors import TrainerError


class DataError(TrainerError):
    """Text that cannot be read or is too short, or a request for batches that cannot be met."""


class TokenizerError(DataError):
    """A tokenizer that does not exist or cannot be used."""


class MissingError(DataError):
    """A file or folder that does not exist, or that no installed package can open."""
