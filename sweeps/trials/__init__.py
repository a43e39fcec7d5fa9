"""The life of a trial: its record, the pure lifecycle, the records in a store, leases, control, budget."""
