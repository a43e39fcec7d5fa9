"""Says whether this machine can isolate a program, without asking the code under test."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def _missing() -> str:
    for program, package in (("bwrap", "bubblewrap"), ("g++", "g++")):
        if shutil.which(program) is None:
            return f"needs {package} (apt-get install {package})"
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.getuid() == 0 else {}
    command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd="/", **nobody)
    return f"users may have no namespaces here ({done.stderr.strip()})" if done.returncode else ""


MISSING = _missing()
ISOLATED = pytest.mark.skipif(bool(MISSING), reason=MISSING)
