"""Student and teacher as modules: loading, SubLN, depth, layer mapping, and the saved student."""
