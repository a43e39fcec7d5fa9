"""One run on several devices: a process for each, started by torchrun or by `launch`.

launched.py   what the launcher says in the environment, checked against the configuration; without torch
ranks.py      the processes of a run, and what they agree on (`Ranks`)
sharing.py    how they share the training of one model: alone, DDP or FSDP2 (`ParallelStrategy`)
whole.py      tensors of which each process has a part
launch.py     `python -m trainer.distributed.launch N …`: N processes here, and the run's own exit status
"""
