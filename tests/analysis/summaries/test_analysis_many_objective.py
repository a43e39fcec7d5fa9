"""Three objectives: the front in all of them, its pairs, and how the page and the figures show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_layers import axis, layers, words

from analysis import notebook
from analysis.errors import AnalysisError, MissingColumn
from analysis.report.contents import contents
from analysis.report.many_objective_figures import pair, pairs
from analysis.report.report import render
from analysis.summaries.many_objective import ManyObjectiveFront, many_objective_front
from analysis.summaries.summary_line import Objective
from analysis.table import from_document

GOLDEN = Path(__file__).parents[2] / "golden" / "analysis_three_objectives.json"
OBJECTIVES = (
    Objective(metric="final_loss", goal="minimize"),
    Objective(metric="accuracy", goal="maximize"),
    Objective(metric="peak_memory_gib", goal="minimize"),
)


@pytest.fixture
def found(three: dict[str, Any]) -> ManyObjectiveFront:
    result = many_objective_front(from_document(three), OBJECTIVES)
    assert result is not None
    return result


def test_the_front_is_that_of_all_objectives_at_once(found: ManyObjectiveFront) -> None:
    assert found.trials == (0, 1, 2, 3, 4)  # 5 failed, 6 has no accuracy
    assert [found.trials[at] for at in found.front] == [2, 1, 0, 4]
    golden = json.loads(GOLDEN.read_text())  # its hypervolume is by inclusion and exclusion of boxes
    result = found.to_json()
    assert result.pop("hypervolume") == pytest.approx(golden.pop("hypervolume"))
    assert result.pop("reference") == pytest.approx(golden.pop("reference"))
    chances = result.pop("chances")
    assert list(chances.values()) == list(found.chances)
    assert chances["3"] < 0.01 < 0.9 < chances["2"]  # the one that is beaten, and the best
    assert result == golden


def test_a_pair_has_a_front_of_its_own_which_is_another(found: ManyObjectiveFront) -> None:
    assert found.pairs == ((1, 0), (2, 0), (2, 1))
    # By loss and accuracy alone 0 and 4 are beaten by 1: drawn as two objectives they would be missing.
    assert [found.trials[at] for at in found.pair_front(1, 0)] == [2, 1]
    assert [found.trials[at] for at in found.pair_front(2, 1)] == [4, 0, 1]


def test_equal_trials_and_missing_values(document: Any, trial: Any) -> None:
    same = [trial(i, 3.0, accuracy=0.5, peak_memory_gib=1.0) for i in range(3)]
    odd = [trial(3, 2.0, accuracy=float("nan"), peak_memory_gib=1.0), trial(4, 2.0, accuracy=float("inf"))]
    found = many_objective_front(from_document(document(*same, *odd)), OBJECTIVES)
    assert found is not None
    assert [found.trials[at] for at in found.front] == [0, 1, 2]


def test_chance_to_be_on_the_front(document: Any, trial: Any) -> None:
    better = trial(0, 3.00, accuracy=0.6, peak_memory_gib=1.0, final_loss_sem=0.02)
    worse = trial(1, 3.02, accuracy=0.5, peak_memory_gib=2.0, final_loss_sem=0.02)
    found = many_objective_front(from_document(document(better, worse)), OBJECTIVES)
    assert found is not None
    assert found.draws == 1000
    # 1 is on it when its loss is drawn below that of 0: a difference of 0.02 with an error of 0.02 · √2.
    assert found.chances == pytest.approx((1.0, 0.2398), abs=0.05)


def test_no_chances_without_errors_or_for_many(three: dict[str, Any]) -> None:
    table = from_document(three)
    bare = many_objective_front(table.drop(columns="final_loss_sem"), OBJECTIVES)
    assert bare is not None
    assert (bare.draws, bare.chances) == (0, ())
    many = np.random.default_rng(0).random((14_000, 3))
    crowd = pd.DataFrame(many, columns=["a", "b", "c"]).assign(a_sem=0.1)
    found = many_objective_front(crowd, [Objective(metric=name, goal="minimize") for name in "abc"])
    assert found is not None
    assert found.draws == 0


def test_two_objectives_are_not_several(three: dict[str, Any]) -> None:
    assert many_objective_front(from_document(three), OBJECTIVES[:2]) is None


def test_questions_that_make_no_sense_are_refused(three: dict[str, Any]) -> None:
    table = from_document(three)
    with pytest.raises(AnalysisError, match="'accuracy'"):
        many_objective_front(table, [*OBJECTIVES[:2], OBJECTIVES[1]])
    with pytest.raises(MissingColumn, match="no column 'speed'"):
        many_objective_front(table, [*OBJECTIVES[:2], Objective(metric="speed", goal="maximize")])


def test_six_objectives_are_each_set_against_the_first(document: Any, trial: Any) -> None:
    names = [f"m{at}" for at in range(6)]
    table = from_document(document(*(trial(i, 3.0, **dict.fromkeys(names, 1.0 + i)) for i in range(3))))
    found = many_objective_front(table, [Objective(metric=name, goal="minimize") for name in names])
    assert found is not None
    assert found.pairs == ((1, 0), (2, 0), (3, 0), (4, 0), (5, 0))
    assert found.front == (0,)


def test_a_hypervolume_that_would_take_for_ever_is_left_out() -> None:
    random = np.random.default_rng(0).random((400, 5))
    sphere = random / np.linalg.norm(random, axis=1, keepdims=True)
    table = pd.DataFrame(sphere, columns=list("abcde"))
    found = many_objective_front(table, [Objective(metric=name, goal="maximize") for name in "abcde"])
    assert found is not None
    assert len(found.front) == 400
    assert (found.hypervolume, found.reference is None) == (None, False)


def test_pair_shows_front_of_all_and_of_two(found: ManyObjectiveFront) -> None:
    figure = pair(found, 1, 0)
    (line,) = layers(figure, "line")
    assert line.points == [(0.55, 2.8), (0.60, 3.0)]
    assert line.mark["interpolate"] == "step-before"  # more accuracy is better: the step goes the other way
    beaten, front = layers(figure, "point")
    assert beaten.column("trial") == [3]
    assert front.column("trial") == [2, 1, 0, 4]
    assert front.mark["shape"] != beaten.mark["shape"]
    titles = [axis(pair(found, 2, 0), name)["title"] for name in "xy"]
    assert titles == ["peak memory (GiB)", "final loss (nats per token)"]


def test_the_page_lists_the_front_of_all_and_draws_every_pair(three: dict[str, Any]) -> None:
    html = render(three)
    section = html.split("<h2>Between the objectives")[1].split("<h2>What mattered")[0]
    for nth in range(3):
        assert f'id="pair-{nth}"' in section
        assert f'data-plot="pair-{nth}"' in html
    rows = [row.split("</td>")[0] for row in section.split("<tr><td>")[1:]]
    assert rows == ["2", "1", "0", "4"]
    assert "4 of 5" in section
    assert "2.800 ± 0.020" in section
    assert "chance to be on the front" in section
    assert section.split("<tr><td>4</td>")[1].split("</tr>")[0].endswith("<td>100 %</td>")
    assert "best peak_memory_gib" in section.split("<tr><td>4</td>")[1]
    # Loss against compute stays, under words of its own.
    assert 'data-plot="tradeoff"' in html
    assert "the one in all objectives stands below" in html


def test_objectives_that_nobody_reported_are_told(three: dict[str, Any]) -> None:
    for row in three["trials"]:
        row["metrics"].pop("accuracy", None)
    assert "cannot be set against each other: no column 'accuracy'" in render(three).replace("&#39;", "'")
    three["trials"][0]["metrics"]["accuracy"] = float("nan")
    assert "No completed trial has a value for all 3 objectives" in render(three)


def test_all_pairs_are_one_picture_with_one_legend(found: ManyObjectiveFront) -> None:
    shown = words(pairs(found))
    assert shown.count("final loss (nats per token)") == 2
    for name in ("front in all objectives", "front of the two alone", "not on the front"):
        assert shown.count(name) == 1
    assert shown.count("3.6") == 2  # each pair has its own scales
    assert shown.count("0.60") == 2


def test_a_notebook_says_why_it_draws_none(three: dict[str, Any], tmp_path: Path) -> None:
    table = from_document(three)
    goals = [["final_loss", "minimize"], ["accuracy", "maximize"], ["peak_memory_gib", "minimize"]]
    assert notebook.pairs_picture(table, goals[:2], str(tmp_path)) == notebook.FEW
    assert "no column 'speed'" in str(
        notebook.pairs_picture(table, [*goals[:2], ["speed", "minimize"]], str(tmp_path))
    )
    assert "minimize or maximize" in str(notebook.pairs_picture(table, [["a", "up"]] * 3, str(tmp_path)))
    notebook.pairs_picture(table, goals, str(tmp_path))
    assert (tmp_path / "pairs.png").is_file()


def test_confirmed_trials_are_filled_in_every_pair(confirmed: dict[str, Any]) -> None:
    goals = [("final_loss", "minimize"), ("effective_steps", "minimize"), ("memory", "minimize")]
    for row in confirmed["trials"]:
        row["metrics"]["memory"] = 5.0
    document = confirmed | {"objectives": [{"metric": m, "goal": g} for m, g in goals]}
    found = contents(document).many_objectives
    assert found is not None
    assert found.result.confirmed == {4: 2, 5: 2}
    assert found.result.to_json()["confirmed_by_seeds"] == {"4": 2, "5": 2}
    assert [found.result.trials[at] for at in found.result.front] == [4, 1, 0]
    (filled,) = (each for each in layers(pair(found.result, 1, 0), "point") if each.is_filled)
    assert filled.name == "confirmed by 2 seeds"
    assert filled.column("y") == pytest.approx([3.39, 3.42])
    assert found.front.rows[0].tags[-1] == "confirmed by 2 seeds"
