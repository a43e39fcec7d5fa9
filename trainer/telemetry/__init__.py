"""Telemetry of a run while it trains. `__main__` builds a `Telemetry`, `pipeline` feeds it.

run.py         `Telemetry`, the interface to all of it
line.py        a line of metrics.jsonl: numbers of the steps since the last one
heartbeat.py   heartbeat.json: the present phase of the run, written by a thread of its own
health.py      checks of the numbers: plateau, throughput, memory
tensorboard.py, wandb_run.py   trackers
"""
