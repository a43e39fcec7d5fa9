"""Checkpoints: a run that was ended at any step goes on from the newest, here or on another machine.

state.py             what a part of a run says of itself (`Stateful`)
parts.py, optimizer_state.py    the parts that torch owns
keep.py              what the loop and the pipeline see of checkpoints (`CheckpointPolicy`)
checkpoints.py       the real `CheckpointPolicy`: when to save, what to restore
host.py, background.py, write.py    a copy in the host's memory, and its way to the disk
find.py, read.py     the newest that is whole, and its way back
document.py, layout.py    what a checkpoint is on the disk
pin.py               the configuration that a run's folder goes with
"""
