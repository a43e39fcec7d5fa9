"""Import of earlier results, diagnosis, repair, renaming and removal of sweeps.

    tables → admission → importing                      a table of results → checked rows → completed trials
    machine, access, inventory → diagnostics → doctor   the present state → findings
    inventory → repair                                  the present state → steps
    inventory → removal → renaming                      a whole sweep

`sweeps.cli.upkeep` calls the last module of the first three lines, `sweeps.operations.lifetime` the last two
of the fourth.
"""
