"""Import of earlier results: all or nothing, once, while workers run, and without using up the run cap."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import optuna
import pytest
from memory_store import MemoryStore

from analysis.summaries.costs import cost
from analysis.summaries.summary import pareto
from analysis.table import TrialsTable
from sweeps.errors import StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.export import optuna_journal
from sweeps.export import table as export
from sweeps.search.allocation import ASK_KEY
from sweeps.search.confirm import finalists
from sweeps.space.definition import Fixed, Range, Search
from sweeps.trials import budget
from sweeps.trials import record as trial
from sweeps.trials.lease import ObjectLease
from sweeps.upkeep import diagnostics, importing
from sweeps.upkeep.importing import import_table
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.tables import TableError

ROWS = "x,n,loss\n0.125,7,1.5\n0.25,8,2.5\n0.5,9,3.5\n"


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "earlier.csv"
    file.write_text(ROWS)
    return file


@pytest.fixture
def empty(store, space):
    return Experiment.create(store, space)


def test_rows_become_completed_trials_after_existing_ones(tended, table):
    done = import_table(tended, table, worker="me")
    assert (done.trials, done.known, dict(done.left_out)) == ((3, 4, 5), 0, {})
    record = tended.trials()[3]
    assert (record.status, record.generator, record.attempt) == ("completed", "imported", 0)
    assert record.parameters == {"x": 0.125, "n": 7, "mode": "fast"}
    assert record.metrics == {"loss": 1.5}
    assert tended.store.list(ASK_KEY) == []


def test_a_second_import_of_the_same_table_changes_nothing(empty, table):
    import_table(empty, table, worker="me")
    before = empty.store.list(trial.PREFIX)
    done = import_table(empty, table, worker="me")
    assert (done.trials, done.known) == ((), 3)
    assert empty.store.list(trial.PREFIX) == before


def test_again_takes_repeated_measurements_in(empty, table):
    import_table(empty, table, worker="me")
    assert import_table(empty, table, worker="me", again=True).trials == (3, 4, 5)


def test_equal_rows_of_one_table_are_repeated_measurements(empty, table):
    table.write_text(ROWS + "0.5,9,3.5\n")
    assert import_table(empty, table, worker="me").trials == (0, 1, 2, 3)
    assert import_table(empty, table, worker="me").known == 4


def test_the_same_parameters_with_another_result_are_new(empty, table):
    import_table(empty, table, worker="me")
    table.write_text(ROWS.replace("3.5", "3.75"))
    done = import_table(empty, table, worker="me")
    assert (done.trials, done.known) == ((3,), 2)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_what_export_writes_comes_into_another_sweep_as_it_was(tended, space, tmp_path, suffix):
    exported = tmp_path / f"table.{suffix}"
    export.write(exported, tended.space, tended.store.url, tended.trials())
    other = Experiment.create(MemoryStore(), space)
    done = import_table(other, exported, worker="me")
    assert dict(done.left_out) == {"pending": 1}
    assert [(r.parameters, r.metrics) for r in other.trials()] == [
        (r.parameters, r.metrics) for r in tended.trials()[:2]
    ]
    assert import_table(tended, exported, worker="me").known == 2


def test_one_bad_row_keeps_all_others_out(empty, table):
    table.write_text(ROWS + "2.0,9,1\n")
    with pytest.raises(TableError, match=r"earlier.csv:5: x: 2.0 is outside"):
        import_table(empty, table, worker="me")
    assert empty.trials() == []


def test_a_table_without_a_completed_row_is_refused(empty, table):
    table.write_text("x,n,loss,status\n0.5,1,,failed\n")
    with pytest.raises(TableError, match="completed"):
        import_table(empty, table, worker="me")


def test_imported_trials_do_not_use_up_the_run_cap(store, space, table):
    experiment = Experiment.create(store, replace(space, run_cap=1))
    import_table(experiment, table, worker="me")
    assert not experiment.is_full(experiment.trials())
    own = replace(experiment.trials()[0], trial=3, generator="sobol")
    store.create(trial.key(3), trial.encode(own, "t"))
    assert experiment.is_full(experiment.trials())


def test_an_index_that_somebody_takes_in_between_is_left_to_them(space, table):
    class Raced(MemoryStore):
        """A worker whose lease was taken over stores its trial in the middle of the import."""

        def create(self, key, data):
            if key == trial.key(1) and not any(entry.key == key for entry in self.list(key)):
                theirs = replace(trial.decode(data), generator="sobol", status="pending", metrics={})
                super().create(key, trial.encode(theirs, "theirs"))
            return super().create(key, data)

    experiment = Experiment.create(Raced(), space)
    assert import_table(experiment, table, worker="me").trials == (0, 2, 3)
    assert experiment.trials()[1].generator == "sobol"


def test_no_row_takes_the_place_of_a_trial_whose_record_is_lost(empty, table):
    """It would be taken for the trial of the files that are left, which `sweep doctor` offers to import."""
    empty.store.create("runs/000001/attempt-1/result.json", b"{}")
    assert import_table(empty, table, worker="me").trials == (0, 2, 3)


def test_run_folders_are_listed_once_for_all_rows(empty, table, monkeypatch):
    """In a bucket a listing for each row would take as long as its record."""
    listed: list[str] = []
    list_objects = empty.store.list
    monkeypatch.setattr(empty.store, "list", lambda prefix: listed.append(prefix) or list_objects(prefix))
    assert len(import_table(empty, table, worker="me").trials) == 3
    assert [prefix for prefix in listed if prefix.startswith("runs/")] == ["runs/"]


def test_imports_at_once_lose_no_row(space, tmp_path):
    experiment = Experiment.create(MemoryStore(), space)
    threads = []
    for number in range(4):
        file = tmp_path / f"{number}.csv"
        file.write_text("x,n,loss\n" + "".join(f"0.{number}{row},1,1\n" for row in range(5)))
        one = Experiment(experiment.store, space)
        threads.append(
            threading.Thread(target=import_table, args=(one, file), kwargs={"worker": f"w{number}"})
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = experiment.trials()
    assert [record.trial for record in records] == list(range(20))
    assert len({record.parameters["x"] for record in records}) == 20


def test_import_waits_for_the_ask_lease(empty, table, monkeypatch):
    monkeypatch.setattr(importing, "PATIENCE_S", 0.0)
    busy = ObjectLease(empty.store, ASK_KEY, heartbeat_s=10, expire_s=30)
    with busy.held("w1"), pytest.raises(StoreUnavailable, match="held by others"):
        import_table(empty, table, worker="me")
    assert empty.trials() == []
    assert import_table(empty, table, worker="me").trials == (0, 1, 2)


def test_an_import_that_was_cut_short_is_finished_by_the_next(space, table):
    class Failing(MemoryStore):
        broken = True

        def create(self, key, data):
            if self.broken and key == trial.key(2):
                raise StoreUnavailable("the network is down")
            return super().create(key, data)

    store = Failing()
    experiment = Experiment.create(store, space)
    with pytest.raises(StoreUnavailable, match="2 of 3 rows"):
        import_table(experiment, table, worker="me")
    store.broken = False
    done = import_table(experiment, table, worker="me")
    assert (done.trials, done.known) == ((2,), 2)


def test_imported_results_replace_sobol_trials(space, tmp_path):
    """The search learns from them as from its own: enough of them, and the surrogate proposes at once."""
    bayes = replace(space, search=Search(method="bayes", sobol=4, seed=0))
    experiment = Experiment.create(MemoryStore(), bayes)
    file = tmp_path / "t.json"
    rows = [{"x": i / 5, "n": 10 + i, "loss": (i / 5 - 0.4) ** 2} for i in range(6)]
    file.write_text(json.dumps(rows))
    import_table(experiment, file, worker="me")
    record = experiment.ask("w1")
    assert record is not None
    assert (record.trial, record.generator) == (6, "botorch")
    assert all(record.parameters != other.parameters for other in experiment.trials()[:6])


CONFIRMED = """\
trial,status,attempt,generator,param.x,param.seed,loss,usd
0,completed,1,baseline,0.1,0,1.0,1
1,completed,1,sobol,0.2,0,1.1,1
2,completed,1,confirm,0.2,199713,0.5,1
3,completed,1,confirm,0.2,4711,1.6,1
4,completed,1,confirm,0.1,199713,1.0,1
5,completed,1,confirm,0.1,4711,1.0,1
"""


def sweep_with(space, rows: str, folder) -> Experiment:
    """Return a sweep of `x` and a fixed seed with the rows of CONFIRMED, or others, imported."""
    x = Range(name="x", min=0.0, max=1.0, kind="float")
    seeded = replace(space, parameters=(x, Fixed(name="seed", value=0)), baseline={"x": 0.75})
    experiment = Experiment.create(MemoryStore(), seeded)
    (folder / "confirmed.csv").write_text(rows)
    import_table(experiment, folder / "confirmed.csv", worker="me")
    return experiment


def test_the_luckiest_imported_repeat_of_a_confirmation_is_not_the_best(space, tmp_path, monkeypatch):
    monkeypatch.setattr(finalists, "LEAST", 99)  # averages in place of a surrogate
    experiment = sweep_with(space, CONFIRMED, tmp_path)
    seeded, records = experiment.space, experiment.trials()
    best = export.best(seeded, records)
    assert best is not None
    assert best.trial == 0
    assert [record.trial for record in export.front(seeded, records)] == [0]
    chosen = finalists.choose(seeded, records, metric="loss", top=4, seed_name="seed", within={})
    assert [finalist.trial for finalist in chosen.finalists] == [0, 1]
    confirmed = export.best_confirmed(seeded, records)
    assert confirmed is not None
    assert confirmed.trial == 0
    shown = TrialsTable.from_document(export.document(seeded, "", records))
    found = pareto(shown, x="usd", y="loss")
    assert found.front == (0,)
    assert found.confirmed == {0: 2, 1: 2}
    journal = str(tmp_path / "journal.log")
    optuna_journal.write(tmp_path / "journal.log", seeded, records)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(journal))
    assert optuna.load_study(study_name="toy", storage=storage).best_trial.number == 0


def test_imported_repeats_of_a_confirmation_cost_this_sweep_nothing(space, tmp_path):
    experiment = sweep_with(space, CONFIRMED, tmp_path)
    records = experiment.trials()
    spent = budget.spent(experiment.space, records, experiment.store.now())
    assert (spent.usd, spent.wall_hours, spent.device_hours) == (0.0, 0.0, 0.0)
    assert budget.run_cap_count(experiment.space, records) == 0
    assert cost(export.cost_rows(experiment.space, records), 8).so_far == 0.0
    assert diagnostics.examine(experiment, survey(experiment.store)) == []
    record = experiment.ask("w1")
    assert record is not None
    assert record.generator == "baseline"


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_a_failed_repeat_refutes_its_configuration_here_too(space, tmp_path, suffix):
    """Trial 0 failed with a third seed; the repeat of trial 1 that lost its workers says nothing."""
    source = sweep_with(space, CONFIRMED, tmp_path)
    failed = replace(
        source.trials()[4],
        trial=6,
        status="failed",
        parameters={"x": 0.1, "seed": 815},
        metrics={},
        attempt=1,
        failure="diverged",
        error="loss is nan\nsecond line",
    )
    lost = replace(failed, trial=7, parameters={"x": 0.2, "seed": 815}, failure="lost", error="lost 3 times")
    exported = tmp_path / f"all.{suffix}"
    records = [*source.trials(), failed, lost]
    assert export.best_confirmed(source.space, records) == records[1]
    export.write(exported, source.space, "", records)
    other = Experiment.create(MemoryStore(), source.space)
    done = import_table(other, exported, worker="me")
    assert (len(done.trials), dict(done.left_out)) == (7, {"failed": 1})
    records = other.trials()
    assert export.best_confirmed(other.space, records) == records[1]
    found = TrialsTable.from_document(export.document(other.space, "", records)).configurations
    assert set(found.repeats.runs) == {1}
    last = records[6]
    assert (last.status, last.generator, last.failure) == ("failed", "confirm", "diverged")
    assert (last.parameters, last.error) == (failed.parameters, failed.error)
    assert import_table(other, exported, worker="me").known == 7
    assert diagnostics.examine(other, survey(other.store)) == []
    assert cost(export.cost_rows(other.space, records), 8).so_far == 0.0
    assert budget.spent(other.space, records, other.store.now()).device_hours == 0.0
    record = other.ask("w1")
    assert record is not None
    assert record.generator == "baseline"


def test_a_failed_repeat_of_a_trial_that_is_not_there_is_left_out(space, tmp_path):
    rows = CONFIRMED.replace("0,completed,1,baseline,0.1,0,1.0,1", "0,failed,1,confirm,0.1,7,,")
    rows = "".join(line for line in rows.splitlines(keepends=True) if ",0.1,199713," not in line)
    rows = rows.replace("5,completed,1,confirm,0.1,4711,1.0,1\n", "")
    experiment = sweep_with(space, rows, tmp_path)
    assert [record.status for record in experiment.trials()] == ["completed"] * 3


def test_repeats_whose_trial_was_left_out_of_the_table_are_trials_of_their_own(space, tmp_path):
    rows = "".join(line for line in CONFIRMED.splitlines(keepends=True) if not line.startswith("1,"))
    experiment = sweep_with(space, rows, tmp_path)
    assert [record.generator for record in experiment.trials()] == [
        "imported", "imported", "imported", "confirm", "confirm",
    ]  # fmt: skip
