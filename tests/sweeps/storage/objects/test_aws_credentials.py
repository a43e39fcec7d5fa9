"""Every kind of credentials of S3: found, missing, half given, expired; services of AWS are fakes on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from s3_server import Doors

from sweeps.errors import InputError, StoreUnavailable
from sweeps.storage.objects.s3 import S3Client
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.text.installation import install_command
from sweeps.upkeep.machine import examine_store

QUICK = RetryPolicy(total_s=10.0, attempt_s=5.0, first_wait_s=0.02, longest_wait_s=0.1)
STS = "https://sts.amazonaws.com/doc/2011-06-15/"


class Sts(BaseHTTPRequestHandler):
    """AWS's token service and its SSO portal: gives the server's keys, or refuses."""

    status = 200
    asked: list[str]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.asked.append(self.path + body)
        kind, said = "text/xml", "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
        if self.status == 200 and self.path.startswith("/federation/credentials"):
            kind = "application/json"
            keys = {
                "accessKeyId": "key",
                "secretAccessKey": "secret",
                "expiration": (time.time() + 3600) * 1e3,
            }
            said = json.dumps({"roleCredentials": {**keys, "sessionToken": ""}})
        elif self.status == 200:
            said = (
                f'<AssumeRoleResponse xmlns="{STS}"><AssumeRoleResult><Credentials>'
                "<AccessKeyId>key</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
                "<SessionToken></SessionToken><Expiration>2036-01-01T00:00:00Z</Expiration>"
                "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
            )
        self.send_response(self.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    do_GET = do_POST = answer

    def log_message(self, *given: object) -> None: ...


@pytest.fixture
def sts(monkeypatch) -> Iterator[type[Sts]]:
    handler = type("Handler", (Sts,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for service in ("STS", "SSO"):
            monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", f"http://127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()
        thread.join()


@pytest.fixture
def url(s3: Doors, tmp_path: Path, monkeypatch) -> str:
    """URL in a real server; the environment has no credentials, and a home of its own."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    for provider in ("credentials.SSOProvider", "tokens.SSOTokenProvider"):  # it looks up HOME on import
        monkeypatch.setattr(f"botocore.{provider}._SSO_TOKEN_CACHE_DIR", str(tmp_path / ".aws/sso/cache"))
    return f"s3://bucket/credentials/{uuid.uuid4().hex}"


def write(home: Path, name: str, text: str) -> None:
    (home / ".aws" / name).write_text(text)


KEYS = "aws_access_key_id = key\naws_secret_access_key = secret\n"
ROLE = f"[profile lab]\nregion = eu-west-3\nrole_arn = arn:aws:iam::123456789012:role/w\nsource_profile = me\n[profile me]\n{KEYS}"
TOKEN = "web_identity_token_file = /nowhere/token"
SSO = """[profile lab]
sso_session = corp
sso_account_id = 123456789012
sso_role_name = Worker
[sso-session corp]
sso_region = us-east-1
sso_start_url = https://corp.awsapps.com/start
"""


def sign_in_to_sso(home: Path, seconds: float) -> None:
    (home / ".aws/sso/cache").mkdir(parents=True)
    name = hashlib.sha1(b"corp", usedforsecurity=False).hexdigest()
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
    token = {"startUrl": "https://corp.awsapps.com/start", "accessToken": "t", "expiresAt": until}
    (home / ".aws/sso/cache" / f"{name}.json").write_text(json.dumps(token))


@pytest.mark.parametrize(
    ("files", "profile", "words"),
    [
        ({"credentials": f"[lab]\n{KEYS}"}, "lab", "AWS profile lab (shared-credentials-file)"),
        ({"credentials": f"[default]\n{KEYS}"}, "", "AWS profile default (shared-credentials-file)"),
        ({"config": f"[default]\n{KEYS}"}, "", "AWS profile default (config-file)"),
        ({"config": f"[profile default]\n{KEYS}"}, "", "AWS profile default (config-file)"),
        ({"config": ROLE}, "lab", "AWS profile lab (assume-role)"),
        ({"config": SSO}, "lab", "AWS profile lab (sso)"),
        (
            {"config": "[profile lab]\ncredential_process = PROGRAM\n"},
            "lab",
            "AWS profile lab (custom-process)",
        ),
    ],
    ids=["keys", "default", "config", "profile default", "role", "sso", "program"],
)
def test_profile_signs_requests(s3, sts, url, tmp_path, monkeypatch, files, profile, words):
    program = tmp_path / "keys"
    said = {"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    program.chmod(0o755)
    for name, text in files.items():
        write(tmp_path, name, text.replace("PROGRAM", str(program)))
    sign_in_to_sso(tmp_path, 3600)
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    version = store.create("sweep.json", b"{}")
    assert store.read("sweep.json") == (b"{}", version)
    assert [entry.key for entry in store.list("")] == ["sweep.json"]
    facts, findings = examine_store(store)
    assert (facts["credentials"], findings) == (words, [])
    assert len(sts.asked) == (1 if "role" in words or "sso" in words else 0)  # once for all requests


def test_program_that_fails_once_is_asked_again(s3, url, tmp_path, monkeypatch, caplog):
    said = {"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "secret"}
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5 * 60))
    first, later = (json.dumps({**said, "Expiration": at}) for at in (soon, "2036-01-01T00:00:00Z"))
    program = tmp_path / "keys"  # gives keys that end soon, fails, then gives others
    program.write_text(
        f"""#!/bin/sh
cd {tmp_path}
if [ -e failed ]; then echo '{later}'; elif [ -e given ]; then touch failed; exit 1; else
touch given; echo '{first}'; fi
"""
    )
    program.chmod(0o755)
    write(tmp_path, "config", f"[profile lab]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    store.client.answered = True
    assert store.list("") == []
    assert (tmp_path / "failed").exists()
    assert not caplog.records  # botocore's would have a traceback each


def test_the_profiles_region_is_taken(s3, sts, url, tmp_path, monkeypatch):
    write(tmp_path, "config", ROLE)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    client = S3Client("bucket", endpoint=s3.door("a"), retries=QUICK)
    client.sign_in(url)
    assert client.store().config["region"] == "eu-west-3"
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert client.store(bulk=True).config["region"] == "us-east-2"


@pytest.mark.parametrize(
    ("files", "profile", "status", "says"),
    [
        ({}, "lab", 200, r"AWS profile lab: .*could not be found; correct it in ~/\.aws"),
        ({"config": "[profile lab]\nregion = eu-west-3\n"}, "lab", 200, "it has no credentials"),
        ({"credentials": "[lab]\naws_access_key_id = key\n"}, "lab", 200, "Partial credentials.*aws_secret"),
        ({"config": ROLE}, "lab", 403, "AccessDenied.*correct it"),
        ({"config": ROLE.replace("source_profile = me\n", "")}, "lab", 200, "source_profile.*correct it"),
        ({"config": ROLE.replace("region", "mfa_serial = x\nregion")}, "lab", 200, "one-time code"),
        ({"config": SSO}, "lab", 200, r"expired.*`aws sso login --profile lab`"),
        ({"config": "[profile lab]\ncredential_process = false\n"}, "lab", 200, "custom-process.*correct it"),
        (
            {"config": "[profile lab]\ncredential_process = /nowhere/keys\n"},
            "lab",
            200,
            "No such file.*correct",
        ),
        (
            {"config": "[profile lab]\ncredential_process = echo []\n"},
            "lab",
            200,
            "'list' object.*correct it",
        ),
        ({"config": ROLE.replace("source_profile = me", TOKEN)}, "lab", 200, "/nowhere/token.*correct it"),
    ],
    ids=[
        "no-profile",
        "no-keys",
        "half",
        "refused",
        "no-source",
        "mfa",
        "sso-expired",
        "program-fails",
        "no-program",
        "program-says-no-keys",
        "no-token",
    ],
)
def test_faulty_profile_is_one_line(s3, sts, url, tmp_path, monkeypatch, files, profile, status, says):
    for name, text in files.items():
        write(tmp_path, name, text)
    sign_in_to_sso(tmp_path, -60)
    sts.status = status
    monkeypatch.setenv("AWS_PROFILE", profile)
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    with pytest.raises(InputError, match=says) as raised:
        store.read("k")
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"{url}/k: AWS profile lab: ")


@pytest.mark.slow
def test_absent_token_service_is_asked_again(s3, sts, url, tmp_path, monkeypatch):
    write(tmp_path, "config", ROLE)
    sts.status = 503
    monkeypatch.setenv("AWS_PROFILE", "lab")
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    with pytest.raises(StoreUnavailable, match=r"AWS profile lab: .*check the network"):
        store.read("k")
    assert len(sts.asked) > 1


@pytest.mark.parametrize(
    ("text", "line"),
    [(KEYS, 1), (f"[default]\n{KEYS.replace(' = ', ' ')}", 2)],
    ids=["no-section", "no-value"],
)
def test_malformed_file_of_profiles_tells_no_secret(url, tmp_path, text, line):
    write(tmp_path, "credentials", text.replace("key\n", "hush\n"))
    with pytest.raises(InputError, match=f"credentials: not a file of AWS profiles .line {line} ") as raised:
        ObjectStore(url)
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_missing_boto3_is_one_line(s3, url, tmp_path, monkeypatch):
    write(tmp_path, "credentials", f"[default]\n{KEYS}")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(
        InputError, match=rf"{re.escape(install_command('aws'))}.*--profile default"
    ) as raised:
        ObjectStore(url, endpoint=s3.door("a"), retries=QUICK).read("k")
    assert "\n" not in str(raised.value)


def test_region_alone_needs_no_boto3(s3, url, tmp_path, monkeypatch):
    """The machine's role has the credentials then."""
    write(tmp_path, "config", "[default]\nregion = eu-west-3\n")
    assert S3Client("bucket", endpoint=s3.door("a"), retries=QUICK).signed_in_as() == "role of this machine"


@pytest.mark.parametrize("value", ["false", "0", "No", "off"])
def test_switch_that_is_off_leaves_the_profile(url, tmp_path, monkeypatch, value):
    write(tmp_path, "credentials", f"[default]\n{KEYS}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", value)
    assert ObjectStore(url).client.signed_in_as() == "AWS profile default"
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert ObjectStore(url).client.signed_in_as() == "nobody (AWS_SKIP_SIGNATURE)"


def test_the_clock_needs_no_credentials_where_nothing_is_signed(s3, url, monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    assert abs(store.now() - time.time()) < 5


@pytest.mark.parametrize(
    ("endpoint", "region", "address"),
    [
        ("http://host:9000/", "", "http://host:9000/bucket/sweep/k"),
        (None, "eu-west-3", "https://s3.eu-west-3.amazonaws.com/bucket/sweep/k"),
        (None, "", "https://s3.us-east-1.amazonaws.com/bucket/sweep/k"),
    ],
)
def test_an_unsigned_question_for_the_time_goes_where_others_go(url, monkeypatch, endpoint, region, address):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_REGION", region)
    client = S3Client("bucket", endpoint=endpoint, retries=QUICK)
    assert asyncio.run(client.clock_url("sweep/k")) == address


def test_profile_of_that_name_in_the_file_of_credentials_is_another(s3, url, tmp_path):
    write(tmp_path, "credentials", f"[profile default]\n{KEYS}")
    assert S3Client("bucket", endpoint=s3.door("a"), retries=QUICK).signed_in_as() == "role of this machine"


def test_keys_of_the_environment_go_before_profiles(s3, url, tmp_path, monkeypatch):
    write(tmp_path, "credentials", "[lab]\naws_access_key_id = other\naws_secret_access_key = other\n")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    store.create("k", b"{}")
    assert store.client.signed_in_as() == "AWS_ACCESS_KEY_ID"


def test_named_profile_goes_before_the_containers_role(url, tmp_path, monkeypatch):
    write(tmp_path, "credentials", f"[default]\n{KEYS}[lab]\n{KEYS}")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/role")
    assert ObjectStore(url).client.signed_in_as() == "role of this container"
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert ObjectStore(url).client.signed_in_as() == "AWS profile lab"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": "key"}, "AWS_SECRET_ACCESS_KEY: it is not set, but AWS_ACCESS_KEY_ID is"),
        ({"AWS_SECRET_ACCESS_KEY": "key"}, "AWS_ACCESS_KEY_ID: it is not set, but AWS_SECRET_ACCESS_KEY is"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null"}, "AWS_ROLE_ARN: it is not set"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/t", "AWS_ROLE_ARN": "arn:x"}, "/nowhere/t does not exist"),
    ],
    ids=["no-secret", "no-id", "no-role", "no-token"],
)
def test_half_of_the_variables_is_one_line(url, monkeypatch, given, says):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=says):
        ObjectStore(url)


def test_web_identity_goes_before_profiles(url, tmp_path, monkeypatch):
    write(tmp_path, "credentials", f"[default]\n{KEYS}")
    (tmp_path / "token").write_text("a.b.c")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/w")
    assert ObjectStore(url).client.signed_in_as() == "web identity (AWS_ROLE_ARN)"
