"""A process for each case. Called by `benchmarks.gpu`.

Not in `__main__`: a started process imports functions by their module, and never one that is called that.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from benchmarks.gpu.cases import SHAPES, Case, run
from benchmarks.gpu.observer import Result


def in_a_process(shape: str, case: Case, overrides: Sequence[str], measure: float, *, limit: float) -> Result:
    """Return the result of one case, or its error: a failure ends the case, not the benchmark."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.pipeline", "transformers.models.auto.modeling_auto"])
    ours, theirs = context.Pipe(duplex=False)
    began = time.perf_counter()
    process = context.Process(target=_child, args=(theirs, shape, case, tuple(overrides), measure))
    process.start()
    theirs.close()
    result: Result = {"error": f"no result within {limit:.0f} s"}
    try:
        if ours.poll(limit):
            result = ours.recv()
    except EOFError:
        process.join()
        result = {"error": f"the process ended with exit status {process.exitcode}"}
    process.kill()
    process.join()
    return {"shape": shape, "case": case.name, "seconds": time.perf_counter() - began, **result}


def _child(pipe: Connection, shape: str, case: Case, overrides: Sequence[str], measure: float) -> None:
    try:
        pipe.send(run(SHAPES[shape], case, overrides, measure))
    except Exception as error:  # whatever fails, such as memory: one case, not the benchmark
        first_line = (str(error).strip().splitlines() or [""])[0]
        pipe.send({"error": f"{type(error).__name__}: {first_line[:300]}"})
