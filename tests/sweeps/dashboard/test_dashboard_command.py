"""The command `sweep dashboard`: its address, its token, its end, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from served_dashboard import make_sweep, record

pytestmark = pytest.mark.timeout(120)


@contextmanager
def started(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command in a process of its own, and the address that it prints."""
    argv = [sys.executable, "-m", "sweeps", "dashboard", "--port", "0", *options]
    root = str(Path(__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": root}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


def test_it_prints_its_address_serves_and_ends_by_a_signal(tmp_path, space):
    make_sweep(tmp_path, space, record(0))
    with started("--storage", str(tmp_path)) as (address, process):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        assert "toy" in fetched(address)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_on_every_address_it_prints_a_token_once(tmp_path, space):
    make_sweep(tmp_path, space, record(0))
    with started("--storage", str(tmp_path), "--host", "0.0.0.0") as (address, process):
        port, token = re.fullmatch(r"http://0\.0\.0\.0:(\d+)/\?token=(\S{40,})", address).groups()
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            fetched(f"http://127.0.0.1:{port}/")
        refused.value.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert token not in out + err
        assert process.returncode == 0


def test_the_url_of_one_sweep_or_its_name_shows_that_alone(tmp_path, space):
    store = make_sweep(tmp_path, space)
    with started("--storage", store.url) as (address, _):
        assert "0 of 8" in re.sub(r"</?b>", "", fetched(address))


def test_taken_port_and_missing_sweep_are_wrong_input(tmp_path, space, sweep):
    make_sweep(tmp_path, space)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = sweep("dashboard", "--storage", str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert ran.status == 2
    assert "address already in use" in ran.err
    assert ran.err.count("\n") == 1
    ran = sweep("dashboard", "--storage", str(tmp_path), "--name", "nothing")
    assert ran.status == 2
    assert "no sweep here" in ran.err
    assert sweep("dashboard", "--spot").status == 2
