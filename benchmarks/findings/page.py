"""`docs/findings.md`, from the findings. Pure; golden-tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.findings.claims import Finding

_METHOD = """\
Each condition is trained with every seed; a seed decides the order of the text, so runs of one seed are
pairs. A table gives the mean over the seeds, and the smallest and largest in brackets. `holds`: every seed
agrees with the claim; `mostly holds`: all but one do; `reversed`: every seed (or all but one) says the
opposite; `does not show`: anything else. p is that of a two-sided sign test; five seeds cannot give less than
0.062.
"""


def page(findings: Iterable[Finding], *, facts: Sequence[tuple[str, str]], pictures: str) -> str:
    """Return the page as Markdown.

    Args:
        findings: in the order of the page.
        facts: name and value of the runs' circumstances.
        pictures: folder of the pictures, relative to the page.
    """
    parts = [
        "# Findings",
        "What the research notebook found about two-stage ternary training, asked again of runs made here. "
        "Written by `make findings`; the verdicts are computed from the runs.",
        _table(("", ""), facts),
        _METHOD.rstrip(),
    ]
    for number, finding in enumerate(findings, start=1):
        parts += [
            f"## {number}. {finding.claim}",
            "\n".join(f"- {verdict}" for verdict in finding.verdicts),
            _table(finding.header, finding.rows),
        ]
        if finding.series:
            parts.append(f"![{finding.y_title}]({pictures}/{finding.name}.svg)")
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
