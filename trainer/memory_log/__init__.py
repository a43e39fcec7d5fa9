"""`memory.jsonl`: memory at each point of a run. Off unless `memory_log.level` sets its detail.

log.py        the points at which a line is written
estimates.py  upper bounds for attention and logits, from their shapes
hlo.py        sizes of a graph, from its text
"""
