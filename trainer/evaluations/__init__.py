"""Samples of a finished student, and hooks that score it (docs/how-to/evaluation.md)."""
