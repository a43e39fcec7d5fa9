"""Store in a bucket of S3 or of a service that speaks its protocol, through obstore."""
