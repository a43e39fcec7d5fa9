"""Entry point of `python -m sweeps`, which is the command `sweep`."""

from sweeps.cli import main

main()
