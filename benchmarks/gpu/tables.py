"""Tables of what was measured, and the targets. Called by `benchmarks.gpu`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from benchmarks.gpu.observer import Result


def table(shape: str, results: Sequence[Result]) -> str:
    """Return the Markdown table of one shape."""
    done = [result for result in results if "error" not in result]
    by_name = {result["case"]: result for result in done}
    lines = []
    if done:
        first = done[0]
        lines += [
            f"{shape}: {first['parameters'] / 1e6:.0f}M parameters, batch {first['batch']}, "
            f"{first['device']}, {first['dtype']}, torch {first['torch']}\n"
        ]
    lines += [
        "| case | ms | tokens/s | MFU | forward and backward, optimizer (ms) | their operations "
        "| peak GiB | compile s | syncs | losses differ from eager's by |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        if "error" in result:
            lines.append(f"| {result['case']} | {result['error']} |" + " |" * 8)
            continue
        parts, counts = result["parts_ms"], result["operations"]
        names = ("forward and backward", "optimizer")
        kind = result["case"].split(",")[0].partition(" fp8")[0]
        reference = by_name.get(f"{kind}, eager")
        lines.append(
            f"| {result['case']} | {result['ms']:.1f} | {result['tokens_per_second']:,.0f} "
            f"| {_or_dash(result['mfu'], '.1%')} "
            f"| {', '.join(_or_dash(parts.get(name), '.1f') for name in names)} "
            f"| {', '.join(_or_dash(counts.get(name), ',d') for name in names)} "
            f"| {result['peak_gib']:.1f} | {result['compile_seconds']:.1f} "
            f"| {_or_dash(result['syncs'], 'd')} "
            f"| {_or_dash(reference and difference(result, reference), '.1e')} |"
        )
    return "\n".join(lines)


def difference(result: Result, reference: Result) -> float:
    """Return the largest relative difference between the first losses of two cases."""
    pairs = zip(result["losses"], reference["losses"], strict=False)
    return max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What is aimed at: a quantity of the results of one shape, and its bound."""

    text: str
    value: Callable[[Mapping[str, Result]], float]
    bound: float
    above: bool = True


def _time_ratio(upper: str, lower: str) -> Callable[[Mapping[str, Result]], float]:
    return lambda results: results[upper]["ms"] / results[lower]["ms"]


def _mfu(case: str) -> Callable[[Mapping[str, Result]], float]:
    return lambda results: results[case]["mfu"]


TARGETS = {
    "smollm2_135m": (
        Target(text="MFU of Stage 2", value=_mfu("ternary, compiled"), bound=0.35),
        Target(text="MFU of Stage 1.9", value=_mfu("stage 1.9, compiled"), bound=0.35),
    ),
    "qwen3_1_7b": (
        Target(text="MFU of Stage 2", value=_mfu("ternary, compiled"), bound=0.50),
        Target(text="MFU of Stage 1.9", value=_mfu("stage 1.9, compiled"), bound=0.45),
        Target(
            text="speed of FP8 over bfloat16",
            value=_time_ratio("ternary, compiled", "ternary fp8, compiled"),
            bound=1.1,
        ),
    ),
}
OF_EVERY_SHAPE = (
    Target(
        text="time of ternary over full precision, compiled",
        value=_time_ratio("ternary, compiled", "full precision, compiled"),
        bound=1.1,
        above=False,
    ),
    Target(
        text="speed of compiled over eager, ternary",
        value=_time_ratio("ternary, eager", "ternary, compiled"),
        bound=2.0,
    ),
)


def targets(results: Sequence[Result]) -> str:
    """Return a Markdown table of the targets, for the shapes that were measured."""
    lines = ["| shape | target | bound | measured | met |", "|---|---|---|---|---|"]
    for shape in dict.fromkeys(result["shape"] for result in results):
        cases = {result["case"]: result for result in results if result["shape"] == shape}
        for target in (*TARGETS.get(shape, ()), *OF_EVERY_SHAPE):
            try:
                value = target.value(cases)
                met = value >= target.bound if target.above else value <= target.bound
                verdict = "yes" if met else "**no**"
            except (KeyError, TypeError):  # a case that failed or was left out, a rate that is not known
                value, verdict = None, "not measured"
            sign = "≥" if target.above else "≤"
            measured = _or_dash(value, ".2f")
            lines.append(f"| {shape} | {target.text} | {sign} {target.bound:.2f} | {measured} | {verdict} |")
    return "\n".join(lines)
