"""Which host of a gang this is, from options and from the variables of what has started it."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_messages import compare_refusals

from sweeps.errors import InputError
from sweeps.worker.gang.host import PORT, Host, find_host

SLURM = {
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n7",
    "SLURM_JOB_ID": "12345",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6\n",
}
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t-0.svc,t-1.svc"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "gang-0-0.gang", "MASTER_PORT": "29500"}
TORCHRUN = {"NODE_RANK": "1", "MASTER_ADDR": "node-a", "MASTER_PORT": "1234"}


@pytest.mark.parametrize(
    ("environment", "address", "port"),
    [
        (SLURM, "n7", PORT + 345),  # jobs that share a node have ports of their own
        (SKYPILOT, "10.0.0.5", PORT),
        (TPU, "t-0.svc", PORT),
        (KUBERNETES, "gang-0-0.gang", 29500),
        (TORCHRUN, "node-a", 1234),
        (SLURM | TORCHRUN, "node-a", 1234),
        (KUBERNETES | TPU, "gang-0-0.gang", 29500),
    ],
    ids=["slurm", "skypilot", "tpu", "kubernetes", "torchrun", "torchrun under slurm", "tpu on kubernetes"],
)
def test_environment_says_it(environment: dict[str, str], address: str, port: int) -> None:
    assert find_host(2, environment) == Host(rank=1, nodes=2, address=address, port=port)


@pytest.mark.parametrize(
    ("leader", "address", "port"),
    [("a", "a", PORT), ("a:81", "a", 81), ("[fe80::1]:81", "fe80::1", 81), ("fe80::1", "fe80::1", PORT)],
)
def test_options_come_first(leader: str, address: str, port: int) -> None:
    found = find_host(3, TORCHRUN | SLURM | {"SLURM_JOB_ID": ""}, rank=2, leader=leader)
    assert found == Host(rank=2, nodes=3, address=address, port=port if ":" in leader else found.port)
    assert found.port == port


def test_slurm_expands_its_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$3" = "n[7-8]" ] && printf "n7\\nn8\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_host(2, SLURM | {"SLURM_STEP_NODELIST": "n[7-8]"}).address == "n7"


def test_what_is_wrong_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    listed = SLURM | {"SLURM_STEP_NODELIST": "n[7-8]"}
    compare_refusals(
        "Hosts of a gang",
        InputError,
        {
            "no rank": lambda: find_host(2, {}),
            "no address": lambda: find_host(2, {"NODE_RANK": "1"}),
            "a rank that is no number": lambda: find_host(2, TORCHRUN | {"NODE_RANK": "first"}),
            "--node-rank 2 of 2": lambda: find_host(2, TORCHRUN, rank=2),
            "--node-rank -1": lambda: find_host(2, TORCHRUN, rank=-1),
            "--leader a:b": lambda: find_host(2, {}, rank=0, leader="a:b"),
            "--leader a:70000": lambda: find_host(2, {}, rank=0, leader="a:70000"),
            "MASTER_PORT=x": lambda: find_host(2, TORCHRUN | {"MASTER_PORT": "x"}),
            "--nodes 4 on two nodes of Slurm": lambda: find_host(4, SLURM),
            "Slurm's list, without scontrol": lambda: find_host(2, listed),
        },
    )
