"""`sweep snapshots` on the command line, and its line in `sweep status`: tables, JSON, removal, refusals."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from published import done, key_of, publish_all, put, staged, with_points

from sweeps.experiment import Experiment
from sweeps.operations import checkpoints
from sweeps.space.definition import Choice, Trunk
from sweeps.storage.local import LocalStore
from sweeps.transfer import stored_stages

BEST, WORSE, NEEDED = key_of(0.1), key_of(0.5), key_of(0.9)


@pytest.fixture
def shared(space, monkeypatch) -> Experiment:
    """Three snapshots: trial 0's is used twice, trial 1's is beyond the limit of one, trial 4 needs trial 2's."""
    experiment = Experiment.create(LocalStore("store"), staged(space, keep=1))
    now = experiment.store.now()
    for record in (
        done(0, 0.1, 1.0, now=now),
        done(1, 0.5, 2.0, now=now),
        done(2, 0.9, 3.0, now=now),
        done(3, 0.1, 1.5, of=0, now=now),
        replace(done(4, 0.9, status="running", now=now), stages=()),
        done(5, 0.1, 1.7, of=0, now=now),
    ):
        put(experiment.store, record)
    publish_all(experiment)
    monkeypatch.setenv("SWEEP_STORAGE", "store")
    return experiment


def stored(experiment: Experiment) -> set[str]:
    return {stage.key for stage in stored_stages.stored_stages(experiment.store)}


def by_records(experiment: Experiment) -> set[str]:
    return {run.key for record in experiment.trials() for run in record.stages if run.snapshot}


def test_table_of_snapshots(sweep, shared):
    ran = sweep("snapshots")
    assert (ran.status, ran.err) == (0, "")
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == ["key", "stage", "by", "used", "by", "size", "age", "stays"]
    assert lines[1][:7] == [BEST[:8], "first", "0", "3,", "5", "2.9", "KiB"]
    assert " ".join(lines[1][9:]) == "trial 0, the best"
    assert " ".join(lines[2][8:]) == "no: not among the 1 best"
    assert " ".join(lines[3][8:]) == "needed by trial 4"
    assert "stored  3 snapshots, 8.8 KiB" in ran.out
    assert "saved   400 of 1500 in cost (27%), 2.0 h of training; reused 2 times" in ran.out
    assert "traffic 8.8 KiB stored, 5.9 KiB fetched, of what is there now" in ran.out


def test_the_json_is_one_document(sweep, shared):
    document = json.loads(sweep("snapshots", "--format", "json").out)
    assert document.keys() == {"snapshots", "unnamed", "totals", "removed"}
    best = document["snapshots"][0]
    assert tuple(best) == checkpoints.COLUMNS  # the header of the CSV
    assert 0 <= best.pop("age_s") < 60
    assert best == {
        "key": BEST,
        "stage": "first",
        "step": None,
        "trials": [0],
        "used_by": [3, 5],
        "needed_by": [],
        "bytes": 3002,
        "problem": "",
        "kept": True,
        "why": "trial 0, the best",
    }
    assert [row["kept"] for row in document["snapshots"]] == [True, False, True]
    assert document["totals"] == {
        "snapshots": 3,
        "bytes": 9006,
        "bytes_fetched": 6004,
        "reused": 2,
        "branched": 0,
        "cost_nominal": 1500.0,
        "cost_paid": 1100.0,
        "seconds_saved": 7200.0,
    }
    assert (document["unnamed"], document["removed"]) == ([], [])


def test_a_trial_stopped_early_counts_for_what_is_saved_as_in_status(sweep, shared):
    stopped = done(6, 0.1, of=0, status="early_stopped")
    put(shared.store, replace(stopped, stages=stopped.stages[:1], progress={"done": 0.9}))
    totals = json.loads(sweep("snapshots", "--format", "json").out)["totals"]
    compute = json.loads(sweep("status", "--format", "json").out)["compute"]
    assert (totals["cost_nominal"], totals["cost_paid"]) == (compute["nominal"], compute["paid"])
    assert (totals["cost_nominal"], totals["cost_paid"]) == (1500 + 270, 1100 + 70)


def test_the_csv_has_a_row_for_each(sweep, shared, space):
    printed = sweep("snapshots", "--format", "csv").out
    Experiment.create(LocalStore("plain"), space)
    assert sweep("snapshots", "--storage", "plain", "--format", "csv").out == f"{printed.splitlines()[0]}\n"
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [(row["key"], row["used_by"], row["needed_by"]) for row in rows] == [
        (BEST, "3 5", ""),
        (WORSE, "", ""),
        (NEEDED, "", "4"),
    ]


def test_a_sweep_without_any_says_so(sweep, space):
    Experiment.create(LocalStore("plain"), space)
    ran = sweep("snapshots", "--storage", "plain")
    assert (ran.status, ran.out.count("\n")) == (0, 1)
    Experiment.create(LocalStore("other"), staged(space))
    assert sweep("snapshots", "--storage", "other").out.endswith(" yet\n")
    assert "stages" not in sweep("status", "--storage", "other").out


def test_status_has_a_line_with_number_and_size(sweep, shared):
    assert "stages  3 snapshots, 8.8 KiB; reused 2 times" in sweep("status").out.splitlines()


def test_chosen_ones_are_deleted_from_the_records_and_the_store(sweep, shared):
    ran = sweep("snapshots", "--delete", WORSE[:6], "--delete", WORSE, "--delete", BEST[:4])
    assert ran.status == 0
    assert ran.out.startswith(f"removed {WORSE[:8]}\nremoved {BEST[:8]}\nkey ")
    assert stored(shared) == by_records(shared) == {NEEDED}
    again = sweep("snapshots", "--delete", WORSE)
    assert again.status == 2
    assert again.err.startswith(f"sweep: error: --delete {WORSE}: ")


def test_pruning_leaves_what_the_sweeps_end_would_leave(sweep, shared):
    document = json.loads(sweep("snapshots", "--prune", "--format", "json").out)
    assert document["removed"] == [WORSE]
    assert stored(shared) == by_records(shared) == {BEST, NEEDED}
    assert json.loads(sweep("snapshots", "--prune", "--format", "json").out)["removed"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--delete", NEEDED], f"--delete {NEEDED}: unfinished trials need it (4)"),
        (["--delete", BEST, "--delete", "0000"], "--delete 0000: "),
        (["--delete", BEST, "--prune"], "--delete and --prune "),
    ],
    ids=["needed", "unknown", "both"],
)
def test_nothing_is_removed_if_one_of_them_cannot_be(sweep, shared, options, message):
    ran = sweep("snapshots", *options)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"sweep: error: {message}")
    assert ran.err.count("\n") == 1
    assert len(stored(shared)) == len(by_records(shared)) == 3


def test_a_beginning_of_two_keys_is_refused(sweep, shared):
    twin = WORSE[:10] + "f" * 54
    record = done(6, 0.3, 4.0)
    put(shared.store, replace(record, stages=(replace(record.stages[0], key=twin),)))
    ran = sweep("snapshots", "--delete", WORSE[:10])
    assert ran.err.startswith(f"sweep: error: --delete {WORSE[:10]}: 2 keys ")


def test_one_that_no_record_has_is_left_to_repair(sweep, shared):
    put(shared.store, done(1, 0.5, 2.0, snapshot=False))
    ran = sweep("snapshots", "--delete", WORSE)
    assert ran.status == 2
    assert "`sweep repair`" in ran.err
    shown = sweep("snapshots")
    assert "`sweep doctor`" in shown.err
    assert json.loads(sweep("snapshots", "--format", "json").out)["unnamed"] == [WORSE]


def test_what_is_missing_or_damaged_is_marked(sweep, shared):
    (Path("store/stages") / BEST / "000000-1" / "stage.json").unlink()
    (stage,) = stored_stages.stored_stages(shared.store, only=WORSE)
    stored_stages.remove(shared.store, stage)
    ran = sweep("snapshots")
    assert ran.status == 0
    assert "stage.json is missing" in ran.out
    assert "it is not stored" in ran.out
    assert ran.err.startswith(f"sweep: {BEST[:8]}, {WORSE[:8]}: ")
    rows = json.loads(sweep("snapshots", "--format", "json").out)["snapshots"]
    assert [(row["bytes"], row["problem"]) for row in rows] == [
        (3000, "stage.json is missing"),
        (None, "it is not stored"),
        (3002, ""),
    ]


def test_snapshot_removed_meanwhile_is_reported(sweep, shared, monkeypatch):
    from sweeps.transfer import removal

    monkeypatch.setattr(removal, "discard", lambda experiment, key: False)
    ran = sweep("snapshots", "--delete", BEST)
    assert ran.status == 0
    assert f"{BEST[:8]} is left" in ran.err
    assert "removed" not in ran.out


def test_doctor_and_repair_compare_checksums_on_request(sweep, shared, monkeypatch, tmp_path):
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    put(shared.store, done(4, 0.9, 2.0, of=2))
    (Path("store/stages") / BEST / "000000-1" / "stage.json").write_bytes(b"[]")

    def kinds(*options):
        document = json.loads(sweep("doctor", "--format", "json", *options).out)
        return [finding["kind"] for finding in document["findings"] if finding["level"] == "problem"]

    assert "damaged" not in kinds()
    assert "damaged" in kinds("--checksums")
    assert "nothing" in sweep("repair", "--yes").out
    done_ = sweep("repair", "--yes", "--checksums")
    assert done_.out.startswith(f"done: remove 2.9 KiB of the snapshot {BEST[:12]}")
    assert stored(shared) == by_records(shared) == {WORSE, NEEDED}


@pytest.mark.parametrize("width", [50, 200])
def test_on_a_terminal_of_any_width_no_column_is_cut(sweep, shared, monkeypatch, width):
    """Rich would shorten a column to `trial 0, th…`; lines that wrap can still be read and copied."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = sweep("snapshots").out
    assert "…" not in out
    assert "trial 0, the best" in out


@pytest.fixture
def trunks(space, monkeypatch) -> Experiment:
    """Trials 0 and 2 have points of one trunk, trial 1 branched off at 10; trials leave it at 5, 10 and 15."""
    space = staged(space)
    first = replace(
        space.stages[0], parameters=("x", "mode", "steps"), trunk=Trunk(length="steps", decay=0.5)
    )
    lengths = Choice(name="steps", values=(10, 20, 30))
    space = replace(space, stages=(first, *space.stages[1:]), parameters=(*space.parameters, lengths))
    experiment = Experiment.create(LocalStore("store"), space)
    now = experiment.store.now()
    trunk = with_points(done(0, 0.1, 1.0, now=now), 3, 5, 10)
    longer = with_points(done(2, 0.1, 2.0, snapshot=False, now=now), 15)
    branch = done(1, 0.1, 3.0, snapshot=False, now=now)
    saved = replace(branch.stages[0], branched_from=0, branched_at=10, saved=100.0)
    took = replace(trunk.points[2], snapshot=False, reused_from=0)
    for record in (trunk, longer, replace(branch, stages=(saved, *branch.stages[1:]), points=(took,))):
        put(experiment.store, record)
    publish_all(experiment)
    monkeypatch.setenv("SWEEP_STORAGE", "store")
    return experiment


def test_points_are_listed_by_trunk(sweep, trunks):
    ran = sweep("snapshots")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("trunk"))
    assert lines[at].split() == ["trunk", "points", "at", "by", "used", "by", "size", "age", "stays"]
    shown = " ".join(lines[at + 1].split())
    assert shown.startswith("first 3, 5, 10, 15 0, 2 1 11.7 KiB")
    assert shown.endswith("3: no: a later point serves every length; 5, 10, 15: trial 0, the best")
    assert "stored  1 snapshot, 4 points, 14.7 KiB" in ran.out
    assert "saved   100 of 900 in cost (11%), 30.0 min of training; branched off 1 time" in ran.out
    assert "traffic 14.7 KiB stored, 2.9 KiB fetched" in ran.out
    assert "stages  1 snapshot, 4 points, 14.7 KiB; branched off 1 time" in sweep("status").out


def test_the_json_has_each_point_with_its_key_which_deletes_it(sweep, trunks):
    document = json.loads(sweep("snapshots", "--format", "json").out)
    rows = {row["step"]: row for row in document["snapshots"]}
    assert sorted(rows, key=lambda step: step or 0) == [None, 3, 5, 10, 15]
    assert (rows[10]["used_by"], rows[10]["trials"], rows[3]["kept"]) == ([1], [0], False)
    totals = document["totals"]
    assert (totals["branched"], totals["cost_nominal"], totals["cost_paid"]) == (1, 900, 800)
    assert sweep("snapshots", "--delete", rows[10]["key"]).status == 0
    assert sweep("snapshots", "--prune").status == 0
    assert stored(trunks) == {rows[step]["key"] for step in (None, 5, 15)}
