"""Programs of trials: the trainer, a command line, or a Python function; their processes and results."""
