"""benchmarks.real.answer: the page says what the records say, and the opposite where they do."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.real.answer import PAGE, RECORDS, Alone, Runs, at_best_rates, text, verdict, write
from benchmarks.real.answer_sweep import LAMBDA, RATE_1_9, RATE_2, SALIENCY, SETTINGS, Lengths

RATE_1_9_COLUMN, RATE_2_COLUMN = f"param.{RATE_1_9}", f"param.{RATE_2}"

FLOPS = {1: 1.0e12, 2: 0.75e12}
"""Of a step of Stage 1.9 and of Stage 2: 300 steps of Stage 1.9 cost as much as 400 of Stage 2."""

SEEDS = {0: 0.1, 1: -0.1, 2: 0.05}


def row(stage1_9: int, stage2: int, seed: int, loss: float) -> dict[str, object]:
    return {
        "status": "completed",
        "param.stage1_9.max_steps": stage1_9,
        "param.stage2.max_steps": stage2,
        "param.seed": seed,
        "final_loss": loss,
        "stage2_start_loss": 7.5,
        "train_flops": FLOPS[1] * stage1_9 + FLOPS[2] * stage2,
        "effective_steps": 2 * stage1_9 + stage2,
        "final_loss_text_sem": 0.08,
        "seconds": 3600.0,
        "cost_paid": 100.0,
        "cost_nominal": 400.0,
    }


def table(gain: float) -> pd.DataFrame:
    """Return records in which 300 steps of Stage 1.9 gain so much over Stage 2 alone with its FLOPs."""
    rows = []
    for seed, offset in SEEDS.items():
        rows += [row(0, 200, seed, 6.0 + offset), row(0, 600, seed, 5.0 + offset)]
        rows += [row(0, 800, seed, 4.5 + offset), row(300, 200, seed, 5.0 - gain + offset + seed * 0.001)]
    return pd.DataFrame(rows)


def sweep(gain: float) -> pd.DataFrame:
    """Return records of the sweep: a search of two rates each way, and lengths with the better ones."""
    searched = [
        *(row(0, 333, 0, loss) | {RATE_2_COLUMN: rate} for rate, loss in ((2e-4, 6.0), (4e-4, 5.5))),
        *(row(100, 200, 0, loss) | {RATE_2_COLUMN: rate} for rate, loss in ((2e-4, 5.9), (4e-4, 5.8))),
    ]
    lengths = table(gain).assign(**{RATE_2_COLUMN: 4e-4})
    other = table(gain).assign(**{RATE_2_COLUMN: 2e-4, "final_loss": 9.0})
    found = pd.concat([pd.DataFrame(searched), lengths, other], ignore_index=True)
    return found.assign(
        **{
            RATE_1_9_COLUMN: 8e-4,
            **{f"param.{name}": value for name, value in SETTINGS.items()},
            "stage2_train_loss": 5.25,
        }
    )


@pytest.mark.parametrize(
    ("gain", "word"), [(0.2, "is better"), (-0.2, "is worse"), (-0.001, "shows no clear difference")]
)
def test_the_verdict_is_that_of_the_intervals(gain: float, word: str) -> None:
    assert f"{word} with 300 steps. " in verdict(Runs([table(gain)]))


def test_the_verdict_has_the_differences_and_their_mean_over_lengths() -> None:
    """600 steps gain 0.3 over Stage 2 alone with its FLOPs, and 300 steps 0.2, less 0.001 a seed."""
    longer = [row(600, 200, seed, 3.7 + offset) for seed, offset in SEEDS.items()]
    alone = [row(0, 1000, seed, 4.0 + offset) for seed, offset in SEEDS.items()]
    sentence = verdict(Runs([table(0.2), pd.DataFrame([*longer, *alone])]))
    assert "is better with 300 and 600 steps." in sentence
    assert "-0.199 (-0.201 to -0.197) with 300; -0.300" in sentence
    # -0.25, -0.2495 and -0.249: 4.303 * 0.0005 / sqrt(3) = 0.00124
    assert "(-0.251 to -0.248) as the mean of these lengths (95 % intervals over 3 seeds)." in sentence


def test_lengths_with_different_verdicts_have_no_mean() -> None:
    longer = [row(600, 200, seed, 4.3 + offset) for seed, offset in SEEDS.items()]
    alone = [row(0, 1000, seed, 4.0 + offset) for seed, offset in SEEDS.items()]
    sentence = verdict(Runs([table(0.2), pd.DataFrame([*longer, *alone])]))
    assert "is better with 300 steps and is worse with 600 steps." in sentence
    assert sentence.endswith("+0.300 (+0.300 to +0.300) with 600 (95 % intervals over 3 seeds).")


def test_the_verdict_says_where_a_length_has_fewer_seeds() -> None:
    longer = [row(600, 200, seed, 3.7 + offset) for seed, offset in SEEDS.items() if seed < 2]
    alone = [row(0, 1000, seed, 4.0 + offset) for seed, offset in SEEDS.items()]
    sentence = verdict(Runs([table(0.2), pd.DataFrame([*longer, *alone])]))
    assert sentence.endswith("(95 % intervals over 2 or 3 seeds).")


def test_one_seed_answers_nothing() -> None:
    one = table(0.2)
    assert verdict(Runs([one[one["param.seed"] == 0]])).startswith("Not answered yet")


def test_equal_compute_is_by_flops_and_by_effective_steps() -> None:
    runs = Runs([table(0.2)])
    both = Lengths(300, 200)
    assert runs.alone_with(both, "train_flops") == Alone(600, runs.values(Lengths(0, 600)))
    assert runs.alone_with(both, "effective_steps") == Alone(800, runs.values(Lengths(0, 800)))


def test_the_loss_of_a_length_that_was_not_trained_is_interpolated_for_each_seed() -> None:
    known = table(0.2)
    runs = Runs([known[known["param.stage2.max_steps"] != 600]])
    found = runs.alone_with(Lengths(300, 200), "train_flops")
    assert found is not None
    assert (found.steps, found.is_interpolated) == (600, True)
    middle = 6.0 - 1.5 * math.log(3) / math.log(4)
    assert found.losses == pytest.approx({seed: middle + offset for seed, offset in SEEDS.items()})
    one_seed = known[(known["param.stage2.max_steps"] != 600) | (known["param.seed"] == 0)]
    whole = Runs([one_seed]).alone_with(Lengths(300, 200), "train_flops")
    assert whole == found  # not the length of one seed
    shorter = Runs([known[known["param.stage2.max_steps"] == 200]])
    assert shorter.alone_with(Lengths(300, 200), "train_flops") is None


def test_lengths_are_compared_at_the_rates_that_are_best_at_each() -> None:
    runs = at_best_rates(sweep(0.2))
    assert runs.values(Lengths(0, 200)) == {0: 6.1, 1: 5.9, 2: 6.05}
    assert runs.values(Lengths(0, 333)) == {0: 5.5}
    known = sweep(0.2)
    other = (known["param.stage1_9.max_steps"] == 300) & (known[RATE_2_COLUMN] == 2e-4)
    one_seed = other & (known["param.seed"] == 0)
    better = at_best_rates(known.assign(final_loss=known["final_loss"].where(~one_seed, 4.5)))
    assert better.values(Lengths(300, 200)) == {0: 4.5, 1: 9.0, 2: 9.0}  # chosen by seed 0
    assert better.values(Lengths(0, 200)) == runs.values(Lengths(0, 200))
    changed = sweep(0.2).assign(**{f"param.{SALIENCY}": True, "final_loss": 1.0})
    assert runs.lengths == at_best_rates(pd.concat([sweep(0.2), changed], ignore_index=True)).lengths
    assert min(at_best_rates(pd.concat([sweep(0.2), changed])).values(Lengths(0, 333)).values()) == 5.5


def test_stage_1_9_by_itself_is_beside_stage_2_alone() -> None:
    """Stage 1.9 alone has 400 of 800 steps of Stage 2 in FLOPs: between 200 and 600 steps of it."""
    page = text(sweep(0.2), pictures="answer")
    # 6.0 and 5.5 of 200 and 333 steps have one seed in common; 200 and 600 steps have three
    share = math.log(2) / math.log(3)
    gap = statistics.mean(7.5 - (6.0 - share + offset) for offset in SEEDS.values())
    assert f"7.500 with 300 steps, {gap:+.3f} (" in page
    assert "beside 400 steps, interpolated" in page
    assert "a Stage 1.9 before Stage 2 is worse with 300." in page  # in effective steps, by 0.301


def test_the_page_has_the_numbers_of_the_records() -> None:
    page = text(sweep(0.2), pictures="answer")
    # 4.9, 4.701 and 4.852 less 5.1, 4.9 and 5.05: -0.2, -0.199 and -0.198; t of 2 degrees of freedom 4.303
    assert (
        "| 300 | 200 | 4.5e+14 | 800 | 3 | 7.500 | 4.818 [4.701, 4.900] | -0.199 (-0.201 to -0.197), 600 steps |"
        in page
    )
    assert "+0.301 (+0.299 to +0.303), 800 steps |" in page
    assert "| 0 | 333 | 2.5e+14 | 333 | 1 |  | 5.500 |" in page
    assert "**Against Stage 2 alone with the same FLOPs" in page
    # the longest is of 800 steps, the shortest lengths of 200 and 100 + 200
    assert "0.2 to 0.8 million tokens: the students end at 4.5 to 6.0 nats" in page
    assert "that standard error is 0.08 to 0.08." in page
    assert "Seeds of one setting differ by up to 0.20." in page
    assert "| 0 + 333 | 0.0004 | 5.500 | 2 | 0.0002: +0.500 | 0.0008 |" in page
    left = "0.0008 and 0.0008; 0.0004 and 0.0004; 0.0016 and 0.0004"
    assert f"| 100 + 200 | 0.0008 and 0.0004 | 5.800 | 2 | 0.0008 and 0.0002: +0.100 | {left} |" in page
    assert "28 completed trials took 28.0 hours of their workers. Of 11,200 effective steps 2,800" in page
    assert "saved the other 75%." in page
    assert "that is 0.70 dollars; without sharing, 2.80." in page
    assert "were not varied: all runs above have `stage2.lambda_warmup.start=0.75`" in page
    unsettled = "**Not settled yet**: at 0 + 200, 0 + 267, 0 + 333, 0 + 467, 0 + 733, 50 + 200, 100 + 200, "
    assert unsettled + "200 + 200 and 400 + 200 steps not all [learning rates]" in page


def test_rates_at_which_stage_2_raises_the_loss_are_named() -> None:
    page = text(sweep(0.2), pictures="answer")
    undone = "undoes what Stage 1.9 has gained: 7.500 after 300 steps of Stage 1.9 (seed 0), 9.000 at 0.0002 after Stage 2."
    assert undone in page
    lower = text(sweep(0.2).assign(stage2_start_loss=9.5), pictures="answer")
    assert "undoes" not in lower


def test_what_is_changed_is_paired_with_what_is_not() -> None:
    """Lambda's start at the best length, and saliency at the middle one."""
    known = sweep(0.2)
    base = known[(known["param.stage1_9.max_steps"] == 300) & (known[RATE_2_COLUMN] == 4e-4)]
    jump = base.assign(**{f"param.{LAMBDA}": 1.0, "final_loss": base["final_loss"] + 0.25})
    ramp = base.assign(**{f"param.{LAMBDA}": 0.0, "final_loss": base["final_loss"] - 0.25})
    base = known[(known["param.stage1_9.max_steps"] == 100) & (known[RATE_2_COLUMN] == 4e-4)]
    masked = base.assign(**{f"param.{SALIENCY}": True, "final_loss": base["final_loss"] - 0.5})
    records = pd.concat([known, jump, ramp, masked], ignore_index=True)
    page = text(records, pictures="answer")
    assert "| 300 + 200 | `stage2.lambda_warmup.start` | 0.75 | 1.0 | +0.250 (+0.250 to +0.250) |" in page
    assert "| 100 + 200 | `stage1_9.saliency.enabled` | False | True | -0.500 (one seed) |" in page
    better = "With `stage2.lambda_warmup.start=0.0` the loss after 300 + 200 steps, minus that of Stage 2 alone with"
    assert f"{better} the same FLOPs, is -0.449 (-0.451 to -0.447)." in page
    assert page.count("minus that of Stage 2 alone with the same FLOPs, is") == 1


def test_saliency_has_a_verdict_of_its_own() -> None:
    """Without it 300 steps of Stage 1.9 are 0.2 above Stage 2 alone with their FLOPs, with it 0.3 below."""
    known = sweep(-0.2)
    base = known[(known["param.stage1_9.max_steps"] == 300) & (known[RATE_2_COLUMN] == 4e-4)]
    salient = base.assign(**{f"param.{SALIENCY}": True, "final_loss": base["final_loss"] - 0.5})
    page = text(pd.concat([known, salient], ignore_index=True), pictures="answer")
    assert "a Stage 1.9 before 200 steps of Stage 2 is worse with 300 steps." in page
    assert (
        "a Stage 1.9 with saliency before 200 steps of Stage 2 is better with 300 steps. Difference of the losses: -0.299"
        in page
    )
    assert "with saliency before" not in text(known, pictures="answer")
    one_seed = text(pd.concat([known, salient.iloc[:1]], ignore_index=True), pictures="answer")
    assert "with saliency before" not in one_seed


def test_failed_trials_do_not_count(tmp_path: Path) -> None:
    failed = pd.DataFrame([row(300, 200, 0, 1.0) | {"status": "failed"}])
    assert Lengths(300, 200) not in Runs([failed, table(0.2).iloc[:2]]).lengths


def test_the_page_is_written_from_the_tables(tmp_path: Path) -> None:
    write(tmp_path / "answer.md")
    page = (tmp_path / "answer.md").read_text()
    assert page == Path(PAGE).read_text()
    assert "<svg" in (tmp_path / "answer" / "lengths.svg").read_text()
    # by hand, of cpu.csv: 3.8973 - 4.1223, 3.9123 - 4.1361 and 3.9141 - 4.1677
    pair = at_best_rates(pd.read_csv(RECORDS / "cpu.csv")).compare(Lengths(400, 200), Lengths(0, 733))
    assert pair is not None
    assert pair.mean == pytest.approx(-(0.2250 + 0.2238 + 0.2536) / 3, abs=2e-4)


BY_HAND = {
    (0, 200): (5.1900, 5.1057, 5.2229),
    (0, 267): (4.9304, 4.8613, 4.9886),
    (0, 333): (4.6695, 4.7368, 4.7255),
    (0, 467): (4.3889, 4.4766, 4.4489),
    (0, 733): (4.1223, 4.1361, 4.1677),
    (50, 200): (4.9440, 4.8641, 4.9963),
    (100, 200): (4.7624, 4.7334, 4.8406),
    (200, 200): (4.3810, 4.4054, 4.4882),
    (400, 200): (3.8973, 3.9123, 3.9141),
}
"""Losses of seeds 0, 1 and 2, read from cpu.csv, at the rates of `RATES_BY_HAND`."""

RATES_BY_HAND = {
    **{(0, steps): (8e-4, 8e-4) for steps in (200, 267, 333, 467)},
    **{(0, 733): (8e-4, 4e-4), (50, 200): (4e-4, 8e-4), (100, 200): (8e-4, 8e-4)},
    **{(200, 200): (8e-4, 2e-4), (400, 200): (8e-4, 5e-5)},
}
SALIENT_BY_HAND = (4.5159, 4.4522, 4.5702)
"""Losses of seeds 0, 1 and 2 after 100 + 200 steps with saliency, from the same records."""


def in_words(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the mean of the differences and its interval; Student's t of two degrees of freedom is 4.303."""
    differences = [x - y for x, y in zip(first, second, strict=True)]
    mean, half = statistics.mean(differences), 4.3027 * statistics.stdev(differences) / math.sqrt(3)
    return f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})"


def test_thirty_records_by_hand_are_on_the_page() -> None:
    """Without the code that makes the page: by the numbers above, and plain arithmetic."""
    records = pd.read_csv(RECORDS / "cpu.csv")
    page = Path(PAGE).read_text()
    rows = []
    for salient, lengths, losses in [
        *((False, *each) for each in BY_HAND.items()),
        (True, (100, 200), SALIENT_BY_HAND),
    ]:
        first, second = RATES_BY_HAND[lengths]
        for seed, loss in enumerate(losses):
            wanted = {
                **dict(zip(("stage1_9.max_steps", "stage2.max_steps"), lengths, strict=True)),
                **{RATE_1_9: first, RATE_2: second, "seed": seed, **SETTINGS, SALIENCY: salient},
            }
            (row,) = records[
                (records[[f"param.{name}" for name in wanted]] == list(wanted.values())).all(axis=1)
                & (records["status"] == "completed")
            ].to_dict("records")
            rows.append(row)
            assert row["final_loss"] == pytest.approx(loss, abs=6e-5)
            assert row["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
            assert row["tokens"] == sum(lengths) * 8 * 128
            # a step of Stage 1.9 is 4/3 of one of Stage 2 in FLOPs, and 2 of it in effective steps
            assert row["train_flops"] == pytest.approx(853423423488 * (lengths[0] * 4 / 3 + lengths[1]))
            assert row["effective_steps"] == 2 * lengths[0] + lengths[1]
    assert len(rows) == 30
    for (length, steps), losses in BY_HAND.items():
        mean = f"{statistics.mean(losses):.3f} [{min(losses):.3f}, {max(losses):.3f}]"
        (line,) = (each for each in page.splitlines() if each.startswith(f"| {length} | {steps} |"))
        assert f"| {mean} |" in line
        if length:
            alone = 200 + round(length * 4 / 3)
            assert f"| {in_words(losses, BY_HAND[0, alone])}, {alone} steps |" in line
    saved = f"| False | True | {in_words(SALIENT_BY_HAND, BY_HAND[100, 200])} |"
    assert f"| 100 + 200 | `stage1_9.saliency.enabled` {saved}" in page
