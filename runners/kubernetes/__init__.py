"""Kubernetes: one Indexed Job for a pool. `runner` is the door, `job` writes the manifest, `kubectl` hands
it over."""
