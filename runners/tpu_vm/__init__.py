"""Engine `tpu-vm`: `runner` is its entry, `decide` its pure policy, `client` the user of Google's package."""
