"""Hydra finds the installed plugin, which costs other applications next to nothing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from sweeps.hydra_app.settings import TARGET

ROOT = Path(__file__).parents[3]
DISCOVER = """
import sys
from hydra.core.plugins import Plugins
from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
print(*(f"{found.__module__}.{found.__name__}" for found in Plugins.instance().discover(Sweeper)))
print(*ConfigStore.instance().list("hydra/sweeper"))
print(*sys.modules)
"""


def test_the_package_puts_the_plugin_where_hydra_looks() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    ((source, target),) = wheel["force-include"].items()
    assert (ROOT / source).read_text().count("class StageSweeper(Sweeper)") == 1
    assert target == f"{TARGET.rpartition('.')[0].replace('.', '/')}.py"


def test_hydra_finds_it_and_it_is_light(application: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DISCOVER], cwd=application, env=environment, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    found, configured, modules = ran.stdout.splitlines()
    assert TARGET in found.split()
    assert "stagesweep.yaml" in configured.split()
    heavy = {
        "torch", "ax", "pandas", "numpy", "pydantic", "sweeps.worker.loop", "sweeps.space.space_file",
        "click",
    }  # fmt: skip
    assert not heavy & set(modules.split())
