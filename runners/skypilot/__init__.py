"""SkyPilot: a managed job for each worker. `runner` is the door, `task` writes YAML, `sky` hands it over."""
