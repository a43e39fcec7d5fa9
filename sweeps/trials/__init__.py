"""Trials: their records and lifecycle, the records in a store, leases, control, budget."""
