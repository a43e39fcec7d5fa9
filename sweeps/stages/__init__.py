"""Stages that trials of a sweep share: keys, checkpoints, and which stay, by the records alone. Pure."""
