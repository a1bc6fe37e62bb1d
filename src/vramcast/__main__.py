"""`python -m vramcast`."""

from vramcast.cli.main import main

main()
