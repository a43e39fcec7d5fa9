"""Worker: its loop, the run of a trial, the heartbeat, uploads and early stopping."""
