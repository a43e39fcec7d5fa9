"""Results of a sweep as tables and lines of text."""
