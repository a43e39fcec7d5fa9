"""A teacher's predictions, computed once and stored, so that Stage 3 can be trained without running it."""
