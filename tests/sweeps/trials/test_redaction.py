"""Secrets reach neither a record nor a log line nor a stored search space; innocent words stay what they are."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import MemoryStore

from sweeps.errors import SpaceError
from sweeps.experiment import Experiment
from sweeps.programs.process import last_lines
from sweeps.space.definition import Fixed, Program
from sweeps.trials import storable
from sweeps.trials.lifecycle import Abandon, Complete, Fail, Heartbeat, Release, StopEarly
from sweeps.trials.record import Attempt, Trial
from sweeps.trials.redaction import (
    RedactingFormatter,
    redact,
    redact_trials,
    redacted_line,
    refuse_secrets,
)

SECRET = "s3cr3t-v4lue-0f-mine"
ENVIRONMENT = {
    "WANDB_API_KEY": SECRET,
    "GIT_AUTHOR_NAME": "Jane Doe the 2nd",
    "MY_TOKEN": "short",
    "A_KEY": "/etc/key.pem",
    "PGPASSWORD": "hunter2",
    "MYSQL_PWD": "correct horse",
    "DB_PASS": "p@ss/w0rd!",
    "REDISCLI_AUTH": "redis-auth-1",
    "GH_PAT": "pat-0123456",
    "SSHPASS": "ssh+pass1",
    "SENTRY_DSN": "https://0a1b2c3d@sentry.example/7",
    "DATABASE_URL": "postgres://me:inside-url@db/x",
    "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/google.json",
    "AWS_SECRET_ACCESS_KEY": "/bPxRfiCYEXAMPLEKEYwJalrXUtnFEMIK7MDENGx",
    "NETRC": "/home/me/.netrc",
    "TOKENIZERS_PARALLELISM": "sometimes",
    "KEYBOARD": "keyboard-us",
    "MONKEY": "curious-george",
    "BYPASS": "bypass-value",
    "PWD": "working-folder",
    "OLDPWD": "before-folder",
    "EOS_TOKEN": "<|endoftext|>",
    "TOKEN_URL": "https://host/oauth",
    "USE_AUTH": "required",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"wandb: key {SECRET} refused", "wandb: key *** refused"),
        ("https://me:hunter2@host/x and http://t0ken@host", "https://***@host/x and http://***@host"),
        ("GET /o?token=abc&page=1 failed", "GET /o?token=***&page=1 failed"),
        ("x?X-Goog-Signature=0af&X-Goog-Date=1", "x?X-Goog-Signature=***&X-Goog-Date=1"),
        ("Authorization: Bearer ya29.a0Af-x_y", "Authorization: ***"),
        ("{'Authorization': 'Bearer abc.def'}", "{'Authorization': '***'}"),
        ("sent bearer abcdefgh.ijk", "sent bearer ***"),
        ("token ya29.a0AfH6SMBx-y_z was", "token *** was"),
        ("train.py --api-key=abc --lr 3", "train.py --api-key=*** --lr 3"),
        ("HF_TOKEN=abc PATH=/bin", "HF_TOKEN=*** PATH=/bin"),
        ("environ({'AWS_SECRET_ACCESS_KEY': 'abc', 'HOME': '/root'})", "environ({'AWS_SECRET_ACCESS_KEY': '***', 'HOME': '/root'})"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nabc\n-----END PRIVATE KEY-----\nend", "***\nend"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\ncut off", "***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def", "***"),
        ("ghp_" + "a" * 36 + " and hf_" + "b" * 34, "*** and ***"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_becomes_stars(text, shown):
    assert redact(text, ENVIRONMENT) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("psql: hunter2 is wrong", "psql: *** is wrong"),
        ("hunter21 is another word", "hunter21 is another word"),
        ("no 'correct horse' here", "no '***' here"),
        ("p%40ss%2Fw0rd%21 in a URL", "*** in a URL"),
        ("redis-auth-1, pat-0123456, ssh+pass1", "***, ***, ***"),
        ("DSN https://0a1b2c3d@sentry.example/7", "DSN ***"),
        ("auth failed: inside-url", "auth failed: ***"),
        ("signed by /bPxRfiCYEXAMPLEKEYwJalrXUtnFEMIK7MDENGx", "signed by ***"),
    ],
)
def test_secret_variables_become_stars(text, shown):
    assert redact(text, ENVIRONMENT) == shown


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "GHTOKEN", "SMTP_PASS", "MYSQL_PWD", "PGPASSWORD", "SSHPASS", "npm_config_authToken", "AZURE_STORAGE_CONNECTION_STRING", "SLACK_WEBHOOK_URL", "JWT", "SECRET_KEY_BASE", "KEY_PROD"])  # fmt: skip
def test_a_variable_with_such_a_name_is_a_secret(name):
    assert redact("told: 8-or-more", {name: "8-or-more"}) == "told: ***"


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "XDG_SESSION_TYPE", "GIT_AUTHOR_NAME", "BYPASS", "COMPASS", "EOS_TOKEN", "MAX_TOKENS", "PAD_TOKEN_ID", "NUM_KEY_VALUE_HEADS", "SSH_PUBLIC_KEY", "SECRETARY", "TOKEN_URL", "PGPASSFILE", "SSH_AUTH_SOCK"])  # fmt: skip
def test_a_variable_with_an_innocent_name_is_none(name):
    assert redact("told: 8-or-more", {name: "8-or-more"}) == "told: 8-or-more"


@pytest.mark.parametrize("password", ["$ecretPassw0rd", "${ecretPassw0rd", "<angle123456>", "%percent123"])
def test_a_value_that_begins_as_a_placeholder_is_a_secret_of_the_environment(password):
    assert redact(f"told: {password}", {"DB_PASSWORD": password}) == "told: ***"
    text = f"export DB_PASSWORD={password}"
    assert redact(text, {}) == text  # there it is one


def test_a_password_of_letters_alone_is_one_from_eight_on():
    assert redact("a test of secrets", {"PGPASSWORD": "test"}) == "a test of secrets"
    assert redact("a longword", {"PGPASSWORD": "longword"}) == "a ***"


LETTERS, HEX = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7" * 4, "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "token",
    [
        f"glpat-{LETTERS[:20]}", f"glrt-{LETTERS[:20]}", f"xoxb-123456789012-{LETTERS[:24]}", f"xapp-1-{LETTERS[:30]}",
        f"sk_live_{LETTERS[:24]}", f"rk_test_{LETTERS[:24]}", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE",
        f"AIza{LETTERS[:35]}", f"GOCSPX-{LETTERS[:28]}", f"AccountKey={LETTERS[:86]}==", f"abc8Q~{LETTERS[:34]}",
        f"npm_{LETTERS[:36]}", f"pypi-AgEIcHlwaS5vcmc{LETTERS[:70]}", f"sk-{LETTERS[:48]}", f"sk-proj-{LETTERS[:60]}",
        f"sk-ant-api03-{LETTERS[:93]}AA", f"hf_{LETTERS[:34]}", f"123456789:AA{LETTERS[:33]}",
        f"SG.{LETTERS[:22]}.{LETTERS[:43]}", f"SK{HEX[:32]}", f"key-{HEX[:32]}", f"dapi{HEX[:32]}", f"dop_v1_{HEX}",
        f"hvs.{LETTERS[:24]}", f"dckr_pat_{LETTERS[:27]}", f"nvapi-{LETTERS[:64]}", f"github_pat_{LETTERS[:40]}",
        "postgres://user:p@ss:word@host/db", f"https://hooks.slack.com/services/T0123/B0123/{LETTERS[:24]}",
        "redis://:secretpart@host:6379/0", "host=db;Uid=me;Pwd=secretpart;",
    ],
)  # fmt: skip
def test_tokens_of_known_formats_become_stars(token):
    for around in ("{}", "refused: {} (401)", '{{"told": "{}"}}'):
        shown = redact(around.format(token), {})
        assert "***" in shown
        for part in (
            "secretpart",
            "ss:word",
            *([] if "***" in token else [LETTERS[:15], HEX[:15], "IOSFODNN7"]),
        ):
            assert part not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PGPASSWORD=x psql", "PGPASSWORD=*** psql"),
        ("env=MYSQL_PWD='a b' run", "env=MYSQL_PWD='***' run"),
        ('{"db_password": "x y", "lr": 3}', '{"db_password": "***", "lr": 3}'),
        (r'"{\"api_key\": \"abc\"}"', r'"{\"api_key\": \"***\"}"'),
        ("lr: 3\n  api_key: abc\n", "lr: 3\n  api_key: ***\n"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("['--password', 'abc', '--lr', '3']", "['--password', '***', '--lr', '3']"),
        ("curl -u me:pw https://host", "curl -u me:*** https://host"),
        ("sshpass -p pw ssh host", "sshpass -p *** ssh host"),
        ("machine h login me password pw", "machine h login me password ***"),
        ("Authorization: Basic bWU6cHc=", "Authorization: ***"),
        ("Set-Cookie: id=a; b=c", "Set-Cookie: ***"),
        ("MIIEpAIB\nAbC+/w==\n-----END RSA PRIVATE KEY-----\nend", "***\nend"),
    ],
)
def test_what_a_text_gives_to_a_secret_name_becomes_stars(text, shown):
    assert redact(text, {}) == shown


@pytest.mark.parametrize(
    "hostile",
    ["a" * 8192, "AAAA\n" * 1600 + "PRIVATE KEY", "curl " * 1600, "sk-" * 2700, "eyJaaaaaaaa-" * 700, "a." * 4000 + "://", "?a" * 4000 + "key="],
    ids=lambda text: text[:5],
)  # fmt: skip
def test_no_text_of_a_logs_length_takes_long(hostile):
    started = time.process_time()
    redact(hostile, ENVIRONMENT)
    assert time.process_time() - started < 0.2  # a quadratic pattern takes from 0.5 s on


@pytest.mark.parametrize(
    "text",
    [
        "Jane Doe the 2nd", "short", "/etc/key.pem", "gs://bucket/prefix/NAME: no such object",
        "unexpected token: }", "KeyError: 'key'", "trial 3: attempt 1 by host-12-ab expired", "3 tokens/s, me@host",
        "commit 0123456789abcdef0123456789abcdef01234567", "--tokenizer=gpt2 monkey=1", "loss=3.5; keys=2",
        "file:///tmp/a@b", "stage1_9.optimizer.lr=0.003", "/home/me/google.json", "/home/me/.netrc", "sometimes",
        "keyboard-us", "curious-george", "bypass-value", "working-folder", "before-folder", "<|endoftext|>", "required",
        "https://host/oauth", "max_tokens=128 eos_token=</s> pad_token_id=3 key=4 num_key_value_heads=8",
        "TOKENIZERS_PARALLELISM=false PWD=/x OLDPWD=/y", "--eos-token </s> --max-tokens 128", "KEY: value", "PASS: test_x",
        "invalid password: must be longer", "DefaultCredentialsError: none found", "connect(password=None)",
        "GOOGLE_APPLICATION_CREDENTIALS=/a/b.json", "export HF_TOKEN=$TOKEN", "sk-learn-contrib-is-not-installed",
        "config sha256 " + "0f" * 32, "docker run -u 1000:1000", "--env PGPASSWORD=…: write --secret PGPASSWORD",
    ],
)  # fmt: skip
def test_innocent_words_stay(text):
    assert redact(text, ENVIRONMENT) == text


@given(st.text(max_size=200))
def test_no_text_breaks_it_and_twice_is_once(text):
    once = redact(text, ENVIRONMENT)
    assert SECRET not in once
    assert redact(once, ENVIRONMENT) == once


@pytest.fixture
def secret(monkeypatch) -> str:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    return SECRET


def stored(experiment: Experiment) -> bytes:
    store = experiment.store
    return b"".join(store.read(entry.key)[0] for entry in store.list(""))


@pytest.mark.parametrize(
    "event",
    [
        Fail(worker="w", attempt=1, error=f"HTTP 401 {SECRET}\nhttps://me:pass@host", failure="diverged"),
        Fail(worker="w", attempt=1, error=f"died with {SECRET}\nlast", failure="crashed", max_attempts=3),
        Release(worker="w", attempt=1, detail=f"OSError: {SECRET}"),
        StopEarly(worker="w", attempt=1, metrics={}, detail=SECRET),
        Heartbeat(worker="w", attempt=1, progress={"stage": SECRET, "step": 3}),
        Heartbeat(worker="w", attempt=1, progress={SECRET: 1, "step": 3}),
        Complete(worker="w", attempt=1, metrics={"final_loss": 1.0, f"at {SECRET}": 2.0}),
        StopEarly(worker="w", attempt=1, metrics={SECRET: 2.0}),
        Abandon(by=f"{SECRET}@host"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_a_program_said_reaches_no_record(experiment, secret, event):
    experiment.ask("w")
    experiment.apply(0, event)
    assert secret.encode() not in stored(experiment)
    assert b"pass@" not in stored(experiment)
    assert b"***" in stored(experiment)


def test_repeated_report_with_secret_is_the_same(experiment, secret):
    experiment.ask("w")
    report = Fail(worker="w", attempt=1, error=f"no {secret}", failure="diverged")
    experiment.apply(0, report)
    assert experiment.apply(0, report).error == "no ***"


def test_worker_name_with_secret_still_holds_trial(experiment, secret):
    claimed = experiment.ask(f"worker-{SECRET}")
    assert claimed.worker == "worker-***"
    ended = experiment.apply(0, Complete(worker=f"worker-{SECRET}", attempt=1, metrics={"final_loss": 1.0}))
    assert ended.status == "completed"
    assert secret.encode() not in stored(experiment)


def test_secret_at_the_limit_of_a_line_is_masked_whole(secret):
    filled = "w" * (storable.MAX_LINE - len("-***"))
    assert redacted_line(f"{filled} {secret}") == f"{filled} ***"


def test_equal_redacted_metric_names_leave_one(experiment, secret, caplog):
    experiment.ask("w")
    other = "ghp_" + "a" * 36
    metrics = {secret: 1.0, other: 2.0, "***": 3.0, "final_loss": 4.0}
    ended = experiment.apply(0, Complete(worker="w", attempt=1, metrics=metrics))
    assert dict(ended.metrics) == {"***": 3.0, "final_loss": 4.0}
    (message,) = caplog.messages
    assert message.startswith("2 names left out")


def test_unredacted_records_are_redacted_on_output(secret):
    attempt = Attempt(attempt=1, worker=secret, start=0.0, end=1.0, reason="crashed", detail=secret)
    record = Trial(
        trial=0, status="failed", parameters={"lr": 0.1}, generator="sobol", metrics={secret: 1.0}, error=secret,
        worker=secret, progress={"stage": secret}, history=(attempt,),
    )  # fmt: skip
    (shown,) = redact_trials([record])
    assert secret not in repr(shown)
    assert (shown.metrics, shown.parameters) == ({"***": 1.0}, {"lr": 0.1})


def test_log_lines_and_their_tracebacks_hold_none(secret):
    record = logging.LogRecord(
        "x", logging.WARNING, __file__, 1, "asked %s", (f"http://h/?key={secret}",), None
    )
    try:
        raise ValueError(secret)
    except ValueError:
        record.exc_info = sys.exc_info()
    shown = RedactingFormatter("sweep: %(message)s").format(record)
    assert secret not in shown
    assert shown.startswith("sweep: asked http://h/?key=***\nTraceback")


@pytest.mark.parametrize(
    "change",
    [
        {"program": Program(kind="command", command=("python", "x.py", f"--wandb={SECRET}", "${overrides}"))},
        {"program": Program(kind="command", command=("git", "clone", "https://me:pass@host/x"))},
        {"program": Program(kind="command", command=("sh", "-c", "PGPASSWORD=pass@ run"))},
        {"name": f"sweep-{SECRET}"},
        {"program": Program(kind="trainer", overrides=("data.path=https://host/x?token=abc",))},
        {"parameters": (Fixed(name="data.url", value="s3://me:pass@host"),)},
    ],
    ids=["environment", "userinfo", "assigned", "name", "query", "parameter"],
)
def test_space_with_secret_is_refused_without_showing_it(space, secret, change):
    with pytest.raises(SpaceError, match=r"holds a secret.*environment") as caught:
        refuse_secrets(replace(space, **change))
    assert secret not in str(caught.value)
    assert "pass@" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ("python", "train.py", "--eos-token=</s>", "${overrides}"),
        ("sh", "-c", "WANDB_API_KEY=$(cat k) run ${trial}"),
        ("sh", "-c", "PGPASSWORD=$PW KEY_FILE=/etc/k EOS_TOKEN=</s> run ${trial}"),
    ],
)
def test_flags_that_only_sound_like_one_are_taken(space, secret, command):
    refuse_secrets(replace(space, program=Program(kind="command", command=command)))


def test_a_report_without_a_secret_is_stored_as_it_is(space, clock):
    experiment = Experiment.create(MemoryStore(clock=clock), space)
    experiment.ask("w")
    words = "diverged: loss is nan at step 3\nTraceback …\n  file.py:3"
    assert experiment.apply(0, Fail(worker="w", attempt=1, error=words, failure="diverged")).error == words


@pytest.mark.parametrize("between", [" ", "\n"])
def test_the_end_of_a_log_never_begins_amid_a_secret(tmp_path, between):
    log = tmp_path / "log.txt"
    log.write_text(f"{'x' * 500}{SECRET}{between}{'y' * 90}")
    assert last_lines(log, max_bytes=100) == "y" * 90
