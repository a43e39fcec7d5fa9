"""Trials with stages and stored snapshots, as workers leave them. Tests of several subpackages import it."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace

from sweeps.experiment import Experiment
from sweeps.space.definition import Snapshots, Space, Stage
from sweeps.storage.base import Store
from sweeps.storage.run_files import manifest
from sweeps.storage.run_files.client import Bucket
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.manifest import Stored
from sweeps.storage.run_files.opening import open_client
from sweeps.trials import record as trial
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

FILES = {"stage.json": b"{}", "weights/model.bin": b"w" * 3000}


def staged(space: Space, **limits: float | None) -> Space:
    """The toy space with two stages: `x` is of the first, `n` of the second."""
    stages = (
        Stage(name="first", parameters=("x", "mode"), cost="200"),
        Stage(name="second", parameters=("n",), cost="100"),
    )
    return replace(space, stages=stages, snapshots=Snapshots(**limits))


def key_of(x: float) -> str:
    return hashlib.sha256(repr(x).encode()).hexdigest()


def done(
    index: int,
    x: float,
    loss: float | None = None,
    *,
    of: int | None = None,
    snapshot: bool = True,
    status: str = "completed",
    now: float = 0.0,
) -> Trial:
    """A trial that published the end of its first stage, or started from that of trial `of`."""
    first = StageRun(
        name="first",
        key=key_of(x),
        cost=200.0,
        reused_from=of,
        snapshot=snapshot and of is None,
        seconds=3600.0,
    )
    stages = (first, StageRun(name="second", key="", cost=100.0)) if status != "pending" else ()
    return Trial(
        trial=index,
        status=status,
        parameters={"x": x, "n": 1 + index, "mode": "fast"},
        generator="sobol",
        attempt=0 if status == "pending" else 1,
        metrics={} if loss is None else {"loss": loss},
        worker="w" if status == "running" else None,
        heartbeat=now if status == "running" else None,
        created=now,
        started=None if status == "pending" else now,
        ended=now if status not in ("pending", "running") else None,
        stages=stages,
    )


def with_points(record: Trial, *steps: int) -> Trial:
    """The trial with points of its first stage's trunk that it has published."""
    points = tuple(
        StageRun(
            name="first",
            key=key_of(record.parameters["x"] + step),
            step=step,
            cost=float(step),
            snapshot=True,
        )
        for step in steps
    )
    return replace(record, points=points)


def put(store: Store, record: Trial) -> None:
    """Write the record, over whatever is there."""
    data = trial.encode(record, f"token-{record.trial}")
    key = trial.key(record.trial)
    if any(entry.key == key for entry in store.list(key)):
        store.replace(key, data, store.read(key)[1])
    else:
        store.create(key, data)


def store_files(store: Store, key: str, by: str, files: Mapping[str, bytes] = FILES) -> dict[str, Stored]:
    """Store the files of a snapshot without its manifest; return the entries for that."""
    entries = {}
    for name, data in files.items():
        generation = "0"
        if isinstance(store, Bucket):
            client = open_client(store, f"stages/{key}", Deadline(UploadConfig()))
            with tempfile.TemporaryFile() as file:
                file.write(data)
                file.flush()
                content = manifest.digest(file, len(data))
                generation = client.put(f"{by}/{name}", file, content, replaces="0").generation
        else:
            path = store.folder(f"stages/{key}") / by / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        entries[name] = Stored(
            object=f"{by}/{name}",
            generation=generation,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            md5=base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode(),
            growing=False,
        )
    return entries


def publish(store: Store, key: str, by: str = "000000-1", files: Mapping[str, bytes] = FILES) -> str:
    """Store a complete snapshot and return the version of its manifest."""
    entries = store_files(store, key, by, files)
    return store.create(f"stages/{key}/manifest.json", manifest.encode(entries))


def publish_all(experiment: Experiment) -> None:
    """Store every snapshot that a record has as stored."""
    for record in experiment.trials():
        for run in record.snapshots:
            publish(experiment.store, run.key, f"{record.trial:06d}-{record.attempt}")
