"""Workers that are killed with SIGKILL at each write of a publication, one after another; their traces as JSON.

`test_killed_publishers` starts this once. It has no threads of its own, so it forks each worker in a moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.definition import Choice, Fixed, Lease, Objective, Program, Search, Space, Stage, Trunk
from sweeps.storage.local import LocalStore
from sweeps.transfer import copying
from sweeps.trials.costs import paid
from sweeps.trials.lifecycle import Expire
from sweeps.worker.loop import Limits, work

WRITES = ("open", "os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.utime")
FILES = ("weights", "more/optimizer", "stage.json")
POINT = "first@1"


class Silent:  # this is a program of its own, which does not see tests/
    def __getattr__(self, name: str):
        return lambda *arguments: None


def objective(parameters):
    run = Path(os.environ["SWEEP_RUN_DIR"])
    ended = run / "snapshots" / (POINT if "steps" in parameters else "first")
    if not ended.is_dir():
        with Path(os.environ["CALLS"]).open("a") as calls:
            calls.write("computed\n")
        draft = run / "snapshots/first.tmp"
        for name in FILES:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text("{}" if name == "stage.json" else repr(2 * parameters["x"]))
        draft.rename(ended)
    loss = float((ended / "weights").read_text()) + parameters.get("n", 1)
    if after := os.environ.get("KILL_AFTER"):
        AFTER[after](parameters)
    return {"loss": loss}


def space() -> Space:
    return Space(
        name="killed",
        objectives=(Objective(metric="loss"),),
        parameters=(Choice(name="x", values=(1.0, 2.0)), Choice(name="n", values=(1, 2))),
        program=Program(kind="function", function="killed_publishers:objective"),
        search=Search(method="grid"),
        run_cap=2,
        lease=Lease(heartbeat_s=float(os.environ.get("HEARTBEAT_S", "60")), expire_s=600, max_attempts=3),
        stages=(
            Stage(name="first", parameters=("x",), cost="100"),
            Stage(name="second", parameters=("n",), cost="1"),
        ),
    )


def lengths() -> Space:
    """Two trials on one trunk, of which the first leaves the point after its first step."""
    first = Stage(
        name="first", parameters=("x", "steps"), cost="100*steps", trunk=Trunk(length="steps", decay=0.5)
    )
    parameters = (Fixed(name="x", value=1.0), Choice(name="steps", values=(2, 3)))
    second = Stage(name="second", parameters=("n",), cost="1")
    return replace(space(), parameters=parameters, stages=(first, second))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(condition: Callable[[Experiment], bool]) -> Callable[[dict], None]:
    def wait_and_die(parameters: dict) -> None:
        sweep = Experiment.open(LocalStore(os.environ["STORE"]))
        while not condition(sweep):
            threading.Event().wait(0.005)
        die()

    return wait_and_die


AFTER = {
    "the manifest": die_once(lambda sweep: any("manifest" in e.key for e in sweep.store.list("stages/"))),
    "the heartbeat": die_once(lambda sweep: bool(sweep.trial(0).snapshots)),
}


def die_at(count: int, trace: Path) -> None:
    """Kill this process before the `count`-th change of the file system by its publishing thread."""
    events: list[str] = []

    def hook(event: str, arguments: tuple) -> None:
        if event not in WRITES or not threading.current_thread().name.startswith("publish"):
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        events.append(event)
        if len(events) == count:
            os.write(fd, f"{event} {Path(str(arguments[0])).name}".encode())
            die()

    fd = os.open(trace, os.O_WRONLY | os.O_CREAT)
    sys.addaudithook(hook)


def in_a_process(act: Callable[[], object]) -> int:
    """Return the exit status of a forked process that does this."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(folder: Path, trials: int | None = None) -> None:
    sweep = Experiment.open(LocalStore(folder))
    work(sweep, stop=Stop(), watcher=Silent(), limits=Limits(max_trials=trials))


def story(folder: Path, kill: Callable[[], object], of: Space) -> dict:
    """Kill a worker in the middle, let another one finish the sweep, and return what is there."""
    folder.mkdir()
    os.environ |= {"CALLS": str(folder / "calls"), "STORE": str(folder / "store")}
    store = LocalStore(folder / "store")
    sweep = Experiment.create(store, of)

    def killed_worker() -> None:
        kill()
        run(folder / "store", 1)

    status = in_a_process(killed_worker)
    published = any(entry.key.endswith("/manifest.json") for entry in store.list("stages/"))
    os.environ.pop("KILL_AFTER", None)
    if status:
        sweep.apply(0, Expire(after_s=-1.0, max_attempts=3))
    ended = in_a_process(lambda: run(folder / "store"))
    records = Experiment.open(store).trials()
    if not all(record.stages for record in records):
        raise SystemExit(f"{folder}: the second worker ended with {ended} and left {records}")
    first = [record.stages[0] for record in records]
    shared = [next(iter(record.points), record.stages[0]) for record in records]  # the point, or the end
    prefix = f"stages/{shared[0].key}"
    found = copying.published(store, prefix)
    files = {e.key.removeprefix(f"{prefix}/") for e in store.list(prefix)} - {"manifest.json"}
    return {
        "killed": status == -signal.SIGKILL,
        "published": published,
        "ended": ended,
        "computed": len((folder / "calls").read_text().splitlines()),
        "losses": [record.metrics.get("loss") for record in records],
        "paid": [paid(record) for record in records],
        "reused_from": [run.reused_from for run in shared],
        "branched_from": [stage.branched_from for stage in first],
        "snapshot": [run.snapshot for run in shared],
        "by": found and found.by,
        "foreign": sorted(files - {f"{found.by}/{name}" for name in FILES}) if found else None,
        "files": sorted(files & {f"{found.by}/{name}" for name in FILES}) if found else None,
    }


def stories_of(root: Path, make: Callable[[], Space]) -> list[dict]:
    root.mkdir()
    stories = []
    for count in range(1, 100):
        folder = root / str(count)
        stories.append(
            story(folder, lambda folder=folder, count=count: die_at(count, folder / "trace"), make())
        )
        stories[-1]["at"] = (folder / "trace").read_text()
        if not stories[-1]["killed"]:
            break
    for after, heartbeat_s in (("the manifest", "60"), ("the heartbeat", "0.05")):
        os.environ |= {"HEARTBEAT_S": heartbeat_s, "KILL_AFTER": after}
        stories.append(story(root / after, lambda: None, make()) | {"at": f"after {after}"})
    del os.environ["HEARTBEAT_S"]
    return stories


def main(root: Path) -> None:
    print(
        json.dumps({"stage": stories_of(root / "stage", space), "point": stories_of(root / "point", lengths)})
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(Path(sys.argv[1]))
