"""Import of earlier results, diagnosis and repair: `sweep import`, `doctor`, `repair`.

    tables → admission → importing                      a table of results → checked rows → completed trials
    machine, access, inventory → diagnostics → doctor   the present state → findings
    inventory → repair                                  the present state → steps

`sweeps.cli.upkeep` calls the last module of each line.
"""
