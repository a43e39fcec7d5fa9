"""`sweep import`, `doctor` and `repair` on the command line: messages, JSON and exit statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.errors import StoreUnavailable
from sweeps.storage.local import LocalStore


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def torn(finished) -> Path:
    """The record of trial 2, cut in the middle."""
    record = Path(finished) / "trials" / "000002.json"
    record.write_bytes(record.read_bytes()[:100])
    return record


def test_what_one_sweep_exports_another_imports(sweep, space_file, finished):
    assert sweep("export", "table.csv").status == 0
    assert sweep("init", str(space_file), "--storage", "other").status == 0
    done = sweep("import", "table.csv", "--storage", "other")
    assert (done.status, done.out) == (0, "table.csv: 5 rows imported as trials 0 to 4\n")
    same = sweep("trials", "--format", "json", "--storage", "other")
    ours = json.loads(sweep("trials", "--format", "json").out)
    assert [t["metrics"] for t in json.loads(same.out)] == [t["metrics"] for t in ours]
    assert {t["generator"] for t in json.loads(same.out)} == {"imported"}


def test_import_from_optuna_says_what_was_left_out(sweep, finished):
    Path("t.csv").write_text(
        "number,value,duration,params_x,params_n,state\n"
        "0,1.5,0 days,0.5,3,COMPLETE\n1,2.5,0 days,0.25,4,PRUNED\n"
    )
    done = sweep("import", "t.csv")
    assert (done.status, done.out.count("imported as trial")) == (0, 1)
    assert "1 PRUNED, the columns number, duration" in done.err


def test_an_import_tells_what_it_left_out(sweep, finished):
    Path("t.csv").write_text("x,n,loss,status\n0.5,3,1.5,completed\n0.5,4,,failed\n")
    first = sweep("import", "t.csv")
    assert "trial 5" in first.out
    assert "1 failed" in first.err
    second = sweep("import", "t.csv")
    assert second.status == 0
    assert second.out.startswith("t.csv: ")
    assert "trial" not in second.out
    assert "1 here already (--again" in second.err
    assert "trial 6" in sweep("import", "t.csv", "--again").out


def test_a_worker_goes_on_after_an_import_to_its_full_cap(sweep, space_file):
    sweep("init", str(space_file))
    Path("t.csv").write_text("x,n,loss\n0.5,3,1.5\n0.25,4,2.5\n")
    assert sweep("import", "t.csv").status == 0
    assert sweep("worker").status == 0
    generators = [t["generator"] for t in json.loads(sweep("trials", "--format", "json").out)]
    assert len(generators) == 7
    assert generators[:2] == ["imported", "imported"]
    assert "imported" not in generators[2:]


def test_import_names_each_problem(sweep, finished):
    Path("t.csv").write_text("x,n,loss\n7,3,1.5\n0.5,3,\n")
    refused = sweep("import", "t.csv")
    assert refused.status == 2
    first, *problems = refused.err.splitlines()
    assert first.startswith("sweep: error: t.csv: ")
    assert [line.split(": ")[:2] for line in problems] == [["  t.csv:2", "x"], ["  t.csv:3", "loss"]]
    assert len(json.loads(sweep("trials", "--format", "json").out)) == 5


def test_the_doctor_finds_a_finished_sweep_in_order(sweep, finished):
    ran = sweep("doctor")
    assert "nothing is wrong" in ran.out
    assert ran.status == 0
    assert "trials        5 completed" in ran.out


def test_the_doctor_says_what_is_wrong_where_and_how_to_mend_it(sweep, torn):
    ran = sweep("doctor")
    assert ran.status == 1
    lines = ran.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("problem: the record of trial 2"))
    assert lines[at + 1].endswith("trials/000002.json")
    assert "sweep repair" in lines[at + 2]
    assert lines[-1] == "1 problem"


def test_the_doctors_json_is_one_document(sweep, torn):
    ran = sweep("doctor", "--format", "json")
    document = json.loads(ran.out)
    assert (ran.status, document["clean"]) == (1, False)
    (finding,) = (f for f in document["findings"] if f["level"] == "problem")
    assert finding.keys() == {"kind", "level", "what", "where", "remedy"}
    assert finding["kind"] == "torn"
    assert document["facts"]["trials"] == "4 completed"


def test_without_a_sweep_the_doctor_looks_at_the_machine(sweep):
    ran = sweep("doctor")
    assert ran.status == 0
    assert "note: ./sweep-store: " in ran.out
    named = sweep("doctor", "--storage", "nowhere")
    assert named.status == 1
    assert "problem: nowhere: " in named.out


def test_the_doctor_knows_the_engines_and_none_is_a_problem(sweep, monkeypatch):
    from runners.pools.engines import ENGINES

    monkeypatch.setenv("PATH", "/nowhere")
    ran = sweep("doctor", "--format", "json")
    engines = {health.pop("engine"): health for health in json.loads(ran.out)["engines"]}
    assert list(engines) == list(ENGINES)
    assert engines["local"]["state"] == "ready"
    assert engines["slurm"]["state"] == "missing"
    assert all(health["remedy"] for health in engines.values() if health["state"] != "ready")
    shown = sweep("doctor").out
    assert "launch local" in shown
    assert "launch slurm" not in shown  # only named among those that are not here
    assert re.search(r"^not here: slurm, ", shown, re.MULTILINE)
    assert ran.status == 0


def test_a_damaged_sweep_file_is_a_finding(sweep, finished):
    (Path(finished) / "sweep.json").write_text("{")
    ran = sweep("doctor")
    assert ran.status == 1
    assert "sweep.json: damaged" in ran.out


def test_a_repair_says_first_does_then_and_is_done(sweep, torn):
    data = torn.read_bytes()
    said = sweep("repair")
    assert said.status == 0
    assert said.out.startswith("planned: ")
    assert "trial 2" in said.out
    assert torn.read_bytes() == data
    done = sweep("repair", "--yes")
    assert (done.status, done.out.partition(":")[0]) == (0, "done")
    (aside,) = (torn.parents[1] / "quarantine").iterdir()
    assert aside.read_bytes() == data
    assert "nothing" in sweep("repair").out
    assert sweep("doctor").status == 0


def test_repair_json_lists_what_is_left_alone(sweep, torn):
    (torn.parent / "notes.txt").write_text("hello")
    planned = json.loads(sweep("repair", "--format", "json").out)
    assert planned["done"] is False
    assert [(step["kind"], step["state"]) for step in planned["steps"]] == [("torn", "planned")]
    assert [where.rpartition("/")[2] for where in planned["foreign"]] == ["notes.txt"]
    done = json.loads(sweep("repair", "--yes", "--format", "json").out)
    assert (done["done"], [step["state"] for step in done["steps"]]) == (True, ["done"])


def test_a_step_that_fails_is_failed_work(sweep, torn, monkeypatch):
    create = LocalStore.create

    def full(self, key, data):
        if key.startswith("quarantine/"):
            raise StoreUnavailable("the disk is full")
        return create(self, key, data)

    monkeypatch.setattr(LocalStore, "create", full)
    failed = sweep("repair", "--yes")
    assert failed.status == 1
    assert failed.out.startswith("failed: ")
    assert "trial 2" in failed.out
    assert "(the disk is full)" in failed.out
    assert torn.exists()


def test_nothing_here_loads_torch_or_ax():
    modules = "sweeps.cli.upkeep, sweeps.upkeep.doctor, sweeps.upkeep.repair, sweeps.upkeep.importing"
    code = f"import sys, {modules}; print(sorted({{'torch', 'ax', 'pandas', 'pyarrow'}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
