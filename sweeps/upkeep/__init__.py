"""Import of earlier results, diagnosis, repair, renaming and removal of sweeps.

    tables → admission → importing                      a table of results → checked rows → completed trials
    machine, inventory → diagnostics → doctor           the present state → findings, with steps that repair
    inventory → removal → renaming                      a whole sweep

`sweeps.cli.upkeep` calls the last module of the first two lines, and carries out steps by `repair`;
`sweeps.operations.lifetime` calls the last two of the third.
"""
