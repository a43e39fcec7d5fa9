"""Secrets reach neither a record nor a log line nor a stored search space; innocent words stay what they are."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.errors import SpaceError
from sweeps.experiment import Experiment
from sweeps.lifecycle import Fail, Heartbeat, Release, StopEarly
from sweeps.redaction import RedactingFormatter, redact, refuse_secrets
from sweeps.space import Fixed, Program
from sweeps.storage.memory import MemoryStore

SECRET = "s3cr3t-v4lue-0f-mine"
ENVIRONMENT = {
    "WANDB_API_KEY": SECRET,
    "GIT_AUTHOR_NAME": "Jane Doe the 2nd",
    "MY_TOKEN": "short",
    "A_KEY": "/etc/key.pem",
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
    "text",
    [
        "Jane Doe the 2nd", "short", "/etc/key.pem", "gs://bucket/prefix/NAME: no such object",
        "unexpected token: }", "KeyError: 'key'", "trial 3: attempt 1 by host-12-ab expired", "3 tokens/s, me@host",
        "commit 0123456789abcdef0123456789abcdef01234567", "--tokenizer=gpt2 monkey=1", "loss=3.5; keys=2",
        "file:///tmp/a@b", "stage1_9.optimizer.lr=0.003",
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
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_a_program_said_reaches_no_record(experiment, secret, event):
    experiment.ask("w")
    experiment.apply(0, event)
    assert secret.encode() not in stored(experiment)
    assert b"pass@" not in stored(experiment)
    assert b"***" in stored(experiment)


def test_the_repeat_of_a_report_with_a_secret_in_it_is_still_the_same_report(experiment, secret):
    experiment.ask("w")
    report = Fail(worker="w", attempt=1, error=f"no {secret}", failure="diverged")
    experiment.apply(0, report)
    assert experiment.apply(0, report).error == "no ***"


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
        {"program": Program(kind="trainer", overrides=("data.path=https://host/x?token=abc",))},
        {"parameters": (Fixed(name="data.url", value="s3://me:pass@host"),)},
    ],
    ids=["environment", "userinfo", "query", "parameter"],
)
def test_a_search_space_with_a_secret_is_refused_without_telling_it(space, secret, change):
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
    ],
)
def test_flags_that_only_sound_like_one_are_taken(space, secret, command):
    refuse_secrets(replace(space, program=Program(kind="command", command=command)))


def test_a_report_without_a_secret_is_stored_as_it_is(space, clock):
    experiment = Experiment.create(MemoryStore(clock=clock), space)
    experiment.ask("w")
    words = "diverged: loss is nan at step 3\nTraceback …\n  file.py:3"
    assert experiment.apply(0, Fail(worker="w", attempt=1, error=words, failure="diverged")).error == words
