"""Pure functions over numbers: fronts, efficiency, curves, intervals, paired comparisons."""
