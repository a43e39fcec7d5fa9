"""Does what the research notebook found also show here? `make findings` trains, compares and writes the page.

`setting` says what is run, `runs` runs it (and goes on where it was stopped), `paired` compares by seed,
`claims` turns runs into findings, `pictures` and `page` write `docs/findings.md`.
"""
