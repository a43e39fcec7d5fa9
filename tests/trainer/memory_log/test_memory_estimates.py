"""The estimates, held against the figures of a guide that measured with them, and bytes for people."""

from __future__ import annotations

import pytest

from trainer.memory_log.log import estimates, formatted


def test_they_are_the_figures_of_the_guide() -> None:
    """Qwen3-0.6B: 16 heads, 151,936 entries; one sequence of 1,024 tokens; 128 + 64 candidates."""
    assert estimates(batch=1, heads=16, length=1024, vocabulary=151_936, candidates=192) == {
        "attention": {"worst_case": {"bytes": 67_108_864, "formatted": "64.0 MiB"}},
        "logits": {
            "logits_full": {"bytes": 622_329_856, "formatted": "593.5 MiB"},
            "logits_sparse": {"bytes": 786_432, "formatted": "768.0 KiB"},
        },
    }


def test_full_logits_have_no_candidates() -> None:
    sizes = estimates(batch=2, heads=3, length=5, vocabulary=7)
    assert sizes["logits"] == {"logits_full": {"bytes": 2 * 5 * 7 * 4, "formatted": "280 B"}}
    assert sizes["attention"]["worst_case"]["bytes"] == 2 * 3 * 5 * 5 * 4


@pytest.mark.parametrize(
    ("size", "formatted_size"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**30, "1.0 GiB"),
        (2**40, "1.0 TiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_bytes_for_people(size: int, formatted_size: str) -> None:
    assert formatted(size) == formatted_size
