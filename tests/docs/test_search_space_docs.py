"""docs/reference/space-file.md against the program: examples load, refusals are word for word, no key is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from sweeps.errors import SpaceError
from sweeps.space import sections, space_file, space_parameters
from sweeps.space.space_file import loads

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "space-file.md").read_text(encoding="utf-8")
# A YAML block, and the refusal shown right after it, if any.
EXAMPLES = re.findall(r"```yaml\n(.*?)```\n(?:\n```text\n(.*?)\n```)?", TEXT, re.S)
GOOD = [example for example, refusal in EXAMPLES if not refusal]
BAD = [(example, refusal) for example, refusal in EXAMPLES if refusal]

NESTED = (sections.ObjectiveSection, sections.TrainerSection, sections.TrunkSection)
TABLES = [section for section in sections.Section.__subclasses__() if section not in NESTED]
"""Sections whose keys have a table or a heading of their own; the others are shown in examples."""

REST = {
    "name": "name: example\n",
    "objectives": "objectives: [{metric: final_loss}]\n",
    "program": "program: {trainer: {overrides: [model=tiny]}}\n",
    "parameters": "parameters: {stage2.optimizer.lr: {min: 0.001, max: 0.01}}\n",
}


def completed(example: str) -> str:
    """The example first, so that its line numbers stay, then the required keys that it leaves out."""
    given = yaml.safe_load(example)
    return example + "".join(text for key, text in REST.items() if key not in given)


def first_line(example: str) -> str:
    return " ".join(example.split())[:40]


def test_the_page_has_examples_of_both_kinds() -> None:
    assert len(GOOD) >= 15
    assert len(BAD) >= 3


@pytest.mark.parametrize("example", GOOD, ids=first_line)
def test_every_example_loads(example: str) -> None:
    loads(completed(example), "space.yaml")


@pytest.mark.parametrize(("example", "refusal"), BAD, ids=lambda part: first_line(part))
def test_every_refusal_is_shown_word_for_word(example: str, refusal: str) -> None:
    with pytest.raises(SpaceError) as caught:
        loads(completed(example), "space.yaml")
    assert str(caught.value) == refusal


def test_every_key_is_documented() -> None:
    keys = {
        *space_file.KEYS,
        *(name for section in TABLES for name in section.model_fields),
        *space_parameters.DISTRIBUTIONS,
    }
    documented = "\n".join(re.findall(r"^(?:#+|\|) .*", TEXT, re.M))  # headings and rows of tables
    assert len(keys) > 50
    assert [key for key in keys if f"`{key}`" not in documented] == []
