"""Engine `skypilot`: `runner` is its entry, `task` renders the YAML, `sky` calls the command."""
