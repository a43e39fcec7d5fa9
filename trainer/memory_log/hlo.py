"""Memory of an XLA graph, from its text. Used by `memory_log.log`, at level `hlo`. Pure.

The text is the graph as it was recorded, before the compiler fuses operations and reuses memory. So the sizes
are far above a chip's use, but they can be compared between graphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0}
_SHAPE = re.compile(r"\b(pred|bf16|token|[a-z]+(\d+)\w*)\[([\d,<= ]*)\]")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_NO_COPIES = ("tuple", "get-tuple-element")
_NAME = re.compile(r"%([\w.\-]+)")


@dataclass(frozen=True, kw_only=True)
class HloSizes:
    """Sizes of a graph's entry computation.

    Args:
        text_bytes: of the graph's text.
        input_bytes: of its parameters: weights, the optimizer's state, batches, numbers.
        output_bytes: of its results.
        largest_bytes: of the largest single value.
        largest: operation and shape of that value.
        unfused_peak_bytes: peak if each operation ran by itself in the order of the text, and inputs were
            kept throughout.
    """

    text_bytes: int
    instructions: int
    input_bytes: int
    output_bytes: int
    largest_bytes: int
    largest: str
    unfused_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Instruction:
    name: str
    root: bool
    shape: str
    opcode: str
    size: int
    operands: tuple[str, ...]


def hlo_sizes(text: str) -> HloSizes:
    """Return the sizes of a graph; all are 0 for a text without an entry computation."""
    entry = list(_entry_instructions(text))
    inputs = sum(step.size for step in entry if step.opcode == "parameter")
    values = [step for step in entry if step.opcode not in _NO_COPIES]
    largest = max(values, key=lambda step: step.size, default=None)
    return HloSizes(
        text_bytes=len(text.encode()),
        instructions=len(entry),
        input_bytes=inputs,
        output_bytes=sum(step.size for step in entry if step.root),
        largest_bytes=largest.size if largest else 0,
        largest=f"{largest.opcode} {largest.shape}" if largest else "",
        unfused_peak_bytes=inputs + _peak([step for step in entry if step.opcode != "parameter"]),
    )


def _peak(steps: list[_Instruction]) -> int:
    """Return the peak of live bytes: values live from operation to last use; tuples copy nothing."""
    last = {name: index for index, step in enumerate(steps) for name in (step.name, *step.operands)}
    dying: dict[int, int] = {}  # bytes whose last use is the step of that index
    alive = most = 0
    for index, step in enumerate(steps):
        if step.opcode in _NO_COPIES:
            alive -= dying.pop(index, 0)
            continue
        alive += step.size
        most = max(most, alive)
        dying[last[step.name]] = dying.get(last[step.name], 0) + step.size
        alive -= dying.pop(index, 0)
    return most


def _entry_instructions(text: str) -> Iterator[_Instruction]:
    """Yield the instructions of the graph's entry computation."""
    inside = False
    for line in text.splitlines():
        if line.startswith("ENTRY"):
            inside = True
        elif inside and line.startswith("}"):
            return
        elif inside and (found := _INSTRUCTION.match(line)):
            root, name, text = found.groups()
            split = _end_of_shape(text)
            shape, (opcode, _, operands) = text[:split], text[split:].strip().partition("(")
            yield _Instruction(
                name=name,
                root=root is not None,
                shape=re.sub(r"\{[\d,]*\}", "", shape),  # without the layout, such as {1,0}
                opcode=opcode,
                size=_shape_bytes(shape),
                operands=tuple(_NAME.findall(operands)),
            )


def _end_of_shape(text: str) -> int:
    """Return the index behind a shape: after a tuple's parentheses, else at the first blank."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == " " and depth == 0:
            return index
    return len(text)


def _shape_bytes(shape: str) -> int:
    """Return the size of a shape such as `f32[8,16]`, or of all the shapes in a tuple."""
    total = 0
    for kind, digits, dimensions in _SHAPE.findall(shape):
        bits = _BITS[kind] if kind in _BITS else int(digits)
        count = prod(int(number.strip("<= ")) for number in dimensions.split(",") if number.strip())
        total += -(-bits * count // 8)
    return total
