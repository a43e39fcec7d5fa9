"""Operations: all that a person can do to a sweep, for the command line, Python, Hydra and the dashboard.

    opening.py       the sweep that a storage and a name mean
    creation.py      make a sweep, and raise the limits of one that exists
    limits.py        change the limits of a sweep
    control.py       pause, resume and stop it; retry and abandon trials
    confirming.py    plan a confirmation
    confirmation.py  its progress and its answer, for people and programs
    lifetime.py      archive, rename and delete
    listing.py       the sweeps under a storage
    status.py        a sweep's totals, what runs, and what people did to it
    asktell.py       report the result of a trial that was asked for
    snapshots.py     list and remove stored ends of stages
    report.py        the document that a report is made of
    pools.py         where the files of a pool of workers lie

Each returns what it found or did, and raises `SweepError`s; none prints, asks or exits. Messages for people
go to `on_notice`, a line each, before the work goes on.
"""
