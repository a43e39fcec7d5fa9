"""What leaves the machine through wandb holds no secret: not the configuration, not a name, not a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wandb

from trainer.api import check
from trainer.telemetry.wandb_run import open_wandb
from trainer.text import without_secrets

ENVIRONMENT = {
    "HF_TOKEN": "abcdefgh12345678",
    "TOKENIZERS_PARALLELISM": "sometimes",
    "KEY_FILE": "/home/me/key.json",
}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("token abcdefgh12345678 of mine", "token *** of mine"),
        ("https://me:hunter2@host/data", "https://***@host/data"),
        ("https://host/data?access_token=xyz&page=2", "https://host/data?access_token=***&page=2"),
        ("/home/me/key.json", "/home/me/key.json"),
        ("sometimes", "sometimes"),
        ({"a": {"b": ["abcdefgh12345678", 3, None, True]}}, {"a": {"b": ["***", 3, None, True]}}),
    ],
)
def test_secrets_become_stars_and_all_else_stays(value: object, shown: object) -> None:
    assert without_secrets(value, ENVIRONMENT) == shown


def test_nothing_that_wandb_is_given_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, token, password = "0123456789abcdef" * 2 + "01234567", "tok-9f8e7d6c5b4a", "hunter2hunter2"
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("HF_TOKEN", token)
    config = check(
        [
            "wandb.mode=offline",
            "wandb.project=p",
            "wandb.tags=['${oc.env:HF_TOKEN}']",
            f"wandb.group='https://me:{password}@host/x'",
            "wandb.name='run-${oc.env:WANDB_API_KEY}'",
        ]
    )
    assert all(secret in str(config) for secret in (key, token, password))
    options: dict[str, Any] = {}
    monkeypatch.setattr(wandb, "init", lambda **keywords: options.update(keywords))
    run = open_wandb(config, tmp_path)
    assert run is not None
    run.close(0)
    assert not [secret for secret in (key, token, password) if secret in repr(options)]
    assert (options["project"], options["name"], options["group"]) == ("p", "run-***", "https://***@host/x")
    assert options["config"]["wandb"]["tags"] == options["tags"] == ["***"]


def test_a_warning_about_wandb_holds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**options: object) -> None:
        raise ConnectionError("https://me:hunter2@api.wandb.ai said no")

    monkeypatch.setattr(wandb, "init", refuse)
    run = open_wandb(check(["wandb.mode=offline"]), tmp_path)
    assert run is not None
    run.close(0)
    assert "https://***@api.wandb.ai said no" in capsys.readouterr().err
