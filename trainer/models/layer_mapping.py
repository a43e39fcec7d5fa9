"""Mapping from the layers of a student to those of a teacher that may be deeper. Pure.

Used by `models.subln`, which keeps those layers, and by `stages.layerwise`, which compares their outputs.
"""

from __future__ import annotations


def matched_layers(student: int, teacher: int) -> tuple[int, ...]:
    """Return, for each layer of the student, the zero-based index of the teacher's layer.

    First maps to first, last to last, and the others are evenly spaced between, rounded to the nearest layer,
    halves up: the "maximally spaced" layers of Distil-Whisper, arXiv:2311.00430. A student of one layer maps
    to the teacher's last. Equal depths give the identity; no layer is used twice.

    Args:
        student: its number of layers.
        teacher: its number of layers.

    Raises:
        ValueError: `student` is not between 1 and `teacher`.
    """
    if not 1 <= student <= teacher:
        raise ValueError(f"{student} layers cannot be matched with {teacher}")
    if student == 1:
        return (teacher - 1,)
    gaps = student - 1
    # index·(teacher - 1)/gaps in integers, halves up.
    return tuple((2 * index * (teacher - 1) + gaps) // (2 * gaps) for index in range(student))
