"""Trials as a table, and in the formats of other tools."""
