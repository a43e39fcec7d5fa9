"""Slurm cluster of three virtual nodes, in namespaces of its own: `python slurm_cluster.py FOLDER`, as root.

Run under `unshare` (see `test_slurm_cluster.py`), whose process namespace ends everything with this process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HOST = "slurmtest"
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job may start after the life of its credential and a second: 121 s by default.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
RequeueExit=75
JobRequeue=1
KillWait=5
SlurmdTimeout=10
ReturnToService=2
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17003] CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 State=UP
PartitionName=high Nodes=n1 PriorityTier=10 PreemptMode=OFF State=UP
"""


def main(folder: Path) -> None:
    """Start the cluster, print READY, and run until standard input ends."""
    socket.sethostname(HOST)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {HOST} n1 n2 n3\n")
    _do("mount", "--bind", str(hosts), "/etc/hosts")
    _do("ip", "link", "set", "lo", "up")
    # With nothing but `lo` getaddrinfo finds no address at all.
    _do("ip", "link", "add", "here0", "type", "bridge")
    _do("ip", "address", "add", "10.123.0.1/24", "dev", "here0")
    _do("ip", "link", "set", "here0", "up")

    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=HOST, folder=folder))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    for name in ("munge", "state", *(f"spool-n{n}" for n in (1, 2, 3))):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    munge = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    _do("munged", "--force", *(f"--{option}={folder}/munge/{file}" for option, file in munge.items()))
    os.environ["SLURM_CONF"] = str(config)
    _do("slurmctld", "-f", str(config))  # a relative path hangs slurmstepd
    for node in ("n1", "n2", "n3"):
        _do("slurmd", "-f", str(config), "-N", node)
    _wait_for_nodes()
    print("READY", flush=True)
    sys.stdin.read()


def _wait_for_nodes() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ran = subprocess.run(
            ["sinfo", "--noheader", "--partition=low", "--format=%D %t"],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.stdout.split() == ["3", "idle"]:
            return
        time.sleep(0.2)
    raise TimeoutError(f"the nodes did not come: {ran.stdout} {ran.stderr}")


def _do(*argv: str) -> None:
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {ran.stdout} {ran.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
