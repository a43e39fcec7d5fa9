"""Text and files for all packages: JSON, CSV, counts, secrets, control characters, atomic writes, columns.

It imports nothing but the standard library (and pydantic's JSON parser when it parses), and is all that
`trainer`, `runners` and `analysis` may import of `sweeps`.
"""
