"""A worker: its loop, the heartbeat, the program of a trial and what came of it."""
