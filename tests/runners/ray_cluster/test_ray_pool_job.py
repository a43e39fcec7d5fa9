"""The Ray job of a pool, with a stand-in for Ray."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

import runners
from runners.ray_cluster import pool_job


def test_processes_of_tasks_do_not_import_from_the_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ray.init` puts its working folder first on their path: there, a `runners.py` would replace the package."""
    folders: list[Path] = []

    def init(**options: object) -> None:
        folders.append(Path.cwd())
        raise ConnectionError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(ConnectionError):
        pool_job.run(Namespace())
    assert folders == [Path(runners.__file__).parents[1]]
    assert Path.cwd() == tmp_path
