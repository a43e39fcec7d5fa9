"""Search space: its file, its parameters and constraints, its configurations."""
