"""Where a teacher's answers come from: a model in this process, a server (`http`), a cache (`cached`)."""
