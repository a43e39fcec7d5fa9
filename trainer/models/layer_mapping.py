"""Which layer of a teacher answers to which of a student that may be shallower. Pure.

Used by `stages.depth`, which keeps those layers, and by `stages.layerwise`, which compares their outputs.
"""

from __future__ import annotations


def matched_layers(student: int, teacher: int) -> tuple[int, ...]:
    """For each of the student's layers the zero-based index of the teacher's.

    First goes with first, last with last, and the others are spread evenly between, each to the nearest (the
    later one of two): the "maximally spaced" layers of Distil-Whisper, arXiv:2311.00430. A student of one
    layer has the teacher's last. For equal depths it is the identity; no layer is used twice.

    Raises:
        ValueError: there is no layer, or the student has more than the teacher.
    """
    if not 1 <= student <= teacher:
        raise ValueError(f"{student} layers cannot be matched with {teacher}")
    if student == 1:
        return (teacher - 1,)
    gaps = student - 1
    # Rounded in whole numbers: index·(teacher - 1)/gaps, halves up.
    return tuple((2 * index * (teacher - 1) + gaps) // (2 * gaps) for index in range(student))
