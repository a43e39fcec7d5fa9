"""Analysis of the exported table of trials; it imports no other package of the project.

In the order of the data: `table` (a file becomes a checked `TrialsTable`) → `statistics` (arrays in,
positions and shares out) → `summaries` (the results of `sweep pareto` and of the report) → `report` (the page
and the pictures) → `notebook`.

Only figures import altair and vl_convert, only the page jinja2, only fits and intervals scipy.
"""
