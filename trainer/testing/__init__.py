"""What shows that two ways to compute the same training do. Used by tests and benchmarks, by no run."""
