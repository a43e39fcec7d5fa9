"""One run on several devices: a process for each, started by torchrun or by `launch`.

launched.py   the launcher's environment variables, checked against the configuration; without torch
ranks.py      the processes of a run and their collectives (`Ranks`)
tensors.py    DTensors, gathered and redistributed
tensor_group.py  the processes that each compute a part of the same layers
tpu_host.py   the TPU chips of this machine
launch.py     `python -m trainer.distributed.launch N …`: N processes here, and the run's own exit status
"""
