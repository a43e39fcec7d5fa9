"""Run folders of trials: upload to a bucket and download from there."""
