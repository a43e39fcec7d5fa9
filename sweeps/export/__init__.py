"""Export of trials: as a table, and in the formats of other tools."""
