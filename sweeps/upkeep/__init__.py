"""Bringing earlier results in, finding out what is wrong, mending it: `sweep import`, `doctor`, `repair`.

    tables → admission → importing          a table of results → checked rows → completed trials
    machine, access, survey → … → doctor    what there is → findings
    survey → repair                         what there is → what to do about it

`sweeps.cli.upkeep` calls the last file of each line; nothing else in `sweeps` knows this package.
"""
