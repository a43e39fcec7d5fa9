"""Pools for the tests of all runners, and strategies for hostile text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from runners.pools.engines import ENGINES, EVERYWHERE, runner
from runners.pools.pool import Pool, worker_command

URL = "gs://bucket/sweeps/toy"

PLAIN = Pool(
    name="toy",
    storage=URL,
    folder=Path("/home/me/sweep-logs/toy/pool"),
    workers=3,
    command=worker_command(URL, python="python3", max_trials=4),
)

FULL = replace(
    PLAIN,
    accelerator="A100",
    accelerator_count=2,
    threads=8,
    devices=("0", "1", "2"),
    spot=True,
    environment={"HF_HOME": "/data/it's mine"},
    secrets=("WANDB_API_KEY",),
    setup=("module load cuda", "source ~/venv/bin/activate"),
    grace_s=45.0,
    restarts=2,
)


WHEEL = "https://example.org/stagesweep-1.0.0-py3-none-any.whl"

NEEDED: dict[str, dict[str, Any]] = {
    "kubernetes": {"options": {"image": "europe-docker.pkg.dev/my-project/images/stagesweep:1"}},
    "tpu-vm": {
        "accelerator": "v6e-4",
        "options": {
            "project": "my-project",
            "zones": "us-east5-b,us-central2-b",
            "package": "gs://bucket/stagesweep-1.0.0-py3-none-any.whl",
        },
    },
    "skypilot": {"options": {"package": WHEEL}},
}
"""Fields that an engine requires."""


def plain(name: str) -> Pool:
    """Return the minimal pool of this engine."""
    return replace(PLAIN, **NEEDED.get(name, {}))


def suited(name: str, pool: Pool, **changes: Any) -> Pool:
    """Return the pool with only those fields that this engine supports."""
    supported = {field: getattr(pool, field) for field in runner(name).takes | EVERYWHERE}
    return replace(PLAIN, **{**supported, **NEEDED.get(name, {}), **changes})


# Text that a process can get: no NUL, no unpaired surrogates.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
hostile = st.one_of(
    texts,
    st.sampled_from(
        [
            "'; touch pwned; '",
            "$(touch pwned)",
            "`touch pwned`",
            "a\nb",
            "-n",
            "",
            "\\",
            '"',
            "#x",
            *"*~!",
            "%s",
        ]
    ),
)

__all__ = ["ENGINES", "FULL", "PLAIN", "URL", "WHEEL", "hostile", "plain", "suited", "texts"]
