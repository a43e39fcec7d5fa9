"""Rendered tasks against SkyPilot itself, offline; `make test-skypilot` runs this in an environment of its own.

It needs no cloud and no account, and does not check that a cloud offers such a machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from runners.pools.pool import Pool, worker_command
from runners.skypilot.runner import RUNNER

sky = pytest.importorskip("sky", reason="make test-skypilot installs it")

GOLDEN = Path(__file__).parents[1] / "golden" / "runners" / "skypilot"
POOL = Pool(
    name="toy",
    storage="gs://bucket/toy",
    folder=Path("logs"),
    workers=2,
    command=worker_command("gs://bucket/toy", python="python"),
    accelerator="tpu-v6e-4",
    spot=True,
    secrets=("HF_TOKEN",),
    options={
        "infra": "gcp",
        "package": "stagesweep[tpu] @ https://example.org/stagesweep-1.0.0-py3-none-any.whl",
        "cpus": "8+",
        "disk_size": 100,
        "file_mounts": {"/data": "gs://bucket/data"},
    },
)


def parse_task(text: str) -> sky.Task:
    document = yaml.safe_load(text)
    values = [(name, "x") for name in document.get("secrets", {})]  # as `--secret NAME` gives them
    return sky.Task.from_yaml_config(document, secrets_overrides=values or None)


@pytest.mark.parametrize("kind", ["plain", "full"])
def test_the_golden_files_are_tasks(kind: str) -> None:
    task = parse_task((GOLDEN / kind / "task.yaml").read_text())
    (resources,) = task.resources
    assert resources.job_recovery["recover_on_exit_codes"] == [75]
    assert resources.use_spot == (kind == "full")


def test_a_spot_tpu_with_every_option_is_one() -> None:
    pool = replace(POOL, options={k: v for k, v in POOL.options.items() if k not in ("file_mounts", "cpus")})
    task = parse_task(RUNNER.render(pool)["task.yaml"])
    (resources,) = task.resources
    assert (resources.accelerators, resources.use_spot) == ({"tpu-v6e-4": 1}, True)
    assert resources.accelerator_args == {"runtime_version": "v2-alpha-tpuv6e"}
    assert set(task.secrets) == {"HF_TOKEN"}


def test_skypilots_schema_catches_a_misspelt_option() -> None:
    clouds = {"any_of": [{"infra": "gcp"}, {"infra": "aws"}]}
    options = {"package": "a.whl", "resources": clouds, "cpus": "8+", "memory": "64+"}
    task = parse_task(RUNNER.render(replace(POOL, accelerator="A100", options=options))["task.yaml"])
    assert len(task.resources) == 2
    misspelt = RUNNER.render(replace(POOL, options={"package": "a.whl", "resources": {"use_spots": True}}))[
        "task.yaml"
    ]
    with pytest.raises(Exception, match="did you mean 'use_spot'"):
        parse_task(misspelt)


def test_the_command_line_takes_what_we_write() -> None:
    from click.testing import CliRunner
    from sky.client.cli.command import cli

    output = CliRunner().invoke(cli, ["jobs", "launch", "--help"]).output
    words = [word for word in RUNNER.render(POOL)["launch.sh"].split() if word.startswith("--")]
    assert "--num-jobs" in words
    assert all(word in output for word in words)
    assert "--output" in CliRunner().invoke(cli, ["jobs", "queue", "--help"]).output
    assert "--no-follow" in CliRunner().invoke(cli, ["jobs", "logs", "--help"]).output
