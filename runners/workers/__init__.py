"""Starting worker processes on this machine, watching them, and starting them again."""
