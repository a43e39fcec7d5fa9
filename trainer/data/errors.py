"""What goes wrong with training text. Raised by `trainer.data`, caught at the trainer's door.

DataError
├── TokenizerError
└── MissingError
"""

from __future__ import annotations

from trainer.errors import TrainerError


class DataError(TrainerError):
    """The text, its tokenizer or a request for batches of it does not work out."""


class TokenizerError(DataError):
    """There is no tokenizer of that name, or it cannot be used."""


class MissingError(DataError):
    """There is no file or folder of that name, or nothing that could open it."""
