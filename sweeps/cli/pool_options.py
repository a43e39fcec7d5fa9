"""Options of `sweep launch` that describe a pool, and the `Pool` made of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sweeps.cli.cost_guard import ASK_ABOVE, with_price
from sweeps.cli.options import count_option, number_option
from sweeps.cli.prices import rates_option
from sweeps.errors import InputError
from sweeps.operations.pools import Place, folder, storage_url
from sweeps.text.counted import counted

if TYPE_CHECKING:
    from runners.pools.pool import Pool
    from runners.pools.runner import Runner

F = TypeVar("F", bound=Callable[..., Any])

_TPU = "tpu:"
_DEVICE_FILES = "nvidia[0-9]*"
_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_NO_NUMBER = re.compile(r".*:.*|[-+]?0[0-9_]+|[0-9]{4}-.*", re.DOTALL)

_OPTIONS = (
    count_option("--workers", metavar="N", help="How many. Default: by the accelerators, else one."),
    count_option(
        "--nodes", metavar="N", help="Hosts that share each worker's trials. Default: program.trainer.nodes."
    ),
    count_option(
        "--threads",
        metavar="N",
        help="CPUs of each (Slurm: cpus-per-task), and OMP_NUM_THREADS. Default: its share.",
    ),
    click.option(
        "--devices",
        default="auto",
        metavar="IDS",
        show_default=True,
        help="local: accelerators, one per process of a trial: CUDA's ids (0,1), a TPU's (tpu:0,1), or none.",
    ),
    click.option(
        "--accelerator",
        default="",
        metavar="NAME[:COUNT]",
        help="What each worker needs, by the engine's own name, such as A100 or H100:2.",
    ),
    click.option("--spot", is_flag=True, help="Machines that may be taken away, for less money."),
    click.option(
        "--env", multiple=True, metavar="NAME=VALUE", help="A variable for the workers. Repeat it for more."
    ),
    click.option(
        "--secret",
        multiple=True,
        metavar="NAME",
        help="A variable that is passed on with its value here, written nowhere. Repeat it for more.",
    ),
    click.option(
        "--setup",
        multiple=True,
        metavar="LINE",
        help="A line for bash before the worker. Repeat it for more.",
    ),
    click.option(
        "--python",
        default="",
        metavar="PATH",
        help="The workers' interpreter. A command finds its own on PATH.",
    ),
    count_option("--max-trials", metavar="N", help="Each leaves after N trials."),
    count_option(
        "--restarts",
        least=0,
        default=5,
        metavar="N",
        help="Restarts in a row after crashes; after the next crash a worker is given up.",
    ),
    number_option(
        "--grace", default=30.0, metavar="S", help="Seconds that workers have to hand their trials back."
    ),
    click.option(
        "--price",
        metavar="NAME",
        help="A worker's machine in the table of rates: 'RunPod A100'. Default: found by --accelerator.",
    ),
    rates_option,
    number_option(
        "--max-dollars-per-hour",
        metavar="USD",
        help=f"Ask before a pool that costs more. Default: {ASK_ABOVE:g}.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option(
        "--option",
        multiple=True,
        metavar="KEY=VALUE",
        help="For the engine, by its own name: partition=gpu for sbatch. VALUE is YAML. Repeat it for more.",
    ),
)


def pool_options(function: F) -> F:
    """Add the options that describe a pool to a command, in the order in which `--help` shows them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def make_pool(runner: Runner, place: Place, values: dict[str, Any], *, devices_each: int = 1) -> Pool:
    """Return the pool that the options describe; whether its workers reach the storage is not checked.

    Args:
        devices_each: accelerators that a trial takes on each host of a worker.

    Raises:
        InputError: an option is wrong.
        PoolError: the engine does not support the pool.
    """
    from runners.pools.engines import check
    from runners.pools.pool import Pool, worker_command
    from sweeps.trials.redaction import holds_secret

    url, local = storage_url(place, runner.name), runner.name == "local"
    if not local and values["devices"] != "auto":
        raise InputError(
            f"--devices: these are this machine's; say what a worker of {runner.name} needs by --accelerator"
        )
    devices = _for_workers(_devices(values["devices"]), devices_each) if local else ()
    workers = values["workers"] or len(devices) // (values["nodes"] or 1) or 1
    nodes = values["nodes"] or 1
    share = max(1, (os.cpu_count() or 1) // (workers * nodes)) if local else None
    accelerator, count = values["accelerator"], "1"
    if re.fullmatch(r".*:\d+", accelerator):
        accelerator, _, count = accelerator.rpartition(":")
    environment = [_pair("env", text) for text in values["env"]]
    for name, value in environment:
        if holds_secret(value, name):
            raise InputError(
                f"--env {name}=…: this is a secret, which the pool's files would show; export {name} here "
                f"and write --secret {name}"
            )
    for number, line in enumerate(values["setup"], 1):
        if holds_secret(line):
            raise InputError(
                f"--setup, line {number}: it holds a secret, which the pool's files would show; export it "
                "here, pass it on by --secret NAME, and write $NAME in the line"
            )
    python = values["python"] or runner.python or sys.executable
    pool = Pool(
        name=place.name,
        storage=url,
        folder=folder(place, runner.name),
        workers=workers,
        command=worker_command(url, python=python, max_trials=values["max_trials"], nodes=values["nodes"]),
        nodes=nodes,
        accelerator=accelerator,
        accelerator_count=int(count),
        threads=values["threads"] or share,
        devices=devices,
        spot=values["spot"],
        environment=dict(environment),
        secrets=values["secret"],
        setup=values["setup"],
        grace_s=values["grace"],
        restarts=values["restarts"],
        max_dollars_per_hour=values["max_dollars_per_hour"],
        options=option_values(values["option"]),
    )
    check(runner, pool)
    return with_price(pool, values["price"], values["rates"])


def option_values(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of --option KEY=VALUE by key. Raises `InputError` if one is not YAML."""
    import yaml

    class SafeLoader(yaml.SafeLoader):
        """Loads as YAML 1.2 does what engines have in this form: times (24:00:00), dates and ids (0123)."""

        def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
            # PyYAML's annotations leave it out.
            tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
            return _TEXT if tag in _NUMBERS and _NO_NUMBER.fullmatch(value) else tag

    found = {}
    for key, text in (_pair("option", text) for text in assignments):
        try:
            found[key] = yaml.load(text, SafeLoader)  # noqa: S506 - one of its own
        except yaml.YAMLError as error:
            raise InputError(f"--option {key}: not YAML: {' '.join(str(error).split())}") from None
    return found


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InputError(f"--{option} {text}: write NAME=VALUE")
    return name, value


def _devices(text: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    if text != "auto":
        chips = text.startswith(_TPU)
        ids = tuple(word.strip() for word in text.removeprefix(_TPU).split(","))
        if not all(ids) or len(set(ids)) < len(ids) or (chips and not all(map(str.isdecimal, ids))):
            raise InputError(
                f"--devices {text}: write ids with commas between them, each once, such as 0,1 or tpu:0,1"
            )
        return tuple(f"{_TPU}{chip}" for chip in ids) if chips else ids
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words = (word.strip() for word in visible.split(","))
        return tuple(takewhile(lambda word: word and word != "-1", words))  # CUDA stops there, too
    return tuple(str(number) for number in range(len(list(Path("/dev").glob(_DEVICE_FILES)))))


def _for_workers(devices: tuple[str, ...], each: int) -> tuple[str, ...]:
    """Return the devices of each worker. Raises InputError if there are some, and too few for one."""
    if not devices or each == 1:
        return devices
    if len(devices) < each:
        raise InputError(
            f"--devices: a trial takes {each} accelerators, and there is "
            f"only {counted(len(devices), 'accelerator')}; start the pool where there are more, or write "
            "--devices none if they compute on CPUs"
        )
    starts = range(0, len(devices) - each + 1, each)
    return tuple(",".join(devices[start : start + each]) for start in starts)
