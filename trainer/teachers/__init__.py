"""Teachers behind a server (`http`) and in a cache (`cached`); one in this process is in `stages.teacher`."""
