"""Which host of a gang this is, and where the leader listens. Without network, but for `scontrol`.

The options of `sweep worker` decide, then MASTER_ADDR, MASTER_PORT and NODE_RANK as users of torchrun set
them, then the variables of what starts the same command on every host: Slurm, SkyPilot, Kubernetes, TPUs.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeps.errors import InputError
from sweeps.text.counted import counted

PORT = 29400
"""Default port of a leader: that of torchrun's rendezvous."""

LAST_START = "STAGESWEEP_LAST_START_S"
"""Variable that supervisors set: seconds after a start within which a crash is the last."""

_JOBS = 1000  # jobs of Slurm may share a node: each takes a port by its number
_SCONTROL_S = 20.0
_ADDRESS = re.compile(r"(?:\[([^\[\]\s]+)\]|([^\[\]\s:]+))(?::(\d{1,5}))?")
_BARE_IPV6 = re.compile(r"[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One of the hosts that share a trial.

    Args:
        rank: from 0, which is the leader.
        nodes: number of hosts, at least 2.
        address: of the leader, as the others reach it.
        port: at which it listens.
    """

    rank: int
    nodes: int
    address: str
    port: int


def last_start_s(environment: Mapping[str, str], *, runs_s: float) -> float:
    """Return for how many seconds from now a crash of this worker is its last, as its supervisor gives it up.

    Args:
        runs_s: seconds since it was started.
    """
    try:
        seconds = float(environment.get(LAST_START, "0"))
    except ValueError:
        return 0.0
    return max(0.0, seconds - runs_s) if math.isfinite(seconds) else 0.0


@dataclass(frozen=True, kw_only=True)
class _Starter:
    """Launcher that starts the same command on every host, and the variables that it sets.

    Args:
        nodes: returns the number of hosts; None: it is not said.
        address: returns the leader's address; "" if it is not said.
    """

    name: str
    rank: str
    nodes: Callable[[Mapping[str, str]], int | None]
    address: Callable[[Mapping[str, str]], str]


def find_host(
    nodes: int, environment: Mapping[str, str], *, rank: int | None = None, leader: str | None = None
) -> Host:
    """Return which of `nodes` hosts this is.

    Args:
        rank: as the user gave it; None: by the environment.
        leader: HOST or HOST:PORT, as the user gave it; None: by the environment.

    Raises:
        InputError: rank or address are not known or wrong, or other hosts were started than the trial needs.
    """
    starter = next((each for each in _STARTERS if each.rank in environment), None)
    given = rank is not None or "NODE_RANK" in environment
    if starter is not None and not given:
        started = starter.nodes(environment)
        if started is not None and started != nodes:
            raise InputError(
                f"--nodes {nodes}: {starter.name} started this on {counted(started, 'host')}; start it on "
                f"{nodes} for each worker, or write --nodes {started}"
            )
    if rank is None:
        variable = "NODE_RANK" if starter is None or given else starter.rank
        text = environment.get(variable)
        if text is None:
            raise InputError(
                f"--nodes {nodes}: which of the hosts is this? Say --node-rank 0 on the first one, which the "
                "others reach, and --node-rank 1 and so on there"
            )
        if not text.isdecimal():
            raise InputError(f"{variable} is {text!r}, and not the rank of a host from 0 to {nodes - 1}")
        rank = int(text)
    if not 0 <= rank < nodes:
        raise InputError(f"--node-rank {rank}: the ranks of {nodes} hosts are 0 to {nodes - 1}")
    address, port = _parse(leader) if leader else ("", None)
    if not address and (master := environment.get("MASTER_ADDR")):
        address = master
        if text := environment.get("MASTER_PORT"):
            if not text.isdecimal() or not 0 < int(text) < 65536:
                raise InputError(f"MASTER_PORT is {text!r}, and not a port from 1 to 65535")
            port = int(text)
    if not address and starter is not None:
        address = starter.address(environment)
    if not address:
        raise InputError(
            f"--nodes {nodes}: where is the host of rank 0? Say --leader HOST on all hosts, or set "
            "MASTER_ADDR there"
        )
    job = environment.get("SLURM_JOB_ID", "")
    default = PORT + int(job) % _JOBS if job.isdecimal() else PORT
    return Host(rank=rank, nodes=nodes, address=address, port=port or default)


def _parse(text: str) -> tuple[str, int | None]:
    """Return the host and the port of HOST[:PORT]. Raises `InputError`."""
    if _BARE_IPV6.fullmatch(text):
        return text, None
    found = _ADDRESS.fullmatch(text)
    if found is None or (found[3] and not 0 < int(found[3]) < 65536):
        raise InputError(f"--leader {text!r}: write HOST or HOST:PORT, with a port from 1 to 65535")
    return found[1] or found[2], int(found[3]) if found[3] else None


def _number(variable: str) -> Callable[[Mapping[str, str]], int | None]:
    def read(environment: Mapping[str, str]) -> int | None:
        text = environment.get(variable, "")
        return int(text) if text.isdecimal() else None

    return read


def _first_of_slurm(environment: Mapping[str, str]) -> str:
    """Return the first node of the step: the lists of Slurm are written in brackets, `n[1-3,7]`."""
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if not re.search(r"[\[,]", listed):
        return listed
    try:
        command = ["scontrol", "show", "hostnames", listed]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SCONTROL_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(
            f"scontrol does not say which is the first of the nodes {listed} ({error}); say --leader HOST"
        ) from None
    return ran.stdout.partition("\n")[0].strip()


def _tpu_hosts(environment: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip()]


_STARTERS = (
    _Starter(
        name="Slurm", rank="SLURM_NODEID", nodes=_number("SLURM_STEP_NUM_NODES"), address=_first_of_slurm
    ),
    _Starter(
        name="SkyPilot",
        rank="SKYPILOT_NODE_RANK",
        nodes=_number("SKYPILOT_NUM_NODES"),
        address=lambda environment: environment.get("SKYPILOT_NODE_IPS", "").partition("\n")[0].strip(),
    ),
    _Starter(
        name="the TPU pod",
        rank="TPU_WORKER_ID",
        nodes=lambda environment: len(_tpu_hosts(environment)) or None,
        address=lambda environment: next(iter(_tpu_hosts(environment)), ""),
    ),
    _Starter(
        name="Kubernetes",
        rank="JOB_COMPLETION_INDEX",
        nodes=lambda environment: None,
        address=lambda environment: "",
    ),
)
"""On GKE a pod of a TPU slice has the variables of Kubernetes too: those of the slice come first."""
