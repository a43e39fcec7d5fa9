"""Analysis: pure functions over the exported trials table; they import no other room.

Read in the order of the data: `table` (a file becomes a DataFrame) → `pareto` and `efficiency` (arrays in,
positions out) → `summary` (what `sweep pareto` prints) → `figures` → `report` (what `sweep report` writes).
Only `figures` and `report` import plotly and jinja2.
"""
