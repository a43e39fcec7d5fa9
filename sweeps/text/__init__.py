"""Text and files: JSON, CSV, counts, secrets, control characters, atomic writes."""
