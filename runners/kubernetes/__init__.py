"""Engine `kubernetes`: `runner` is its entry, `job` renders the manifest, `kubectl` calls the command."""
