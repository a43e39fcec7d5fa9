"""Runners start `sweep worker` processes somewhere and never hand out trials: the store does that.

One shape for all: `render` says purely what would be started, `up` starts it, `down` ends it.
"""
