"""Every number on the page says where it comes from: when pointed at, in its column's head, or in a note."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from analysis.report.contents import contents
from analysis.report.footnotes import column_source, notes
from analysis.report.report import render
from analysis.summaries.costs import rate

VOID = {"meta", "br", "wbr", "hr", "img", "link", "input"}
FIELDS = {
    "run_cap",
    "best_trial",
    "best_command",
    "insight",
    "objectives",
    "held_out",
    "next",
    "log_parameters",
    "machine_seconds",
    "search_ended",
}
"""Of the export document, that the page shows."""

PLACEHOLDERS = {"param.NAME", "NAME_sem"}
CONSTANTS = ("95 %", "final loss (nats per token)")
"""Numbers of the prose that are no data."""

Element = tuple[str, dict[str, str]]


class Numbers(HTMLParser):
    """Every text of the page's body that holds a digit, with the elements around it and its column's head."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[Element] = []
        self.found: list[tuple[str, list[Element], dict[str, str]]] = []
        self.titles: list[str] = []
        self.plots: list[tuple[str, bool]] = []
        self.noted: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.column = -1
        self.feed(html.split("<body>")[1].split("</footer>")[0] + "</footer>")  # behind it is only JavaScript

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.titles += [attributes["title"]] if "title" in attributes else []
        if tag == "table":
            self.heads = []
        if tag == "tr":
            self.column = -1
        if tag in ("td", "th"):
            self.column += 1
        if tag == "th":
            self.heads.append(attributes)
        if attributes.get("class") == "plot":
            self.plots.append((attributes["id"], any(name == "figure" for name, _ in self.open)))
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        inside = {tag for tag, _ in self.open}
        if any(attributes.get("class") == "sources" for _, attributes in self.open):
            self.noted += [data] if self.open[-1][0] == "dt" else []
            return
        if re.search(r"\d", data) and not inside & {"script", "style", "header", "footer", "noscript"}:
            head = self.heads[self.column] if "td" in inside else {}
            self.found.append((" ".join(data.split()), [*self.open], head))

    def untraced(self) -> Iterator[str]:
        for text, around, head in self.found:
            bare = re.sub("|".join(map(re.escape, CONSTANTS)), "", text)
            names = any(
                tag in ("dt", "figcaption", "h3") or attributes.get("class") == "tag"
                for tag, attributes in around
            )
            if re.search(r"\d", re.sub(r"stage ?\d(_9|\.9)?", "", bare, flags=re.IGNORECASE)) and not names:
                traced = any("title" in attributes for _, attributes in around) or "title" in head
                if not traced:
                    yield text


def plain(sweep: dict[str, Any]) -> dict[str, Any]:
    return sweep


def empty(sweep: dict[str, Any]) -> dict[str, Any]:
    return sweep | {"trials": []}


def all_failed(sweep: dict[str, Any]) -> dict[str, Any]:
    for row in sweep["trials"]:
        row |= {"status": "failed", "error": f"diverged at step {row['trial']}: loss is nan"}
    return sweep


def in_dollars(sweep: dict[str, Any]) -> dict[str, Any]:
    for row in sweep["trials"]:
        row["metrics"]["usd"] = 0.25
    return sweep


def many(sweep: dict[str, Any]) -> dict[str, Any]:
    trials = [sweep["trials"][1] | {"trial": index} for index in range(1_001)]
    del trials[0]["metrics"]["final_loss_sem"]  # of all of them: drawing so many anew takes seconds
    return sweep | {"trials": trials, "best_trial": 0}


def paired(sweep: dict[str, Any]) -> dict[str, Any]:
    losses = {"final": [3.1, 3.3, 3.5], "teacher": [2.1, 2.2, 2.4]}
    return sweep | {"held_out": {str(row["trial"]): losses for row in sweep["trials"]}}


PAGES = [
    ("mattered", plain, None),
    pytest.param("mattered", plain, "RunPod A100", marks=pytest.mark.slow),
    ("sweep", in_dollars, None),
    ("sweep", all_failed, None),
    ("sweep", empty, None),
    ("sweep", many, None),
    ("three", plain, None),
    pytest.param("confirmed", plain, None, marks=pytest.mark.slow),
    pytest.param("confirmed", paired, None, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("fixture", "change", "device"),
    PAGES,
    ids=[
        "finished",
        "at a price",
        "in dollars",
        "failed",
        "empty",
        "1,001 equal trials",
        "three objectives",
        "confirmed",
        "paired",
    ],
)
def test_every_number_on_the_page_can_be_traced(
    fixture: str, change: Any, device: str | None, request: pytest.FixtureRequest
) -> None:
    document = change(request.getfixturevalue(fixture))
    price = rate(device) if device else None
    html, page = render(document, price), contents(document, price)
    numbers = Numbers(html)
    assert list(numbers.untraced()) == []
    # Every note stands at one place, and every plot has its caption.
    footnotes = notes(page, {name for name, _ in numbers.plots})
    assert sorted(numbers.noted) == sorted(note.subject for note in footnotes.values())
    assert all(captioned for _, captioned in numbers.plots)
    assert html.count("<figure>") == html.count("<figcaption>")
    # What is named as a column or a field is one.
    columns = set(page.table.columns) | PLACEHOLDERS | {"effective_steps"}
    for text in [*numbers.titles, *(note.source for note in footnotes.values())]:
        named = re.findall(r"\bcolumns? ([\w.]+)", text)
        fields = re.findall(r"\bfield (\w+)", text)
        assert named or fields or "rows of the table" in text, text
        assert {name.rstrip(".") for name in named} <= columns | {"of", "moved"}, text
        assert set(fields) <= FIELDS, text


def test_a_number_without_a_source_is_found() -> None:
    """The test above can fail: the same walk over a page that hides one number."""
    page = '<body><p title="column x">3</p><p>4</p><table><tr><th title="column x">x</th><th>y</th></tr>'
    page += "<tr><td>5</td><td>6</td></tr></table><footer></footer></body>"
    assert list(Numbers(page).untraced()) == ["4", "6"]


def test_a_price_and_a_report_are_told_apart(sweep: dict[str, Any]) -> None:
    at_a_price = notes(contents(sweep, rate("RunPod A100")), ())["cost"].source
    assert "column seconds" in at_a_price
    assert "field machine_seconds" in at_a_price  # of all attempts and hosts, where these are several
    assert "column usd" in notes(contents(in_dollars(sweep)), ())["cost"].source


def test_dollars_at_a_price_have_the_time_of_reused_stages(
    sweep: dict[str, Any], shared: dict[str, Any], branched: dict[str, Any]
) -> None:
    price = rate("RunPod A100")
    sources = [column_source("usd", contents(document, price)) for document in (sweep, shared, branched)]
    reused = "column seconds + seconds of reused stages in column stages"
    taken = ["column seconds", f"({reused})", f"({reused} and of saved parts, in proportion to the cost)"]
    assert sources == [f"column usd: {each} / 3600 × {price}" for each in taken]
    longer = contents(sweep | {"machine_seconds": {"1": 7200.0}}, price)
    assert column_source("usd", longer) == f"column usd: column machine_seconds / 3600 × {price}"
    assert "all attempts" in column_source("machine_seconds", longer)


def test_efficiency_is_the_gain_whatever_the_goal(sweep: dict[str, Any]) -> None:
    more = sweep | {"objectives": [{"metric": "final_loss", "goal": "maximize"}]}
    for document, gain in ((sweep, "baseline − column final_loss"), (more, "column final_loss − baseline")):
        assert f"highest ({gain}) per" in notes(contents(document), ())["efficient"].source


def test_steps_come_with_their_formula(sweep: dict[str, Any]) -> None:
    assert "2 × Stage 1.9 steps + Stage 2 steps" in notes(contents(sweep), ())["steps"].source


def test_the_note_on_chances_says_which_errors_were_used(
    sweep: dict[str, Any], confirmed: dict[str, Any]
) -> None:
    alone = notes(contents(sweep), ())["chances"].source
    assert "drawn by itself" in alone
    assert "such as the seed, is not in them" in alone
    together = notes(contents(paired(confirmed)), ())["chances"].source
    assert "the errors of all trials are drawn together" in together
    assert "the spread over seeds of column final_loss, 0.014 for one run" in together
    assert "2 degrees of freedom" in together
    partly = paired(sweep)
    del partly["held_out"]["1"]
    assert "the errors of 4 of 5 trials" in notes(contents(partly), ())["chances"].source


def test_only_a_page_with_confirmed_trials_explains_them(
    sweep: dict[str, Any], confirmed: dict[str, Any]
) -> None:
    assert "confirmed" not in notes(contents(sweep), ())
    assert "winner's curse" in notes(contents(confirmed), ())["confirmed"].source
