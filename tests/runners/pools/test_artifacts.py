"""Artifacts of every runner, compared with files, the same for the same pool, and without any secret's value.

UPDATE_GOLDEN=1 rewrites the files.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from runners_pools import ENGINES, FULL, PLAIN, URL, plain, suited

from runners.errors import EngineMissing, PoolError
from runners.pools import engines
from runners.pools.engines import EVERYWHERE, check, check_storage, require, runner
from runners.pools.pool import Pool, worker_command
from sweeps.text.installation import install_command

GOLDEN = Path(__file__).parents[2] / "golden" / "runners"
ADDITIONAL: dict[str, dict[str, object]] = {"kubernetes": {"accelerator": "nvidia-tesla-a100"}}
"""Fields that an engine's pool has in its files besides those of `FULL`."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    try:
        require(request.param)
    except EngineMissing as missing:
        pytest.skip(str(missing))
    return request.param


@pytest.mark.parametrize("kind", ["plain", "full"])
def test_what_is_rendered_is_what_the_files_say(engine: str, kind: str) -> None:
    pool = suited(engine, FULL, **ADDITIONAL.get(engine, {})) if kind == "full" else plain(engine)
    artifacts = runner(engine).render(pool)
    folder = GOLDEN / engine / kind
    if os.environ.get("UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in artifacts.items():
            (folder / name).write_text(text, encoding="utf-8")
    assert {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()} == dict(artifacts)


@pytest.mark.parametrize("name", ["local", "slurm", "ray", "kubernetes", "skypilot"])
def test_workers_of_several_hosts_are_rendered_as_the_files_say(name: str) -> None:
    pool = replace(plain(name), nodes=2, workers=2, command=worker_command(URL, python="python3", nodes=2))
    check(runner(name), pool)
    artifacts = runner(name).render(pool)
    folder = GOLDEN / name / "nodes"
    if os.environ.get("UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in artifacts.items():
            (folder / file).write_text(text, encoding="utf-8")
    assert {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()} == dict(artifacts)


@pytest.mark.parametrize(
    ("name", "tpu"), [("kubernetes", "v6e-4"), ("skypilot", "tpu-v6e-4"), ("tpu-vm", "v6e-4")]
)
def test_tpus_of_several_hosts_are_refused(name: str, tpu: str) -> None:
    pool = replace(plain(name), nodes=2, accelerator=tpu)
    with pytest.raises(PoolError, match="TPUs of several hosts") as caught:
        (check(runner(name), pool), runner(name).render(pool))
    assert caught.value.field == "nodes"


def test_a_secrets_value_is_in_no_artifact(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "the-value-of-the-secret")
    artifacts = runner(engine).render(suited(engine, FULL))
    assert all("the-value-of-the-secret" not in text for text in artifacts.values())


def test_a_field_that_the_engine_has_no_use_for_is_refused(engine: str) -> None:
    check(runner(engine), suited(engine, FULL))
    unused = {each.name for each in fields(Pool) if getattr(FULL, each.name) != getattr(PLAIN, each.name)}
    for name in sorted(unused - runner(engine).takes - EVERYWHERE):
        with pytest.raises(PoolError) as caught:
            check(runner(engine), replace(PLAIN, **{name: getattr(FULL, name)}))
        assert caught.value.field == name


def test_invisible_local_folder_is_refused(engine: str) -> None:
    pool = replace(plain(engine), storage="/home/me/sweep-store/toy")
    check_storage(runner(engine), plain(engine))
    if engine in ("local", "slurm", "ray"):
        check_storage(runner(engine), pool)
    else:
        with pytest.raises(PoolError, match=r"workers of [a-z-]+ .*bucket"):
            check_storage(runner(engine), pool)


@pytest.mark.parametrize("name", ENGINES)
def test_every_runner_imports_without_its_engine(name: str) -> None:
    assert runner(name).name == name
    assert runner(name).health().state in ("ready", "unreachable", "missing")


@pytest.mark.parametrize("package", ["no_such_engine", "no_such_package.engine"])
def test_an_engine_that_is_not_installed_is_missed_in_one_line(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(engines.ENGINES, "toy", engines.Engine(module="toy", package=package, extra="toy"))
    with pytest.raises(EngineMissing, match=rf"{package}.*{re.escape(install_command('toy'))}"):
        require("toy")
