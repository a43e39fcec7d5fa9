"""Compatible versions of Python, torch, torch_xla, libtpu and jax on a TPU. Without torch.

Checked by `device` before torch_xla is imported, and by `sweep doctor` through `api`: a wrong pair fails in
the first computation with the size of a struct, or with a missing symbol, and names no version.

The ranges were measured on v6e chips, by others, with every release of libtpu: from 0.0.24 on it expects a
struct of another size. torch_xla 2.9.0 is the last release, and needs one torch.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from sweeps.text.installation import install_command
from trainer.errors import MachineError

PYTHON = "python"
_PYTHONS = ">=3.11,<3.14"  # for which there are wheels of torch_xla 2.9.0, and of jax
_NEW_ENVIRONMENT = "python3.11 -m venv ~/venv && source ~/venv/bin/activate"


@dataclass(frozen=True, kw_only=True)
class Package:
    """One row of the compatibility matrix.

    Args:
        allowed: versions that work with all the others.
        pin: the version to install where another is present.
    """

    name: str
    allowed: str
    pin: str
    why: str


MATRIX = (
    Package(name="torch", allowed=">=2.9,<2.10", pin="2.9.1", why="torch_xla 2.9.0 is built against it"),
    Package(
        name="torch_xla",
        allowed="==2.9.0",
        pin="2.9.0",
        why="it is the last release and the one that this trainer is written for",
    ),
    Package(
        name="libtpu",
        allowed=">=0.0.21,<=0.0.23.1",
        pin="0.0.23.1",
        why="torch_xla 2.9.0 calls others through a struct of another size (PJRT_ExecuteOptions)",
    ),
    Package(
        name="jax",
        allowed=">=0.7.0,<=0.9.0",
        pin="0.9.0",
        why="torch_xla's flash attention is written in the Pallas of these",
    ),
    Package(name="jaxlib", allowed=">=0.7.0,<=0.9.0", pin="0.9.0", why="it must be jax's own version"),
)
_ON_TPU_ONLY, _OPTIONAL = ("libtpu",), ("jax", "jaxlib")


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A version that does not work with the others.

    Args:
        present: version; None: it is not installed.
        needed: whether nothing can be computed; if False, only flash attention cannot.
    """

    name: str
    present: str | None
    what: str
    remedy: str
    needed: bool


def installed() -> dict[str, str]:
    """Return the installed versions by name, from the packages' metadata; Python as `python`."""
    found = {PYTHON: platform.python_version()}
    for package in MATRIX:
        try:
            found[package.name] = metadata.version(package.name)
        except metadata.PackageNotFoundError:
            continue
    return found


def misfits(versions: Mapping[str, str], *, tpu: bool) -> list[Misfit]:
    """Return the incompatible versions, in the order in which to fix them.

    Args:
        tpu: for a TPU; otherwise for XLA's own CPU device, which has no libtpu. jax is never needed.
    """
    python = versions[PYTHON]
    if not _fits(python, _PYTHONS):
        what = f"Python {python} is not {_PYTHONS}: there is no torch_xla 2.9.0 for it"
        remedy = f"{_NEW_ENVIRONMENT} && {install_command('tpu')}"
        return [Misfit(name=PYTHON, present=python, what=what, remedy=remedy, needed=True)]
    found = []
    for package in MATRIX:
        present = versions.get(package.name)
        if package.name in _OPTIONAL and "jax" not in versions and "jaxlib" not in versions:
            continue
        if package.name in _ON_TPU_ONLY and not tpu:
            continue
        if problem := _problem(package, present, versions):
            found.append(
                Misfit(
                    name=package.name,
                    present=present,
                    what=problem,
                    remedy=pip_line([package.name], versions, tpu=tpu),
                    needed=package.name not in _OPTIONAL,
                )
            )
    return found


def require(versions: Mapping[str, str], *, tpu: bool) -> None:
    """Raise MachineError if nothing could be computed; what only flash attention misses passes."""
    for misfit in misfits(versions, tpu=tpu):
        if misfit.needed:
            raise MachineError(f"{misfit.what}; {misfit.remedy}", key="device.type")


def flash_obstacle(versions: Mapping[str, str], *, tpu: bool) -> str:
    """Return why torch_xla's flash attention cannot be called, with the fix; "" if it can."""
    if not tpu:
        return "its kernel is for TPUs, and this is XLA's CPU device"
    if not versions.keys() & set(_OPTIONAL):
        return f"jax is not installed; {pip_line(['jax'], versions, tpu=tpu)}"
    found = (each for each in misfits(versions, tpu=tpu) if each.name in _OPTIONAL)
    return next((f"{misfit.what}; {misfit.remedy}" for misfit in found), "")


def pip_line(names: Sequence[str], versions: Mapping[str, str], *, tpu: bool) -> str:
    """Return the command that installs compatible versions of these packages.

    jax and jaxlib are installed together, and with libtpu, as they may bring a newer one.
    """
    wanted = set(names)
    if wanted & set(_OPTIONAL):
        wanted |= set(_OPTIONAL)
        if tpu:
            wanted.add("libtpu")
    pins = {}
    for package in MATRIX:
        if package.name in wanted:
            pins[package.name] = package.pin
            # libtpu that was not asked for, and works, stays as it is.
            present = versions.get(package.name)
            added = package.name == "libtpu" and package.name not in names
            if added and present is not None and _fits(present, package.allowed):
                pins[package.name] = present
    return f"pip install {' '.join(f'{name}=={pin}' for name, pin in pins.items())}"


def _problem(package: Package, present: str | None, versions: Mapping[str, str]) -> str:
    if present is None:
        return f"{package.name} is not installed, and must be {package.allowed}"
    if not _fits(present, package.allowed):
        return f"{package.name} {present} is not {package.allowed}: {package.why}"
    if package.name == "jaxlib" and "jax" in versions and versions["jax"] != present:
        return f"jaxlib {present} is not jax's version, {versions['jax']}"
    return ""


def _fits(present: str, allowed: str) -> bool:
    try:
        return SpecifierSet(allowed).contains(Version(present), prereleases=True)
    except InvalidVersion:
        return False
