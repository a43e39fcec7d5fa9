"""`ray`: workers as tasks of a Ray job on a cluster that exists.

`runner` speaks to the cluster through the `ray` command; `pool_job` is the job's entry point, in the cluster.
"""
