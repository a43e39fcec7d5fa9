"""Records as bytes: nothing gets lost, and nothing that we did not write is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.trials.lifecycle import Claim, Complete, Expire, Heartbeat, apply
from sweeps.trials.record import Attempt, Trial, decode, decode_each, encode, key, run_prefix

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.integers(-(10**300), 10**300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
NAMES = st.text(min_size=1, max_size=20)


@given(
    parameters=st.dictionaries(NAMES, VALUES),
    metrics=st.dictionaries(NAMES, st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))),
)
def test_a_record_comes_back_as_it_was_stored(parameters, metrics):
    trial = Trial(trial=3, status="pending", parameters=parameters, generator="botorch", created=1.5)
    trial = apply(trial, Claim(worker="a"), 2.0)
    trial = apply(trial, Expire(after_s=1, max_attempts=9), 4.0)
    trial = apply(trial, Claim(worker="b"), 5.0)
    trial = apply(trial, Complete(worker="b", attempt=2, metrics=metrics), 6.0)
    back = decode(encode(trial, "token"))
    assert (dict(back.parameters), dict(back.metrics)) == (parameters, metrics)
    assert [type(v) for v in back.parameters.values()] == [type(v) for v in parameters.values()]
    assert (back.status, back.history, back.attempt, back.write) == ("completed", trial.history, 2, "token")


def test_keys_of_a_later_version_outlast_each_change():
    """An earlier worker that takes the trial over must not undo what a later one wrote."""
    stage = {"name": "a", "key": "a" * 64, "cost": 1, "snapshot": True}
    attempt = {"attempt": 1, "worker": "w", "start": 1.0, "end": 2.0, "reason": "expired"}
    document = good() | {
        "attempt": 1,
        "zone": {"name": "a1"},
        "stages": [stage | {"gib": 1.5}],
        "points": [stage | {"step": 3, "gib": 0.5}],
        "history": [attempt | {"host": ["h", 2]}],
    }
    record = decode(json.dumps(document).encode())
    record = apply(record, Claim(worker="b"), 3.0)
    record = apply(decode(encode(record, "t")), Heartbeat(worker="b", attempt=2), 4.0)
    record = apply(decode(encode(record, "t")), Complete(worker="b", attempt=2, metrics={"loss": 1.0}), 5.0)
    written = json.loads(encode(record, "t"))
    assert written["zone"] == {"name": "a1"}
    assert (written["stages"][0]["gib"], written["points"][0]["gib"]) == (1.5, 0.5)
    assert written["history"][0]["host"] == ["h", 2]
    assert "later" not in json.dumps(written)


def test_two_writes_of_one_record_differ_in_their_token_only():
    trial = Trial(trial=0, status="pending", parameters={}, generator="sobol")
    one, two = json.loads(encode(trial, "a")), json.loads(encode(trial, "b"))
    assert one.pop("write") != two.pop("write")
    assert one == two


def test_other_kind_of_curve_is_stored():
    held_out = Trial(
        trial=0,
        status="pending",
        parameters={},
        generator="sobol",
        curve=((1.0, 2.0),),
        curve_of="held_out_loss in stage2",
    )
    assert decode(encode(held_out, "t")).curve_of == "held_out_loss in stage2"
    assert "curve_of" not in good()
    assert decode(json.dumps(good()).encode()).curve_of == "loss"


def good() -> dict:
    return json.loads(encode(Trial(trial=3, status="pending", parameters={"x": 1}, generator="sobol"), "t"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (encode(Trial(trial=3, status="pending", parameters={}, generator="sobol"), "t")[:80], "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (json.dumps(good() | {"schema": 2}).encode(), "schema is 2, this version reads 1"),
        (json.dumps(good() | {"status": "done"}).encode(), "status is 'done', not 'pending'"),
        (json.dumps(good() | {"trial": -1}).encode(), "trial is -1, not an integer from 0"),
        (json.dumps(good() | {"trial": True}).encode(), "trial is True, not an integer"),
        (json.dumps({k: v for k, v in good().items() if k != "parameters"}).encode(), "missing field"),
        (json.dumps({k: v for k, v in good().items() if k != "history"}).encode(), "missing field"),
        (json.dumps(good() | {"parameters": [1]}).encode(), "parameters is .*, not an object"),
        (json.dumps(good() | {"parameters": {"x": [1, {"a": 1}]}}).encode(), r"parameters\.x.* is .*, not"),
        (json.dumps(good() | {"metrics": {"loss": "low"}}).encode(), "not a finite number"),
        (json.dumps(good() | {"metrics": {"loss": float("nan")}}).encode(), "not a finite number"),
        (json.dumps(good() | {"status": "running"}).encode(), "running without a worker"),
        (json.dumps(good() | {"heartbeat": "noon"}).encode(), "heartbeat is 'noon', not a finite number"),
        (json.dumps(good() | {"attempt": "1"}).encode(), "attempt is '1', not an integer"),
        (json.dumps(good() | {"parameters": {"x": float("nan")}}).encode(), r"parameters\.x is .*, not"),
        (json.dumps(good() | {"metrics": {"loss": 10**400}}).encode(), "not a finite number"),
        (json.dumps(good() | {"error": 5}).encode(), "error is 5, not a text"),
        (json.dumps(good() | {"generator": 5}).encode(), "generator is 5, not"),
        (json.dumps(good() | {"curve_of": None}).encode(), "curve_of is None, not a text"),
        (json.dumps(good() | {"started": "x"}).encode(), "started is 'x', not a finite number"),
        (json.dumps(good() | {"error": "\ud800"}).encode(), "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (json.dumps(good() | {"history": [{"attempt": 1}]}).encode(), "missing field"),
    ],
    ids=[
        "empty", "truncated", "binary", "list", "newer-schema", "unknown-status", "negative-index", "bool-index",
        "no-parameters", "no-history", "parameters-list", "mapping-parameter", "text-metric",
        "nan-metric", "running-nobody", "text-heartbeat", "text-attempt",
        "nan-parameter", "huge-metric", "error-5", "generator-5", "no-kind-of-curve", "text-started", "half-surrogate", "deep",
        "torn-history",
    ],
)  # fmt: skip
def test_a_torn_or_edited_record_is_refused_with_the_reason(data, reason):
    with pytest.raises(ValueError, match=reason):
        decode(data)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_no_other_program_could_read_is_not_written(value):
    with pytest.raises(ValueError):
        encode(Trial(trial=0, status="pending", parameters={"x": value}, generator="sobol"), "t")


def test_keys_and_folders_are_those_of_the_design():
    assert key(12) == "trials/000012.json"
    assert run_prefix(12, 1) == "runs/000012/attempt-1"


def test_many_records_are_decoded_as_each_alone():
    """They are checked field by field, so a wrong one anywhere must be found."""
    good = [
        Trial(
            trial=0, status="pending", parameters={"x": 0.5, "kind": "a", "flags": (1, 2)}, generator="sobol"
        ),
        Trial(
            trial=1,
            status="failed",
            parameters={"x": 1},
            generator="sobol",
            attempt=1,
            metrics={"loss": None},
            error="broken",
            failure="crashed",
            curve=((1.0, 2.0), (2.0, 1.5)),
            history=(Attempt(attempt=1, worker="w", start=1.0, end=2.0, reason="crashed"),),
        ),
    ]
    stored = [encode(each, "w") for each in good]
    assert decode_each(dict(enumerate(stored))) == {0: decode(stored[0]), 1: decode(stored[1])}
    assert decode_each({}) == {}
    for old, new in (
        (b'"attempt": 1', b'"attempt": -1'),
        (b'"attempt": 1', b'"attempt": 1.5'),
        (b'"loss": null', b'"loss": "low"'),
        (b'"loss": null', b'"loss": NaN'),
        (b"[2.0, 1.5]", b"[2.0]"),
        (b'"failure": "crashed"', b'"failure": "tired"'),
        (b'"status": "failed"', b'"status": "running"'),
        (b'"schema": 1', b'"schema": 2'),
        (b'"worker": "w"', b'"worker": 1'),
        (b"\n}", b""),
    ):
        assert old in stored[1]
        wrong = stored[1].replace(old, new, 1)
        with pytest.raises(ValueError, match=r".") as refused:
            decode(wrong)
        for batch in ({0: stored[0], 1: wrong}, {1: wrong, 0: stored[0]}):
            found = decode_each(batch)
            assert list(found) == list(batch)
            assert found[0] == decode(stored[0]), new
            assert str(found[1]) == str(refused.value), new


def test_record_in_the_place_of_another_is_refused():
    stored = encode(Trial(trial=3, status="pending", parameters={}, generator="sobol"), "w")
    assert str(decode_each({3: stored, 4: stored})[4]) == "it says trial 3"
