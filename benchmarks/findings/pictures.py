"""One SVG per finding: every seed a mark, a line through the means. Readable in black and white."""

from __future__ import annotations

import statistics
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.findings.claims import Finding

_STYLES = (("#2f80d0", "o", "-"), ("#d9730d", "^", "--"))
# Text stays text (searchable, small), and the same runs give the same file.
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "findings", "font.size": 10, "font.family": "sans-serif"}


def draw(finding: Finding, path: Path) -> None:
    """Write the finding's picture."""
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        for series, (colour, marker, line) in zip(finding.series, _STYLES, strict=False):
            xs = [x for x, values in zip(series.x, series.values, strict=True) for _ in values]
            ys = [y for values in series.values for y in values]
            axes.plot(xs, ys, marker, color=colour, markersize=4, alpha=0.45, markeredgewidth=0)
            means = [statistics.fmean(values) for values in series.values]
            # Named positions are not on a scale, so no line connects them.
            axes.plot(
                series.x,
                means,
                linestyle="none" if finding.ticks else line,
                marker=marker,
                color=colour,
                markersize=7,
                fillstyle="none",
                label=f"{series.label}: mean of {len(series.values[0])} seeds",
            )
        axes.set_xlabel(finding.x_title)
        axes.set_ylabel(finding.y_title)
        if finding.ticks:
            axes.set_xticks(range(len(finding.ticks)), finding.ticks)
            axes.margins(x=0.15)
        axes.grid(color="#868e96", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
