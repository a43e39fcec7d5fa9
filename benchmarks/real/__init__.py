"""A real model and real text without a model hub: `python -m benchmarks.real`."""
