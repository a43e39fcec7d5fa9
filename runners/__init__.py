"""Runners: they start `sweep worker` processes on an engine, and leave handing out trials to the store."""
