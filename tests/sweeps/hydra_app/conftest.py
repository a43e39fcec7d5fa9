"""A small Hydra application in a folder of its own, with the plugin where Hydra finds it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser

ROOT = Path(__file__).parents[3]
APPLICATION = """\
import os, time, pathlib, hydra

@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg):
    pathlib.Path("started").open("a").write(os.environ["SWEEP_TRIAL"] + "\\n")
    while pathlib.Path("hold").exists():
        time.sleep(0.05)
    return (cfg.x - 2) ** 2 + (0.5 if cfg.model.kind == "b" else 0.0)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The folder: `train.py`, its configuration, and what would be installed as `hydra_plugins`."""
    try:
        get_args_parser()
    except ValueError as error:  # Hydra 1.3 on Python 3.14
        pytest.skip(f"Hydra starts no application on this Python: {error}")
    (tmp_path / "train.py").write_text(APPLICATION)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text("x: 0\nmodel: {kind: a, size: 1}\n")
    (tmp_path / "installed" / "hydra_plugins").mkdir(parents=True)
    plugin = ROOT / "sweeps" / "hydra_app" / "plugin.py"
    shutil.copy(plugin, tmp_path / "installed" / "hydra_plugins" / "stagesweep.py")
    return tmp_path


@pytest.fixture
def environment(application: Path) -> dict[str, str]:
    """As an installation would have it: the plugin and this project can be imported."""
    path = os.pathsep.join([str(application / "installed"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "HYDRA_FULL_ERROR": "1"}
