"""Stores of a sweep's objects: `base` is the protocol, with one module per backend."""
