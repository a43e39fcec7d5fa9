"""Teachers: a model in this process (`local`), behind a server (`http`), or from a cache (`cached`)."""
