"""`docs/explanation/findings.md`, from the findings. Pure; golden-tested."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from benchmarks.findings.claims import Finding

_METHOD = """\
Each condition is trained with every seed; a seed decides the order of the text, so runs of one seed are
pairs. A table gives the mean over the seeds, and the smallest and largest in brackets. `holds`: every seed
agrees with the claim; `mostly holds`: all but one do; `reversed`: every seed (or all but one) says the
opposite; `does not show`: anything else. p is that of a two-sided sign test; five seeds cannot give less than
0.062, so read the ranges over seeds. Of many comparisons some agree in all seeds by chance. All lengths have
the trainer's learning rates; rates of their own [reversed a comparison](answer.md#learning-rates) elsewhere.
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
        "What an earlier research notebook found about two-stage ternary training of SmolLM2-135M, asked "
        "again of runs made here, which are smaller and shorter. Written by `make findings`; the verdicts "
        "are computed from the runs.",
        markdown_table(("", ""), facts),
        _METHOD.rstrip(),
    ]
    for number, finding in enumerate(findings, start=1):
        parts.append(_section(number, finding))
        if finding.series:
            parts.append(f"![{finding.y_title}]({pictures}/{finding.name}.svg)")
    return "\n\n".join(parts) + "\n"


def numbered(text: str, finding: Finding) -> str:
    """Return a page with the section of this finding in the place of the one it has, or after its last."""
    sections = re.split(r"(?m)^(?=## )", text.rstrip("\n") + "\n\n")
    claims = [section.partition("\n")[0].partition(". ")[2] for section in sections]
    number = claims.index(finding.claim) if finding.claim in claims else len(sections)
    sections[number : number + 1] = [_section(number, finding) + "\n\n"]
    return "".join(sections).rstrip("\n") + "\n"


def _section(number: int, finding: Finding) -> str:
    verdicts = "\n".join(f"- {verdict}" for verdict in finding.verdicts)
    return f"## {number}. {finding.claim}\n\n{verdicts}\n\n{markdown_table(finding.header, finding.rows)}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
