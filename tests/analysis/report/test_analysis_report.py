"""The page: whole, safe, and never a traceback."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from drawn_layers import axis, layers, legend, ticks, words

from analysis.errors import AnalysisError, TableError
from analysis.report.figure import Figure
from analysis.report.page_scripts import draw_script, vega_bundle
from analysis.report.report import render
from analysis.summaries.costs import rate
from analysis.summaries.first_words import question

VOID = {"meta", "br", "wbr", "hr", "img", "link", "input"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


class Page(HTMLParser):
    """The page as a browser would see it: elements, their text, and the scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self.open or self.open[-1] != "style":
            self.text += " " + " ".join(data.split())

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    @property
    def code(self) -> list[str]:
        return [text for attributes, text in self.scripts if attributes.get("type") != "application/json"]

    def figure(self, name: str) -> dict[str, Any]:
        for attributes, text in self.scripts:
            if attributes.get("data-plot") == name:
                figure: dict[str, Any] = json.loads(text)
                return figure
        raise KeyError(name)


def page_of(document: dict[str, Any]) -> Page:
    page = Page(render(document))
    assert page.open == []
    return page


def test_the_page_says_what_was_found_and_how_to_run_it(sweep: dict[str, Any]) -> None:
    page = page_of(sweep)
    for phrase in (
        "lengths",
        "file:///sweeps/lengths",
        "Best trial: 5",
        "3.360 ± 0.012",
        "final loss (nats per token)",
        "python -m trainer model=tiny stage1_9.max_steps=400 'data.path='\"'\"'a b'\"'\"''",
        "7 of 20 trials",
        "5 completed",
        "1 running",
        "1 failed",
        "diverged at step 37: loss is nan",
        "last words of the program",
        "Where these numbers come from",
    ):
        assert phrase in page.words, phrase


def test_first_words_say_what_was_asked_found_and_how_sure(sweep: dict[str, Any]) -> None:
    words = page_of(sweep | {"gain": {"sentence": "0.64 below the defaults (trial 0)"}}).words
    assert "Asked Which stage1_9.max_steps gives the lowest final loss?" in words
    assert (
        "Found Trial 5 has the lowest final loss of 5 results: 3.360 ± 0.012, at 860 effective steps. Trial 4 is "
        "the knee, beyond which more compute gains less: 3.4 at 260 effective steps. 0.64 below the defaults"
    ) in words
    assert "How sure Unconfirmed: one run; ± is one standard error, other seeds not included." in words
    # A trial that is not the lowest, as an export may name it, is not called so.
    assert "Trial 4 is the best of 5 results: 3.400 ± 0.012" in page_of(sweep | {"best_trial": 4}).words
    sweep["trials"][0]["metrics"]["final_loss"] = None
    assert "of 4 results" in page_of(sweep).words


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param([], "What is the highest accuracy and the lowest peak memory?", id="none"),
        pytest.param(["lr"], "Which lr gives the highest accuracy and the lowest peak memory?", id="one"),
        pytest.param(["lr", "n", "act"], "Which lr, n and act give the highest accuracy", id="three"),
        pytest.param(
            list("abcdefgh"), "Which values of 8 parameters (a, b, c, d and 4 more) give", id="many"
        ),
    ],
)
def test_a_question_names_parameters_and_objectives(names: list[str], expected: str) -> None:
    assert question([("accuracy", "maximize"), ("peak_memory_gib", "minimize")], names).startswith(expected)


def test_front_knee_and_most_efficient_are_three_words(sweep: dict[str, Any]) -> None:
    table = render(sweep).split("<h2>The front</h2>")[1].split("</table>")[0]
    rows = re.findall(r'<tr><td>(\d+)</td><td class="word">(.*?)</td>', table)
    assert [trial for trial, _ in rows] == ["0", "1", "4", "5"]
    assert re.findall(r"<span[^>]*>([^<]+)", dict(rows)["4"]) == ["knee"]
    assert re.findall(r"<span[^>]*>([^<]+)", dict(rows)["1"]) == ["most efficient"]


def test_the_page_is_one_file_that_asks_nobody_for_anything(sweep: dict[str, Any]) -> None:
    page = page_of(sweep)
    for tag, attributes in page.elements:
        assert not {"src", "action", "srcset"} & set(attributes), tag
        assert "href" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    assert "@import" not in render(sweep)[:20_000]


def test_vega_is_there_once_and_only_known_scripts_may_run(sweep: dict[str, Any]) -> None:
    page = page_of(sweep)
    vega, draw = page.code
    assert vega == vega_bundle()
    assert draw == draw_script()
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    for script in page.code:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "'unsafe" not in policy.split("script-src")[1]


def test_a_page_is_at_most_a_megabyte_and_a_half(mattered: dict[str, Any]) -> None:
    for nth in range(7, 1000):
        row = dict(mattered["trials"][1], trial=nth)
        row["metrics"] = row["metrics"] | {"final_loss": 3.4 + 1 / nth, "effective_steps": 1e6 * nth % 977}
        mattered["trials"].append(row)
    assert 0.9e6 < len(render(mattered).encode()) < 1.5e6


def test_a_page_without_figures_carries_no_script(document: Any) -> None:
    html = render(document())
    assert "<script" not in html
    assert "script-src 'none'" in html
    assert len(html) < 20_000


def test_every_figure_has_its_place(sweep: dict[str, Any]) -> None:
    page = page_of(sweep)
    places = {a["id"] for t, a in page.elements if t == "div" and "id" in a}
    assert places == {"tradeoff", "history", "parallel"}
    for place in places:
        assert page.figure(str(place))["layer"]


def test_the_page_serves_phones_and_both_colour_schemes(sweep: dict[str, Any]) -> None:
    html = render(sweep)
    assert 'name="viewport" content="width=device-width' in html
    assert "prefers-color-scheme: dark" in html
    assert "@media (max-width" in html


def _everywhere(sweep: dict[str, Any]) -> None:
    sweep |= {"name": HOSTILE, "url": HOSTILE, "best_command": HOSTILE}
    sweep["objectives"] = [{"metric": HOSTILE, "goal": "minimize"}]
    for number, row in enumerate(sweep["trials"]):
        row["error"] = row["generator"] = HOSTILE
        row["worker"] = HOSTILE
        row["parameters"] = {HOSTILE: HOSTILE, "other": f"{HOSTILE}{number}"}
        row["metrics"] = {HOSTILE: float(number), f"{HOSTILE}_sem": 0.1, "effective_steps": 9.0 - number}
    sweep["trials"][3]["error"] = f"{HOSTILE}\n{HOSTILE}"


def test_hostile_text_stays_text(sweep: dict[str, Any]) -> None:
    friendly = page_of(sweep)
    _everywhere(sweep)
    page = page_of(sweep)
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in friendly.elements}
    assert page.code == friendly.code
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert "<script>alert(1)" in page.words
    assert "{{ 7*7 }}" in page.words


def test_hostile_text_stays_within_the_figures_json(sweep: dict[str, Any]) -> None:
    _everywhere(sweep)
    html = render(sweep)
    for name in ("tradeoff", "history", "parallel"):
        raw = html.split(f'data-plot="{name}">')[1].split("</script>")[0]
        assert "<" not in raw
        _check_expressions(json.loads(raw))


def _check_expressions(spec: Any) -> None:
    """Fail if a text of the sweep stands in an expression otherwise than as a literal, or in a field's name."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            if key in ("expr", "test", "labelExpr"):
                assert "script" not in re.sub(r'"(\\.|[^"\\])*"', "", value)
            assert key != "field" or value in ("x", "y", "low", "high", "end", "text", "trial", "series")
            _check_expressions(value)
    elif isinstance(spec, list):
        for value in spec:
            _check_expressions(value)


def nothing(sweep: dict[str, Any]) -> None:
    sweep["trials"] = []


def only(*indices: int) -> Callable[[dict[str, Any]], None]:
    def keep(sweep: dict[str, Any]) -> None:
        sweep["trials"] = [sweep["trials"][index] for index in indices]

    return keep


def without_objectives(sweep: dict[str, Any]) -> None:
    sweep["objectives"] = []


def with_metrics(**metrics: Any) -> Callable[[dict[str, Any]], None]:
    def replace(sweep: dict[str, Any]) -> None:
        for row in sweep["trials"]:
            row["metrics"] = dict(metrics)

    return replace


def without_compute(sweep: dict[str, Any]) -> None:
    for row in sweep["trials"]:
        row["seconds"], row["parameters"] = None, {}
        row["metrics"].pop("effective_steps", None)


def with_largest_float(sweep: dict[str, Any]) -> None:
    sweep["trials"][0]["metrics"] |= {"final_loss": sys.float_info.max, "final_loss_sem": sys.float_info.max}


def with_status(status: str) -> Callable[[dict[str, Any]], None]:
    def replace(sweep: dict[str, Any]) -> None:
        for row in sweep["trials"]:
            row["status"] = status

    return replace


ODD_SWEEPS = [
    pytest.param(nothing, "No trial has been asked for yet", id="empty"),
    pytest.param(only(1), "Best trial: 1", id="one trial"),
    pytest.param(only(3), "The only trial failed", id="one failed"),
    pytest.param(with_status("failed"), "All 7 trials failed", id="all failed"),
    pytest.param(with_status("pending"), "No trial has completed yet (7 pending)", id="all pending"),
    pytest.param(with_status("abandoned"), "No trial has completed yet (7 abandoned)", id="all abandoned"),
    pytest.param(with_status("dreaming"), "(7 dreaming)", id="an unknown status"),
    pytest.param(without_objectives, "names no objective", id="no objective"),
    pytest.param(with_metrics(), "no column 'final_loss'", id="no metrics"),
    pytest.param(with_metrics(final_loss=None), "No completed trial reported a finite", id="loss is null"),
    pytest.param(with_metrics(final_loss=float("nan")), "No completed trial reported", id="loss is NaN"),
    pytest.param(with_metrics(final_loss=float("inf")), "No completed trial reported", id="loss is infinite"),
    pytest.param(with_metrics(final_loss="low"), "is not numeric", id="loss is a word"),
    pytest.param(with_metrics(final_loss=3.0), "3 final loss", id="all equal, no standard error"),
    pytest.param(with_metrics(final_loss=0.0, effective_steps=0.0), "Best trial: 0", id="all zero"),
    pytest.param(with_metrics(final_loss=-1e300), "Best trial: 0", id="huge"),
    pytest.param(with_largest_float, "Best trial: 5", id="a failure is the largest float"),
    pytest.param(with_metrics(final_loss=3.0, final_loss_sem="wide"), "Best trial: 0", id="sem is a word"),
    pytest.param(with_metrics(final_loss=3.0, effective_steps="x"), "cannot be shown", id="steps are a word"),
    pytest.param(without_compute, "No column measures compute", id="no measure of compute"),
]


@pytest.mark.parametrize(("spoil", "phrase"), ODD_SWEEPS)
def test_an_odd_sweep_has_a_page_that_says_so(
    spoil: Callable[[dict[str, Any]], None], phrase: str, sweep: dict[str, Any]
) -> None:
    spoil(sweep)
    assert phrase in page_of(sweep).words


def test_a_sweep_without_a_cap_a_name_or_a_url_has_a_page(sweep: dict[str, Any]) -> None:
    for name in ("name", "url", "run_cap", "best_command"):
        del sweep[name]
    words = page_of(sweep).words
    assert "7 trials" in words
    assert "python -m trainer" not in words


def test_the_cap_counts_neither_imported_nor_cheap_trials(trial: Any, document: Any) -> None:
    generators = ["sobol", "enqueued", "sobol", "imported", "imported", "fidelity", "confirm"]
    trials = [trial(at, 3.0 + at, generator=name) for at, name in enumerate(generators)]
    page = page_of(document(*trials, run_cap=2))
    assert "3 of 2 trials 1 below the target 2 imported 1 to confirm the best 7 completed" in page.words
    html = render(document(*trials, run_cap=5))
    assert 'aria-label="3 trials of 5"' in html
    assert '<span style="flex: 2"></span>' in html  # those that are missing
    assert "flex: 7" in html


def test_two_objectives_are_each_others_axes(sweep: dict[str, Any]) -> None:
    sweep["objectives"] = [
        {"metric": "accuracy", "goal": "maximize"},
        {"metric": "peak_memory_gib", "goal": "minimize"},
    ]
    for index, row in enumerate(sweep["trials"]):
        row["metrics"] = {"accuracy": 0.1 * index, "peak_memory_gib": 1.0 + index}
    page = page_of(sweep)
    assert "Best trial: 5" in page.words
    figure = Figure(spec=page.figure("tradeoff"))
    assert [axis(figure, name)["title"] for name in "xy"] == ["peak memory (GiB)", "accuracy"]


def test_the_named_best_trial_goes_before_our_own_search_for_it(sweep: dict[str, Any]) -> None:
    # A sweep with outcome constraints knows better: its best trial is the best feasible one.
    assert "Best trial: 4" in page_of(sweep | {"best_trial": 4}).words
    assert "Best trial: 5" in page_of(sweep | {"best_trial": 3}).words  # it failed


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({}, id="empty"),
        pytest.param({"schema": 99, "trials": []}, id="newer"),
        pytest.param({"schema": 1, "trials": [], "objectives": ["final_loss"]}, id="objectives are words"),
        pytest.param({"schema": 1, "trials": [], "objectives": [{}]}, id="objective without a metric"),
        pytest.param({"schema": 1, "trials": [], "objectives": [{"metric": "x", "goal": "up"}]}, id="goal"),
    ],
)
def test_what_is_no_export_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TableError, match="the sweep's export"):
        render(wrong)


def test_the_same_index_twice_is_refused(sweep: dict[str, Any]) -> None:
    sweep["trials"][1]["trial"] = 0
    with pytest.raises(AnalysisError, match="'trial'"):
        render(sweep)


def test_the_same_document_gives_the_same_page(sweep: dict[str, Any]) -> None:
    before = json.dumps(sweep)
    assert render(sweep) == render(sweep)
    assert json.dumps(sweep) == before


def test_chances_and_efficiency_stand_beside_the_front(sweep: dict[str, Any]) -> None:
    table = render(sweep).split("<h2>The front</h2>")[1].split("</table>")[0]
    assert "efficiency per 100 effective steps" in table
    row = table.split("<tr><td>1</td>")[1].split("</tr>")[0]
    cells = re.findall(r"<td>(.*?)</td>", row)
    # Trial 1: 0.4 better in 110 steps, errors 0.012 and 0.02; nothing else comes near.
    assert cells == ["110", "3.600 ± 0.012", "0.364 ± 0.042", "100 %", "100 %"]


def test_without_standard_errors_there_are_no_chances(sweep: dict[str, Any]) -> None:
    for row in sweep["trials"]:
        row["metrics"].pop("final_loss_sem", None)
    page = page_of(sweep)
    assert "chance to be" not in page.words
    assert "0.36" in page.words


def test_the_fit_is_drawn_with_its_formula_and_its_doubts(sweep: dict[str, Any], document: Any) -> None:
    page = page_of(sweep)
    assert {"fitted curve", "95 % of the fit"} <= set(legend(Figure(spec=page.figure("tradeoff"))))
    assert "through all 5 completed trials" in page.words
    few = page_of(sweep | {"trials": sweep["trials"][:3]})
    assert "No curve is drawn: a curve of loss against compute needs 4" in few.words


def test_fit_computes_missing_effective_steps(sweep: dict[str, Any]) -> None:
    for row in sweep["trials"]:
        row["metrics"].pop("effective_steps", None)
    words = page_of(sweep).words
    assert "No curve is drawn" not in words
    assert "through all 5 completed trials" in words


def test_the_hypervolume_comes_with_its_reference_point(sweep: dict[str, Any]) -> None:
    assert re.search(
        r"hypervolume [\d.]+ within effective_steps 940 and final_loss 4.064", page_of(sweep).words
    )


def test_costs_are_the_trials_own_or_their_time_at_a_price(sweep: dict[str, Any]) -> None:
    assert "The price of the trials' time is not known" in page_of(sweep).words
    priced = render(sweep, rate("RunPod A100"))
    # Seven trials of 12.5 s; twenty are planned, thirteen more and the running one at the mean.
    assert f"${7 * 12.5 * 1.19 / 3600:.2f}" in priced
    assert "RunPod A100 at $1.19 an hour on demand (2024-12)" in priced
    assert priced.count(f"<td>{12.5 * 1.19 / 3600:.4g}</td>") == 7  # every trial by itself
    for row in sweep["trials"][:2]:
        row["metrics"]["usd"] = 0.5
    page = page_of(sweep)
    assert "so far $1.00" in page.words
    assert "5 trials without one" in page.words


def test_what_mattered_is_shown_as_it_was_exported(mattered: dict[str, Any]) -> None:
    page = page_of(mattered)
    bars = Figure(spec=page.figure("sensitivity-0"))
    assert ticks(bars, "y")[0] == "lr"
    assert [(bar.name, bar.rows[0]["end"]) for bar in layers(bars, "bar")] == [
        ("with others", 60),
        ("alone", 50),
    ]
    # The most important parameter comes first, each with its own picture and all on one scale.
    first, second = (Figure(spec=page.figure(f"marginal-0-{nth}")) for nth in (0, 1))
    assert axis(first, "x")["title"] == "lr"
    assert axis(first, "y")["scale"] == axis(second, "y")["scale"]
    (trials,) = layers(Figure(spec=page.figure("cross-validation-0")), "point")
    assert len(trials.rows) == 5
    assert "correlation of -" in page.words  # the fixture's surrogate is worse than none
    assert "too little to trust" in page.words
    assert "0.1.0" in page.words


def test_the_surrogates_answer_stands_beside_the_best_trial(mattered: dict[str, Any]) -> None:
    page = page_of(mattered)
    assert "Trial 4: final_loss 3.405 by the model (measured 3.400)" in page.words
    assert "12 more trials: expected gain 0.004" in page.words
    assert "best posterior mean (field insight) of column final_loss" in page.words
    rates, options = (Figure(spec=page.figure(f"optimum-{nth}")) for nth in (1, 2))
    assert axis(rates, "x")["title"] == "lr"
    assert "0.001, 0.0008 to 0.0013" in words(rates)
    bar = next(line for line in layers(rates, "line") if line.name == "95 % of the optimum")
    assert bar.column("x") == [0.0008, 0.0013]
    assert {"62 %", "38 %"} <= set(words(options))


def test_an_answer_about_another_trial_is_left_out(mattered: dict[str, Any]) -> None:
    page = page_of(mattered | {"best_trial": 5})
    assert "by the model" not in page.words
    assert "smallest value of column final_loss" in page.words


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("words", id="words"),
        pytest.param({"trial": None}, id="without a trial"),
        pytest.param({"trial": 5, "mean": 3.4, "sentences": 3, "parameters": []}, id="wrong types"),
        pytest.param({"trial": 5, "mean": 3.4, "parameters": {"lr": {"curve": [1]}}}, id="no curve"),
        pytest.param(
            {
                "trial": 5,
                "mean": 3.4,
                "metric": "none",
                "parameters": {
                    "x": {"chosen": 1, "low": "a", "high": 2, "curve": [{"value": 1, "mean": 2, "sd": 1}]}
                },
            },
            id="a word for an end",
        ),
    ],
)
def test_an_odd_answer_of_the_surrogate_spoils_no_page(answer: object, sweep: dict[str, Any]) -> None:
    only(5)(sweep)
    assert "What mattered" in page_of(sweep | {"best_trial": 5, "insight": {"optimum": answer}}).words


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(None, id="none"),
        pytest.param("words", id="words"),
        pytest.param({}, id="empty"),
        pytest.param({"metrics": []}, id="a list"),
        pytest.param({"metrics": {"final_loss": None}}, id="nothing"),
        pytest.param({"metrics": {"final_loss": {"sensitivity": {"lr": {"first": "x"}}}}}, id="a word"),
        pytest.param({"metrics": {"final_loss": {"cross_validation": [None, {"trial": 1}]}}}, id="half a row"),
        pytest.param({"metrics": {"final_loss": {"marginal": {"lr": [{"value": []}]}}}}, id="a list for a value"),
        pytest.param(
            {"metrics": {"final_loss": {"marginal": {"lr": [{"value": float("nan"), "mean": 1, "sd": 0}]}}}},
            id="NaN",
        ),
    ],
)  # fmt: skip
def test_an_odd_view_of_the_surrogate_spoils_no_page(view: object, sweep: dict[str, Any]) -> None:
    only(5)(sweep)
    assert "What mattered" in page_of(sweep | {"insight": view}).words


def test_why_there_is_no_view_is_told(sweep: dict[str, Any]) -> None:
    assert "3 results are too few" in page_of(sweep | {"insight": {"note": "3 results are too few"}}).words


def test_many_failures_are_counted_by_reason(sweep: dict[str, Any], trial: Any) -> None:
    sweep["trials"] += [trial(10 + i, status="failed", error=f"diverged at step {i}") for i in range(300)]
    page = page_of(sweep)
    assert "300 × diverged at step 0" in page.words
    assert page.words.count("diverged at step 1") < 130  # not all of them are listed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_trials_take_less_than_twenty_seconds(document: Any, trial: Any) -> None:
    import resource
    import time

    random = np.random.default_rng(0)
    trials = [
        trial(i, 3 + random.normal() / 5, stage1_9=int(random.integers(0, 500)), final_loss_sem=0.02)
        if i % 10
        else trial(i, status="failed", error="out of memory")
        for i in range(10_000)
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    html = render(document(*trials))
    assert time.process_time() - start < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB: one GiB
    assert "of 10,000; the export has all of them" in html
    assert len(html) < 20e6


def test_page_shows_the_confirmed_winner(confirmed: dict[str, Any]) -> None:
    page = page_of(confirmed)
    for phrase in (
        "Confirmed winner: trial 4",
        "3.390 ± 0.016",
        "95 %: 3.323 to 3.457, mean of 2 fresh seeds; selected at 3.4",
        "95 % on the test text: 3.447 to 3.533",
        "7 of 20 trials 6 to confirm the best",
        "filled: confirmed, hollow: one observation",
    ):
        assert phrase in page.words, phrase
    table = render(confirmed).split("<h2>The front</h2>")[1].split("</table>")[0]
    tags = dict(re.findall(r'<tr><td>(\d+)</td><td class="word">(.*?)</td>', table))
    assert list(tags) == ["0", "1", "4"]
    assert "confirmed by 2 seeds" in tags["4"]
    assert "unconfirmed" in tags["1"]


def test_what_to_do_next_stands_before_the_tables(sweep: dict[str, Any]) -> None:
    steps = [
        {"text": "Not certain yet: one run.", "command": "sweep confirm --storage 'a b'"},
        {"text": "The search is done.", "command": ""},
    ]
    html = render(sweep | {"next": steps})
    first = html.split('<div class="first">')[1].split("<h2>The front</h2>")[0]
    page = Page(f"<div>{first}")
    assert "Not certain yet: one run. sweep confirm --storage 'a b' The search is done." in page.words
    assert "python -m trainer" not in page.words
    assert "<table" not in first


def test_a_command_of_another_trial_than_the_winner_is_not_shown(confirmed: dict[str, Any]) -> None:
    text = "Run the best trial again"
    assert text in page_of(confirmed).words
    assert text in page_of(confirmed | {"best_trial": 4}).words
    assert text in page_of(confirmed | {"best_trial": 8}).words  # a fresh run of the winner
    assert text not in page_of(confirmed | {"best_trial": 3}).words  # it failed


def test_a_page_with_unfinished_confirmation_is_the_searchs(confirmed: dict[str, Any]) -> None:
    runs = [t for t in confirmed["trials"] if t["trial"] not in (8, 10)]
    page = page_of(confirmed | {"trials": runs})
    assert "Best trial: 5" in page.words
    assert "Unconfirmed: one run" in page.words
    assert "confirmed by" not in page.words
    assert "4 to confirm the best" in page.words


def test_trials_outside_the_constraints_win_nothing(sweep: dict[str, Any]) -> None:
    """Trial 5 is the best and the dearest; another parameter varies, so the curve goes through the front."""
    for row in sweep["trials"]:
        row["parameters"]["lr"] = 0.001 * (1 + row["trial"])
    page = page_of(sweep | {"infeasible": [5]})
    assert "Best trial: 4" in page.words
    assert "needs 4 different amounts of compute; there are 3" in page.words
    (best,) = (line for line in layers(Figure(spec=page.figure("history")), "line"))
    assert best.rows[-1]["y"] == 3.4
    assert "Each line is a trial within the outcome constraints, through" in page.words
    none = page_of(sweep | {"infeasible": [0, 1, 2, 4, 5]})
    assert "No completed trial is within the outcome constraints" in none.words
