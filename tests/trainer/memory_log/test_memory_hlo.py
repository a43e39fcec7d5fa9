"""The sizes that are read from a graph's text, against a graph worked out by hand and one of torch_xla's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.memory_log.hlo import hlo_sizes

# As torch_xla 2.9.0 prints them: a reducer before the entry, layouts, operands with their shapes, a root tuple.
GRAPH = """HloModule IrToHlo.10, entry_computation_layout={(f32[2,3]{1,0}, f32[3]{0})->(f32[2,3]{1,0}, f32[])}

%AddComputation.4 (x.5: f32[], y.6: f32[]) -> f32[] {
  %x.5 = f32[] parameter(0)
  %y.6 = f32[1000000] parameter(1)
  ROOT %add.7 = f32[] add(f32[] %x.5, f32[] %y.6)
}

ENTRY %IrToHlo.10 (p0.1: f32[2,3], p1.2: f32[3]) -> (f32[2,3], f32[]) {
  %p0.1 = f32[2,3]{1,0} parameter(0), metadata={op_type="xla__device_data"}
  %p1.2 = f32[3]{0} parameter(1)
  %broadcast.3 = f32[2,3]{1,0} broadcast(f32[3]{0} %p1.2), dimensions={1}
  %square.4 = f32[4,2,3]{2,1,0} broadcast(f32[2,3]{1,0} %broadcast.3), dimensions={1,2}
  %half.5 = bf16[4,2,3]{2,1,0} convert(f32[4,2,3]{2,1,0} %square.4)
  %add.8 = f32[2,3]{1,0} add(f32[2,3]{1,0} %p0.1, f32[2,3]{1,0} %broadcast.3)
  %constant.6 = f32[] constant(0)
  %reduce.9 = f32[] reduce(bf16[4,2,3]{2,1,0} %half.5, f32[] %constant.6), dimensions={0,1,2}, to_apply=%AddComputation.4
  ROOT %tuple.10 = (f32[2,3]{1,0}, f32[]) tuple(f32[2,3]{1,0} %add.8, f32[] %reduce.9)
}
"""


def test_a_graph_worked_out_by_hand() -> None:
    found = hlo_sizes(GRAPH)
    assert found.text_bytes == len(GRAPH)
    assert found.instructions == 9
    assert found.input_bytes == 24 + 12
    assert found.output_bytes == 24 + 4
    assert (found.largest_bytes, found.largest) == (96, "broadcast f32[4,2,3]")
    # When `half` is made: `broadcast` (24), `square` (96) and itself (48), beside the inputs.
    assert found.unfused_peak_bytes == 36 + 24 + 96 + 48


def test_a_tuple_is_no_value_of_its_own() -> None:
    found = hlo_sizes(
        "ENTRY %e () -> (u8[4]) {\n  %a.1 = u8[4] op()\n  ROOT %t.2 = (u8[4], u8[4]) tuple(%a.1, %a.1)\n}\n"
    )
    assert (found.largest, found.unfused_peak_bytes, found.output_bytes) == ("op u8[4]", 4, 8)


@pytest.mark.parametrize("text", ["", "HloModule x\n", "ENTRY %e () -> f32[] {\n}\n"])
def test_a_text_without_instructions_has_no_sizes(text: str) -> None:
    found = hlo_sizes(text)
    assert (found.instructions, found.unfused_peak_bytes, found.largest) == (0, 0, "")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("pred[7]", 7),
        ("s4[3]", 2),
        ("u8[2,2]{1,0}", 4),
        ("f8e4m3fn[5]", 5),
        ("c64[2]", 16),
        ("f64[2,3]{1,0:T(8,128)}", 48),
        ("f32[<=4,2]", 32),
        ("f32[0,9]", 0),
        ("(f32[2], (s64[1], token[]))", 16),
    ],
)
def test_shapes_have_the_bytes_of_their_kinds(shape: str, size: int) -> None:
    text = f"ENTRY %e () -> f32[] {{\n  ROOT %a.1 = {shape} custom-call()\n}}\n"
    assert hlo_sizes(text).output_bytes == size


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 19), max_size=3)), max_size=20))
def test_the_peak_is_that_of_a_count_step_by_step(steps: list[tuple[int, list[int]]]) -> None:
    """Against a reference that looks, at each operation, which values made so far are still to be read."""
    uses = [[at for at in ats if at < index] for index, (_, ats) in enumerate(steps)]
    lines = [
        f"  %v.{index} = u8[{size}] op({', '.join(f'u8[] %v.{at}' for at in uses[index])})"
        for index, (size, _) in enumerate(steps)
    ]
    text = "\n".join(["ENTRY %e () -> f32[] {", *lines, "}"])
    peak = 0
    for now in range(len(steps)):
        needed = {at for later in range(now, len(steps)) for at in uses[later]} | {now}
        peak = max(peak, sum(steps[at][0] for at in needed if at <= now))
    assert hlo_sizes(text).unfused_peak_bytes == peak
