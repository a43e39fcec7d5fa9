"""Run folders of trials, mirrored into a bucket and fetched from there."""
