"""What a sweep found, in tables and lines of text."""
