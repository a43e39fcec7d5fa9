"""Null and lists as values of parameters: through the search, records, tables, other tools and back."""

from __future__ import annotations

import json
import warnings

import pandas as pd
import pytest
from memory_store import MemoryStore
from omegaconf import OmegaConf

import sweeps
from analysis.table.files import read as read_table
from sweeps.errors import InputError, SpaceError
from sweeps.experiment import Experiment
from sweeps.export import ax_export, optuna_journal, table
from sweeps.hydra_app import params
from sweeps.search.encoding import Encoding
from sweeps.space import space_file
from sweeps.space.definition import Choice, Space
from sweeps.space.domain import Domain
from sweeps.space.overrides import to_options, to_overrides
from sweeps.space.space_json import from_json, problem, to_json
from sweeps.upkeep import importing

PARAMETERS = {
    "clip": {"values": [None, 0.1, 1]},
    "sizes": {"values": [[1, 2], [3, [None, True]], []]},
    "names": {"values": [None, ["a", "b c"]], "when": {"null": ["extra"]}},
    "extra": {"values": ["x", "None"]},
    "off": {"value": None},
}
DOCUMENT = {"name": "nulls", "objectives": [{"metric": "loss"}], "parameters": PARAMETERS}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> sweeps.Sweep:
    """A grid whose function has met every value."""
    document = DOCUMENT | {"search": {"method": "grid"}}
    sweep = sweeps.create(document, storage=tmp_path_factory.mktemp("nulls"))
    met: list[dict[str, object]] = []

    def function(parameters: dict[str, object]) -> float:
        met.append(parameters)
        return float(len(met))

    sweep.run(function)
    assert {json.dumps(each["clip"]) for each in met} == {"null", "0.1", "1.0"}
    assert [1, 2] in [each["sizes"] for each in met]
    assert [3, [None, True]] in [each["sizes"] for each in met]
    assert all("off" in each and each["off"] is None for each in met)
    assert {("extra" in each) == (each["names"] is None) for each in met} == {True}
    return sweep


@pytest.fixture(scope="module")
def space(finished) -> Space:
    return finished.experiment.space


def test_record_and_space_keep_them(finished, space):
    store = finished.experiment.store
    written = json.loads(store.read("trials/000000.json")[0])["parameters"]
    assert written["clip"] is None
    assert written["sizes"] == [1, 2]
    assert written["off"] is None
    assert from_json(json.loads(json.dumps(to_json(space)))) == space
    assert problem(space) is None


def test_python_gets_lists(finished):
    best = finished.best.parameters
    assert best["clip"] is None
    assert best["sizes"] == [1, 2]
    assert [1, 2] in list(finished.trials()["param.sizes"])


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_table_is_imported_as_it_was(finished, space, tmp_path, suffix):
    records = finished.experiment.trials()
    file = tmp_path / f"t.{suffix}"
    table.write(file, space, "", records)
    copy = Experiment.create(MemoryStore(), space)
    importing.import_table(copy, file, worker="test")
    assert [each.parameters for each in copy.trials()] == [each.parameters for each in records]


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_frame_of_trials_is_imported_as_it_was(finished, space, tmp_path, suffix):
    file = tmp_path / f"t.{suffix}"
    frame = finished.trials()
    frame = frame[frame["param.names"].map(bool) & frame["param.sizes"].map(lambda sizes: sizes == [1, 2])]
    if suffix == "json":
        frame.to_json(file, orient="records")
    else:
        frame.to_parquet(file)
    copy = Experiment.create(MemoryStore(), space)
    assert len(importing.import_table(copy, file, worker="test").trials) == 3
    assert {each.parameters["names"] for each in copy.trials()} == {("a", "b c")}
    assert {each.parameters["sizes"] for each in copy.trials()} == {(1, 2)}


def test_csv_of_pandas_is_imported_as_it_was(finished, space, tmp_path):
    """It writes lists as Python does: `[3, [None, True]]`, `['a', 'b c']`."""
    file = tmp_path / "t.csv"
    finished.trials().to_csv(file, index=False)
    copy = Experiment.create(MemoryStore(), space)
    importing.import_table(copy, file, worker="test")
    assert [each.parameters for each in copy.trials()] == [
        each.parameters for each in finished.experiment.trials()
    ]


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_analysis_tells_null_from_inactive(finished, space, tmp_path, suffix):
    file = tmp_path / f"t.{suffix}"
    table.write(file, space, "", finished.experiment.trials())
    frame = read_table(file)
    assert set(frame["param.names"]) == {"null", '["a", "b c"]'}
    assert set(frame["param.extra"].dropna()) == {"x", "None"}
    assert (frame["param.extra"].isna() == (frame["param.names"] != "null")).all()


def test_empty_cell_of_other_tools_is_null(space, tmp_path):
    file = tmp_path / "t.csv"
    frame = pd.DataFrame({"clip": [None], "sizes": ["[3, [null, true]]"], "names": ['["a", "b c"]']})
    frame.assign(loss=1.0).to_csv(file, index=False)
    copy = Experiment.create(MemoryStore(), space)
    importing.import_table(copy, file, worker="test")
    assert copy.trial(0).parameters["clip"] is None
    assert copy.trial(0).parameters["sizes"] == (3, (None, True))


def test_optuna_and_ax_take_them(finished, space, tmp_path):
    import optuna

    records = finished.experiment.trials()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ax and what it imports
        from ax.api.client import Client

        assert ax_export.write(tmp_path / "ax.json", space, records) == []
        assert len(Client.load_from_json_file(str(tmp_path / "ax.json")).summarize()) == len(records)
    optuna_journal.write(tmp_path / "o.log", space, records)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "o.log"))
    study = optuna.load_study(study_name="nulls", storage=optuna.storages.JournalStorage(backend))
    assert study.trials[0].params["clip"] is None
    assert study.trials[0].params["sizes"] == "[1, 2]"


def test_encoding_is_undone(space):
    encoding = Encoding(Domain(space))
    for parameters in (Domain(space).configurations() or {}).values():
        point = encoding.encode(parameters)
        assert point is not None
        assert all(isinstance(value, str) for value in point.values())
        assert encoding.decode(point) == parameters


@pytest.mark.usefixtures("few_starts")
def test_bayes_proposes_them():
    sweep = sweeps.Sweep(
        Experiment.create(
            MemoryStore(),
            space_of(PARAMETERS | {"lr": {"min": 0.0, "max": 1.0}}, search={"sobol": 2}, run_cap=4),
        )
    )
    sweep.run(lambda p: p["lr"] + (p["clip"] or 0.5))
    assert [each.generator for each in sweep.experiment.trials()][-1] == "botorch"


def test_enqueue_takes_them(space):
    sweep = sweeps.Sweep(Experiment.create(MemoryStore(), space))
    sweep.enqueue({"clip": None, "sizes": [3, [None, True]], "names": ["a", "b c"]})
    assert dict(sweep.ask().parameters) == {
        "clip": None, "sizes": [3, [None, True]], "names": ["a", "b c"], "off": None,
    }  # fmt: skip
    with pytest.raises(SpaceError, match=r"sizes: .*\[5\].*\[1, 2\]"):
        sweep.enqueue({"sizes": [5]})


def test_hydra_reads_them_back():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    value = (None, 1, 0.5, True, "a b", "it's", "null", ("x", (), "${y}"))
    for each in (None, (), value):
        (override,) = to_overrides({"key": each})
        parsed = OverridesParser.create().parse_override(override)
        assert not parsed.is_sweep_override()
        found = OmegaConf.to_container(OmegaConf.create({"key": parsed.value()}), resolve=True)
        assert json.dumps(found) == json.dumps({"key": each})
    assert to_options({"a": None, "b": ("x", 1, None)}) == ["--a=null", '--b=["x", 1, null]']


def test_hydra_sweeper_takes_them():
    searched, fixed = params.read(
        {"a": "null,0.1", "b": [[1, 2], [3, 4]], "c": [None, 1]},
        ["d=choice([1],[2,x])", "e=null"],
        None,
    )
    assert searched == {
        "a": {"values": [None, 0.1]}, "b": {"values": [[1, 2], [3, 4]]}, "c": {"values": [None, 1]},
        "d": {"values": [[1], [2, "x"]]},
    }  # fmt: skip
    assert fixed == ["e=null"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([{"a": 1}, {"a": 2}], "mapping is no value"),
        ([[{"a": 1}], [2]], "mapping is no value"),
        ([[1], 2], "mixes lists and numbers"),
        ([None, "null"], "the same in a table"),
        ([[1], [1.0]], "listed twice"),
        ([None, None], "listed twice"),
        ([[1]], r"write value: \[1\]"),
    ],
)
def test_others_are_refused(values, says):
    with pytest.raises(SpaceError, match=says):
        space_of({"x": {"values": values}})


def test_order_is_of_the_numbers():
    (parameter,) = space_of({"x": {"values": [None, 1, 2], "ordered": True}}).parameters
    assert parameter == Choice(name="x", values=(None, 1, 2), ordered=True)
    with pytest.raises(SpaceError, match="ascending"):
        space_of({"x": {"values": [2, None, 1], "ordered": True}})


def test_trainer_takes_null():
    from sweeps.programs.kinds import program_of

    overrides = ["model=tiny"]
    found = space_of(
        {"stage1_9.micro_batch_size": {"values": [None, 2]}},
        program={"trainer": {"overrides": overrides}},
        objectives=[{"metric": "final_loss"}],
    )
    program_of(found).check([{"stage1_9.micro_batch_size": None}, {"stage1_9.micro_batch_size": 2}])
    with pytest.raises(InputError, match=r"stage2.max_steps"):
        program_of(found).check([{"stage2.max_steps": None}])


def space_of(parameters, **sections) -> Space:
    document = {"program": {"function": "a:b"}, **DOCUMENT, "parameters": parameters, **sections}
    return space_file.loads(json.dumps(document), "space.yaml")


@pytest.mark.parametrize("result", [None, {"loss": None}, {"metrics": None}, {"metrics": {"loss": None}}])
def test_result_of_none_fails_the_trial(space, result):
    sweep = sweeps.Sweep(Experiment.create(MemoryStore(), space))
    assert sweep.tell(sweep.ask(), result) == "failed"
    record = sweep.experiment.trial(0)
    assert (record.failure, "None" in (record.error or "")) == ("diverged", True)
