"""Live dashboard: `sweep dashboard` serves the sweeps of a storage to browsers.

`server` has the routes. A request goes to `pages`, `trial_pages` or `actions`; these read the `poller` of a
sweep, which `catalog` keeps, and hand values to templates.

What it shows is in the store, so any number of servers may run; a server itself remembers only what was last
done through it, and by whom.
"""
