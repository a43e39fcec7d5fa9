"""Analysis: pure functions over the exported trials table; they import no other room.

Read in the order of the data: `table` (a file becomes a DataFrame) → `pareto`, `hypervolume`, `efficiency`,
`attainment` (arrays in, positions and shares out) → `summary`, `uncertainty` (what `sweep pareto` prints) →
`power_law`, `curve`, `lengths`, `budget` (what a budget buys) → `seeds`, `paired` (repeated seeds) →
`costs` → `headline`, `failures`, `insight`, `contents` (what the report says) → `figures`,
`insight_figures`, `report` (the page) → `pictures`, `notebook` (notebooks).

Only the page imports plotly and jinja2, only the notebooks matplotlib, only fits and intervals scipy.
"""
