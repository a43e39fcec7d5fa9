"""`memory.jsonl`: what memory a run takes, and when. Off unless `memory_log.level` says how much is told.

log.py        the points at which a line is written
estimates.py  what attention and logits take at most, from their shapes
hlo.py        what a compiled graph says of itself
"""
