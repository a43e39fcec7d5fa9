"""`sweep launch local` and `sweep down`: real pools of real workers over a folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runners.pools import pool_file
from runners.pools.pool import Pool
from runners.workers.restarts import last_reason
from sweeps.cli.pool_options import option_values
from sweeps.experiment import Experiment
from sweeps.operations import pools
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.storage.local import LocalStore
from sweeps.storage.urls import open_store
from sweeps.worker.gang.member import Member

FUNCTIONS = Path(__file__).parents[1] / "functions"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of real processes: they find our packages and the test's objectives."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(FUNCTIONS)]))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    return dict(os.environ)


def made(sweep: Callable[..., object], space_file: Path, objective: str = "recorded") -> Experiment:
    """A grid: its workers need no Ax, which takes each of them seconds to load."""
    text = space_file.read_text().replace("paraboloid", objective)
    for before, after in {
        "{min: 0.0, max: 1.0}": "{values: [0.1, 0.3, 0.5, 0.7, 0.9]}",
        "{min: 1, max: 100}": "{value: 10}",
        "{method: random, sobol: 4}": "{method: grid}",
    }.items():
        assert before in text
        text = text.replace(before, after)
    space_file.write_text(text)
    assert sweep("init", str(space_file)).status == 0
    return Experiment.open(LocalStore("sweep-store/toy"))


def start(environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sweeps", "launch", "local", "--devices", "none", *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def pool() -> pool_file.PoolFile | None:
    found = list(Path("sweep-store/toy/logs").glob(f"*/{pool_file.FILE}"))
    return pool_file.read(found[0].parent) if found else None


def workers() -> list[int]:
    there = pool()
    return [known.pid for known in there.workers] if there else []


@pytest.mark.slow
def test_two_workers_do_the_sweep_and_leave_no_file_behind(sweep, space_file, environment):
    experiment = made(sweep, space_file)
    with start(environment, "--workers", "2") as launched:
        _, stderr = launched.communicate(timeout=100)
    assert launched.returncode == 0, stderr
    assert [record.status for record in experiment.trials()] == ["completed"] * 5
    assert "sweep: 2 workers, 1 thread each" in stderr
    assert stderr.count("has no work left") == 2
    assert pool() is None


def test_a_killed_worker_is_replaced_and_the_sweep_is_done(sweep, space_file, environment):
    space_file.write_text(space_file.read_text() + "lease: {heartbeat_s: 0.2, expire_s: 2}\n")
    environment["CALL_SECONDS"] = "0.7"
    experiment = made(sweep, space_file)
    with start(environment, "--workers", "1") as launched:
        wait_for(lambda: any(record.status == "running" for record in experiment.trials()))
        os.kill(workers()[0], signal.SIGKILL)
        _, stderr = launched.communicate(timeout=100)
    assert launched.returncode == 0, stderr
    assert "worker 1 crashed (signal 9)" in stderr
    assert [record.status for record in experiment.trials()] == ["completed"] * 5


def test_max_trials_holds_for_a_worker_whose_trials_fail(sweep, space_file, environment):
    experiment = made(sweep, space_file, "not_a_number")
    with start(environment, "--workers", "1", "--max-trials", "1") as launched:
        _, stderr = launched.communicate(timeout=100)
    assert [record.status for record in experiment.trials()] == ["failed"], stderr
    assert launched.returncode == 0, stderr


@pytest.mark.slow
def test_sigterm_brings_the_pool_down_and_the_trial_back(sweep, space_file, environment):
    experiment = made(sweep, space_file, "sleeps")
    with start(environment, "--workers", "1") as launched:
        wait_for(Path(environment["STARTED"]).exists)
        pids = workers()
        launched.terminate()
        _, stderr = launched.communicate(timeout=60)
    assert launched.returncode == 75, stderr
    assert "SIGTERM" in stderr
    assert [record.status for record in experiment.trials()] == ["pending"]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert pool() is None


@pytest.mark.slow
def test_a_detached_pool_outlives_its_starter_and_down_ends_it(sweep, space_file, environment):
    experiment = made(sweep, space_file, "sleeps")
    with start(environment, "--workers", "1", "--detach") as launched:
        _, stderr = launched.communicate(timeout=60)
    assert launched.returncode == 0, stderr
    assert "`sweep down`" in stderr
    wait_for(Path(environment["STARTED"]).exists)
    there = pool()
    assert there is not None
    assert os.getsid(there.keeper.pid) == there.keeper.pid  # no terminal's end reaches it

    second = sweep("launch", "local", "--devices", "none")
    assert second.status == 2
    assert f"(process {there.keeper.pid})" in second.err

    (place,) = json.loads(sweep("pool", "status", "--format", "json").out)
    assert (place["runner"], place["worker"], place["state"]) == ("local", "1", "running")
    assert sweep("pool", "scale", "2").status == 0
    wait_for(lambda: len(workers()) == 2)
    assert sweep("pool", "scale", "1").status == 0
    wait_for(lambda: len(workers()) == 1)
    assert "trial 0" in sweep("pool", "logs", "--worker", "1").out

    ended = sweep("down")
    assert (ended.status, "2 processes" in ended.err) == (0, True)
    assert there.alive() == []
    # The second worker may have begun a trial before it was ended; it handed that back as well.
    assert {record.status for record in experiment.trials()} == {"pending"}
    assert "no pool" in sweep("down").err
    assert [row["what"] for row in json.loads(sweep("history", "--format", "json").out)] == [
        "launch 1 worker on local",
        "scale the pool of local to 2 workers",
        "scale the pool of local to 1 worker",
        "bring down the pool of local",
    ]


@pytest.mark.slow
def test_down_finds_the_workers_of_a_keeper_that_was_killed(sweep, space_file, environment):
    made(sweep, space_file, "sleeps")
    with start(environment, "--workers", "1") as launched:
        wait_for(Path(environment["STARTED"]).exists)
        there = pool()
        launched.kill()
    assert there is not None
    assert [process.pid for process in there.alive()] == workers()
    assert "1 process ended" in sweep("down").err
    assert there.alive() == []


def test_a_program_that_every_worker_refuses_ends_with_2(sweep, space_file, environment):
    made(sweep, space_file)
    environment["PYTHONPATH"] = str(ROOT)  # where the function is not found
    with start(environment, "--workers", "1") as launched:
        _, stderr = launched.communicate(timeout=60)
    assert launched.returncode == 2, stderr
    assert "rejected its input" in stderr


def test_a_dry_run_prints_lines_for_a_shell_and_starts_nothing(sweep, space_file, tmp_path):
    hostile = tmp_path / "it's; rm -rf $HOME"
    url = sweep("init", str(space_file), "--storage", str(hostile)).out.strip()
    ran = sweep("launch", "local", "--storage", url, "--devices", "0,7", "--threads", "3", "--dry-run")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert len(lines) == 2
    for line, device in zip(lines, "07", strict=True):
        words = shlex.split(line)
        assert words[0] == "env"
        assert {f"CUDA_VISIBLE_DEVICES={device}", "OMP_NUM_THREADS=3"} < set(words)
        assert words[words.index("--storage") + 1] == url
    assert not list(hostile.glob("**/worker-*.log"))


def test_chips_of_a_tpu_are_named_once_for_all(sweep, space_file):
    sweep("init", str(space_file))
    lines = sweep("launch", "local", "--devices", "tpu:0, 2", "--dry-run").out.splitlines()
    assert len(lines) == 2
    assert ["TPU_VISIBLE_CHIPS=0 " in lines[0], "TPU_VISIBLE_CHIPS=2 " in lines[1]] == [True, True]


def test_a_dry_run_as_json_is_file_names_and_texts(sweep, space_file):
    sweep("init", str(space_file))
    ran = sweep("launch", "local", "--devices", "none", "--dry-run", "--format", "json")
    assert list(json.loads(ran.out)) == ["workers.sh"]


def test_an_engine_that_is_gone_keeps_nobody_from_the_others(sweep, space_file, monkeypatch, tmp_path):
    from runners.pools import launched

    sweep("init", str(space_file))
    monkeypatch.setenv("PATH", str(tmp_path))  # no squeue
    for engine in ("slurm", "kubernetes"):
        folder = Path("sweep-store/toy/logs").absolute() / f"{engine}-pool"
        described = Pool(name="toy", storage="s", folder=folder, workers=1, command=("true",))
        launched.write(launched.Launched(runner=engine, pool=described))
    for command in (("pool", "status"), ("down",)):
        ran = sweep(*command)
        assert ran.status == 2
        assert [line.split()[3] for line in ran.err.splitlines()] == ["slurm", "kubernetes"]
        assert ran.err.count("which is not here") == 2


@pytest.mark.parametrize(
    ("launched_with", "argv", "expected"),
    [(300.0, (), 300.0), (30.0, (), 60.0), (300.0, ("--grace", "5"), 5.0)],
)
def test_down_gives_workers_the_time_that_they_were_launched_with(
    sweep, space_file, monkeypatch, launched_with, argv, expected
):
    from runners.pools import engines, launched

    sweep("init", str(space_file))
    folder = Path("sweep-store/toy/logs").absolute() / "slurm-pool"
    described = Pool(
        name="toy", storage="s", folder=folder, workers=1, command=("true",), grace_s=launched_with
    )
    launched.write(launched.Launched(runner="slurm", pool=described))
    given: list[float] = []

    class Slurm:
        def down(self, pool: Pool, notify: object) -> int:
            given.append(pool.grace_s)
            return 1

    monkeypatch.setattr(engines, "require", lambda name: None)
    monkeypatch.setattr(engines, "runner", lambda name: Slurm())
    assert sweep("down", *argv).status == 0
    assert given == [expected]


def test_pools_of_sweeps_of_one_name_in_two_buckets_are_told_apart(
    sweep, space_file, monkeypatch, tmp_path, gcs
):
    pytest.importorskip("submitit")
    from runners.pools import launched

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    (tmp_path / "bin").mkdir()
    jobs = "[ -e cancelled ] || echo '77|77_0|RUNNING|node1|None'"
    for name, body in (("sbatch", ""), ("srun", ""), ("squeue", jobs), ("scancel", "touch cancelled")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    prod, dev = (f"gs://bucket/{uuid.uuid4().hex}/{place}" for place in ("prod", "dev"))
    for storage in (prod, dev):
        assert sweep("init", str(space_file), "--storage", storage).status == 0
    opened = Experiment.open(open_store(f"{prod}/toy"))
    for folder in (
        pools.folder(pools.place_of(opened), "slurm"),
        Path("sweep-logs/toy/slurm-pool").absolute(),
    ):
        described = Pool(name="toy", storage=f"{prod}/toy", folder=folder, workers=1, command=("true",))
        launched.write(launched.Launched(runner="slurm", pool=described, notes={"jobs": ["77"]}))
        assert "no pool of this sweep runs" in sweep("down", "--storage", dev).err
        assert sweep("pool", "status", "--storage", dev).out == ""
        assert (folder / "launched.json").exists()
        assert not Path("cancelled").exists()
        ran = sweep("rename", "new", "--storage", prod)
        assert (ran.status, "a pool of slurm was launched for it" in ran.err) == (2, True)
        assert sweep("down", "--storage", prod, "--grace", "0").status == 0
        assert not (folder / "launched.json").exists()
        Path("cancelled").unlink()
    assert sweep("rename", "new", "--storage", prod).status == 0


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_pool_that_was_launched_elsewhere_is_not_scaled(sweep, space_file, monkeypatch, tmp_path, options):
    pytest.importorskip("submitit")
    sweep("init", str(space_file))
    before = everything("sweep-store/toy")
    (tmp_path / "bin").mkdir()
    for name, body in (
        ("sbatch", f"touch {tmp_path}/submitted; echo Submitted batch job 7"),
        ("srun", ""),
        ("squeue", ""),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    ran = sweep("pool", "scale", "4", "slurm", *options)
    assert (ran.status, "scale it where it was launched" in ran.err) == (2, True)
    assert not (tmp_path / "submitted").exists()
    assert everything("sweep-store/toy") == before


def test_down_of_an_unknown_pool_runs_the_python_of_its_engine(sweep, space_file, monkeypatch):
    commands: list[tuple[str, ...]] = []

    def down(self: object, pool: Pool, notify: object) -> int:
        commands.append(pool.command)
        return 1

    monkeypatch.setattr("runners.ray_cluster.runner.Ray.down", down)
    sweep("init", str(space_file))
    assert sweep("down", "ray").status == 0
    assert commands[0][0] == "python3"


def test_local_pool_of_an_earlier_version_is_not_joined_by_a_second(sweep, space_file, monkeypatch, gcs):
    from runners.pools import launched, pool_file

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    storage = f"gs://bucket/{uuid.uuid4().hex}/sweeps"
    assert sweep("init", str(space_file), "--storage", storage).status == 0
    place = pools.place_of(Experiment.open(open_store(f"{storage}/toy")))
    folder = pools.former_folder(place, "local")
    described = Pool(name="toy", storage=f"{storage}/toy", folder=folder, workers=1, command=("true",))
    launched.write(launched.Launched(runner="local", pool=described, notes={}))
    pool_file.write(folder, {})  # of this process
    ran = sweep("launch", "local", "--devices", "none", "--storage", storage)
    assert (ran.status, "a pool of this sweep runs here already" in ran.err) == (2, True)


def everything(folder: str) -> set[str]:
    """The names of its files, however deep."""
    return {path.name for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("queued", [False, True], ids=["nothing is queued", "the answer was lost"])
def test_a_launch_that_failed_leaves_word_of_what_runs_alone(
    sweep, space_file, monkeypatch, tmp_path, queued
):
    pytest.importorskip("submitit")
    sweep("init", str(space_file))
    before = everything("sweep-store/toy")
    queue = "echo '14|12_0|PENDING||None'" if queued else ""
    (tmp_path / "bin").mkdir()
    for name, body in (("sbatch", "echo no such partition >&2; exit 1"), ("srun", ""), ("squeue", queue)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    ran = sweep("launch", "slurm", "--workers", "2")
    assert ran.status == 1
    assert ran.err.splitlines()[-1] == "sweep: error: slurm: sbatch: no such partition"
    new = everything("sweep-store/toy") - before
    assert {"launched.json", "worker.sh"} <= new if queued else not new


def test_an_engines_workers_get_a_folders_whole_path(sweep, space_file, tmp_path):
    pytest.importorskip("submitit")
    sweep("init", str(space_file))
    assert f"--storage {tmp_path}/sweep-store/toy" in sweep("launch", "slurm", "--dry-run").out


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24:00:00", "24:00:00"),
        ("16:00", "16:00"),
        ("1-12:30", "1-12:30"),
        ("0:30.5", "0:30.5"),
        ("0123", "0123"),
        ("2026-11-30", "2026-11-30"),
        ("2026-11-30T16:00", "2026-11-30T16:00"),
        ("[08:00, {at: 010}]", ["08:00", {"at": "010"}]),
        ("0", 0),
        ("-12", -12),
        ("60", 60),
        ("1.5", 1.5),
        ("true", True),
        ("8G", "8G"),
    ],
)
def test_options_have_no_times_as_numbers(text, value):
    """YAML 1.1 has numbers to base 60 and 8, and Slurm counts the first in minutes."""
    found = option_values((f"x={text}",))["x"]
    assert (found, type(found)) == (value, type(value))


def test_slurm_gets_the_time_that_was_written(sweep, space_file):
    pytest.importorskip("submitit")
    sweep("init", str(space_file))
    ran = sweep("launch", "slurm", "--option", "time=24:00:00", "--option", "account=0123", "--dry-run")
    assert {"#SBATCH --time=24:00:00", "#SBATCH --account=0123"} <= set(ran.out.splitlines())


@pytest.mark.parametrize(
    ("engine", "options", "texts"),
    [
        ("kubernetes", ("image=a", "cpu=8", "memory=64Gi"), ('cpu: "8"', "memory: 64Gi")),
        ("kubernetes", ("image=a", "cpu=0.5", "memory=68719476736"), ('cpu: "0.5"', 'memory: "68719476736"')),
        ("skypilot", ("package=a.whl", "cpus=8", "memory=64"), ('cpus: "8"', 'memory: "64"')),
    ],
)
def test_sizes_of_machines_may_be_numbers(sweep, space_file, engine, options, texts):
    sweep("init", str(space_file))
    ran = sweep("launch", engine, *(f"--option={option}" for option in options), "--dry-run")
    assert ran.status == 0
    assert set(texts) <= {line.strip() for line in ran.out.replace("'", '"').splitlines()}


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("kubernetes", ("--option", "image=a")),
        ("skypilot", ("--option=package=a.whl",)),
        (
            "tpu-vm",
            (
                *("--accelerator", "v6e-4", "--option", "project=p", "--option", "zones=us-east5-b"),
                "--option=package=a.whl",
            ),
        ),
    ],
)
def test_dry_run_without_a_bucket(sweep, space_file, tmp_path, engine, options):
    ran = sweep("launch", engine, *options, "--dry-run", "--storage", "toys")
    assert ran.status == 0
    assert "toys/SWEEP" in ran.out
    assert ran.err.count("\n") == 2
    assert "toys: " in ran.err
    sweep("init", str(space_file))
    ran = sweep("launch", engine, *options, "--dry-run")
    assert (ran.status, ran.err.count("\n")) == (0, 1)
    assert f"{tmp_path}/sweep-store/toy is" in ran.err
    refused = sweep("launch", engine, *options, "--yes")
    assert refused.status == 2
    assert "bucket" in refused.err


def test_dry_run_waits_five_seconds_for_a_bucket(sweep, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    began = time.monotonic()
    engine = ("launch", "kubernetes", "--option", "image=a", "--dry-run")
    ran = sweep(*engine, "--storage", "gs://bucket/x", "--name", "toy")
    assert time.monotonic() - began < 20
    assert ran.status == 0
    assert "within 5 s" in ran.err
    assert "sweeps worker --storage gs://bucket/x/toy" in ran.out


@pytest.mark.parametrize(
    ("visible", "workers"), [("3,5", ["3", "5"]), ("0,-1,2", ["0"]), ("-1", [None]), ("", [None])]
)
def test_by_default_each_visible_device_has_a_worker(sweep, space_file, monkeypatch, visible, workers):
    sweep("init", str(space_file))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    lines = sweep("launch", "local", "--dry-run").out.splitlines()
    variables = [dict(word.split("=", 1) for word in shlex.split(line) if "=" in word) for line in lines]
    assert [each.get("CUDA_VISIBLE_DEVICES") for each in variables] == workers


def test_a_worker_has_as_many_devices_as_the_command_takes(sweep, space_file):
    written = space_file.read_text()
    space_file.write_text(written.replace("program: {", "program: {devices: 4, "))
    assert space_file.read_text() != written
    assert sweep("init", str(space_file)).status == 0
    ran = sweep("launch", "local", "--devices", "0,1,2,3,4,5,6,7", "--dry-run")
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", ran.out) == ["0,1,2,3", "4,5,6,7"]


class TestNodes:
    """Workers of several hosts: by the space file, or by --nodes."""

    @pytest.fixture
    def shared(self, sweep, tmp_path: Path) -> None:
        space = Space(
            name="shared",
            objectives=(Objective(metric="final_loss"),),
            parameters=(Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float"),),
            program=Program(kind="trainer", overrides=("device.parallel=fsdp",), processes=2, nodes=2),
        )
        Experiment.create(LocalStore(tmp_path / "sweep-store" / "shared"), space)

    def test_the_space_file_says_how_many(self, sweep, shared):
        lines = sweep("launch", "local", "--devices", "none", "--dry-run", "--storage", "sweep-store/shared")
        assert [line.count("--nodes 2") for line in lines.out.splitlines()] == [1, 1]
        assert [line.count(f"NODE_RANK={rank}") for rank, line in enumerate(lines.out.splitlines())] == [1, 1]

    @pytest.mark.parametrize("nodes", ["1", "2"])
    def test_each_process_of_a_trial_has_a_device(self, sweep, shared, nodes):
        common = ("--nodes", nodes, "--dry-run", "--storage", "sweep-store/shared")
        ran = sweep("launch", "local", "--devices", "0,1,2,3,4", *common)
        assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", ran.out) == ["0,1", "2,3"]
        assert ran.out.count("NODE_RANK=1") == int(nodes) - 1  # two workers, or one of two hosts
        refused = sweep("launch", "local", "--devices", "0,1,2,3,4", "--workers", "3", *common)
        assert "would share 2 groups of 2 accelerators" in refused.err
        refused = sweep("launch", "local", "--devices", "7", *common)
        assert refused.status == 2
        assert re.fullmatch(
            r"sweep: error: --devices: .* 2 accelerators, .* --devices none .*\n", refused.err
        )

    @pytest.mark.parametrize(("nodes", "processes"), [("1", 1), ("4", 4)])
    def test_the_option_wins(self, sweep, shared, nodes, processes):
        storage = ("--storage", "sweep-store/shared")
        ran = sweep("launch", "local", "--devices", "none", "--nodes", nodes, "--dry-run", *storage)
        assert [line.count(f"--nodes {nodes}") for line in ran.out.splitlines()] == [1] * processes

    @pytest.mark.parametrize(
        ("is_told_itself", "says"),
        [
            (True, "sweep: SIGTERM: this host has left, with exit status 75"),
            (False, "sweep: the leader has sent this host away, with exit status 75"),
        ],
    )
    def test_a_host_says_who_has_told_it_to_go(self, sweep, shared, monkeypatch, is_told_itself, says):
        def follow(member: Member) -> int:
            if is_told_itself:
                os.kill(os.getpid(), signal.SIGTERM)
            return 75

        monkeypatch.setattr(Member, "follow", follow)
        ran = sweep("worker", "--node-rank", "1", "--leader", "a", "--storage", "sweep-store/shared")
        assert (ran.status, ran.err.splitlines()[-1]) == (75, says)
        assert last_reason(ran.err) == ("" if is_told_itself else says.removeprefix("sweep: "))  # for a pool

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("launch", "tpu-vm"), "--nodes: the trainer does not share the TPUs"),
            (("launch", "local", "--nodes", "0"), "--nodes 0"),
            (("launch", "local", "--nodes", "3"), "--nodes 3: the trainer refuses"),
            (("worker",), "which of the hosts"),
            (("worker", "--nodes", "3", "--node-rank", "0"), "--nodes 3: the trainer refuses"),
            (("worker", "--node-rank", "2", "--leader", "a"), "--node-rank 2"),
            (("worker", "--nodes", "1", "--leader", "a"), "--leader"),
        ],
    )
    def test_what_is_wrong_is_one_line(self, sweep, shared, words, says):
        ran = sweep(*words, "--storage", "sweep-store/shared")
        assert (ran.status, ran.err.count("\n")) == (2, 1)
        assert says in ran.err
