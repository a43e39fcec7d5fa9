"""TPU chips of this machine: whether a run uses them, and which process holds them. Without torch.

The configuration overrules the environment, which overrules the hardware. torch_xla by itself takes any
device that it finds, and may silently compute on the CPU for days.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from sweeps.text.installation import install_command
from trainer.errors import MachineError

VARIABLE = "PJRT_DEVICE"
_KEY = "device.type"
_ROOT = Path("/")
# Of older chips, and of those that are passed through by VFIO (from v5p and v6e on).
_FILES = ("dev/accel[0-9]*", "dev/vfio/[0-9]*")


def chip_files(root: Path = _ROOT) -> list[Path]:
    """Return the device files of this machine's TPU chips, below `root`."""
    return sorted(path for pattern in _FILES for path in root.glob(pattern))


def uses_xla(kind: str, environment: Mapping[str, str] = os.environ, root: Path = _ROOT) -> bool:
    """Return whether a run with `device.type=kind` computes through XLA.

    Args:
        kind: `auto`, `cpu`, `cuda` or `xla`.
        environment: with PJRT_DEVICE.

    Raises:
        MachineError: it does, but not on the TPU that it needs: PJRT_DEVICE is not set, there is no TPU,
            another process holds it, or torch_xla is not installed.
    """
    target = environment.get(VARIABLE, "").upper()
    if kind == "auto":
        if target != "TPU" and (target or not chip_files(root)):
            return False
    elif kind != "xla":
        return False
    if not target:
        _refuse_unset(kind, root)
    if find_spec("torch_xla") is None:
        raise MachineError(
            f"torch_xla is not installed; {install_command('tpu')}, or write device=cpu", key=_KEY
        )
    if target == "TPU":
        if not chip_files(root):
            raise MachineError(
                f"{VARIABLE}=TPU, but there is no TPU here (no /dev/accel0, no /dev/vfio/0); "
                f"write {VARIABLE}=CPU for XLA's own CPU device, or device=cpu without it",
                key=_KEY,
            )
        for process, command in holders(root):
            raise MachineError(
                f"the TPU is busy: process {process} ({command}) holds it, and a TPU serves one process; "
                f"wait for it, or end it with kill {process}",
                key=_KEY,
            )
    return True


def on_tpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether XLA computes on a TPU, and not on its own CPU device."""
    return environment.get(VARIABLE, "").upper() == "TPU"


def _refuse_unset(kind: str, root: Path) -> None:
    if chip_files(root):
        raise MachineError(
            f"this machine has a TPU, but {VARIABLE} is not set, and torch_xla may compute on the CPU then "
            f"without a word; write {VARIABLE}=TPU, or device=cpu or device=cuda if that is meant",
            key=_KEY,
        )
    raise MachineError(
        f"{kind} is to compute through XLA, but {VARIABLE} does not say where and there is no TPU here; "
        f"write {VARIABLE}=CPU for XLA's own CPU device, or device=cpu without it",
        key=_KEY,
    )


def holders(root: Path = _ROOT, own: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield the id and command line of each other process that has a TPU's device file open.

    Only root sees the processes of other users.

    Args:
        own: process id to leave out; None: this process's.
    """
    files = {f"/{path.relative_to(root)}" for path in chip_files(root)}
    own = os.getpid() if own is None else own
    for folder in sorted(root.glob("proc/[0-9]*"), key=lambda path: int(path.name)):
        if int(folder.name) != own and files & set(_open_files(folder / "fd")):
            yield int(folder.name), _command(folder)


def _open_files(folder: Path) -> Iterator[str]:
    try:
        for link in folder.iterdir():
            yield str(link.readlink())
    except OSError:  # it has ended, or is another user's
        return


def _command(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        words = []
    return " ".join(words)[:80] or "unknown"
