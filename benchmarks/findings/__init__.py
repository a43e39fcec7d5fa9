"""Reproduction of the research notebook's findings: `make findings` trains, compares and writes the page.

`setting` holds the conditions, `runs` trains them (and resumes), `claims`
turns runs into findings, `pictures` and `page` write `docs/explanation/findings.md`.
"""
