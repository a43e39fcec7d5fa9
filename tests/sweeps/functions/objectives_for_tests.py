"""Objectives for `program: {function: …}`."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path


def paraboloid(parameters):
    return {"loss": (parameters["x"] - 0.3) ** 2 + parameters["n"] / 100, "effective_steps": parameters["n"]}


def noisy(parameters):
    """A paraboloid with noise by the seed: a part that all share with the seed, and a part of its own."""
    x, seed = parameters["x"], parameters["seed"]
    shared, own = random.Random(seed).gauss(0, 0.02), random.Random(f"{x} {seed}").gauss(0, 0.01)
    loss = 3 + (x - 0.3) ** 2 + shared + own
    time.sleep(float(os.environ.get("CALL_SECONDS", "0")))
    return {"loss": loss, "test_loss": loss + 0.05, "effective_steps": 1000 * x}


def diverges_by_seed(parameters):
    """As `noisy`, but an x below 0.3 does not survive a seed other than 0."""
    if parameters["seed"] != 0 and parameters["x"] < 0.3:
        raise FloatingPointError("the loss is not finite")
    return noisy(parameters)


def recorded(parameters):
    """Leaves a line per finished call in $CALLS, appended in one write, so that processes cannot mix lines."""
    time.sleep(float(os.environ.get("CALL_SECONDS", "0")))
    line = f"{parameters['x']!r} {parameters['n']!r}\n".encode()
    fd = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)
    return paraboloid(parameters)


def explodes(parameters):
    raise RuntimeError("no such luck")


def loses_the_network(parameters):
    raise ConnectionResetError(104, "Connection reset by peer")


def lacks_a_key(parameters):
    return {"loss": parameters["lr"]}


def not_a_number(parameters):
    return {"loss": float("nan")}


def forgets(parameters):
    return {"accuracy": 1.0}


def numpy_scalar(parameters):
    import numpy as np

    return {"loss": np.float32(0.5), "huge": 10**400}


def leaves(parameters):
    raise SystemExit(0)


def sleeps(parameters):
    Path(os.environ["STARTED"]).touch()
    time.sleep(600)
    return {"loss": 0.0}


def stops_by_itself(parameters):
    """Replaces the handler of SIGTERM for as long as it trains, and returns what it has then."""
    stopped = []
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    Path(os.environ["STARTED"]).touch()
    while not stopped:
        time.sleep(0.01)
    signal.signal(signal.SIGTERM, before)
    return {"loss": 0.0}


def catches_all(parameters):
    try:
        return sleeps(parameters)
    except BaseException:
        return {"loss": 0.0}


def ends_a_child(parameters):
    """Ends a forked process by SIGTERM, which that one catches."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(os.getpid)
    return {"loss": 0.0}


NOT_CALLABLE = 3
