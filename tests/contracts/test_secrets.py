"""Two packages redact secrets and may not import each other: they redact the same."""

from __future__ import annotations

from importlib.resources import files

import pytest

import sweeps.trials.redaction
import trainer.config.redaction


def test_the_patterns_are_the_same_text() -> None:
    there, here = (
        files(package).joinpath("secret_patterns.py").read_text()
        for package in ("sweeps.text", "trainer.config")
    )
    assert there == here


@pytest.mark.parametrize(
    "text", ["PGPASSWORD=abc", "told hunter2", "https://me:pw@host", "eos_token=</s>", "hf_" + "aB3" * 12]
)
def test_a_text_reads_alike_from_both_rooms(text: str) -> None:
    environment = {"MYSQL_PWD": "hunter2"}
    shown = sweeps.trials.redaction.redact(text, environment)
    assert trainer.config.redaction.redact(text, environment) == shown
    assert trainer.config.redaction.without_secrets([text], environment) == [shown]
