"""Every kind of credentials of Google that google-auth reads: found, missing, malformed, refused; no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sweeps.errors import InputError
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy

URL = "gs://bucket/sweeps/toy"
SECURE = "https://127.0.0.1:9"  # nobody answers there; none of these tests gets so far
QUICK = RetryPolicy(total_s=20.0, attempt_s=10.0, first_wait_s=0.02, longest_wait_s=0.1)
VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
USER = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
ROBOT = {
    "type": "service_account",
    "client_email": "robot@p.iam.gserviceaccount.com",
    "private_key": KEY.decode(),
    "token_uri": "https://oauth2.googleapis.com/token",
}
IMPERSONATED = {
    "type": "impersonated_service_account",
    "service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
    "worker@p.iam.gserviceaccount.com:generateAccessToken",
    "source_credentials": USER,
}
FEDERATED = {
    "type": "external_account",
    "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
    "credential_source": {"file": "SUBJECT"},
}


class Google:
    """Token services of Google, in place of google-auth's transport: each gives a token, or refuses."""

    def __init__(self) -> None:
        self.refuses = ""
        self.asked: list[str] = []

    def __call__(self, _: object, url: str, *given: object, **options: object) -> Any:
        self.asked.append(url)
        answer: Mapping[str, object] = {
            "access_token": "given",
            "expires_in": 3600,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "accessToken": "lent",
            "expireTime": "2036-01-01T00:00:00Z",
        }
        if refused := bool(self.refuses) and self.refuses in url:
            answer = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        data = json.dumps(answer).encode()
        return SimpleNamespace(status=400 if refused else 200, data=data, headers={})


@pytest.fixture
def google(monkeypatch, tmp_path: Path) -> Google:
    service = Google()
    monkeypatch.setattr(
        "google.auth.transport.requests.Request.__call__",
        lambda self, *given, **options: service(self, *given, **options),
    )
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setattr("google.auth.compute_engine._metadata.is_on_gce", lambda **_: False)
    monkeypatch.setattr("google.auth._cloud_sdk.get_project_id", lambda: None)  # it starts gcloud: seconds
    (tmp_path / "subject").write_text("a.b.c")
    return service


def write(path: Path, content: object) -> Path:
    subject = str(path.parent / "subject")
    path.write_text(json.dumps(content).replace("SUBJECT", subject) if content != "" else "no JSON")
    return path


@pytest.mark.parametrize(
    ("content", "token", "words"),
    [
        (USER, "given", "application default credentials"),
        (ROBOT, "given", "service account robot@p.iam.gserviceaccount.com"),
        (IMPERSONATED, "lent", "impersonated service account worker@p.iam.gserviceaccount.com"),
        (FEDERATED, "given", "workload identity federation"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("named", [True, False], ids=["variable", "gcloud"])
def test_credentials_are_found(google, tmp_path, monkeypatch, content, token, words, named):
    path = write(tmp_path / "application_default_credentials.json", content)
    if named:
        monkeypatch.setenv(VARIABLE, str(path.rename(tmp_path / "key.json")))
    client = GcsStore(URL, endpoint=SECURE, retries=QUICK).client
    client.sign_in(URL)
    assert client.token()["token"] == token
    assert client.signed_in_as() == words


def test_without_any_requests_are_anonymous(google):
    client = GcsStore(URL, endpoint=SECURE, retries=QUICK).client
    client.sign_in(URL)
    assert client.token()["token"] == ""
    assert client.signed_in_as() == "nobody (anonymous)"
    assert google.asked == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not a valid json file"),
        ([1], "TypeError|AttributeError|valid type"),
        ({}, "does not have a valid type"),
        ({"type": "else"}, "does not have a valid type"),
        ({"type": "authorized_user"}, "Failed to load authorized user credentials"),
        ({**ROBOT, "private_key": "half"}, "Failed to load service account credentials"),
        ({"type": "impersonated_service_account"}, "correct it"),
        ({**FEDERATED, "credential_source": {}}, "external account"),
    ],
    ids=[
        "text",
        "list",
        "empty",
        "type",
        "half-user",
        "half-key",
        "half-impersonated",
        "half-federated",
    ],
)
@pytest.mark.parametrize("named", [True, False], ids=["variable", "gcloud"])
def test_malformed_file_is_one_line(google, tmp_path, monkeypatch, content, says, named):
    path = write(tmp_path / "application_default_credentials.json", content)
    if named:
        monkeypatch.setenv(VARIABLE, str(path.rename(tmp_path / "key.json")))
    store = GcsStore(URL, endpoint=SECURE, retries=QUICK)
    where = VARIABLE if named else "application default credentials"
    with pytest.raises(InputError, match=f"(?s){where}.*({says})") as raised:
        store.read("k")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["/nowhere/key.json", "."], ids=["missing", "folder"])
def test_file_that_cannot_be_read_is_one_line(google, monkeypatch, name):
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(
        InputError, match=f"{VARIABLE} names: .*gcloud auth application-default login"
    ) as raised:
        GcsStore(URL, endpoint=SECURE, retries=QUICK).list("")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "refuses", "advice"),
    [
        (USER, "oauth2", "gcloud auth application-default login"),
        (ROBOT, "oauth2", "make a new one"),
        (IMPERSONATED, "oauth2", "sign in again"),
        (IMPERSONATED, "iamcredentials", "roles/iam.serviceAccountTokenCreator"),
        (FEDERATED, "sts", "its credential_source"),
    ],
    ids=["user", "service-account", "source", "impersonation", "federation"],
)
def test_refused_credentials_are_one_line(google, tmp_path, monkeypatch, content, refuses, advice):
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "key.json", content)))
    google.refuses = refuses
    with pytest.raises(InputError, match=f"not signed in .*{advice}") as raised:
        GcsStore(URL, endpoint=SECURE, retries=QUICK).read("k")
    assert "\n" not in str(raised.value)


def test_missing_subject_token_is_one_line(google, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(write(tmp_path / "key.json", FEDERATED)))
    (tmp_path / "subject").unlink()
    with pytest.raises(InputError, match=r"not signed in .*subject.* was not found.*credential_source"):
        GcsStore(URL, endpoint=SECURE, retries=QUICK).read("k")


def test_missing_program_of_a_federation_is_one_line(google, tmp_path, monkeypatch):
    """Found with a program that is gone when the token is renewed: no object is taken for missing."""
    monkeypatch.setenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "1")
    said = {"version": 1, "success": True, "token_type": FEDERATED["subject_token_type"], "id_token": "a.b.c"}
    program = tmp_path / "subject-token"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    program.chmod(0o755)
    executable = {"executable": {"command": str(program), "timeout_millis": 5000}}
    path = write(tmp_path / "key.json", {**FEDERATED, "credential_source": executable})
    monkeypatch.setenv(VARIABLE, str(path))
    client = (store := GcsStore(URL, endpoint=SECURE, retries=QUICK)).client
    client.sign_in(URL)
    program.unlink()
    client._session.credentials.expiry = datetime(2020, 1, 1)
    with pytest.raises(InputError, match=f"{VARIABLE} names: .*No such file.*correct it"):
        store.read("k")
