"""Comparison of two ways to compute the same training. Used by tests and benchmarks, by no run."""
