"""Text that people and programs give and take: JSON, CSV, counts, secrets, control characters."""
