"""Samples of a finished student, and hooks that score it (docs/evaluation.md)."""
