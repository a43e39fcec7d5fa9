"""Tables as Optuna, W&B and Ray Tune write them, imported as they are."""

from __future__ import annotations

from dataclasses import replace

import optuna
import pandas as pd
import pytest
from memory_store import MemoryStore

from sweeps.experiment import Experiment
from sweeps.space.definition import Choice, Objective, Program, Range
from sweeps.upkeep.importing import import_table
from sweeps.upkeep.tables import TableError


@pytest.fixture
def ours(space):
    return replace(
        space,
        parameters=(
            Range(name="lr", min=1e-5, max=1.0, kind="float", log=True),
            Choice(name="model.kind", values=("a", "b")),
        ),
        program=Program(kind="function"),
    )


@pytest.fixture
def experiment(ours):
    return Experiment.create(MemoryStore(), ours)


def results(experiment: Experiment) -> list[tuple[dict, dict]]:
    return [(dict(record.parameters), dict(record.metrics)) for record in experiment.trials()]


def objective(trial: optuna.Trial) -> float | tuple[float, float]:
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    trial.suggest_categorical("model.kind", ["a", "b"])
    if trial.number == 1:
        trial.report(0.5, 0)
        raise optuna.TrialPruned
    if trial.number == 2:
        raise ArithmeticError
    trial.set_user_attr("ms", 3.0)
    return lr


@pytest.fixture
def study() -> optuna.Study:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=4, catch=ArithmeticError)
    study.enqueue_trial({"lr": 0.01})
    return study


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("write", ["csv", "european", "parquet", "json", "named"])
def test_optuna_trials_dataframe(experiment, study, tmp_path, write):
    if write == "named":
        study.set_metric_names(["loss"])
    frame = study.trials_dataframe()
    file = tmp_path / f"t.{write if write in ('parquet', 'json') else 'csv'}"
    {
        "csv": lambda: frame.to_csv(file),
        "named": lambda: frame.to_csv(file, index=False),
        "european": lambda: frame.to_csv(file, sep=";", decimal=",", index=False),
        "parquet": lambda: frame.drop(columns="system_attrs_fixed_params").to_parquet(file),
        "json": lambda: frame.to_json(file, orient="records", date_format="iso"),
    }[write]()
    done = import_table(experiment, file, worker="me")
    assert (done.tool, dict(done.left_out)) == ("Optuna", {"PRUNED": 1, "FAIL": 1, "WAITING": 1})
    assert {"number", "datetime_start", "duration"} <= set(done.columns)
    expected = [
        ({"lr": t.params["lr"], "model.kind": t.params["model.kind"]}, {"loss": t.value, "ms": 3.0})
        for t in study.trials
        if t.state == optuna.trial.TrialState.COMPLETE
    ]
    assert [parameters for parameters, _ in results(experiment)] == [
        pytest.approx(parameters) for parameters, _ in expected
    ]
    assert [metrics for _, metrics in results(experiment)] == [pytest.approx(m) for _, m in expected]
    assert import_table(experiment, file, worker="me").trials == ()


def test_table_that_pandas_has_rewritten_is_the_same(experiment, tmp_path):
    study = optuna.create_study()
    study.optimize(
        lambda trial: (
            trial.suggest_float("lr", 0.1, 0.2) + len(trial.suggest_categorical("model.kind", ["a"]))
        ),
        n_trials=2,
    )
    file = tmp_path / "t.csv"
    study.trials_dataframe().to_csv(file)
    assert len(import_table(experiment, file, worker="me").trials) == 2
    pd.read_csv(file).rename(columns={"value": "loss"}).to_csv(file)
    assert import_table(experiment, file, worker="me").trials == ()
    assert [list(metrics) for _, metrics in results(experiment)] == [["loss"]] * 2


def test_index_that_pandas_writes_into_parquet_is_no_metric(experiment, tmp_path):
    """As `sweep.trials().nsmallest(2, "loss").to_parquet(…)` has one: its rows are no range."""
    frame = pd.DataFrame({"lr": [0.1, 0.2], "model.kind": ["a", "b"], "loss": [1.0, 2.0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert len(import_table(experiment, tmp_path / "t.csv", worker="me").trials) == 2
    frame.set_axis([7, 8]).to_parquet(tmp_path / "t.parquet")
    assert import_table(experiment, tmp_path / "t.parquet", worker="me").trials == ()


def test_optuna_values_are_the_objectives_in_order(ours, tmp_path):
    two = replace(ours, objectives=(Objective(metric="loss"), Objective(metric="ms", goal="maximize")))
    experiment = Experiment.create(MemoryStore(), two)
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.optimize(
        lambda trial: (
            trial.suggest_float("lr", 0.1, 0.2),
            len(trial.suggest_categorical("model.kind", ["a"])),
        ),
        n_trials=1,
    )
    study.trials_dataframe().to_csv(tmp_path / "t.csv")
    import_table(experiment, tmp_path / "t.csv", worker="me")
    assert results(experiment)[0][1] == {"loss": study.trials[0].values[0], "ms": 1.0}


def test_optuna_setting_of_all_trials_is_left_out(experiment, tmp_path):
    head, tail = "number,value,params_lr,params_model.kind,params_depth,state", "COMPLETE"
    file = tmp_path / "t.csv"
    file.write_text(f"{head}\n0,1.0,0.1,a,3,{tail}\n1,2.0,0.2,b,3,{tail}\n")
    assert "params_depth" in import_table(experiment, file, worker="me").columns
    file.write_text(f"{head}\n0,1.0,0.1,a,3,{tail}\n1,2.0,0.2,b,4,{tail}\n")
    with pytest.raises(TableError, match="depth: "):
        import_table(experiment, file, worker="me")


WANDB = (
    '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","lr","model.kind","loss","acc"\n'
    '"a-1","finished","-","me","","2025-11-25T10:00:00.000Z","12","s1","0.1","a","1.5","0.5"\n'
    '"a-2","crashed","-","me","","2025-11-25T10:00:00.000Z","3","s1","0.2","a","9.5",""\n'
    '"a-3","running","-","me","","2025-11-25T10:00:00.000Z","3","s1","0.2","b","2.5","0.25"\n'
    '"a-4","finished","-","me","","2025-11-25T10:00:00.000Z","3","s1","0.3","b","","0.25"\n'
)


def test_wandb_runs_that_finished(experiment, tmp_path):
    file = tmp_path / "wandb_export.csv"
    file.write_text(WANDB)
    done = import_table(experiment, file, worker="me")
    assert (done.tool, dict(done.left_out)) == ("W&B", {"crashed": 1, "running": 1, "without loss": 1})
    assert set(done.columns) == {"Name", "Notes", "User", "Tags", "Created", "Runtime", "Sweep"}
    assert results(experiment) == [({"lr": 0.1, "model.kind": "a"}, {"loss": 1.5, "acc": 0.5})]


RAY = (
    "loss,acc,timestamp,checkpoint_dir_name,done,training_iteration,trial_id,date,time_this_iter_s,"
    "time_total_s,pid,hostname,node_ip,time_since_restore,iterations_since_restore,config/lr,"
    "config/model/kind,config/data,logdir\n"
    "1.5,0.5,1764064800,,False,3,a1_0,2025-11-25_10-00-00,0.5,1.5,77,h,127.0.0.1,1.5,3,0.1,a,wiki,a1_0\n"
    ",,1764064800,,False,0,a1_1,2025-11-25_10-00-00,,,78,h,127.0.0.1,,,0.2,b,wiki,a1_1\n"
)


def test_ray_results_with_their_configurations(experiment, tmp_path):
    file = tmp_path / "ray.csv"
    file.write_text(RAY)
    done = import_table(experiment, file, worker="me")
    assert (done.tool, dict(done.left_out)) == ("Ray Tune", {"without loss": 1})
    assert {"config/data", "trial_id", "pid", "logdir"} <= set(done.columns)
    ((parameters, metrics),) = results(experiment)
    assert parameters == {"lr": 0.1, "model.kind": "a"}
    assert metrics == {
        "loss": 1.5,
        "acc": 0.5,
        "training_iteration": 3,
        "time_this_iter_s": 0.5,
        "time_total_s": 1.5,
    }


def test_a_column_called_state_of_no_tool_is_no_status(experiment, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("lr,model.kind,loss,State\n0.1,a,1.5,Texas\n")
    done = import_table(experiment, file, worker="me")
    assert (len(done.trials), done.tool, done.columns) == (1, "", ("State",))


def test_only_rows_without_a_result_is_said_with_their_states(experiment, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("number,value,params_lr,params_model.kind,state\n0,,0.1,a,FAIL\n1,1.0,0.1,a,PRUNED\n")
    with pytest.raises(TableError, match=r"\(1 FAIL, 1 PRUNED\)"):
        import_table(experiment, file, worker="me")
    assert experiment.trials() == []


def test_a_sweeps_own_names_are_not_taken_for_another_tools(space, tmp_path):
    named = replace(space, parameters=(Range(name="params_lr", min=0.0, max=1.0, kind="float"),))
    experiment = Experiment.create(MemoryStore(), named)
    (tmp_path / "t.csv").write_text("params_lr,loss\n0.5,1.0\n")
    done = import_table(experiment, tmp_path / "t.csv", worker="me")
    assert (done.tool, results(experiment)) == ("", [({"params_lr": 0.5}, {"loss": 1.0})])
