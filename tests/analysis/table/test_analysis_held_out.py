"""Losses of each sequence: factors of the covariance, and what cannot be paired."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.table import TrialsTable
from analysis.table.held_out import HeldOut

SEQUENCES = 40


def losses(trials: int = 3, seed: int = 0) -> dict[str, Any]:
    """Trials on one text: what is hard about it is common, 0.4, and what is each one's own is 0.05."""
    random = np.random.default_rng(seed)
    teacher = 2.5 + random.normal(0, 0.4, SEQUENCES)
    return {
        str(trial): {
            "final": (teacher + 0.5 + random.normal(0, 0.05, SEQUENCES)).tolist(),
            "teacher": teacher.tolist(),
        }
        for trial in range(trials)
    }


def test_factors_give_the_covariance() -> None:
    entries = losses()
    factors = HeldOut.from_document(entries).factors("final_loss", [(0,), (1,), (2,)])
    differences = [np.array(e["final"]) - np.array(e["teacher"]) for e in entries.values()]
    assert factors @ factors.T == pytest.approx(np.cov(differences) / SEQUENCES)


def test_sequences_of_one_document_count_together() -> None:
    """With equally long documents it is the covariance of their means, divided by their number."""
    entries, documents = losses(), np.repeat(np.arange(8), 5)
    for entry in entries.values():
        entry["final_documents"] = documents.tolist()
    factors = HeldOut.from_document(entries).factors("final_loss", [(0,), (1,), (2,)])
    assert factors.shape == (3, 8)
    differences = [np.array(e["final"]) - np.array(e["teacher"]) for e in entries.values()]
    means = [each.reshape(8, 5).mean(axis=1) for each in differences]
    assert factors @ factors.T == pytest.approx(np.cov(means) / 8)


def test_paired_error_is_independent_of_reference() -> None:
    entries = losses()
    for entry in entries.values():
        entry["teacher"] = (np.array(entry["teacher"]) * 1.1).tolist()
    a, b = HeldOut.from_document(entries).factors("final_loss", [(0,), (1,)])
    paired = np.array(entries["0"]["final"]) - np.array(entries["1"]["final"])
    assert (a - b) @ (a - b) == pytest.approx(paired.var(ddof=1) / SEQUENCES)


def test_a_mean_over_runs_has_the_error_of_their_mean_losses() -> None:
    entries = losses()
    mean, first = HeldOut.from_document(entries).factors("final_loss", [(1, 2), (0,)])
    differences = [np.array(e["final"]) - np.array(e["teacher"]) for e in entries.values()]
    expected = np.cov(differences[0], (differences[1] + differences[2]) / 2) / SEQUENCES
    assert [first @ first, first @ mean, mean @ mean] == pytest.approx(expected[np.triu_indices(2)])


def test_what_is_not_known_has_zeros() -> None:
    found = HeldOut.from_document(losses())
    assert not found.factors("final_loss", [(7,), (0, 7), ()]).any()
    assert found.factors("perplexity", [(0,)]).shape == (1, 0)
    assert found.factors("test_loss", [(0,)]).shape == (1, 0)
    assert HeldOut.from_document(None).factors("final_loss", [(0,)]).shape == (1, 0)


def test_trials_on_another_text_are_not_paired() -> None:
    entries = losses(4)
    entries["3"] = losses(1, seed=1)["0"]
    factors = HeldOut.from_document(entries).factors("final_loss", [(0,), (1,), (2,), (3,)])
    assert factors.any(axis=1).tolist() == [True, True, True, False]
    entries["3"] = {name: values[:-1] for name, values in losses(1)["0"].items()}
    factors = HeldOut.from_document(entries).factors("final_loss", [(0,), (1,), (2,), (3,)])
    assert factors.any(axis=1).tolist() == [True, True, True, False]


def test_teachers_that_differ_by_rounding_measured_the_same_text() -> None:
    entries = losses()
    random = np.random.default_rng(2)
    for entry in entries.values():
        entry["teacher"] = (np.array(entry["teacher"]) + random.normal(0, 0.01, SEQUENCES)).tolist()
    assert HeldOut.from_document(entries).factors("final_loss", [(0,), (1,), (2,)]).any(axis=1).all()


def test_the_test_text_has_losses_of_its_own() -> None:
    renamed = {
        trial: {"test": entry["final"], "test_teacher": entry["teacher"]} for trial, entry in losses().items()
    }
    found = HeldOut.from_document(renamed)
    assert found.factors("test_loss", [(0,)]).any()
    assert not found.factors("final_loss", [(0,)]).any()


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"final": [3.0, 3.1]},
        {"final": [3.0, 3.1], "teacher": [2.0]},
        {"final": [3.0], "teacher": [2.0]},
        {"final": [3.0, float("nan")], "teacher": [2.0, 2.1]},
        {"final": [3.0, "3.1"], "teacher": [2.0, 2.1]},
        {"final": 3.0, "teacher": 2.0},
    ],
    ids=["none", "list", "empty", "no-teacher", "lengths", "one", "nan", "text", "numbers"],
)
def test_malformed_losses_count_as_missing(entry: Any) -> None:
    found = HeldOut.from_document(losses(2) | {"2": entry, "x": losses(1)["0"]})
    assert found.factors("final_loss", [(0,), (1,), (2,)]).any(axis=1).tolist() == [True, True, False]
    assert not HeldOut.from_document({"0": entry}).factors("final_loss", [(0,)]).any()


def test_a_json_table_brings_its_losses_and_the_others_have_none(
    sweep: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(sweep | {"held_out": losses()}))
    assert TrialsTable.open(file).held_out.factors("final_loss", [(0,)]).any()
    file.write_text(json.dumps(sweep["trials"]))
    assert not TrialsTable.open(file).held_out.factors("final_loss", [(0,)]).any()
    TrialsTable.open(file).frame.to_csv(tmp_path / "t.csv", index=False)
    assert not TrialsTable.open(tmp_path / "t.csv").held_out.factors("final_loss", [(0,)]).any()
