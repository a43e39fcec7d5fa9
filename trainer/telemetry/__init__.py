"""What a run tells while it trains. `__main__` builds a `Telemetry`, `pipeline` feeds it.

run.py         the one object that all of it stands behind
line.py        a line of metrics.jsonl: numbers of the steps since the last one
heartbeat.py   heartbeat.json: what the run is doing right now, told by a thread of its own
health.py      whether the numbers look well: plateau, throughput, memory
channels.py    where else it is shown: tensorboard.py, wandb_run.py
"""

from __future__ import annotations

from trainer.telemetry.heartbeat import Heartbeat
from trainer.telemetry.run import Channel, Telemetry

__all__ = ["Channel", "Heartbeat", "Telemetry"]
