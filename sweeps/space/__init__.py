"""The search space: its file, its parameters and constraints, and what may be asked of it."""
