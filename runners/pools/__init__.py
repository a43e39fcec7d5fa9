"""Pools of workers on any engine: their description, and the record of what was launched."""
