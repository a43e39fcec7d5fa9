"""Overrides against Hydra's own parser: the composed and resolved value is the one that was put in."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sweeps.space.definition import Value
from sweeps.space.overrides import quote, split, to_options, to_overrides, with_parameters

PARSER = OverridesParser.create()

texts = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
hostile = st.text(alphabet="\\'\"${}[]():=, \tabc019.-+_~@/\n", max_size=16)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    hostile,
)

HOSTILE = [
    "", " ", " a ", "true", "False", "TRUE", "null", "Null", "nan", "inf", "1", "1e-3", "-1", "0x10",
    "it's", 'say "hi"', "both ' and \"", "a,b", "[1,2]", "{a: 1}", "a=b", "k: v", "${x}", "\\${x}",
    "\\\\${x}", "${", "a${oc.env:HOME}b", "'${x}'", "\\", "\\\\", "\\'", "ends with \\", "C:\\new\\table",
    "choice(1,2)", "a b", "tab\there", "line\nbreak", "ä€𝄞", "#comment", "-flag", "~x", "+x", "a/b-c.d_e",
    "HuggingFaceTB/SmolLM2-135M", "1a", "a*b|c?d%e",
]  # fmt: skip


def resolved(override: str) -> Value:
    """Return the value in the composed and resolved config."""
    parsed = PARSER.parse_override(override)
    assert not parsed.is_sweep_override(), override
    found: Value = OmegaConf.create({"key": parsed.value()}).key
    return found


@given(values)
@example(1e-05)
@example(1e22)
@example(5e-324)
@example(-0.0)
def test_hydra_reads_back_the_same_value_and_type(value: Value) -> None:
    (override,) = to_overrides({"a.b_1": value})
    found = resolved(override)
    assert type(found) is type(value)
    assert found == value
    if isinstance(value, float):
        assert math.copysign(1, float(found)) == math.copysign(1, value)
    assert PARSER.parse_override(override).key_or_group == "a.b_1"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_the_same_text(text: str) -> None:
    assert resolved(f"key={quote(text)}") == text


def test_a_whole_config_composes_to_the_values_put_in(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("".join(f"k{i}: old\n" for i in range(len(HOSTILE))))
    parameters = {f"k{i}": text for i, text in enumerate(HOSTILE)}
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("config", overrides=to_overrides(parameters))
    assert OmegaConf.to_container(config, resolve=True) == parameters


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (False, "false"),
        (3, "3"),
        (1e-5, "1e-05"),
        (0.003, "0.003"),
        (2.0, "2.0"),
        ("cosine", "cosine"),
        ("a/b-1.5", "a/b-1.5"),
        ("true", "'true'"),
        ("1", "'1'"),
        ("it's", r"'it\'s'"),
    ],
)
def test_usual_values_are_written_short(value: Value, expected: str) -> None:
    assert quote(value) == expected


def test_numpy_numbers_are_written_like_pythons() -> None:
    numpy = pytest.importorskip("numpy")
    assert quote(numpy.float64(1e-5)) == "1e-05"


def test_the_order_is_kept() -> None:
    assert to_overrides({"b": 1, "a": 2}) == ["b=1", "a=2"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "a\0b"])
def test_what_no_override_can_carry_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match="override"):
        to_overrides({"a": value})


@given(st.from_regex(r"[a-z_][a-z0-9_]{0,5}(\.[a-z0-9_]{1,5}){0,2}", fullmatch=True), values)
def test_split_gives_the_key_and_the_quoted_value_back(key: str, value: Value) -> None:
    assert split(f"{key}={quote(value)}") == (key, quote(value))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model=tiny", ("model", "tiny")),
        ("+a.b=1", ("a.b", "1")),
        ("++a.b=1", ("a.b", "1")),
        ("a=", ("a", "")),
        ("a=b=c", ("a", "b=c")),
        ("optimizer@stage2.optimizer=muon", ("optimizer@stage2.optimizer", "muon")),
    ],
)
def test_split(override: str, expected: tuple[str, str]) -> None:
    assert split(override) == expected


@pytest.mark.parametrize("override", ["", "model", "=tiny", "two words=1", "--lr 3", "~model"])
def test_split_refuses_what_sets_no_key(override: str) -> None:
    with pytest.raises(ValueError, match="write key=value"):
        split(override)


@given(st.dictionaries(st.sampled_from(["lr", "n", "hidden_size", "stage2.lr"]), values, max_size=3))
@example({"lr": "--n=3", "n": "", "hidden_size": "a b'c"})
def test_argparse_reads_back_the_options(parameters: dict[str, Value]) -> None:
    parser = argparse.ArgumentParser()
    for name, value in parameters.items():
        read = {bool: "true".__eq__}.get(type(value), type(value))
        parser.add_argument(f"--{name}", type=read, dest=name)
    assert vars(parser.parse_args(to_options(parameters))) == parameters


@pytest.mark.parametrize("value", [math.nan, math.inf, "a\0b"])
def test_what_no_option_can_carry_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match="cannot be an o"):
        to_options({"a": value})


def test_a_command_has_the_parameters_where_it_names_them() -> None:
    command = ("python", "train.py", "${args}", "--out=${run_dir}", "--", "${overrides}")
    filled = with_parameters(
        command, {"lr": 0.5, "kind": "a b"}, lambda word: word.replace("${run_dir}", "here")
    )
    assert filled == [
        *("python", "train.py", "--lr=0.5", "--kind=a b", "--out=here", "--"),
        *("lr=0.5", "kind='a b'"),
    ]
