"""A sweep in a bucket of S3 from the first command to the last, and what the commands say where there is none."""

from __future__ import annotations

import json
import uuid

import pytest

from sweeps.storage.urls import open_store

TRAIN = """\
import json, os, sys
x = float(dict(each.split("=") for each in sys.argv[1:])["x"])
folder = os.environ["SWEEP_RUN_DIR"]
os.makedirs(f"{folder}/checkpoints/10")
with open(f"{folder}/checkpoints/10/model.bin", "wb") as file:
    file.write(bytes(9 * 2**20))
print("the last words")
with open(f"{folder}/result.json", "w") as file:
    json.dump({"loss": (x - 0.3) ** 2}, file)
"""
SPACE = """\
name: toy
objectives: [{metric: loss, goal: minimize}]
program: {command: [python, train.py, "${overrides}"]}
parameters: {x: {min: 0.0, max: 1.0}}
search: {method: random, seed: 0}
run_cap: 2
"""


@pytest.fixture
def storage(s3, monkeypatch, tmp_path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.door("cli"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "train.py").write_text(TRAIN)
    return f"s3://bucket/cli/{uuid.uuid4().hex}"


@pytest.mark.timeout(240)
def test_sweep_runs_from_init_to_delete(sweep, storage):
    ran = sweep("init", "space.yaml", "--storage", storage)
    assert (ran.status, ran.out) == (0, f"{storage}/toy\n"), ran.err
    ran = sweep("worker", "--storage", storage)
    assert ran.status == 0, ran.err
    status = json.loads(sweep("status", "--storage", storage, "--format", "json").out)
    assert status["url"] == f"{storage}/toy"
    assert status["trials"]["completed"] == 2
    trials = json.loads(sweep("trials", "--storage", storage, "--format", "json").out)
    best = min(trials, key=lambda trial: trial["metrics"]["loss"])
    assert sweep("best", "--storage", storage).out.startswith(f"trial {best['trial']}: loss ")
    assert "the last words" in sweep("show", "0", "--storage", storage).out
    ran = sweep("doctor", "--storage", storage)
    assert "nothing is wrong" in ran.out, ran.out
    keys = {entry.key for entry in open_store(f"{storage}/toy").list("runs/000001/")}
    assert "runs/000001/attempt-1/checkpoints/10/model.bin" in keys
    assert sweep("rename", "other", "--storage", storage).status == 0
    (row,) = json.loads(sweep("list", "--storage", storage, "--format", "json").out)
    assert row["name"] == "other"
    assert sweep("delete", "--yes", "--storage", storage, "--name", "other").status == 0
    assert json.loads(sweep("list", "--storage", storage, "--format", "json").out) == []
    assert open_store(f"{storage}/other").list("") == []
    assert (
        sweep("init", "space.yaml", "--storage", storage).status == 0
    )  # where tombstones of the renamed lie


def test_init_refuses_a_service_without_conditional_writes(sweep, s3, storage):
    s3.ignores = ("if-none-match",)
    ran = sweep("init", "space.yaml", "--storage", storage)
    assert ran.status == 2
    assert "no conditional writes" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    "command", [("init", "space.yaml"), ("status",), ("worker",), ("doctor",)], ids=" ".join
)
@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the credentials are refused"),
        (
            {
                "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "",
                "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
            },
            "no credentials were found",
        ),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "is not the URL of a storage service"),
        ({"bucket": "nobucket"}, "there is no bucket nobucket"),
    ],
    ids=["wrong-secret", "no-credentials", "no-url", "no-bucket"],
)
def test_what_is_missing_is_one_line(sweep, storage, monkeypatch, command, variables, says):
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False)
        if value and name != "bucket":
            monkeypatch.setenv(name, value)
    storage = storage.replace("//bucket/", f"//{variables.get('bucket', 'bucket')}/")
    ran = sweep(*command, "--storage", storage)
    assert ran.status == 2, ran.err
    (line,) = (line for line in ran.err.splitlines() if line.startswith("sweep: error: "))
    assert says in line
