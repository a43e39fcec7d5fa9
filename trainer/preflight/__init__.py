"""Preflight check: estimates of memory, disk, time and money before any compute. Called by `__main__`."""
