"""benchmarks.findings: verdicts follow from the runs, and say the opposite when the runs do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.summaries.paired import Paired, compare
from benchmarks.findings import options
from benchmarks.findings.claims import Finding, Runs, Series, findings, judge
from benchmarks.findings.errors import errors
from benchmarks.findings.page import page
from benchmarks.findings.pictures import draw
from benchmarks.findings.runs import Run, RunFailed, run_all
from benchmarks.findings.setting import NOTEBOOK, TINY, Condition, Setting, setting_for
from trainer.api import check
from trainer.config import sha256

SEEDS = range(5)
SMALL = (
    *("model.hidden_size=32", "model.intermediate_size=48", "model.layers=1", "model.heads=2"),
    *("model.teacher.max_steps=2", "model.teacher.batch_size=2", "model.teacher.schedule.warmup_steps=1"),
    *(
        "data.max_bytes=200000",
        "data.held_out_fraction=0.2",
        "data.vocab_size=300",
        "data.sequence_length=16",
    ),
    *("stage1_9.batch_size=2", "stage1_9.schedule.warmup_steps=1"),
    *("stage2.batch_size=2", "stage2.schedule.warmup_steps=1"),
    *("eval.batches=2", "eval.batch_size=2", "device=cpu", "device.threads=1"),
)


def made(final: Callable[[Condition, int], float]) -> Runs:
    """Runs of every condition of TINY whose losses are all `final(condition, seed)`."""
    return Runs(
        Run(
            condition=condition,
            seed=seed,
            start=final(condition, seed) + 1,
            early=final(condition, seed) + 2,
            final=final(condition, seed),
            sem=0.01,
            text_sem=0.03,
            by_sequence=tuple(final(condition, seed) + each for each in (-0.5, 0.0, 0.5)),
            documents=(0, 1, 2),
            effective_steps=1,
            seconds=1.0,
            device="CPU",
            torch="2",
        )
        for condition in TINY.conditions()
        for seed in SEEDS
    )


def steps(condition: Condition, key: str) -> int:
    return int(next(text.partition("=")[2] for text in condition if text.startswith(f"{key}=")))


def the_notebooks(condition: Condition, seed: int) -> float:
    """What the notebook found: 1.9 helps with diminishing returns, lambda warmup helps, saliency does not."""
    warmup = "stage2.lambda_warmup.enabled=true" in condition
    aligned = steps(condition, "stage1_9.max_steps")
    return 7.83 - 0.5 * aligned**0.3 + 0.5 * (not warmup) + 0.01 * seed


def by_name(found: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


def test_every_part_holds_on_runs_like_the_notebooks() -> None:
    found = by_name(findings(TINY, made(the_notebooks)))
    for name in ("alignment", "length", "saliency"):
        assert all("holds" in verdict and "mostly" not in verdict for verdict in found[name].verdicts), name
    assert all(": holds; -0.500 (lower in 5 of 5" in v for v in found["lambda"].verdicts[::2])


def test_every_part_fails_on_opposite_runs() -> None:
    found = by_name(findings(TINY, made(lambda condition, seed: -the_notebooks(condition, seed))))
    assert all("reversed (higher)" in verdict for verdict in found["alignment"].verdicts)
    assert all("reversed (higher)" in verdict for verdict in found["length"].verdicts[:-1])
    assert "reversed (lower)" in found["saliency"].verdicts[0]


def test_nothing_shows_where_the_condition_makes_no_difference() -> None:
    found = by_name(findings(TINY, made(lambda condition, seed: 3.0 + seed)))
    assert all("does not show" in verdict for verdict in found["alignment"].verdicts)
    assert "does not show" in found["saliency"].verdicts[0]


def test_balance_is_where_the_mean_is_lowest() -> None:
    def best_at_50(condition: Condition, seed: int) -> float:
        return 3 + abs(steps(condition, "stage1_9.max_steps") - 50) / 100 + 0.01 * seed

    found = by_name(findings(TINY, made(best_at_50)))
    assert found["compute-320"].verdicts[0] == "Lowest mean: 50 steps of Stage 1.9, 31% of the compute."
    assert len(found["compute-320"].verdicts) == len(TINY.budgets[320])


def test_conditions_are_unique_valid_and_spend_their_budget() -> None:
    from trainer.api import check

    for setting in (TINY, NOTEBOOK):
        assert len(set(setting.conditions())) == len(setting.conditions())
        check(setting.condition(setting.usual, saliency=True))
        check(setting.condition(0, warmup=False))
        for budget, tried in setting.budgets.items():
            for aligned in tried:
                split = setting.split(budget, aligned)
                spent = 2 * steps(split, "stage1_9.max_steps") + steps(split, "stage2.max_steps")
                assert spent == budget


def test_another_model_gets_the_notebooks_lengths() -> None:
    assert setting_for(("device=cpu",)) is TINY
    assert setting_for(("model=tiny",)) is TINY
    assert setting_for(("model=hf", "model.name=x")) is NOTEBOOK


@pytest.mark.parametrize(
    ("differences", "verdict", "p"),
    [
        ((-1.0,) * 5, "lower", 0.0625),
        ((1.0,) * 5, "higher", 0.0625),
        ((-1.0, -1.0, -1.0, -1.0, 1.0), "mostly lower", 0.375),
        ((-1.0, -1.0, -1.0, 1.0, 1.0), "no difference", 1.0),
        ((0.0,) * 5, "no difference", 1.0),
        ((-1.0, -1.0, -1.0, -1.0, 0.0), "mostly lower", 0.125),
        ((-1.0, 1.0), "no difference", 1.0),
    ],
)
def test_the_sign_test_and_its_words(differences: tuple[float, ...], verdict: str, p: float) -> None:
    pair = Paired(differences=differences)
    assert (pair.verdict, pair.p) == (verdict, pytest.approx(p))


def test_pairs_need_the_same_seeds() -> None:
    assert compare({1: 2.0, 0: 5.0}, {0: 4.0, 1: 4.0}).differences == (1.0, -2.0)
    with pytest.raises(ValueError, match="seeds differ"):
        compare({0: 1.0}, {1: 1.0})
    with pytest.raises(ValueError, match="seeds differ"):
        compare({}, {})


def test_a_verdict_needs_the_expected_side() -> None:
    lower = Paired(differences=(-1.0,) * 5)
    assert judge(lower, expected="lower") == "holds"
    assert judge(lower, expected="higher") == "reversed (lower)"


def test_the_page_has_every_finding_with_its_table_and_picture(tmp_path: Path) -> None:
    runs = made(the_notebooks)
    found = findings(TINY, runs)
    without_picture = errors(TINY, runs)
    text = page((*found, without_picture), facts=[("date", "2026-01-02")], pictures="findings")
    assert "| date | 2026-01-02 |" in text
    for number, finding in enumerate(found, start=1):
        assert f"## {number}. {finding.claim}" in text
        assert f"](findings/{finding.name}.svg)" in text
        draw(finding, tmp_path / f"{finding.name}.svg")
        assert b"mean of 5 seeds" in (tmp_path / f"{finding.name}.svg").read_bytes()
    last = found[-1]
    draw(last, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / f"{last.name}.svg").read_bytes()
    assert f"## {len(found) + 1}. {without_picture.claim}" in text
    assert text.count("](findings/") == len(found)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((1, 1), b"line: one seed"),
        ((1, 3), b"line: means of 1 to 3 seeds"),
        ((2, 2), b"line: mean of 2 seeds"),
    ],
)
def test_picture_says_how_many_seeds_it_has(counts: tuple[int, ...], expected: bytes, tmp_path: Path) -> None:
    values = tuple((1.0, 2.0, 1.5)[:count] for count in counts)
    line = Series(label="line", x=(1.0, 2.0), values=values)
    finding = replace(findings(TINY, made(the_notebooks))[0], series=(line,))
    draw(finding, tmp_path / "line.svg")
    assert expected in (tmp_path / "line.svg").read_bytes()


def test_errors_are_those_of_the_runs() -> None:
    """The seed shifts all conditions alike here, and the sequences of all runs alike."""
    rows = {kind: numbers for kind, *numbers in errors(TINY, made(the_notebooks)).rows}
    over_texts, to_teacher, between, over_seeds, residual = rows.values()
    assert over_texts == ["0.0300"] * 3
    assert to_teacher == ["0.0100"] * 3
    assert between == ["0.0000"] * 3
    assert over_seeds == ["0.0158"] * 3  # 0.01 times the standard deviation of 0 to 4
    assert residual == ["0.0000"] * 3


def test_interaction_is_left_without_the_seeds_own_effect() -> None:
    random = np.random.default_rng(0)
    noise = {(c, seed): 0.02 * random.standard_normal() for c in TINY.conditions() for seed in SEEDS}
    found = errors(TINY, made(lambda c, seed: 3.0 + 0.5 * seed + noise[c, seed]))
    _, _, between, over_seeds, residual = (row[1] for row in found.rows)
    assert float(over_seeds) == pytest.approx(0.79, abs=0.03)
    assert float(residual) == pytest.approx(0.02, abs=0.006)
    assert between == "0.0000"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_real_runs_are_made_once_and_a_failed_one_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    lengths = Setting(lengths=(2,), usual=2, stage2_steps=3, lambda_steps=1, early_steps=2)
    condition = lengths.condition(2)
    arguments = {"common": SMALL, "early_steps": 2, "folder": tmp_path / "runs", "jobs": 2}
    first = run_all([condition], range(2), **arguments)
    assert [run.seed for run in first] == [0, 1]
    assert first[0].final != first[1].final
    assert first[0].effective_steps == 2 * 2 + 3
    results = sorted(tmp_path.glob("runs/*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    assert run_all([condition], range(2), **arguments) == first
    assert [path.stat().st_mtime_ns for path in results] == before
    # A learning rate that cannot go well: the run ends with exit status 70.
    diverging = (*condition, "stage2.optimizer.type=adamw", "stage2.optimizer.lr=1e30")
    with pytest.raises(RunFailed, match=r"70: .*log\.txt"):
        run_all([diverging], [0], **arguments)


def test_where_the_balance_turns_is_read_off_the_pairs() -> None:
    def final(condition: Condition, seed: int) -> float:
        aligned = steps(condition, "stage1_9.max_steps")
        budget = 2 * aligned + steps(condition, "stage2.max_steps")
        return 3 + 0.01 * seed + (aligned / 1000) * (1 if budget == 160 else -1)

    turned = findings(TINY, made(final))[-1]
    assert turned.name == "balance-50"
    assert turned.verdicts[0].startswith("160 effective steps: higher; +0.050")
    assert turned.verdicts[1].startswith("320 effective steps: lower; -0.050")
    assert "falls: holds; -0.100" in turned.verdicts[2]
    assert turned.verdicts[3] == "The balance turns at 320 effective steps or before."

    never = findings(TINY, made(lambda condition, seed: 3 + steps(condition, "stage1_9.max_steps") / 1000))[
        -1
    ]
    assert never.verdicts[3] == "It turns nowhere up to 320 effective steps; what lies beyond was not tried."


def test_a_single_budget_has_no_balance() -> None:
    setting = Setting(
        lengths=(10,), usual=10, stage2_steps=5, lambda_steps=2, early_steps=1, budgets={40: (0, 10)}
    )
    assert setting.common_splits() == ()
    assert TINY.common_splits() == (50,)
    assert NOTEBOOK.common_splits() == (100,)


def test_options_are_compared_by_seed_with_the_usual_choice():
    losses = {"from 0": 3.30, "from 0.5": 3.29, "1 throughout": 3.28}
    rows = [
        options.Row(name="lambda", choice=choice, seed=seed, final=loss + 0.01 * seed + 0.001 * (seed % 2))
        for choice, loss in losses.items()
        for seed in range(5)
    ]
    found = options.finding(rows)
    assert [row[:3] for row in found.rows] == [
        ("Lambda of Stage 2 after Stage 1.9", "from 0", "3.320"),
        ("", "from 0.5", "3.310"),
        ("", "1 throughout", "3.300"),
    ]
    assert [row[3] for row in found.rows] == [
        "",
        "-0.0100 [-0.0100, -0.0100], lower",
        "-0.0200 [-0.0200, -0.0200], lower",
    ]


@pytest.mark.parametrize("name", options.QUESTIONS)
def test_every_choice_of_an_option_is_a_run_of_its_own(name: str):
    conditions = options.QUESTIONS[name].conditions()
    digests = {sha256(check([*options.COMMON, *condition])) for condition in conditions.values()}
    assert len(digests) == len(conditions) >= 2
