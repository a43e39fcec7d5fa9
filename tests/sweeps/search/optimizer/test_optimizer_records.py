"""The optimizer is a function of the records: the same records give the same candidates."""

from __future__ import annotations

import functools
import logging
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sweeps.errors import NothingToAsk
from sweeps.search.determinism import silence
from sweeps.search.encoding import Encoding
from sweeps.search.optimizer import Candidate, Optimizer, ax_experiment
from sweeps.search.outcomes import Outcomes
from sweeps.search.sequence import SobolSequence
from sweeps.space.definition import Choice, Objective, Program, Range, Search, Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial


def space(seed: int = 3, **rest: object) -> Space:
    fields: dict[str, object] = {
        "name": "case",
        "objectives": (Objective(metric="loss"),),
        "parameters": (
            Range(name="lr", min=1e-4, max=1e-1, kind="float", log=True),
            Range(name="steps", min=1, max=300, kind="int"),
            Choice(name="warm", values=(True, False), when=((True, ("k",)),)),
            Range(name="k", min=0.0, max=1.0, kind="float"),
        ),
        "program": Program(kind="function", function="m:f"),
        "search": Search(sobol=4, seed=seed),
    }
    return Space(**(fields | rest))  # type: ignore[arg-type]  # a test's shorthand


def loss(parameters: Mapping[str, Value]) -> float:
    return float(parameters["steps"]) / 300 + float(parameters["lr"]) + float(parameters.get("k", 0.4))


def completed(index: int, candidate: Candidate) -> Trial:
    return Trial(
        trial=index,
        status="completed",
        parameters=candidate.parameters,
        generator=candidate.generator,
        metrics={"loss": loss(candidate.parameters), "loss_sem": 0.01, "seconds": 3.0},
    )


def history(count: int) -> list[Trial]:
    found = Optimizer(space(search=Search(method="random", seed=3))).generate(count)
    return [completed(index, candidate) for index, candidate in enumerate(found)]


def ask(records: list[Trial], count: int = 1, searched: Space | None = None) -> list[Candidate]:
    optimizer = Optimizer(searched or space())
    optimizer.observe(records)
    return optimizer.generate(count)


def constrained() -> Space:
    """Three integers in a constraint, each of which Ax rounds by chance."""
    integers = tuple(Range(name=name, min=0, max=60, kind="int") for name in ("a", "b", "c"))
    return space(parameters=integers, parameter_constraints=("a + b + c <= 100",))


@functools.cache
def proposed(count: int, ahead: int = 2) -> list[Candidate]:
    """What an optimizer that never saw anything else proposes after so many results, one after another."""
    return ask(history(count), ahead)


def test_long_lived_and_new_optimizer_agree():
    lived = Optimizer(space())
    records: list[Trial] = []
    generators = set()
    for index in range(7):
        lived.observe(records)
        (candidate,) = lived.generate()
        assert ask(records) == [candidate]
        generators.add(candidate.generator)
        records.append(completed(index, candidate))
    assert generators == {"sobol", "botorch"}


def test_results_that_came_in_another_order_make_no_difference():
    done = history(7)
    open_ = [replace(record, status="running", metrics={}, worker="w", heartbeat=1.0) for record in done]
    lived = Optimizer(space())
    current = list(open_)
    for index in (5, 1, 6, 0, 3, 2, 4):
        lived.observe(current)
        current[index] = done[index]
    lived.observe(current)
    assert lived.generate() == proposed(7, 1)


def test_two_at_once_are_the_same_as_one_and_then_another():
    records = history(6)
    first, second = proposed(6)
    waiting = Trial(trial=6, status="pending", parameters=first.parameters, generator=first.generator)
    assert (first.generator, second.generator) == ("botorch", "botorch")
    assert ask([*records, waiting]) == [second]
    assert first.parameters != second.parameters


def test_claims_and_heartbeats_do_not_change_candidates():
    """The one candidate waits in the test above, and here it is run: the next worker gets the same one."""
    first, second = proposed(6)
    claimed = Trial(
        trial=6,
        status="running",
        parameters=first.parameters,
        generator="botorch",
        worker="w",
        heartbeat=5.0,
        attempt=2,
        write="token",
    )
    assert ask([*history(6), claimed]) == [second]


def test_running_sobol_point_is_not_proposed_again():
    records = history(3)
    (first,) = ask(records)
    running = Trial(
        trial=3,
        status="running",
        parameters=first.parameters,
        generator=first.generator,
        worker="w",
        heartbeat=1.0,
    )
    (second,) = ask([*records, running])
    assert second.parameters != first.parameters


@pytest.mark.parametrize("count", [2, 6], ids=["sobol", "botorch"])
def test_the_seed_of_the_sweep_changes_the_candidates(count: int):
    assert proposed(count)[:1] != ask(history(count), searched=space(seed=4))


def test_the_global_generators_are_neither_used_nor_moved():
    def states() -> list[object]:
        numpys = np.random.get_state()[1].tolist()  # type: ignore[index]  # a tuple, unless legacy=False
        return [random.getstate(), numpys, torch.get_rng_state().tolist()]

    expected = proposed(6)[:1]
    torch.manual_seed(1)
    random.seed(99)
    np.random.seed(99)
    before = states()
    assert ask(history(6)) == expected
    assert states() == before


@pytest.mark.slow
@pytest.mark.usefixtures("all_starts")  # as in the other process
def test_hash_seed_does_not_change_candidates():
    script = (
        "from tests_records import ask, constrained, history\n"
        "found = [*ask(history(6), 2), *ask([], 4, constrained())]\n"
        "print([(c.generator, dict(c.parameters)) for c in found])\n"
    )
    here = Path(__file__)
    loader = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tests_records', {str(here)!r})\n"
        "module = importlib.util.module_from_spec(spec); sys.modules['tests_records'] = module\n"
        "spec.loader.exec_module(module)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", loader + script],
        env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": str(here.parents[4])},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    found = [*ask(history(6), 2), *ask([], 4, constrained())]
    expected = [(c.generator, dict(c.parameters)) for c in found]
    assert process.stdout.strip() == str(expected)


@pytest.mark.slow
def test_a_retried_trial_makes_the_optimizer_start_over():
    records = history(7)
    failed = [*records[:6], replace(records[6], status="failed", metrics={}, error="NaN")]
    retried = [*records[:6], replace(records[6], status="pending", metrics={})]
    lived = Optimizer(space())
    for observed in (failed, retried):
        lived.observe(observed)
        assert lived.generate() == ask(observed)
    lived.observe(records)
    assert lived.generate() == proposed(7, 1)


def test_fewer_or_other_records_make_the_optimizer_start_over():
    lived = Optimizer(space())
    lived.observe(history(6))
    other = history(5)
    other[2] = replace(other[2], parameters={**other[2].parameters, "lr": 0.05})
    lived.observe(other)
    assert lived.generate() == ask(other)


def test_a_corrected_result_is_learnt():
    records = history(7)
    corrected = [*records[:6], replace(records[6], metrics={"loss": -5.0})]
    lived = Optimizer(space())
    lived.observe(records)
    lived.observe(corrected)
    assert lived.generate() == ask(corrected)


def test_records_are_attached_only_once(monkeypatch: pytest.MonkeyPatch):
    attached: list[int] = []
    attach = ax_experiment.attach

    def record_index(*arguments):
        trial = attach(*arguments)
        attached.append(trial.index)
        return trial

    monkeypatch.setattr(ax_experiment, "attach", record_index)
    lived = Optimizer(space())
    for count in (3, 3, 5, 7):
        lived.observe(history(count))
    assert attached == []  # no point of the first design needs Ax's trials
    for count in (7, 8):
        lived.observe(history(count))
        assert len(lived.experiment.trials) == count
    assert attached == list(range(8))


def test_foreign_results_are_not_learnt_or_repeated():
    records = history(5)
    odd = [
        replace(records[0], parameters={"lr": 0.01, "steps": 5}),
        replace(records[1], parameters={"lr": "fast", "steps": 5, "warm": False}),
        replace(records[2], parameters={"lr": 0.01, "steps": 5, "warm": "maybe"}),
    ]
    (candidate,) = ask([*odd, *records[3:]])
    assert tuple(candidate.parameters) == space().active(candidate.parameters)


def test_a_result_outside_of_the_ranges_is_learnt_from():
    records = history(6)
    outside = replace(
        records[5], parameters={**records[5].parameters, "lr": 0.5, "steps": 900}, metrics={"loss": 9.0}
    )
    (candidate,) = ask([*records[:5], outside])
    assert candidate.generator == "botorch"
    assert float(candidate.parameters["lr"]) <= 1e-1
    assert ask([*records[:5], outside]) == [candidate]


def test_all_failed_goes_on_with_sobol():
    records = [replace(record, status="failed", metrics={}) for record in history(6)]
    (candidate,) = ask(records)
    assert candidate.generator == "sobol"
    assert all(candidate.parameters != record.parameters for record in records)


def test_failed_surrogate_falls_back_to_sobol(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(self: Optimizer, **options: object) -> None:
        raise RuntimeError("singular matrix")

    monkeypatch.setattr(Optimizer, "_fitted", broken)
    with caplog.at_level(logging.WARNING, logger="sweeps.search.optimizer"):
        (candidate,) = ask(history(6))
    assert candidate.generator == "sobol"
    (message,) = caplog.messages
    assert message.startswith("trial 6 comes from Sobol")
    assert message.endswith(": singular matrix")


def test_a_used_up_space_says_so_again_after_every_call():
    searched = space(parameters=(Choice(name="a", values=(1, 2)),))
    optimizer = Optimizer(searched)
    optimizer.generate(2)
    for _ in range(2):
        with pytest.raises(NothingToAsk):
            optimizer.generate(3)


def test_distant_point_is_drawn_without_those_before() -> None:
    searched = Space(
        name="mixed",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="lr", min=1e-5, max=0.1, kind="float", log=True),
            Range(name="width", min=64, max=1024, kind="int"),
            Range(name="layers", min=1, max=4, kind="int"),
            Choice(name="batch", values=(16, 32, 64)),
            Choice(name="act", values=("relu", "gelu", "silu", "tanh")),
        ),
        program=Program(kind="function", function="objectives_for_tests:paraboloid"),
    )
    encoding = Encoding(Domain(searched))

    def sequence(*, constrained: bool) -> SobolSequence:
        blank = ax_experiment.blank_experiment("mixed", encoding, Outcomes(searched))
        return SobolSequence(ax_experiment.SobolDraws(blank), 7, constrained=constrained)

    positions = (95, 3, 99, 16, 17, 31)
    with silence("ax"):
        in_order, in_turns = sequence(constrained=True), sequence(constrained=False)
        points = [in_order[position] for position in range(100)]
        assert [in_turns[position] for position in positions] == [points[i] for i in positions]
        assert sequence(constrained=False)[83] == points[83]


@pytest.mark.parametrize("gated", [False, True])
def test_the_surrogate_learns_where_a_number_switches_parameters_off(gated: bool) -> None:
    """No first stage at all, for example: such results were left out of the model, without a word."""
    more = (
        Choice(name="gate", values=("u", "v", "w"), when=(("v", ("z",)),)),
        Range(name="z", min=0.0, max=1.0, kind="float"),
    )
    searched = Space(
        name="case",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Range(name="steps", min=0, max=3, kind="int", when=(("> 0", ("lr",)),)),
            Range(name="lr", min=0.1, max=0.9, kind="float"),
            Range(name="x", min=0.0, max=1.0, kind="float"),
            *(more if gated else ()),
        ),
        program=Program(kind="function", function="m:f"),
    )
    rng, optimizer = np.random.default_rng(0), Optimizer(searched)
    records = []
    for index in range(12):
        steps = index % 4
        parameters: dict[str, Value] = {"steps": steps, "x": float(rng.uniform())}
        if steps:
            parameters["lr"] = float(rng.uniform(0.1, 0.9))
        if gated:
            parameters["gate"] = ("u", "v", "w")[index % 3]
            if parameters["gate"] == "v":
                parameters["z"] = float(rng.uniform())
        loss = float(parameters["x"]) + (0.0 if steps == 0 else 2.0)
        records.append(
            Trial(
                trial=index,
                status="completed",
                generator="sobol",
                parameters=parameters,
                metrics={"loss": loss},
            )
        )
    optimizer.observe(records)
    (candidate,) = optimizer.generate()
    assert candidate.generator == "botorch"
    assert candidate.parameters["steps"] == 0
    judged = {index for index, *_ in optimizer.view().cross_validated()}
    assert judged == set(range(12))


def test_however_huge_a_diverged_loss_is_the_candidate_is_the_same() -> None:
    """A program may report a huge loss, such as the largest float, for a run that diverged."""
    found = []
    for loss in (1e30, sys.float_info.max):
        records = history(8)
        records[2:5] = [replace(record, metrics={"loss": loss}) for record in records[2:5]]
        found += ask(records)
    assert found[0] == found[1]
    assert found[0].generator == "botorch"


def test_losses_of_any_size_give_the_same_candidate() -> None:
    """Ax takes a spread below 1e-8 for none, and cannot square one of 1e300."""
    records = history(6)
    (candidate,) = ask(records)
    for factor in (2.0**-60, 2.0**-1000, 2.0**1000):
        scaled = [replace(r, metrics={"loss": factor * (r.metrics["loss"] or 0.0)}) for r in records]
        assert ask(scaled) == [candidate]


def test_of_a_small_space_the_surrogate_has_the_best_that_is_left() -> None:
    """Its own optimizer found what had been tried, and the turn was Sobol's."""
    searched = Space(
        name="case",
        objectives=(Objective(metric="loss"),),
        parameters=(
            Choice(name="k", values=("x", "y", "z")),
            Range(name="n", min=1, max=4, kind="int"),
        ),
        program=Program(kind="function", function="m:f"),
        search=Search(sobol=4),
    )
    tried = [("y", 1), ("y", 2), ("y", 4), ("x", 1), ("z", 3), ("x", 4), ("z", 1)]
    records = [
        Trial(
            trial=index,
            status="completed",
            generator="sobol",
            parameters={"k": k, "n": n},
            metrics={"loss": 0.5 * (k != "y") + 0.05 * abs(n - 2)},
        )
        for index, (k, n) in enumerate(tried)
    ]
    first, *others = ask(records, count=5, searched=searched)
    assert first.parameters == {"k": "y", "n": 3}
    assert {candidate.generator for candidate in (first, *others)} == {"botorch"}
