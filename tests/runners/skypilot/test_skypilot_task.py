"""The task of a worker: what its shell runs, and which pools are refused. SkyPilot's own word is in tests/with_skypilot."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import golden_messages
import yaml
from runners_pools import PLAIN, WHEEL, plain

from runners.errors import PoolError
from runners.pools.pool import Pool
from runners.skypilot.options import options_of
from runners.skypilot.runner import RUNNER
from runners.skypilot.task import launch, task

HOSTILE = "a 'b' $(touch pwned) `touch pwned`\n--secret X ${HOME} {{x}}"


def of(pool: Pool) -> dict:
    rendered = yaml.safe_load(RUNNER.render(pool)["task.yaml"])
    assert rendered == task(pool, options_of(pool))
    return rendered


def test_run_section_keeps_every_word_of_the_command(tmp_path: Path):
    environment = tmp_path / "stagesweep" / "bin"
    environment.mkdir(parents=True)
    (environment / "python").write_text('#!/bin/bash\nprintf "%s\\0" "$@" "$GREETING" "$SET_UP" > argv\n')
    (environment / "python").chmod(0o755)
    pool = replace(
        plain("skypilot"),
        command=("python", "-m", "sweeps", "worker", "--storage", HOSTILE),
        environment={"GREETING": HOSTILE},
        setup=("export SET_UP=yes",),
        secrets=("HF_TOKEN",),
        grace_s=90.0,
    )
    env = {**os.environ, "HOME": str(tmp_path), "HF_TOKEN": "x"}
    # As SkyPilot does: a file for an interactive bash.
    (tmp_path / "script").write_text(of(pool)["run"])
    ran = subprocess.run(["bash", "-i", "script"], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    words = (tmp_path / "argv").read_text().split("\0")[:-1]
    assert words[:3] == ["-P", "-m", "runners.on_vm"]
    assert words[words.index("--grace") + 1] == "25"  # SkyPilot kills after 30 s
    assert words[words.index("--") + 1 :] == [*pool.command, HOSTILE, "yes"]
    assert not list(tmp_path.rglob("pwned"))

    env.pop("HF_TOKEN")
    ran = subprocess.run(
        ["bash", "script"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert "HF_TOKEN: " in ran.stderr


def test_a_tpu_has_its_image_and_its_versions():
    rendered = of(replace(plain("skypilot"), accelerator="tpu-v5litepod-8"))
    assert rendered["resources"]["accelerators"] == "tpu-v5litepod-8:1"
    assert rendered["resources"]["accelerator_args"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert f"torch==2.9.1 'torch_xla[tpu]==2.9.0' 'libtpu>=0.0.21,<=0.0.23.1' {WHEEL}\n" in rendered["setup"]
    assert "export PJRT_DEVICE=TPU\n" in rendered["run"]
    assert "torch==" not in of(replace(plain("skypilot"), accelerator="A100"))["setup"]


def test_secrets_are_named_and_the_ends_of_a_worker_are_mapped():
    pool = replace(plain("skypilot"), secrets=("A", "B"), spot=True)
    rendered = of(pool)
    assert rendered["secrets"] == {"A": None, "B": None}
    assert rendered["resources"] == {
        "use_spot": True,
        "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [75]},
    }
    assert launch(pool, 7, "task.yaml")[2:] == (
        *("--yes", "--detach-run", "--num-jobs", "7", "--secret", "A", "--secret", "B", "task.yaml"),
    )


CASES = {
    "no package": PLAIN,
    "misspelt": replace(PLAIN, options={"infras": "gcp"}),
    "a number for a word": replace(PLAIN, options={"infra": 8}),
    "no disk": replace(PLAIN, options={"disk_size": 0}),
    "Google's name of a TPU": replace(PLAIN, accelerator="v6e-4"),
    "a TPU of several hosts": replace(PLAIN, accelerator="tpu-v6e-16"),
    "two TPUs": replace(PLAIN, accelerator="tpu-v6e-4", accelerator_count=2),
}


def test_they_are_refused_as_the_page_says():
    calls = {case: partial(RUNNER.render, pool) for case, pool in CASES.items()}
    golden_messages.compare_refusals("Pools of SkyPilot", PoolError, calls)
