"""Checkpoints: a run that ended at any step resumes from the newest, here or on another machine.

state.py             the state of one part of a run (`Stateful`)
parts.py, optimizer_state.py    the parts that torch owns
policy.py            the interface for the loop and the pipeline (`CheckpointPolicy`)
checkpoints.py       the real `CheckpointPolicy`: when to save, what to restore
host_copy.py, background_writer.py, writer.py    a copy in host memory, and its way to the disk
discover.py, reader.py    the newest intact checkpoint, and its way back
manifest.py, layout.py    the format on the disk
stage_snapshot.py    finished stages, which other runs start from
config_pin.py, run_folder.py    the configuration and the files of a run's folder
"""
