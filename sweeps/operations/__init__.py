"""Operations: all that a person can do to a sweep, for the command line, Python, Hydra and the dashboard.

Each returns what it found or did, and raises `SweepError`s; none prints, asks or exits. Messages for people
go to `on_notice`, a line each, before the work goes on.
"""
