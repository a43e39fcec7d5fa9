"""Containers of Azure: what `az://` needs, faults of its own, and a sweep in one. Contracts are in tests/contracts."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from azurite import ACCOUNT, ENVIRONMENT, KEY
from fake_gcs.faults import Fault
from run_folders import download
from s3_server import Doors

from sweeps.errors import AlreadyExists, InputError
from sweeps.experiment import Experiment
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.storage.run_files.exchange import PART_UNIT
from sweeps.storage.run_files.mirror import UploadConfig, Uploader
from sweeps.trials.lifecycle import Complete

QUICK = RetryPolicy(total_s=10.0, attempt_s=2.0, first_wait_s=0.02, longest_wait_s=0.1)


@pytest.fixture
def doors(azure: str):
    """Return doors to Azurite, to be made to fail."""
    with Doors(azure.removesuffix(f"/{ACCOUNT}")) as opened:
        yield opened


@pytest.fixture
def url() -> str:
    return f"az://bucket/tests/{uuid.uuid4().hex}"


def at(doors: Doors, url: str, door: str = "a") -> ObjectStore:
    return ObjectStore(url, endpoint=f"{doors.door(door)}/{ACCOUNT}", retries=QUICK)


@pytest.mark.parametrize("action", ["lose_response", "lose_request", "hang"])
def test_a_write_without_an_answer_is_done_once(doors, url, action):
    store = at(doors, url)
    doors.add(Fault(action=action, operation="put"))
    first = store.create("k", b"one")
    doors.add(Fault(action=action, operation="put"))
    second = store.replace("k", b"two", first)
    assert store.read("k") == (b"two", second)
    assert second != first


def test_a_taken_key_is_not_mistaken_for_our_own_write(doors, url):
    version = at(doors, url, "b").create("k", b"same")
    doors.add(Fault(action="lose_request", operation="put", door="a"))
    with pytest.raises(AlreadyExists):
        at(doors, url).create("k", b"same")
    assert at(doors, url).read("k") == (b"same", version)


@pytest.mark.parametrize("key", ["a b", "a%2eb", "ü", "a#b?c&d+e", "x=1", "a/b/c d/e.json", "'q'"])
def test_any_key_comes_back_as_it_was_given(doors, url, key):
    store = at(doors, url)
    version = store.create(key, b"x")
    assert store.read(key) == (b"x", version)
    assert [entry.key for entry in store.list("")] == [key]


def test_workers_in_bad_weather_end_every_trial_once(doors, url, space):
    Experiment.create(at(doors, url), replace(space, run_cap=12))
    for action in ("lose_response", "lose_request"):
        doors.add(Fault(action=action, times=None, chance=0.1))
    for status in (429, 503):
        doors.add(Fault(action="status", status=status, times=None, chance=0.05))
    reported: list[int] = []

    def work(name: str) -> None:
        experiment = Experiment.open(at(doors, url, name))
        while (record := experiment.ask(name)) is not None:
            done = Complete(worker=name, attempt=record.attempt, metrics={"loss": float(record.trial)})
            experiment.apply(record.trial, done)
            reported.append(record.trial)

    workers = [threading.Thread(target=work, args=(name,)) for name in ("w1", "w2", "w3")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    doors.reset()
    records = Experiment.open(at(doors, url)).trials()
    assert Counter(reported) == Counter(range(12))
    assert {(record.status, record.attempt) for record in records} == {("completed", 1)}


def test_files_in_parts_come_back(doors, url, tmp_path: Path):
    store, data = at(doors, url), bytes(range(256)) * (PART_UNIT // 64)
    config = UploadConfig(scan_s=0.05, patience_s=5, first_wait_s=0.02, chunk_bytes=PART_UNIT)
    (store.folder("runs/1") / "large.bin").write_bytes(data)
    doors.add(Fault(action="lose_response", operation="put"))
    assert Uploader(store, store.folder("runs/1"), "runs/1", config=config).close(20) == ()
    assert download(at(doors, url, "b"), "runs/1", tmp_path / "there", config=config) == ("large.bin",)
    assert (tmp_path / "there" / "large.bin").read_bytes() == data


def test_a_missing_container_is_told_from_a_missing_object(doors):
    store = at(doors, "az://nobucket/x")
    for act in (lambda: store.read("k"), lambda: store.list(""), lambda: store.read_many(["k", "l"])):
        with pytest.raises(InputError, match="no container nobucket in devstoreaccount1"):
            act()


@pytest.mark.parametrize(
    ("key", "says"),
    [("d3Jvbmc=", "the credentials are refused"), ("no base64!", "no credentials were found")],
)
def test_a_wrong_account_key_is_one_line(doors, url, monkeypatch, key, says):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
    with pytest.raises(InputError, match=rf"{says}.*AZURE_STORAGE_ACCOUNT_KEY") as caught:
        at(doors, url).read("k")
    assert "\n" not in str(caught.value)


def test_unfit_sas_token_is_one_line_at_once(doors, url, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "nonsense")
    with pytest.raises(InputError, match=r"Missing component in SAS query pair.*AZURE_STORAGE_SAS_TOKEN"):
        at(doors, url).read("k")


def test_a_service_principal_goes_before_a_sas_token(monkeypatch):
    """Doctor names what obstore takes, whose service of tokens is not there."""
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2020&sig=abc")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "http://127.0.0.1:9")
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.setenv(name, "x")
    store = ObjectStore("az://bucket/x", endpoint="http://127.0.0.1:9", retries=replace(QUICK, total_s=0.1))
    with pytest.raises(InputError, match="no credentials were found"):
        store.read("k")
    assert store.client.signed_in_as() == "service principal (AZURE_CLIENT_ID)"


def test_switch_that_is_off_is_no_account(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    for value, words in (("false", "identity of this machine"), ("true", "account of `az login`")):
        monkeypatch.setenv("AZURE_USE_AZURE_CLI", value)
        assert ObjectStore("az://bucket/x").client.signed_in_as() == words


@pytest.mark.parametrize("account", ["", "UPPER", "ab", "line\nbreak"])
def test_an_unfit_account_name_is_one_line(monkeypatch, account):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
    with pytest.raises(InputError, match="AZURE_STORAGE_ACCOUNT_NAME is"):
        ObjectStore("az://bucket/x")


def test_an_unfit_endpoint_is_one_line(monkeypatch):
    for name, value in {**ENVIRONMENT, "AZURE_STORAGE_ENDPOINT": "localhost:10000"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"AZURE_STORAGE_ENDPOINT: .* is not the URL") as caught:
        ObjectStore("az://bucket/x")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "bad", ["az://", "az://UPPER/x", "az://a--b/x", "az://a_b/x", "az://-ab/x", "az://ab/x"]
)
def test_a_hostile_url_is_refused_before_anything_is_sent(bad):
    with pytest.raises(InputError, match="az://"):
        ObjectStore(bad)
