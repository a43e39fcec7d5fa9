"""Supervision of worker processes on one machine."""
