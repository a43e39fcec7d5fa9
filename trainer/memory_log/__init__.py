"""`memory.jsonl`: memory at each point of a run. Off unless `memory_log.level` sets its detail.

log.py        the points at which a line is written
hlo.py        sizes of a graph, from its text
"""
