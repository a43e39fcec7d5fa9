"""Pools of workers of a sweep: where their files lie, and the sweep's URL as their workers need it."""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from sweeps.experiment import Experiment
from sweeps.storage.urls import is_remote, local_path


@dataclass(frozen=True)
class Place:
    """Location of a sweep."""

    url: str
    name: str


def place_of(experiment: Experiment) -> Place:
    """Return where the sweep is."""
    return Place(experiment.store.url, experiment.space.name)


def storage_url(place: Place, runner: str) -> str:
    """Return the sweep's URL for the workers; a folder's path is absolute, as engines start them anywhere."""
    url = place.url
    return url if runner == "local" or is_remote(url) else str(Path(local_path(url)).absolute())


def folder(place: Place, runner: str) -> Path:
    """Return the folder of a pool's files: in the sweep's folder, or in ./sweep-logs if that is a bucket.

    A local pool's folder has the machine's name, since machines may share the sweep's folder. One of a bucket
    has a part of the URL's digest: other buckets may have sweeps of the same name.
    """
    if is_remote(place.url):
        digest = hashlib.sha256(place.url.encode()).hexdigest()[:8]
        return _below(Path("sweep-logs") / f"{place.name}-{digest}", runner)
    return _below(Path(local_path(place.url)) / "logs", runner)


def former_folder(place: Place, runner: str) -> Path | None:
    """Return where earlier versions kept them, for sweeps of this name in any bucket; None: nowhere else."""
    return _below(Path("sweep-logs") / place.name, runner) if is_remote(place.url) else None


def _below(logs: Path, runner: str) -> Path:
    host = re.sub(r"[^\w.-]", "_", platform.node()) or "here"
    return (logs / (host if runner == "local" else f"{runner}-pool")).absolute()
