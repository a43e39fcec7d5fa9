"""Entry of `sweep worker` into a gang, as its leader or as another of its hosts."""

from __future__ import annotations

import hashlib
import json
import os
import time

import psutil

from sweeps.errors import InputError
from sweeps.experiment import Experiment
from sweeps.programs.kinds import with_nodes
from sweeps.programs.signals import Stop
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.space_json import to_json
from sweeps.worker.gang.host import find_host, last_start_s
from sweeps.worker.gang.leader import Leader, patience_after
from sweeps.worker.gang.member import Member
from sweeps.worker.progress import say


def join_gang(
    experiment: Experiment, nodes: int | None, rank: int | None, leader: str | None, stop: Stop
) -> tuple[Experiment, Leader | Member | None]:
    """Return the sweep as this worker runs it, and what it is in its gang; None: a trial has no other host.

    Args:
        nodes: as the user gave it; None: as the search space says.
        rank: likewise; None: by the environment.
        leader: HOST or HOST:PORT likewise.

    Raises:
        InputError: so many hosts cannot share a trial, or it is not clear which one this is.
    """
    # As `sweep init` wrote it: a host that starts after `sweep extend` belongs to the same gang.
    written = experiment.written
    document = json.dumps(to_json(written), sort_keys=True)
    if (space := with_nodes(written, nodes)) is not written:
        experiment = Experiment(experiment.store, space)
        experiment.amendments.load()
    count = space.program.nodes
    if count == 1:
        if rank is not None or leader is not None:
            option = "--leader" if rank is None else "--node-rank"
            raise InputError(
                f"{option}: a trial of this sweep runs on one host; say --nodes N, with N from 2"
            )
        return experiment, None
    host = find_host(count, os.environ, rank=rank, leader=leader)
    program = TrainerProgram(experiment.space)
    about = {
        "space": hashlib.sha256(document.encode()).hexdigest(),
        "nodes": count,
        "version": program.version(),
    }

    def request_stop(by: str) -> None:
        say(f"{by}: all hosts of the gang stop")
        stop.relay()

    runs_s = time.time() - psutil.Process().create_time()
    last_s, patience_s = last_start_s(os.environ, runs_s=runs_s), patience_after(runs_s)
    if host.rank:
        return experiment, Member(
            host,
            experiment,
            program,
            about=about,
            stop=stop,
            notify=say,
            patience_s=patience_s,
            last_s=last_s,
        )
    return experiment, Leader(
        host,
        about,
        say,
        request_stop,
        patience_s=patience_s,
        last_s=last_s,
        is_preempted=lambda: stop.requested,
    )
