"""Asking and reporting: every index once, one cap for the sweep, damage named, races lost quietly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.errors import AlreadyExists, DamagedObject, InputError, SweepNotFound
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.space.definition import Program, Stage
from sweeps.trials import lifecycle
from sweeps.trials import record as trial
from sweeps.trials.lifecycle import Complete, Fail, Release
from sweeps.trials.repository import Records


def finish(experiment: Experiment, record, loss: float = 1.0):
    return experiment.apply(
        record.trial, Complete(worker=record.worker, attempt=record.attempt, metrics={"loss": loss})
    )


class TestCreateAndOpen:
    def test_a_created_sweep_opens_with_the_same_space(self, experiment, space):
        assert Experiment.open(experiment.store).space == space

    def test_a_second_init_is_refused_and_changes_nothing(self, experiment, space):
        before = experiment.store.read(SWEEP_KEY)
        with pytest.raises(InputError, match="a sweep exists here"):
            Experiment.create(experiment.store, replace(space, run_cap=99))
        assert experiment.store.read(SWEEP_KEY) == before

    def test_skip_if_exists_says_what_differs(self, experiment, space):
        assert Experiment.create(experiment.store, space, skip_if_exists=True).space == space
        other = replace(
            space,
            parameters=(replace(space.parameters[0], max=3.0), *space.parameters[1:]),
            search=replace(space.search, sobol=7),
        )
        with pytest.raises(InputError) as caught:
            Experiment.create(experiment.store, other, skip_if_exists=True)
        message = str(caught.value)
        assert "another search space" in message
        assert f"parameters.x.max: {space.parameters[0].max} there, 3.0 here" in message
        assert f"search.sobol: {space.search.sobol} there, 7 here" in message
        assert "\n" not in message
        assert "parameters.x.min" not in message

    def test_skip_if_exists_leaves_limits_to_be_raised(self, experiment, space):
        Experiment.create(experiment.store, replace(space, run_cap=99), skip_if_exists=True)
        assert Experiment.open(experiment.store).space.run_cap == space.run_cap

    def test_skip_if_exists_ignores_stages_of_the_trainer(self, space):
        """They follow from the rest of the space; a sweep of an earlier version has none, and keeps none."""
        trainer, store = replace(space, program=Program(kind="trainer")), MemoryStore()
        stages = (Stage(name="a", parameters=("x",)), Stage(name="b", parameters=("*",)))
        Experiment.create(store, trainer)
        again = Experiment.create(store, replace(trainer, stages=stages), skip_if_exists=True)
        assert again.space == trainer
        other = replace(trainer, stages=stages, search=replace(trainer.search, sobol=7))
        with pytest.raises(InputError, match="another search space"):
            Experiment.create(store, other, skip_if_exists=True)

    def test_skip_if_exists_refuses_other_stages_of_a_users_program(self, experiment, space):
        stages = (Stage(name="a", parameters=("x",)), Stage(name="b", parameters=("*",)))
        with pytest.raises(InputError, match="another search space"):
            Experiment.create(experiment.store, replace(space, stages=stages), skip_if_exists=True)

    def test_no_sweep_says_how_to_make_one(self):
        with pytest.raises(SweepNotFound, match="sweep init"):
            Experiment.open(MemoryStore())

    @pytest.mark.parametrize(
        "data",
        [b"", b"{", b"[]", b'{"schema": 9, "space": {}}', b'{"schema": 1}', b'{"schema": 1, "space": {"name": 1}}'],
        ids=["empty", "truncated", "list", "newer", "no-space", "not-a-space"],
    )  # fmt: skip
    def test_a_damaged_sweep_json_is_one_line_with_its_place(self, data):
        store = MemoryStore()
        store.create(SWEEP_KEY, data)
        with pytest.raises(DamagedObject, match=r"sweep\.json: ") as caught:
            Experiment.open(store)
        assert "\n" not in str(caught.value)


class TestAsk:
    def test_trials_come_in_index_order_without_gaps_up_to_the_cap(self, experiment):
        records = [finish(experiment, experiment.ask("w")) for _ in range(8)]
        assert [record.trial for record in records] == list(range(8))
        assert experiment.ask("w") is None
        assert len(experiment.trials()) == 8

    def test_the_cap_counts_running_and_failed_trials(self, experiment):
        first = experiment.ask("w")
        experiment.apply(first.trial, Fail(worker="w", attempt=1, error="x", failure="diverged"))
        for _ in range(7):
            assert experiment.ask("w") is not None
        assert experiment.ask("w") is None

    def test_a_pending_trial_is_taken_before_a_new_one_is_made(self, experiment):
        first = experiment.ask("w1")
        experiment.apply(0, Release(worker="w1", attempt=1))
        again = experiment.ask("w2")
        assert (again.trial, again.parameters, again.attempt) == (0, first.parameters, 2)

    def test_the_trial_of_a_silent_worker_is_taken_over(self, experiment, clock):
        first = experiment.ask("dead")
        clock.advance(31)
        second = Experiment.open(experiment.store).ask("alive")  # the first would see the clock jump
        assert (second.trial, second.attempt, second.worker) == (first.trial, 2, "alive")
        assert second.history[0].reason == "expired"

    def test_a_claim_without_lease_is_never_taken_over(self, experiment, clock):
        assert experiment.ask("me", leased=False).heartbeat is None
        clock.advance(1e6)
        assert experiment.ask("w").trial == 1

    def test_the_baseline_comes_first(self, space, clock):
        baseline = {"x": 0.5, "n": 10, "mode": "fast"}
        experiment = Experiment.create(MemoryStore(clock=clock), replace(space, baseline=baseline))
        record = experiment.ask("w")
        assert (record.generator, dict(record.parameters)) == ("baseline", baseline)
        assert experiment.ask("w").generator == "sobol"

    def test_no_two_asks_get_the_same_parameters(self, experiment):
        asked = [dict(experiment.ask(f"w{i}").parameters) for i in range(8)]
        assert len({json.dumps(p, sort_keys=True) for p in asked}) == 8

    def test_whoever_finds_its_index_taken_adopts_what_is_there(self, space, clock):
        """A holder of the ask lock that stalled, lost it, and creates the index that another one made."""

        class Racing(MemoryStore):
            rival = None

            def create(self, key: str, data: bytes) -> str:
                if key == trial.key(0) and self.rival is None:
                    other = {"x": 0.9, "n": 9, "mode": "fast"}
                    self.rival = replace(trial.decode(data), parameters=other, worker="rival")
                    super().create(key, trial.encode(self.rival, "t"))
                return super().create(key, data)

        store = Racing(clock=clock)
        experiment = Experiment.create(store, space)
        mine = experiment.ask("me")
        assert mine.trial == 1
        assert experiment.trial(0).worker == "rival"

    def test_worker_waits_while_another_generates(self, experiment):
        experiment.store.create(ASK_KEY, json.dumps({"renewed": experiment.store.now()}).encode())

        class GiveUp(Exception):
            pass

        def wait(seconds: float) -> None:
            assert 0 < seconds < 1
            raise GiveUp

        with pytest.raises(GiveUp):
            experiment.ask("w", wait=wait)
        assert experiment.trials() == []

    def test_rebuilt_search_gives_the_same_candidate(self, space, clock):
        """The optimizer is a function of the records: a new process continues the sequence exactly."""
        going_on = Experiment.create(MemoryStore(clock=clock), space)
        rebuilt = Experiment.create(MemoryStore(clock=clock), space)
        for i in range(6):
            one = going_on.ask("w")
            two = Experiment.open(rebuilt.store).ask("w")
            assert dict(one.parameters) == dict(two.parameters)
            finish(going_on, one, loss=float(i))
            finish(rebuilt, two, loss=float(i))


class TestTell:
    def test_a_repeated_report_is_accepted_and_writes_nothing(self, experiment):
        record = experiment.ask("w")
        finish(experiment, record)
        version = experiment.store.read(trial.key(0))[1]
        finish(experiment, record)
        assert experiment.store.read(trial.key(0))[1] == version

    def test_a_race_on_the_record_is_retried_on_what_is_there(self, experiment):
        record = experiment.ask("w")
        other = Experiment.open(experiment.store)
        original = experiment.store.replace

        def beaten_once(key, data, expected):
            experiment.store.replace = original
            other.apply(record.trial, lifecycle.Heartbeat(worker="w", attempt=1))
            return original(key, data, expected)

        experiment.store.replace = beaten_once
        assert finish(experiment, record).status == "completed"


class TestReading:
    def test_an_unknown_trial_is_an_input_error(self, experiment):
        with pytest.raises(InputError, match="trial 5"):
            experiment.trial(5)

    def test_only_changed_records_are_read_again(self, experiment, monkeypatch):
        for _ in range(3):
            finish(experiment, experiment.ask("w"))
        experiment.trials()
        reads = []
        original = experiment.store.read
        monkeypatch.setattr(experiment.store, "read", lambda key: reads.append(key) or original(key))
        other = Experiment.open(experiment.store)
        other.ask("w2")
        reads.clear()
        experiment.trials()
        assert reads == [trial.key(3)]

    def test_a_damaged_record_is_named_and_nothing_is_changed(self, experiment):
        experiment.ask("w")
        data, version = experiment.store.read(trial.key(0))
        experiment.store.replace(trial.key(0), data[:40], version)
        with pytest.raises(DamagedObject, match=r"000000\.json: .*not JSON"):
            experiment.trials()
        assert experiment.store.read(trial.key(0))[0] == data[:40]

    def test_a_record_under_another_trials_name_is_damage(self, experiment):
        experiment.ask("w")
        experiment.store.create(trial.key(1), experiment.store.read(trial.key(0))[0])
        with pytest.raises(DamagedObject, match="it says trial 0"):
            experiment.trials()

    def test_foreign_objects_among_the_records_are_left_alone(self, experiment):
        experiment.store.create("trials/notes.txt", b"hello")
        experiment.store.create("trials/000000.json.bak", b"{")
        assert experiment.trials() == []


def test_create_if_absent_is_what_guards_an_index(experiment):
    record = experiment.ask("w")
    with pytest.raises(AlreadyExists):
        Records(experiment.store).create(record)
