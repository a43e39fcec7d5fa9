"""The hosts of a gang as processes of this machine, whose trainer is a stand-in that loads no torch.

Used by `test_killed_hosts.py`. The stand-in goes through the phases of a run. Before each step its processes meet, as in a
collective: they share a stop signal, and fail when one of them is gone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from silent_watcher import Silent

from sweeps.errors import SweepError
from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore

PHASES = ("start", "stage1_9", "stage2", "checkpoint", "evaluation", "report")

# It waits in the phase of the trial, in the first attempt alone, until the test has done what it does there.
STAND_IN = '''
import json, os, pathlib, signal, socket, sys, time

PHASES = {phases!r}
given = dict(word.split("=", 1) for word in sys.argv[1:])
phase_of_fault, attempt, folder, out = given["phase"], int(given["attempt"]), pathlib.Path(given["run_dir"]), pathlib.Path({out!r})
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
stop = []
signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address)
    server.settimeout(30)
    peers = [server.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            peers = [socket.create_connection(address)]
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
for peer in peers:
    peer.settimeout(30)


def meet(*flags):
    """Whether each flag is set in any process. The flags of all go to the first process, and from there to all."""
    def receive(peer):
        got = peer.recv(len(flags), socket.MSG_WAITALL)
        if len(got) < len(flags):
            raise ConnectionResetError("a process is gone")
        return got
    mine = bytes(map(bool, flags))
    if rank:
        peers[0].sendall(mine)
        return list(map(bool, receive(peers[0])))
    agreed = bytes(map(max, zip(mine, *map(receive, peers))))
    for peer in peers:
        peer.sendall(agreed)
    return list(map(bool, agreed))


def save(done):
    if rank == 0:
        draft = folder / "checkpoints" / "draft"
        draft.parent.mkdir(exist_ok=True)
        draft.write_text(str(done))
        draft.rename(folder / "checkpoints" / "done")
    meet()


def stop_if_asked():
    if meet(stop)[0]:
        save(position)
        sys.exit(75)


saved = folder / "checkpoints" / "done"
first = int(saved.read_text()) if saved.exists() else 0
for position, phase in enumerate(PHASES):
    if position < first:
        continue
    if phase == "checkpoint":
        save(position)
    if phase == "report" and rank == 0:
        (folder / "result.json").write_text(json.dumps({{"loss": 0.5, "began": first}}))
    stop_if_asked()
    if phase == phase_of_fault and attempt == 1:
        (out / f"at-{{phase}}-{{rank}}").write_text(str(os.getpid()))
        while not meet(stop, (out / f"go-{{phase}}").exists())[1]:
            stop_if_asked()
            time.sleep(0.02)
meet()
'''
_LAUNCH = (
    "import os, sys; sys.path.insert(0, {root!r}); from trainer.distributed import launch; "
    "os.environ['PYTHONPATH'] = {stand_in!r}; launch.leave(launch.main())"
)


def make_stand_in(out: Path) -> None:
    package = out / "stand_in" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN.format(phases=PHASES, out=str(out)))


def host_process(url: str, rank: int, port: int, out: str, processes: int, is_last: bool) -> None:
    """Do what `sweep worker` does on one of two hosts, in a process forked from the server.

    `is_last`: whether it is told that nobody starts it again after a crash.
    """
    from sweeps.programs.signals import Stop
    from sweeps.programs.trainer import TrainerProgram
    from sweeps.worker.gang import leader, member
    from sweeps.worker.gang.channel import Channel
    from sweeps.worker.gang.host import LAST_START
    from sweeps.worker.gang.joining import join_gang
    from sweeps.worker.loop import Limits, work

    root = str(Path(leader.__file__).parents[3])
    launch = _LAUNCH.format(root=root, stand_in=str(Path(out) / "stand_in"))

    def argv(self, record, folder, *, snapshots, points, host=""):
        told = [f"{name}={value}" for name, value in record.parameters.items()]
        options = [str(processes), "--host", host, *told, f"attempt={record.attempt}", f"run_dir={folder}"]
        return [sys.executable, "-P", "-c", launch, *options]

    TrainerProgram.argv = argv
    TrainerProgram.version = lambda self: "1"
    member._RETRY_S = 0.05
    receive = Channel.receive

    def receive_and_log(channel: Channel) -> Mapping[str, Any] | None:
        message = receive(channel)
        print("received:", json.dumps(message), file=sys.stderr, flush=True)
        return message

    Channel.receive = receive_and_log
    if is_last:
        os.environ[LAST_START] = "600"
    descriptor = os.open(Path(out) / f"host-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    stop = Stop()
    stop.listen()
    try:
        experiment = Experiment.open(LocalStore(url))
        experiment, gang = join_gang(experiment, None, rank, f"127.0.0.1:{port}", stop)
        if isinstance(gang, member.Member):
            sys.exit(gang.follow())
        with gang:
            tally = work(experiment, stop=stop, watcher=Silent(), leader=gang, limits=Limits())
            status = 75 if tally.preempted_by else 0
            gang.leave_with(status)
        sys.exit(status)
    except SweepError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.exit_status)
