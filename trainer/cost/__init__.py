"""Costs of a run: floating-point operations, peak rates of devices, dollars."""
