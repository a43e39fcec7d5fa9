"""What is looked at before any compute: settings, memory, disk, time and money. Called by `__main__`.

`sanity` needs no torch and is also asked by `api.check`, so by `sweep init`. The others look at the machine.
This file imports nothing.
"""
