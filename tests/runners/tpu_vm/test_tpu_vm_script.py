"""The start-up script, run here for real, with stand-ins for the commands that only a TPU VM has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from runners.pools.pool import Pool, worker_command
from runners.tpu_vm.options import options_of
from runners.tpu_vm.runner import RUNNER
from runners.tpu_vm.vm_script import PYTHON, vm_script

HOSTILE = "a 'b' \"c\" $(touch pwned) `touch pwned` \\ ; touch pwned\nUNIT\n%s %(x)s"

STAND_INS = {
    "gcloud": 'case "$1" in secrets) echo "value of ${5#--secret=}" ;; *) printf "%s\\n" "$@" > "$HERE/gcloud" ;; esac',
    "curl": 'case "$*" in *PUT*) printf "%s\\n" "$@" > "$HERE/attribute" ;; */attributes/stagesweep-queued) echo yes ;; '
    "*) echo sweep-x-001 ;; esac",
    "systemctl": 'echo "${SYSTEM:-running}"; echo "$@" >> "$HERE/systemctl"',
    "systemd-run": 'printf "%s\\n" "$@" > "$HERE/later"',
    "python3.11": 'mkdir -p "$3/bin"; cp "$HERE/bin/pip" "$3/bin/python"',
    "pip": 'printf "%s\\n" "$@" > "$HERE/pip"; exit "${PIP:-0}"',
}


def pool(**more: object) -> Pool:
    fields = {
        "name": "s",
        "storage": f"gs://bucket/{HOSTILE}",
        "folder": Path("logs"),
        "workers": 1,
        "accelerator": "v6e-4",
        "environment": {"GREETING": HOSTILE},
        "options": {"project": "p", "zones": "us-east5-b", "package": HOSTILE},
    } | more
    return Pool(command=worker_command(fields["storage"], python=PYTHON), **fields)  # type: ignore[arg-type]


class Vm:
    """VM as a folder, with stand-ins first on the PATH."""

    def __init__(self, here: Path, pool: Pool) -> None:
        self.here = here
        (here / "bin").mkdir()
        for name, body in STAND_INS.items():
            (here / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
            (here / "bin" / name).chmod(0o755)
        self.root = here / "root"
        self.root.mkdir()
        # The worker's line ends the script: its arguments are written to files instead of run.
        supervisor = f"exec -- {PYTHON} -P -m runners.on_vm"
        text = vm_script(pool, options_of(pool))
        assert supervisor in text
        note = here / "note"
        note.write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$HERE/argv"; env -0 > "$HERE/env"\n')
        note.chmod(0o755)
        (here / "script").write_text(text.replace(supervisor, f"exec -- {note} -P -m runners.on_vm"))

    def run(self, phase: str, **env: str) -> int:
        path = f"{self.here / 'bin'}:{os.environ['PATH']}"
        variables = {
            **os.environ,
            "PATH": path,
            "HERE": str(self.here),
            "STAGESWEEP_ROOT": str(self.root),
            **env,
        }
        return subprocess.run(["bash", "script", phase], cwd=self.here, env=variables, check=False).returncode

    def lines(self, file: str) -> list[str]:
        return (self.here / file).read_text().splitlines()


def test_startup_script_runs_the_supervisor(tmp_path):
    wanted = pool(secrets=("HF_TOKEN",), setup=("export SET_UP=yes",), grace_s=90.0)
    vm = Vm(tmp_path, wanted)
    assert vm.run("work") == 0
    argv = (tmp_path / "argv").read_text().split("\0")[:-1]
    assert argv[argv.index("--") + 1 :] == list(wanted.command)
    assert argv[argv.index("--grace") + 1] == "25"  # a spot VM has 30 seconds
    env = dict(each.split("=", 1) for each in (tmp_path / "env").read_text().split("\0") if each)
    assert (env["GREETING"], env["SET_UP"], env["HF_TOKEN"]) == (HOSTILE, "yes", "value of HF_TOKEN")
    installed = (tmp_path / "pip").read_text()
    assert installed.endswith(
        f"--\ntorch==2.9.1\ntorch_xla[tpu]==2.9.0\nlibtpu>=0.0.21,<=0.0.23.1\n{HOSTILE}\n"
    )
    assert not list(tmp_path.rglob("pwned"))

    (tmp_path / "pip").unlink()
    assert vm.run("work") == 0  # the VM was started again: nothing is installed twice
    assert not (tmp_path / "pip").exists()


@pytest.mark.parametrize(("pip", "status"), [("1", "install"), ("0", "75"), ("0", "2")])
def test_exit_status_is_published_then_vm_deleted(tmp_path, pip, status):
    vm = Vm(tmp_path, pool())
    vm.run("work", PIP=pip)
    vm.run("stopped", EXIT_STATUS=status if status.isdecimal() else "1")
    if status == "75":  # it was preempted: nothing to report
        assert not (tmp_path / "attribute").exists()
        return
    assert status in vm.lines("attribute")
    assert (
        "http://metadata.google.internal/computeMetadata/v1/instance/guest-attributes/stagesweep/ended"
        in vm.lines("attribute")
    )
    assert vm.lines("later")[:6] == [
        "--on-active=900",
        "gcloud",
        "compute",
        "tpus",
        "queued-resources",
        "delete",
    ]
    assert "--force" in vm.lines("later")


def test_startup_creates_a_unit_with_grace(tmp_path):
    vm = Vm(tmp_path, pool(grace_s=12.0))
    assert vm.run("start", STAGESWEEP_UNITS=str(tmp_path)) == 0
    unit = (tmp_path / "stagesweep.service").read_text()
    assert f"ExecStart=/bin/bash {vm.root}/start.sh work\n" in unit
    assert "TimeoutStopSec=17\n" in unit
    assert (
        "KillMode=mixed\n" in unit
    )  # SIGTERM for the worker's supervisor alone; the rest is killed after it
    assert (vm.root / "start.sh").read_text() == (tmp_path / "script").read_text()
    assert vm.lines("systemctl") == ["daemon-reload", "restart --no-block stagesweep"]
    if shutil.which("systemd-analyze"):
        argv = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "stagesweep.service")]
        ran = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert "stagesweep.service" not in ran.stderr


def test_nothing_is_told_when_the_machine_goes_down(tmp_path):
    vm = Vm(tmp_path, pool())
    vm.run("stopped", EXIT_STATUS="TERM", SYSTEM="stopping")
    assert not (tmp_path / "attribute").exists()


def test_the_artifacts_hold_no_secret_and_the_whole_script(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    artifacts = RUNNER.render(pool(secrets=("HF_TOKEN",), workers=2, spot=True))
    assert set(artifacts) == {"startup.sh", "requests.json"}
    assert "hunter2" not in "".join(artifacts.values())
    requests = json.loads(artifacts["requests.json"])
    assert [name[-4:] for name in requests] == ["-001", "-002"]
    assert all(each["spot"] == {} for each in requests.values())
    assert (
        subprocess.run(["bash", "-n"], input=artifacts["startup.sh"], text=True, check=False).returncode == 0
    )
