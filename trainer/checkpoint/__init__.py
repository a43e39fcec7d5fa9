"""Checkpoints: a run that ended at any step resumes from the newest, here or on another machine.

state.py             the state of one part of a run (`Stateful`)
parts.py             the parts that torch owns
policy.py            the interface for the loop and the pipeline (`CheckpointPolicy`)
checkpoints.py       the real `CheckpointPolicy`: when to save, what to restore
sharded.py           files of which each process writes its own
writer.py            a copy in host memory, and its way to the disk
manifest.py, layout.py    the format on the disk, and the newest intact checkpoint
stage_snapshot.py    finished stages, which other runs start from
run_folder.py        the configuration and the files of a run's folder
"""
