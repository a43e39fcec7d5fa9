"""Nothing that is read can run code: no pickle, no `torch.load` of more than weights, no YAML of objects.

The source is searched, and a sweep in a folder and in a bucket is read while unpickling is out of order.
"""

from __future__ import annotations

import ast
import io
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import download

from sweeps.experiment import Experiment
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files.mirror import Uploader
from sweeps.trials.lifecycle import Complete
from sweeps.upkeep.inventory import survey

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for package in ("sweeps", "trainer", "runners", "analysis")
    for file in (ROOT / package).rglob("*.py")
)

UNPICKLERS = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle",
}  # fmt: skip
FORBIDDEN_CALLS = {"read_pickle", "unsafe_load", "full_load", "load_module", "eval", "exec"}

SPACE = Space(
    name="plain",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="function", function="math:sqrt"),
    baseline={"x": 0.5},  # a first candidate without Ax
)


def violations(source: str) -> Iterator[str]:
    """Yield the calls and imports of a module that could run code from data."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name.split(".")[0] in UNPICKLERS)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNPICKLERS:
                yield module
            case ast.Call(func=func, keywords=keywords):
                name = ast.unparse(func)
                arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
                last = name.rpartition(".")[2]
                if name in FORBIDDEN_CALLS or (last in FORBIDDEN_CALLS and last not in ("eval", "exec")):
                    yield name
                if name == "torch.load" and arguments.get("weights_only") != "True":
                    yield "torch.load without weights_only=True"
                if arguments.get("allow_pickle", "False") != "False":
                    yield f"{name} with allow_pickle"
                if name in ("yaml.load", "yaml.load_all") and "Safe" not in ast.unparse(node):
                    yield f"{name} without a safe loader"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "import torch, pickle as p", "from cloudpickle import loads",
        "import os.path\nfrom dill.source import x", "torch.load(path)",
        "torch.load(path, weights_only=False)", "torch.load(path, weights_only=flag)",
        "np.load(file, allow_pickle=True)", "pd.read_pickle(file)", "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)", "eval(text)",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(source):
    assert list(violations(source))


def test_the_search_lets_harmless_code_pass():
    harmless = "import json, yaml\nmodel.eval()\ntorch.load(p, weights_only=True)\nyaml.load(t, Loader=yaml.SafeLoader)"
    assert list(violations(harmless)) == []


def test_no_module_can_unpickle():
    assert len(FILES) > 100
    found = {str(f.relative_to(ROOT)): list(violations(f.read_text(encoding="utf-8"))) for f in FILES}
    assert {file: what for file, what in found.items() if what} == {}


@pytest.mark.parametrize("kind", ["local", "gcs"])
def test_a_sweep_is_read_without_unpickling_anything(kind, request, tmp_path, monkeypatch):
    """Workers, status, doctor and downloads of a run read back what is stored."""
    gcs = request.getfixturevalue("gcs")
    url = f"gs://bucket/no-pickle/{uuid.uuid4().hex}"

    def store():
        return LocalStore(tmp_path / "store") if kind == "local" else GcsStore(url, endpoint=gcs.url)

    store().list("")  # gcsfs itself reads ~/.gcs_tokens when it is imported, see docs/how-to/buckets.md

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    with pytest.raises(AssertionError, match="unpickled"):
        pickle.load(io.BytesIO(b"."))

    worker = Experiment.create(store(), SPACE)
    record = worker.ask("w")
    prefix = "runs/000000/attempt-1"
    folder = worker.store.folder(prefix)
    (folder / "result.json").write_text('{"loss": 1.0}')
    uploader = Uploader(worker.store, folder, prefix)
    uploader.start()
    assert uploader.close(20) == ()
    worker.apply(0, Complete(worker="w", attempt=record.attempt, metrics={"loss": 1.0}))
    reader = Experiment.open(store())
    assert [r.status for r in reader.trials()] == ["completed"]
    assert survey(reader.store).trials
    elsewhere = reader.store.folder(prefix)
    assert download(reader.store, prefix, elsewhere) == ("result.json",)
