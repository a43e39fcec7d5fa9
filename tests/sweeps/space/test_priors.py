"""Known defaults and priors of a search space."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from sweeps.errors import SpaceError
from sweeps.space.definition import Choice, Prior, Range, Space, Value
from sweeps.space.priors import PRIOR_BY_DEFAULT, PRIOR_WIDTH, with_defaults, without_new_defaults
from sweeps.space.space_file import loads
from sweeps.space.space_json import from_json, problem, to_json

SPACE = """\
name: known
objectives: [{metric: loss}]
program: {function: "m:f"}
parameters:
  lr: {min: 1.0e-4, max: 1.0e-1, distribution: log_uniform_values, default: 3.0e-3}
  steps: {min: 10, max: 110, default: 20}
  kind: {values: [a, b, c], default: b, when: {a: [share]}}
  share: {min: 0.0, max: 1.0, default: 0.1}
  width: {min: 0.0, max: 4.0}
  seed: {value: 3}
"""
TRAINERS: dict[str, Value] = {"lr": 0.003, "steps": 20, "kind": "b", "width": 1.0}


def space(more: str = "", text: str = SPACE) -> Space:
    return loads(text + more, "known.yaml")


def priors(found: Space) -> dict[str, Prior]:
    return {
        p.name: p.prior for p in found.parameters if isinstance(p, Range | Choice) and p.prior is not None
    }


def without_defaults() -> Space:
    return space(text=re.sub(r", default: [^,}]*", "", SPACE))


def test_defaults_are_first_with_the_middle_of_others() -> None:
    found = space()
    assert found.baseline == {"lr": 0.003, "steps": 20, "kind": "b", "width": 2.0, "seed": 3}
    assert found.defaults == "first"
    assert from_json(to_json(found)) == found
    assert problem(found) is None


@pytest.mark.parametrize(
    ("more", "baseline", "defaults"),
    [
        ("baseline: none\n", None, "unused"),
        ("baseline: {lr: 0.01}\n", 0.01, "unknown"),
        ("search: {method: random}\n", 0.003, "first"),
    ],
)
def test_another_first_trial_or_none(more: str, baseline: float | None, defaults: str) -> None:
    found = space(more)
    assert (None if found.baseline is None else found.baseline["lr"]) == baseline
    assert found.defaults == defaults


def test_a_grid_has_no_first_trial() -> None:
    text = SPACE.partition("parameters:")[0] + "parameters: {kind: {values: [a, b], default: b}}\n"
    with pytest.raises(SpaceError, match=r"parameters.kind.default: "):
        space("search: {method: grid}\n", text)


def test_defaults_that_break_a_constraint() -> None:
    with pytest.raises(SpaceError, match="parameter_constraints: "):
        space('parameter_constraints: ["steps + width >= 60"]\n')


def test_priors_around_defaults_are_asked_for() -> None:
    assert PRIOR_BY_DEFAULT in ("stated", "defaults")
    assert priors(space("search: {prior: stated}\n")) == {}
    assert priors(space("search: {prior: none}\n")) == {}
    found = priors(space("search: {prior: defaults}\n"))
    assert found == {
        name: Prior(around=value, width=PRIOR_WIDTH)
        for name, value in {"lr": 0.003, "steps": 20, "kind": "b", "share": 0.1}.items()
    }


def test_stated_priors_have_the_width_of_their_scale() -> None:
    text = SPACE.replace("default: 3.0e-3", "prior: {around: 3.0e-3, factor: 10}")
    text = text.replace("default: 20", "prior: {around: 30, width: 25}").replace(
        "default: b", "prior: {around: c}"
    )
    found = priors(space("search: {prior: stated}\n", text))
    assert found["lr"].around == 0.003
    assert found["lr"].width == pytest.approx(1 / 3)
    assert found["steps"] == Prior(around=30, width=0.25)
    assert found["kind"].around == "c"
    assert priors(space("search: {prior: none}\n", text)) == {}


def test_constraint_narrows_the_range_before_the_prior() -> None:
    text = SPACE.replace("default: 3.0e-3", "prior: {around: 3.0e-3, factor: 10}")
    found = priors(space('parameter_constraints: ["lr <= 0.01"]\n', text))
    assert found["lr"].width == pytest.approx(math.log(10) / math.log(100))


def test_the_programs_own_defaults_become_the_first_trial() -> None:
    found, notice = with_defaults(without_defaults(), TRAINERS, "the trainer's")
    assert found.baseline == {**TRAINERS, "seed": 3}
    assert found.defaults == "first"
    assert "baseline: none" in notice


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 5}, "steps is 5, outside"),
        ({"kind": "z"}, "kind is 'z', outside"),
        ({"kind": "a"}, "that of `share` is not known"),
    ],
)
def test_defaults_outside_of_the_space_are_a_notice(changes: dict[str, Value], says: str) -> None:
    before = replace(without_defaults(), search=replace(space().search, prior="defaults"))
    found, notice = with_defaults(before, {**TRAINERS, **changes}, "the trainer's")
    assert found.baseline is None
    assert says in notice
    assert "\n" not in notice
    # The others still have a prior.
    assert "lr" in priors(found)
    assert changes.keys() == {"kind"} or "steps" not in priors(found)


def test_a_written_first_trial_stays() -> None:
    written = space("baseline: {lr: 0.01}\n")
    assert with_defaults(written, TRAINERS, "the trainer's") == (written, "")


def test_sweeps_made_before_have_the_same_space() -> None:
    before = without_defaults()
    now, _ = with_defaults(before, TRAINERS, "the trainer's")
    assert without_new_defaults(now, before) == before
    assert without_new_defaults(now, now) == now
    asked = replace(before, search=replace(before.search, prior="defaults"))
    assert without_new_defaults(with_defaults(asked, TRAINERS, "the trainer's")[0], before) == before


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"lr": 0.001}, id="another default"),
        pytest.param({"lr": 1.0}, id="one out of its range"),
    ],
)
def test_defaults_of_another_version_are_no_other_space(later: dict[str, Value]) -> None:
    before, _ = with_defaults(without_defaults(), TRAINERS, "the trainer's")
    now, _ = with_defaults(without_defaults(), {**TRAINERS, **later}, "the trainer's")
    assert without_new_defaults(now, before) == before
    for more in ("baseline: none\n", "baseline: {lr: 0.01}\n"):
        wanted = space(more, text=re.sub(r", default: [^,}]*", "", SPACE))
        assert without_new_defaults(wanted, before) == wanted


@pytest.mark.parametrize(
    "later",
    [
        pytest.param({"lr": 0.001, "kind": "c"}, id="other defaults"),
        pytest.param({"lr": 1.0}, id="one out of its range"),
    ],
)
def test_priors_of_another_versions_defaults_are_the_same(later: dict[str, Value]) -> None:
    asked = replace(without_defaults(), search=replace(space().search, prior="defaults"))
    before, _ = with_defaults(asked, TRAINERS, "the trainer's")
    now, _ = with_defaults(asked, {**TRAINERS, **later}, "the trainer's")
    assert priors(now) != priors(before)
    assert without_new_defaults(now, before) == before
    assert without_new_defaults(before, now) == now


def test_a_stated_prior_is_another_space() -> None:
    asked = replace(without_defaults(), search=replace(space().search, prior="defaults"))
    before, _ = with_defaults(asked, TRAINERS, "the trainer's")
    stated = tuple(
        replace(p, prior=Prior(around=0.01, width=0.1)) if isinstance(p, Range) and p.name == "lr" else p
        for p in asked.parameters
    )
    now, _ = with_defaults(replace(asked, parameters=stated), TRAINERS, "the trainer's")
    assert priors(without_new_defaults(now, before))["lr"] == Prior(around=0.01, width=0.1)
    stated_wide = tuple(
        replace(p, prior=Prior(around=0.01, width=PRIOR_WIDTH))
        if isinstance(p, Range) and p.name == "lr"
        else p
        for p in asked.parameters
    )
    now, _ = with_defaults(replace(asked, parameters=stated_wide), TRAINERS, "the trainer's")
    assert without_new_defaults(now, before) != before


def test_stated_prior_that_is_changed_is_another_space_without_a_known_default() -> None:
    def stated(around: float) -> Space:
        parameters = tuple(
            replace(p, prior=Prior(around=around, width=PRIOR_WIDTH)) if p.name == "lr" else p
            for p in without_defaults().parameters
            if isinstance(p, Range)
        )
        return replace(
            without_defaults(), parameters=parameters, search=replace(space().search, prior="defaults")
        )

    assert without_new_defaults(stated(0.01), stated(0.001)) != stated(0.001)
    assert without_new_defaults(stated(0.01), stated(0.01)) == stated(0.01)


def test_no_first_trial_is_what_a_sweep_without_one_had() -> None:
    before = without_defaults()
    none = space("baseline: none\n", text=re.sub(r", default: [^,}]*", "", SPACE))
    assert without_new_defaults(none, before) == before


def test_a_written_first_trial_is_no_default() -> None:
    written = space("baseline: {lr: 0.01}\n", text=re.sub(r", default: [^,}]*", "", SPACE))
    now, _ = with_defaults(without_defaults(), TRAINERS, "the trainer's")
    assert without_new_defaults(now, written) == now
