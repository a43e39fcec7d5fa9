"""Gang: the hosts that share each trial, where one alone cannot hold it.

    host.py      which of them this is, from options or from the variables of what has started it
    channel.py   messages between two of them
    leader.py    the host of rank 0: the worker. It claims, heartbeats and reports, as any worker does
    member.py    every other host: it runs its processes of the leader's trial, and claims nothing

A gang has no state in the store: what its hosts tell one another goes over connections to the leader, and is
forgotten with them.
"""
