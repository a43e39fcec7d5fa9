"""Live dashboard: `sweep dashboard` serves the sweeps of a storage to browsers.

    server.py       the application, its limits and its life
    security.py     hosts, token, CSRF tokens, headers
    connections.py  connections that do not read
    readonly.py     a store that refuses to write
    reader.py       one sweep's records, read in a thread
    poller.py       one poller per sweep, however many clients
    catalog.py      the sweeps under the storage
    summary.py      numbers of a sweep's page
    workers.py      workers and pools
    sharing.py      tree of prefixes, search over paid compute
    trial_table.py  sort, filter, search, pages
    run_files.py    files of an attempt, by exact names
    curves.py       training curves from `metrics.jsonl`
    charts.py       curves as SVG
    points.py       points of the front
    pages.py        pages that show
    events.py       server-sent events
    actions.py      pages that change a sweep; imported with --control only

What it shows is in the store, so any number of servers may run; a server itself remembers only what was last
done through it, and by whom.
"""
