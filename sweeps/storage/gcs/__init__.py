"""Store in a bucket of Google Cloud Storage."""
