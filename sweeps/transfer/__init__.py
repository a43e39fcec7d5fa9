"""Stored checkpoints of stages: published, fetched, listed and removed."""
