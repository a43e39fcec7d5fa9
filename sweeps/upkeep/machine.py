"""Checks of this machine: versions, devices, the trainer's cache folder, and its access to the sweep's store.

Nothing slow is imported: versions come from the metadata of the installed packages.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata, util
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sweeps.errors import EnvironmentFault, InputError, StoreConflict
from sweeps.programs.trainer import tpu_misfits
from sweeps.storage.base import NotFound, Store
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.objects.bucket import BucketStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.text.installation import install_command
from sweeps.text.shorten import shown_bytes
from sweeps.upkeep.repair import Finding
from sweeps.upkeep.runs import folder_size

PROBE_KEY = ".doctor"
_TRIES = 5
_OFFSET_NOTED_S = 5.0
"""The service reports its time in whole seconds: less than this may be rounding and a slow network."""
_OFFSET_HARMFUL_S = 300.0
"""Credentials are refused when the clocks are further apart than five minutes."""

DISTRIBUTION = "stagesweep"
CACHE_VARIABLE = "STAGESWEEP_CACHE"
"""As in `trainer.cache`, which this package may not import; a test compares the two."""

_OWN_PACKAGES = ("sweeps", "trainer", "runners", "analysis")
_PACKAGES = ("torch", "ax-platform", "transformers", "gcsfs", "obstore", "torch_xla", "libtpu", "jax")
_TPU_NODES = ("dev/accel0", "dev/vfio/0")
_CACHE_ADVICE = f"let {CACHE_VARIABLE} name a folder that you may write to"
_SCARCE_BYTES = 2**30
_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
_SMI_TIMEOUT_S = 20


def examine(root: Path = Path("/")) -> tuple[dict[str, str], list[Finding]]:
    """Return facts about this machine by name, and findings.

    Args:
        root: folder with the device nodes, `dev/…`.
    """
    facts = {"python": platform.python_version()}
    facts |= {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    findings = [*_versions(), *_imports()]
    facts["devices"], device_findings = _devices(root)
    findings += device_findings
    try:
        folder = cache_folder()
    except RuntimeError as error:  # no home directory
        findings.append(Finding(kind="cache", what=str(error), where=CACHE_VARIABLE, remedy=_CACHE_ADVICE))
        return facts, findings
    facts["cache"] = f"{folder}, {shown_bytes(folder_size(folder))}"
    existing, what, remedy = folder, "", _CACHE_ADVICE
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"probe")
        if (free := shutil.disk_usage(existing).free) < _SCARCE_BYTES:
            what = f"only {shown_bytes(free)} are free where the trainer keeps its cache"
            remedy = f"free some space, or {_CACHE_ADVICE}"
    except OSError as error:
        what = f"the trainer's cache cannot be written: {error.strerror or error}"
    if what:
        findings.append(Finding(kind="cache", what=what, where=str(existing), remedy=remedy))
    return facts, findings


def cache_folder() -> Path:
    """Return the trainer's folder of corpora, tokenizers and teachers. Raises RuntimeError without a home."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/stagesweep").expanduser().absolute()


# ---- the store


def examine_store(store: Store) -> tuple[dict[str, str], list[Finding]]:
    """Return facts about the store by name, and findings. Raises `StoreUnavailable`."""
    findings: list[Finding] = []
    for _ in range(_TRIES):  # write and remove a probe; another `sweep doctor` may win a race for it
        try:
            try:
                _, version = store.read(PROBE_KEY)  # left by an interrupted `sweep doctor`
            except NotFound:
                version = store.create(PROBE_KEY, b"probe")
            store.delete(PROBE_KEY, version)
        except StoreConflict:
            continue  # this machine's writes reached the store
        except (EnvironmentFault, InputError) as error:
            finding = Finding(
                kind="store",
                what=f"it can be read but not written: {error}",
                where=store.url,
                remedy="ask for the right to create, overwrite and delete objects; workers need it",
            )
            findings.append(finding)
        break
    if isinstance(store, ObjectStore):
        problem, costs = store.settings(SWEEP_KEY)
        if problem:
            findings.append(Finding(kind="bucket", what=problem, where=store.url))
        if costs:
            findings.append(Finding(kind="bucket", level="note", what=costs, where=store.url))
    offset_s = clock_offset(store)
    if abs(offset_s) >= _OFFSET_NOTED_S:
        side = "behind" if offset_s > 0 else "ahead of"
        finding = Finding(
            kind="clock",
            level="problem" if abs(offset_s) >= _OFFSET_HARMFUL_S else "note",
            what=f"this machine's clock is {abs(offset_s):.0f} s {side} the store's",
            where=store.url,
            remedy="let it follow a time server; leases go by the store's clock, but credentials do not",
        )
        findings.append(finding)
    facts = {"store": store.url}
    if isinstance(store, BucketStore):
        facts["credentials"] = store.client.signed_in_as()
    clock = f"the store's is {abs(offset_s):.1f} s {'ahead' if offset_s >= 0 else 'behind'}"
    return facts | {"clock": clock}, findings


def clock_offset(store: Store) -> float:
    """Return the store's time minus this machine's, in seconds."""
    before = time.time()
    there = store.now()
    return there - (before + time.time()) / 2


# ---- versions


def _versions() -> Iterator[Finding]:
    """Compare Python and every required package with the ranges of versions in this package's metadata."""
    try:
        about = metadata.metadata(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield Finding(
            kind="version",
            level="note",
            what=f"{DISTRIBUTION} runs from its sources, so the versions that it needs are not known",
            where=platform.node(),
            remedy="install it: pip install -e .",
        )
        return
    yield from _misfit("Python", SpecifierSet(about["Requires-Python"] or ""), platform.python_version())
    for text in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _misfit(requirement.name, requirement.specifier, _version(requirement.name))


def _misfit(name: str, allowed: SpecifierSet, present: str | None) -> Iterator[Finding]:
    if present is not None and allowed.contains(present, prereleases=True):
        return
    yield Finding(
        kind="version",
        what=f"{name} {present} is not {allowed}" if present else f"{name} is not installed",
        where=platform.node(),
        remedy=f"use a Python that is {allowed}" if name == "Python" else f"pip install '{name}{allowed}'",
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _imports() -> Iterator[Finding]:
    """Look whether programs compile all that they import anew, or import a file of this folder as ours."""
    torch = util.find_spec("torch")  # it takes ten seconds to compile, and one to load
    if torch is not None and torch.origin is not None and torch.cached is not None:
        packages = Path(torch.origin).parents[1]
        if sys.dont_write_bytecode and not Path(torch.cached).exists():
            yield Finding(
                kind="python",
                level="note",
                what="no package is compiled, and PYTHONDONTWRITEBYTECODE keeps it so: each program starts "
                "later",
                where=str(packages),
                remedy=f"unset it, or run once: python -m compileall -q {packages}",
            )
    ours = Path(__file__).parents[2]
    for package in _OWN_PACKAGES:
        found = PathFinder.find_spec(package, [os.getcwd()])  # noqa: PTH109 - as `python -m` has it
        if found is None or found.origin is None:  # a folder without __init__.py gives way to a package
            continue
        if (module := Path(found.origin)).parent.resolve() == (ours / package).resolve():
            continue
        yield Finding(
            kind="shadowed",
            level="note",
            what=f"a Python script in this folder that writes `import {package}` gets this file, not "
            f"stagesweep's package; so does `python -m {package}`",
            where=str(module),
            remedy="give it another name; what `sweep` itself starts is not affected",
        )


# ---- devices


def _devices(root: Path) -> tuple[str, list[Finding]]:
    """Return this machine's accelerators in words, and findings about their use by torch."""
    gpus: list[str] = []
    findings: list[Finding] = []
    if shutil.which(_SMI[0]) is not None:
        try:
            ran = subprocess.run(_SMI, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
            output = (ran.stdout + ran.stderr).strip() or f"exit status {ran.returncode}"
            failed = "" if ran.returncode == 0 else output
        except (OSError, subprocess.TimeoutExpired) as error:
            failed = str(error)
        if failed:
            broken = Finding(
                kind="device",
                what=f"nvidia-smi fails: {' '.join(failed.split())[:200]}",
                where=platform.node(),
                remedy="repair the NVIDIA driver; until then trials run on the CPU",
            )
            findings.append(broken)
        else:
            gpus = [" ".join(line.split()) for line in ran.stdout.splitlines() if line.strip()]
        if gpus and (_version("torch") or "").endswith("+cpu"):
            blind = Finding(
                kind="device",
                what=f"there is a GPU ({gpus[0]}), but torch {_version('torch')} cannot use one",
                where=platform.node(),
                remedy="install torch's CUDA build: https://pytorch.org/get-started/locally/",
            )
            findings.append(blind)
    tpu = next((node for node in _TPU_NODES if (root / node).exists()), None)
    if tpu and _version("torch_xla") is None:
        findings.append(
            Finding(
                kind="device",
                what="there is a TPU, but torch_xla is not installed",
                where=f"/{tpu}",
                remedy=install_command("tpu"),
            )
        )
    elif _version("torch_xla"):
        findings += [
            Finding(
                kind="version",
                level="problem" if misfit.needed else "note",
                what=misfit.what,
                where=platform.node(),
                remedy=misfit.remedy,
            )
            for misfit in tpu_misfits(tpu=tpu is not None)
        ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ", ".join([*gpus, *(["TPU"] if tpu else []), f"{cores} CPU cores"]), findings
