"""Pools of workers, whichever engine runs them: what was asked for, and what was launched."""
