"""`python -m trainer.export RUN_DIR OUT`: a finished student as a checkpoint of transformers.

target.py       the class of transformers that computes what the student computes, or source code of one
tensors.py      the student's weights under that class's names, in one of three forms
checkpoint.py   the folder, written and read back
gguf_file.py    a file for llama.cpp instead
"""

from trainer.errors import TrainerError


class ExportError(TrainerError):
    """A checkpoint that could not be written, or does not compute what the student does."""
