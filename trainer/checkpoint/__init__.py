"""Checkpoints: a run that was ended at any step goes on from the newest, here or on another machine.

state.py             what a part of a run says of itself (`Stateful`)
parts.py, optimizer_state.py    the parts that torch owns
keep.py              what the loop and the pipeline see of checkpoints (`Keep`)
"""
