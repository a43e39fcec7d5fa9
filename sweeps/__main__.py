"""`python -m sweeps` is the command `sweep`."""

from sweeps.cli import main

main()
