"""Engine `ray`: `runner` is its entry, `pool_job` the entry point of the Ray job in the cluster."""
