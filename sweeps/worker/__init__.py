"""Worker: its loop, the run of a trial, the heartbeat, the trial's program and its outcome."""
