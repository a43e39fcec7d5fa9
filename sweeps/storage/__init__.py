"""Where a sweep's objects live: `base` is the protocol, one module per backend."""
