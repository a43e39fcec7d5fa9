"""Run a module's `main` in a new process without importing torch again: fork it from the session's server.

For tests of processes: signals, exit statuses, orphans. Tests of the start itself run `python -m …`.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

PRELOAD = [
    *("torch.distributed", "torch.distributed.fsdp", "trainer.__main__", "trainer.pipeline"),
    *("transformers.models.llama.modeling_llama", "trainer.config.compose"),
    *("sweeps.search.optimizer", "sweeps.worker.loop"),
]
"""Modules that the server imports. It is one for all tests, so the first test that uses it decides."""


class Forked:
    """A forked process with the part of the interface of `subprocess.Popen` that tests need.

    Args:
        module: has a `main` that takes the arguments and returns the exit status.
        folder: gets the process's output, in stdout.txt and stderr.txt.
    """

    def __init__(
        self, server: ForkServerContext, module: str, argv: Sequence[str], *, cwd: Path, folder: Path
    ) -> None:
        self.stdout, self._stderr = folder / "stdout.txt", folder / "stderr.txt"
        streams = self.stdout, self._stderr
        given = (module, list(argv), dict(os.environ), cwd, streams)
        self._process = server.Process(target=_run, args=given)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def communicate(self, timeout: float) -> tuple[str, str]:
        self._process.join(timeout)
        if self.returncode is None:
            self._process.kill()
            raise TimeoutError(self._stderr.read_text())
        return self.stdout.read_text(), self._stderr.read_text()


def _run(
    module: str, argv: list[str], environment: dict[str, str], cwd: Path, streams: tuple[Path, Path]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    warnings.simplefilter("error")
    sys.exit(importlib.import_module(module).main(argv))
